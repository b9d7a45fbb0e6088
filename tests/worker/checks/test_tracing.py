"""Traces: from the request through the wake-up to the run and its requests to the model; nothing when they are off."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
import redis
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr, ValidationError

from runtime import ids
from runtime import settings as settings_module
from runtime.broker import CHECKS, celery_app, queue_keys
from runtime.settings import Settings
from runtime.spans import ids_of
from runtime.tracing import HEADER, TRACING, header, here, span
from tests.conftest import make_tenant
from tests.support.eventually import eventually
from tests.support.processes import START_SECONDS, Product, ended, product
from tests.support.servers.otlp_collector import Collector, otlp_collector
from tests.support.service.in_process_worker import task_services
from tests.support.service.running_api import Service, running_api
from worker.celery import app
from worker.sweeping.sweeper import Sweeper
from worker.tasks import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.conftest import Tenant
    from tests.support.servers.loopback_model import LoopbackModel

__all__ = ["product"]

CANARY = "plover-in-the-words"
CALLER = f"00-{'a' * 32}-{'b' * 16}-01"
TURNS = "/v1/conversations/{conversation_id}/turns"
SMALL = {"input_token_budget": 0, "compaction_threshold_tokens": 4_000, "min_savings_tokens": 100}


@pytest.fixture
def spans(database_url: str) -> Iterator[InMemorySpanExporter]:
    """What is traced in this process."""
    exporter = InMemorySpanExporter()
    TRACING.start(Settings(database_url=SecretStr(database_url), tracing=True), "test", SimpleSpanProcessor(exporter))
    yield exporter
    TRACING.stop()


@pytest.fixture
def traced(database_url: str, broker_url: str, model: LoopbackModel, spans: InMemorySpanExporter) -> Iterator[Service]:
    """A running API that traces into this process."""
    settings = Settings(
        database_url=SecretStr(database_url),
        broker_url=SecretStr(broker_url),
        summarizer="anthropic",
        anthropic_api_key=SecretStr("sk-test"),
        anthropic_base_url=model.url,
    )
    tenant = make_tenant(database_url, "acme")
    with running_api(settings) as api, api.client(tenant.key) as client:
        yield Service(api, settings, database_url, tenant.id, client, client)


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [each for each in spans.get_finished_spans() if each.name == name]


def place(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


def long_turn(service: Service, path: str, **headers: str) -> UUID:
    """Append what needs a summary; return the id of the request."""
    texts = [f"{number}: {CANARY} {'lorem ipsum ' * 90}" for number in range(24)]
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    answer = service.client.post(f"{path}/turns", json={"messages": messages}, headers=headers)
    assert answer.status_code == 201, answer.text
    parsed = ids.parse("req", answer.headers["request-id"])
    assert parsed is not None
    return parsed


def deliver(service: Service, queue: str = CHECKS) -> list[Mapping[str, Any]]:
    """Carry out the messages that wait in a queue as a worker would; return their headers."""
    items = []
    with (
        task_services(service.settings),
        redis.Redis.from_url(service.settings.broker_url.get_secret_value()) as client,
    ):
        eventually(lambda: sum(client.llen(key) for key in queue_keys(queue)))
        for key in queue_keys(queue):
            while (raw := client.rpop(key)) is not None:
                message = json.loads(raw)
                args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
                items.append(message["headers"])
                task = app.tasks[message["headers"]["task"]]
                task.push_request(args=args, kwargs=kwargs, **message["headers"])
                try:
                    task(*args, **kwargs)
                finally:
                    task.pop_request()
    return items


class TestInProcess:
    def test_one_trace_from_the_request_to_the_model(self, traced: Service, spans: InMemorySpanExporter) -> None:
        path = traced.conversation(policy=SMALL)
        request_id = long_turn(traced, path)
        deliver(traced)
        deliver(traced, "summaries")
        (request,) = named(spans, f"POST {TURNS}")
        assert place(request) == ids_of(request_id)
        assert request.attributes == {
            "http.request.method": "POST",
            "http.route": TURNS,
            "http.response.status_code": 201,
            "palimpsest.request_id": ids.external("req", request_id),
        }
        trace_id = request.context.trace_id
        (check,) = named(spans, "palimpsest.check")[:1]
        assert check.parent is not None
        assert (check.context.trace_id, check.parent.span_id) == place(request)
        runs = named(spans, "run")
        assert len(runs) == 2  # begun by the check, and handed over to who waits for models
        (asked,) = named(spans, "messages.create")
        assert {each.context.trace_id for each in (*runs, asked)} == {trace_id}
        assert asked.parent is not None
        assert asked.parent.span_id == place(runs[1])[1]
        assert asked.attributes is not None
        assert asked.attributes["palimpsest.outcome"] == "ok"
        assert str(asked.attributes["palimpsest.provider_request_id"]).startswith("req_loopback")
        for run in runs:
            assert run.attributes is not None
            assert run.attributes["palimpsest.request_id"] == ids.external("req", request_id)
            assert linked(run) == set()  # it is in the request's own trace

    def test_one_task_for_many_requests_links_to_each(self, traced: Service, spans: InMemorySpanExporter) -> None:
        paths = [traced.conversation(policy=SMALL) for _ in range(3)]
        requests = {long_turn(traced, path) for path in paths}
        conversations = [str(ids.parse("conv", path.rpartition("/")[2])) for path in paths]
        # As the API sends it where the turns come within one interval.
        places = {
            conversation: "00-{:032x}-{:016x}-01".format(*ids_of(request_id))
            for conversation, request_id in zip(conversations, sorted(requests), strict=True)
        }
        with task_services(traced.settings):
            check.push_request(**header(places))
            try:
                check(conversations)
            finally:
                check.pop_request()
        (task,) = named(spans, "palimpsest.check")
        assert task.parent is None
        assert linked(task) == {ids_of(request_id) for request_id in requests}
        runs = named(spans, "run")
        assert len(runs) == 3
        for run in runs:
            own = ids.parse("req", str((run.attributes or {})["palimpsest.request_id"]))
            assert own is not None
            assert run.context is not None
            assert run.context.trace_id == place(task)[0]
            assert linked(run) == {ids_of(own)}

    def test_the_api_tells_a_task_where_its_conversations_come_from(self, traced: Service) -> None:
        paths = [traced.conversation(policy=SMALL) for _ in range(3)]
        names = {ids.parse("conv", path.rpartition("/")[2]): ids_of(long_turn(traced, path)) for path in paths}
        by_name: dict[str, str] = {}

        def all_told() -> bool:
            for message in deliver(traced):
                by_name.update(message[HEADER])
            return len(by_name) == 3

        eventually(all_told)
        for conversation, (trace_id, span_id) in names.items():
            assert by_name[str(conversation)].startswith(f"00-{trace_id:032x}-{span_id:016x}-")

    def test_a_run_finds_its_request_when_the_message_is_lost(
        self, traced: Service, spans: InMemorySpanExporter, broker_url: str
    ) -> None:
        path = traced.conversation(policy=SMALL)
        request_id = long_turn(traced, path)
        conversation = ids.parse("conv", path.rpartition("/")[2])
        with task_services(traced.settings):
            check([str(conversation)])  # as the sweep's message has it: from nowhere
        (run,) = named(spans, "run")
        assert run.context.trace_id != ids_of(request_id)[0]
        assert linked(run) == {ids_of(request_id)}

    def test_a_sweep_is_traced_and_what_it_wakes_leads_back_to_it(
        self, traced: Service, spans: InMemorySpanExporter, broker_url: str
    ) -> None:
        request_id = long_turn(traced, traced.conversation(policy=SMALL))
        with redis.Redis.from_url(broker_url) as client:
            eventually(lambda: client.llen(queue_keys(CHECKS)[0]))
            client.flushall()
        settings = traced.settings.model_copy(update={"check_overdue_seconds": 0.0})
        sender = celery_app(settings, "beat")
        sweeper = Sweeper(settings, sender)
        sweeper.sweep()
        sweeper.close()
        sender.close()
        deliver(traced)
        (sweep,) = named(spans, "sweep")
        assert sweep.parent is None
        assert sweep.attributes is not None
        assert (sweep.attributes["palimpsest.checks"], sweep.attributes["palimpsest.runs"]) == (1, 0)
        assert "palimpsest.failed" not in sweep.attributes
        (check,) = named(spans, "palimpsest.check")
        assert check.parent is not None
        assert (check.context.trace_id, check.parent.span_id) == place(sweep)
        (run,) = named(spans, "run")
        assert linked(run) == {ids_of(request_id)}

    def test_a_caller_that_traces_has_the_request_in_its_own_trace(
        self, traced: Service, spans: InMemorySpanExporter
    ) -> None:
        traced.client.get("/v1/tenant", headers={"traceparent": CALLER})
        eventually(lambda: bool(named(spans, "GET /v1/tenant")))
        (request,) = named(spans, "GET /v1/tenant")
        assert request.parent is not None
        assert (request.context.trace_id, request.parent.span_id) == (int("a" * 32, 16), int("b" * 16, 16))

    @pytest.mark.parametrize(
        "traceparent",
        ["", "00", f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01", CANARY, CALLER.upper()],
    )
    def test_what_is_no_traceparent_begins_a_trace(
        self, traced: Service, spans: InMemorySpanExporter, traceparent: str
    ) -> None:
        answer = traced.client.get("/v1/tenant", headers={"traceparent": traceparent})
        eventually(lambda: bool(named(spans, "GET /v1/tenant")))
        (request,) = named(spans, "GET /v1/tenant")
        request_id = ids.parse("req", answer.headers["request-id"])
        assert request_id is not None
        assert place(request) == ids_of(request_id)
        assert request.parent is None

    def test_failures_are_marked_and_nothing_that_was_written_is_told(
        self, traced: Service, spans: InMemorySpanExporter, model: LoopbackModel
    ) -> None:
        path = traced.conversation(policy=SMALL, system=CANARY, metadata={"note": CANARY}, external_id=CANARY)
        long_turn(traced, path)
        traced.client.get(f"/v1/{CANARY}?{CANARY}={CANARY}", headers={CANARY: CANARY, "traceparent": CANARY})
        traced.client.request("PROPFIND", f"/v1/conversations/{CANARY}")
        deliver(traced)
        deliver(traced, "summaries")
        with pytest.raises(ValueError, match=CANARY), span("failing"):
            raise ValueError(CANARY)
        (failing,) = named(spans, "failing")
        assert failing.status.description == "ValueError"
        assert named(spans, "_OTHER unmatched")
        written = " ".join(each.to_json() for each in spans.get_finished_spans())
        assert "messages.create" in written
        for secret in (CANARY, CANARY.upper(), "lorem", "sk-test", str(model.url)):
            assert secret not in written

    def test_what_the_broker_says_of_traces_is_not_trusted(self, traced: Service, spans: InMemorySpanExporter) -> None:
        for told in (CANARY, 7, {"a": 7}, {"a": CANARY}, {"a": CALLER, "b": None}, [CALLER]):
            check.push_request(**{HEADER: told})
            try:
                with task_services(traced.settings):
                    check([])
            finally:
                check.pop_request()
        assert len(named(spans, "palimpsest.check")) == 6
        assert CANARY not in " ".join(each.to_json() for each in spans.get_finished_spans())

    def test_ids_of_a_request_are_spread_as_samplers_expect(self) -> None:
        low = [ids_of(ids.new_id())[0] & (2**64 - 1) for _ in range(400)]
        assert 120 < sum(each < 2**63 for each in low) < 280


class TestOff:
    def test_there_are_no_traces_and_no_message_is_longer(self, service: Service) -> None:
        assert TRACING.traces is None
        assert here() is None
        with span("nothing", a=1) as nothing:
            nothing.set(b=2)
        service.append(service.conversation(), {"role": "user", "content": "Hello."})

        def messages() -> Sequence[bytes]:
            with redis.Redis.from_url(service.settings.broker_url.get_secret_value()) as client:
                found: Sequence[bytes] = client.lrange(queue_keys(CHECKS)[0], 0, -1)
                return found

        eventually(lambda: bool(messages()))
        assert all(HEADER.encode() not in message for message in messages())

    def test_without_the_extra_it_cannot_be_switched_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(settings_module, "find_spec", lambda _: None)
        with pytest.raises(ValidationError, match=r"extra `otel` is not installed"):
            Settings(tracing=True)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with otlp_collector() as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_processes_send_one_trace_and_log_one_id(product: Product, tenant: Tenant, collector: Collector) -> None:
    env = collector.env
    with (
        product.api(env=env) as api,
        product.worker("checks", "--concurrency", "1", env=env) as checks,
        product.worker("summaries", "--concurrency", "2", env=env) as summaries,
        api.client(tenant.key) as client,
    ):
        response = client.post("/v1/conversations", json={"policy": SMALL}).json()["id"]
        service = Service(api, product.chat.settings, "", tenant.id, client, client)  # type: ignore[arg-type] # its client is used
        request_id = long_turn(service, f"/v1/conversations/{response}")
        conversation = ids.parse("conv", response)
        assert conversation is not None
        eventually(ended(product, conversation), START_SECONDS)
        name = ids.external("req", request_id)
        of_request = f"{ids_of(request_id)[0]:032x}"
        wanted = {f"POST {TURNS}", "run", "messages.create", "palimpsest.run"}

        def traced() -> set[str]:
            return {each.name for each in collector.spans if of_request in each.text or each.trace_id == of_request}

        eventually(lambda: wanted <= traced(), START_SECONDS)
        assert {each.service for each in collector.spans} == {"palimpsest-api", "palimpsest-worker"}
        run = client.get(f"/v1/conversations/{response}/runs").json()["data"][0]
        assert run["request_id"] == name
        (row,) = product.chat.query("select request_id from runs")
        assert row.request_id == request_id
        (asked,) = [each for each in summaries.events if each["event"] == "model.requested"]
        assert asked["request_id"] == name
        assert asked["run_id"] == run["id"]
        assert asked["provider_request_id"].startswith("req_loopback")
        (provider,) = {
            each.attributes["palimpsest.provider_request_id"]
            for each in collector.spans
            if each.name == "messages.create"
        }
        assert provider == asked["provider_request_id"]
        assert {each["request_id"] for each in summaries.events if each["event"] == "run.ended"} == {name}
        assert [checks.end(), summaries.end()] == [0, 0]
    assert CANARY not in " ".join(each.text for each in collector.spans)
