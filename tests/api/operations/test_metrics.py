"""What API, workers and sweeper count, and where Prometheus finds it."""

from __future__ import annotations

import os
import re
import runpy
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from uuid import uuid4

import httpx2
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from actions.monitoring import installation
from cli.local.embedded import free_port
from compaction.quality.verdict import Reason
from compaction.steps.runs import RunKind, RunReason, RunState, RunTrigger
from runtime.settings import Settings
from runtime.token_prices import TokenPrices
from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.processes import START_SECONDS, Product, ended, long_talk, product
from worker.metrics import OTHER, Pipe, WorkerMetrics

if TYPE_CHECKING:
    from tests.conftest import Tenant
    from tests.support.servers.loopback_model import LoopbackModel
    from tests.support.service.running_api import Service

__all__ = ["product"]

DOCS = ROOT / "docs"
PAGE: Any = runpy.run_path(str(DOCS / "metrics.py"))
"""The generator of the page about metrics."""
LABELS = {
    "call",
    "context",
    "direction",
    "door",
    "kind",
    "layer",
    "provider",
    "method",
    "model",
    "outcome",
    "part",
    "path",
    "pool",
    "queue",
    "reason",
    "route",
    "scope",
    "state",
    "status",
    "step",
    "table",
    "task",
    "which",
    "why",
}
"""All that a label may be called: each has a bounded number of values that nobody outside chooses."""

TURNS = "/v1/conversations/{conversation_id}/turns"
CONTEXT = "/v1/conversations/{conversation_id}/context"
HELLO = {"role": "user", "content": "Hello."}


def metrics(service: Service) -> dict[tuple[str, ...], float]:
    """Return every sample: its name and its labels' values."""
    with service.api.client() as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    families = text_string_to_metric_families(answer.text)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_requests_are_counted_by_route_and_status(service: Service) -> None:
    path = service.conversation()
    before = metrics(service)
    service.append(path, HELLO)
    service.client.post(f"{path}/turns", json={})
    service.client.post(f"/v1/conversations/conv_{'0' * 32}/turns", json={"messages": [HELLO]})
    service.client.get(f"{path}/context")
    service.client.head(f"{path}/context")
    service.client.get("/nothing/like/this")
    service.client.delete(f"{path}/turns")

    def gained(*key: str) -> float:
        return metrics(service)[key] - before.get(key, 0)

    name, seconds = "palimpsest_http_requests_total", "palimpsest_http_request_duration_seconds_count"
    for status in ("201", "422", "404"):
        assert gained(name, "POST", TURNS, status) == 1
    assert gained(seconds, "POST", TURNS) == 3
    assert gained(name, "GET", CONTEXT, "200") == 1
    assert gained(name, "HEAD", CONTEXT, "200") == 1
    assert gained(name, "GET", "unmatched", "404") == 1
    assert gained(name, "DELETE", "unmatched", "405") == 1


def test_turns_and_wakeups_are_counted(service: Service) -> None:
    path = service.conversation()
    before = metrics(service)
    for _ in range(3):
        headers = {"idempotency-key": "k"}
        assert service.client.post(f"{path}/turns", json={"messages": [HELLO]}, headers=headers).status_code == 201
    service.append(path, HELLO)
    after = metrics(service)
    assert after["palimpsest_turns_total", "appended"] - before["palimpsest_turns_total", "appended"] == 2
    assert after["palimpsest_turns_total", "replayed"] - before["palimpsest_turns_total", "replayed"] == 2
    eventually(
        lambda: metrics(service)["palimpsest_wakeups_total", "sent"] > before["palimpsest_wakeups_total", "sent"]
    )


def test_no_label_names_a_conversation_a_tenant_or_a_path(service: Service) -> None:
    service.append(service.conversation(user_ref="somebody"), HELLO)
    labels = {value for _, *values in metrics(service) for value in values}
    assert not any(re.search(r"[0-9a-f]{32}|somebody|acme|like", value) for value in labels)
    assert "process_cpu_seconds_total" in {name for name, *_ in metrics(service)}


Samples = dict[tuple[str, ...], float]


def read(text: str) -> Samples:
    """Return every sample of an exposition: its name and its labels' values, by the names of these."""
    return {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def scraped(port: int, token: str | None = None) -> Samples:
    """Scrape a worker or beat, once it answers."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    items: list[httpx2.Response] = []

    def answers() -> bool:
        try:
            items.append(httpx2.get(f"http://127.0.0.1:{port}/metrics", headers=headers))
        except httpx2.TransportError:
            return False
        return True

    eventually(answers, START_SECONDS)
    assert items[-1].status_code == 200, items[-1].text
    return read(items[-1].text)


class TestApi:
    def test_runs_that_requests_end_are_counted_once_they_have_ended(self, service: Service) -> None:
        """A restore ends the active run and is one itself, a fork too; an erasure ends the active run."""
        before = metrics(service)

        def gained(state: str, reason: str) -> float:
            key = ("palimpsest_runs_total", reason, state)
            return metrics(service).get(key, 0) - before.get(key, 0)

        path = service.conversation()
        service.append(path, HELLO)
        wanted = {"strategy": "summary"}
        assert service.client.post(f"{path}/compactions", json=wanted).status_code == 202
        assert service.client.post(f"{path}/restore", json={"version": 9}).status_code == 404
        assert (gained("skipped", "head_moved"), gained("committed", "other")) == (0, 0)
        assert service.client.post(f"{path}/restore", json={"version": 0}).status_code == 200
        assert (gained("skipped", "head_moved"), gained("committed", "other")) == (1, 1)
        assert service.client.post(f"{path}/fork", json={"through_seq": 0}).status_code == 201
        assert gained("committed", "other") == 2
        assert service.client.post(f"{path}/compactions", json=wanted).status_code == 202
        for _ in range(2):
            assert service.client.delete(path).status_code < 300
        assert gained("failed", "erased") == 1
        assert sum(each[0] == "palimpsest_runs_total" for each in metrics(service)) <= 3

    def test_what_turns_brought_is_counted_once(self, service: Service) -> None:
        path = service.conversation()
        before = metrics(service)
        body = {"messages": [HELLO, {"role": "assistant", "content": "Hi."}]}
        for _ in range(2):
            answer = service.client.post(f"{path}/turns", json=body, headers={"idempotency-key": uuid4().hex[:8]})
            assert answer.status_code == 201
        size = len(answer.request.content)
        after = metrics(service)
        assert after["palimpsest_turn_messages_total",] - before["palimpsest_turn_messages_total",] == 4
        assert after["palimpsest_turn_bytes_total",] - before["palimpsest_turn_bytes_total",] == 2 * size
        service.client.post(f"{path}/turns", json=body, headers={"idempotency-key": "again"})
        service.client.post(f"{path}/turns", json=body, headers={"idempotency-key": "again"})
        assert metrics(service)["palimpsest_turn_messages_total",] - after["palimpsest_turn_messages_total",] == 2
        sent = ("palimpsest_wakeup_messages_total", "sent")
        eventually(lambda: metrics(service)[sent] > before[sent])

    def test_reported_overflows_are_counted_by_what_was_done(self, service: Service) -> None:
        path = service.conversation()
        service.append(path, HELLO)
        before = metrics(service)
        assert service.client.post(f"{path}/overflow", json={}).status_code == 409
        key = ("palimpsest_overflows_total", "cannot_shrink")
        assert before[key] == 0  # an alert sees the first one only as a change
        assert metrics(service)[key] == 1

    def test_pools_are_shown_and_waiting_for_them_is_counted(self, service: Service) -> None:
        service.append(service.conversation(), HELLO)
        found = metrics(service)
        for pool in ("hot", "queries"):
            assert found["palimpsest_pool_size", pool] == service.settings.database_pool_size
            assert sum(found["palimpsest_pool_connections", pool, state] for state in ("used", "idle")) >= 1
            assert found["palimpsest_pool_waits_total", pool] >= 0
            assert found["palimpsest_pool_timeouts_total", pool] == 0

    def test_what_waits_and_since_when_is_shown(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(installation, "CACHE_SECONDS", 0.0)
        calm = metrics(service)
        for name in ("waiting_summary", "overdue_summary", "due_delivery"):
            assert calm[f"palimpsest_oldest_{name}_seconds",] == 0
        path = service.conversation()
        service.append(path, HELLO)
        response = service.client.post(f"{path}/compactions", json={})
        assert response.status_code == 202, response.text
        run = response.json()["run_id"].removeprefix("run_")
        with psycopg.connect(service.database_url, autocommit=True) as connection:
            connection.execute(
                "update runs set queue = 'summaries', queued_at = now() - interval '1 hour' where id = %s", (run,)
            )
            connection.execute(
                """
                insert into waiting_summaries (run_id, tenant_id, conversation_id, not_before, created_at)
                select id, tenant_id, conversation_id, now() - interval '10 minutes', now() - interval '2 hours'
                from runs where id = %s
                """,
                (run,),
            )
            connection.execute(
                """
                insert into model_usage (tenant_id, day, model_calls, input_tokens, output_tokens, cost_usd)
                values (%s, '2020-01-01', 2, 300, 40, 1.25)
                """,
                (service.tenant_id,),
            )
        eventually(lambda: metrics(service)["palimpsest_waiting_summaries",] == 1)
        found = metrics(service)
        assert 3_600 <= found["palimpsest_oldest_queued_run_seconds", "summaries"] < 4_000
        assert 7_200 <= found["palimpsest_oldest_waiting_summary_seconds",] < 7_600
        assert found["palimpsest_overdue_summaries",] == 1
        assert 600 <= found["palimpsest_oldest_overdue_summary_seconds",] < 1_000
        # Of a day long gone: no process has it, the audit does.
        assert found["palimpsest_recorded_model_calls_total",] == 2
        assert found["palimpsest_recorded_model_tokens_total", "input"] == 300
        assert found["palimpsest_recorded_model_tokens_total", "output"] == 40
        assert found["palimpsest_recorded_model_cost_usd_total",] == 1.25

    def test_sums_that_take_long_take_nothing_along(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        """They grow with tenants and days, for as long as the installation lives."""
        monkeypatch.setattr(installation, "CACHE_SECONDS", 0.0)
        monkeypatch.setattr(installation, "SUM_SECONDS", 0.5)
        monkeypatch.setattr(installation, "SUMS_SHARE", 0)
        with psycopg.connect(service.database_url, autocommit=True) as connection:
            row = connection.execute("select pg_get_functiondef('model_totals'::regproc)").fetchone()
            assert row is not None
            before = str(row[0])
            connection.execute(
                before.replace("from public.model_usage", "from pg_sleep(60), public.model_usage").encode()
            )
            try:
                # Those that were read before answer for a moment.
                eventually(
                    lambda: not any(name.startswith("palimpsest_recorded_model") for name, *_ in metrics(service))
                )
                found = metrics(service)
            finally:
                connection.execute(before.encode())
        assert {"palimpsest_due_checks", "palimpsest_dead_runs"} <= {name for name, *_ in found}

    @pytest.mark.slow
    @pytest.mark.timeout(240)
    def test_several_processes_count_together(self, product: Product, tenant: Tenant) -> None:
        with product.api("--workers", "2") as api:
            children = eventually_two(api.process.pid)
            count = "palimpsest_turns_total", "appended"
            for _ in range(20):
                # A connection each: either process may take it.
                with api.client(tenant.key) as client:
                    path = client.post("/v1/conversations", json={}).json()["id"]
                    turns = client.post(f"/v1/conversations/{path}/turns", json={"messages": [HELLO]})
                    assert turns.status_code == 201
            assert {read(httpx2.get(f"{api.url}/metrics").text)[count] for _ in range(10)} == {20}
            size = "palimpsest_pool_size", "hot"
            per_process = Settings().database_pool_size
            eventually(lambda: read(httpx2.get(f"{api.url}/metrics").text)[size] == 2 * per_process, START_SECONDS)
            os.kill(children[0], signal.SIGKILL)
            eventually(lambda: children[0] not in children_of(api.process.pid), START_SECONDS)

            def after() -> Samples:
                try:
                    return read(httpx2.get(f"{api.url}/metrics").text)
                except httpx2.TransportError:  # the connection was the dead one's
                    return {}

            eventually(lambda: after().get(size) == 2 * per_process, START_SECONDS)
            assert after()[count] == 20


def children_of(pid: int) -> list[int]:
    """Return the processes that serve, or work, of those that a process has started."""
    children = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            # One that ends meanwhile is none.
            with suppress(FileNotFoundError, ProcessLookupError):
                if b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    children.append(int(child))
    return children


def eventually_two(pid: int) -> list[int]:
    eventually(lambda: len(children_of(pid)) == 2, START_SECONDS)
    return children_of(pid)


class TestWorkers:
    @pytest.mark.timeout(240)
    def test_a_pool_of_processes_is_scraped_as_one_and_outlives_its_members(self, product: Product) -> None:
        port, token = free_port(), "scrape-me"
        env = {
            "PALIMPSEST_SUMMARIZER": "extractive",
            "PALIMPSEST_METRICS_TOKEN": token,
            "PALIMPSEST_METRICS_PORT": str(port),
        }
        with product.worker("checks", "--concurrency", "2", env=env) as worker:
            handed_over = "palimpsest_run_attempts_total", "done"
            product.wake(long_talk(product))
            # The run is for the workers that wait for models, and there are none.
            eventually(lambda: scraped(port, token).get(handed_over) == 1, START_SECONDS)
            found = scraped(port, token)
            assert found["palimpsest_checks_total", "begun"] == 1
            eventually(lambda: scraped(port, token).get(("palimpsest_tasks_total", "done", "palimpsest.check")) == 1)
            assert found["palimpsest_metrics_lost_total",] == 0
            assert found["palimpsest_tasks_under_way",] == 0
            assert "palimpsest_model_requests_total" not in {name for name, *_ in found}
            for path, headers, status in (
                ("/metrics", {}, 401),
                ("/metrics", {"authorization": "Bearer other"}, 401),
                ("/", {"authorization": f"Bearer {token}"}, 404),
            ):
                answer = httpx2.get(f"http://127.0.0.1:{port}{path}", headers=headers)
                assert answer.status_code == status
                assert answer.headers["server"] == "palimpsest"
            for child in children_of(worker.process.pid):
                os.kill(child, signal.SIGKILL)
            product.wake(long_talk(product))
            eventually(lambda: scraped(port, token).get(handed_over) == 2, START_SECONDS)
            assert worker.end() == 0

    @pytest.mark.timeout(240)
    def test_threads_count_what_models_cost_and_what_sweeps_found(self, product: Product, model: LoopbackModel) -> None:
        port = free_port()
        with (
            product.worker("checks,summaries", "--metrics-port", str(port)) as worker,
            product.worker("beat") as beat,
        ):
            conversation = long_talk(product)  # nobody wakes a worker but the sweep
            eventually(ended(product, conversation), START_SECONDS)
            eventually(lambda: ("palimpsest_runs_total", "", "committed") in scraped(port))
            found = scraped(port)
            name = product.chat.settings.model_of("anthropic")
            run = product.chat.run(conversation)
            steps = product.chat.steps(run.id)
            assert found["palimpsest_model_calls_total", name] == sum(step.model_calls for step in steps) >= 1
            told = sum(step.model_input_tokens or 0 for step in steps)
            assert found["palimpsest_model_tokens_total", "input", name] == told > 0
            assert found["palimpsest_model_cost_usd_total", name] == pytest.approx(
                float(sum(step.cost_usd or 0 for step in steps))
            )
            assert found["palimpsest_model_requests_total", name, "ok"] == len(model.requests)
            assert found["palimpsest_model_request_duration_seconds_count", name] == len(model.requests)
            assert found["palimpsest_pool_size", "worker"] == product.chat.settings.database_pool_size
            assert found["palimpsest_sweep_found_total", "checks"] >= 1
            assert found["palimpsest_sweep_failures_total", "checks"] == 0  # an alert sees a first one as a change
            assert found["palimpsest_webhook_attempts_total", "dead"] == 0
            assert found["palimpsest_sweeps_total",] >= 1
            assert [worker.end(), beat.end()] == [0, 0]

    @pytest.mark.timeout(240)
    def test_a_port_that_is_taken_keeps_nobody_from_working(self, product: Product) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            product.worker("beat", env={"PALIMPSEST_METRICS_PORT": str(taken.getsockname()[1])}) as sweeper,
        ):
            eventually(lambda: "metrics.not_served" in sweeper.log.read_text(), START_SECONDS)
            assert "Address already in use" in sweeper.log.read_text()
            assert sweeper.end() == 0

    def test_counts_come_through_the_pipe_whole_and_losses_are_told(self) -> None:
        pipe, here, child = Pipe(), WorkerMetrics(), WorkerMetrics()
        child.pass_on(pipe)
        lines = pipe.lines()
        child.run_ended(RunState.COMMITTED, None)
        here.take(*next(lines))
        assert here.registry.get_sample_value("palimpsest_runs_total", {"state": "committed", "reason": ""}) == 1
        assert child.registry.get_sample_value("palimpsest_runs_total", {"state": "committed", "reason": ""}) is None
        written = 0
        while not pipe.lost:
            child.run_ended(RunState.COMMITTED, None)
            written += 1
        for _ in range(written - 1):
            here.take(*next(lines))
        child.run_ended(RunState.FAILED, "model_timeout")
        for _ in range(2):
            here.take(*next(lines))
        assert here.registry.get_sample_value("palimpsest_metrics_lost_total") == 1
        assert here.registry.get_sample_value("palimpsest_runs_total", {"state": "committed", "reason": ""}) == written


class TestLabels:
    def test_every_label_is_one_of_a_few_whose_values_are_bounded(self) -> None:
        names = {label for section in PAGE["families"]() for each in section for label in each.labels}
        assert names == LABELS

    def test_names_and_units_are_what_prometheus_asks_for(self) -> None:
        described = [each for section in PAGE["families"]() for each in section]
        assert len({(each.name, each.labels) for each in described}) >= 70
        for each in described:
            assert re.fullmatch(r"palimpsest_[a-z][a-z_]*", each.name), each
            assert each.meaning.endswith("."), each
            assert (each.type == "counter") == each.name.endswith("_total"), each
            assert not re.search(r"(millis|_ms\b|minutes)", each.name), each

    def test_a_strange_reason_or_model_is_no_label(self) -> None:
        metrics = WorkerMetrics()
        metrics.name_models(Settings(summarizer_prices={"own-model": TokenPrices(input=1, output=1)}))  # type: ignore[arg-type]
        metrics.run_ended(RunState.FAILED, "what the user said")
        metrics.run_ended(RunState.FAILED, None)
        metrics.requested("what the user said", "ok", 1.0)
        metrics.requested("own-model", "what the model said", 1.0)
        metrics.requested("claude-haiku-4-5-20251001", "model_timeout", 1.0)
        metrics.requested("claude-opus-99-what-the-user-said", "ok", 1.0)

        def values(name: str, label: str) -> set[str]:
            return {
                sample.labels[label]
                for family in metrics.registry.collect()
                for sample in family.samples
                if sample.name == name
            }

        assert values("palimpsest_runs_total", "reason") == {OTHER, ""}
        assert values("palimpsest_model_requests_total", "model") == {OTHER, "own-model", "claude-haiku-4-5"}
        assert values("palimpsest_model_requests_total", "outcome") == {OTHER, "ok", "model_timeout"}

    def test_the_words_for_runs_are_those_that_are_documented(self) -> None:
        words: dict[str, set[str]] = {}
        table = ""
        for line in (DOCS / "runs.md").read_text().splitlines():
            if line.startswith("| `"):
                words[table] |= set(re.findall(r"`(\w+)`", line.split("|")[1]))
            elif line.startswith("| "):
                table = line.split("|")[1].strip()
                words.setdefault(table, set())
        assert words["code"] - {"forked", "imported", "version_N"} == set(RunReason)
        assert words["trigger"] == set(RunTrigger)
        assert words["kind"] == set(RunKind)
        assert words["state"] == set(RunState)
        assert OTHER not in {*RunReason, *get_args(Reason)}


def test_the_page_about_metrics_is_current() -> None:
    assert (DOCS / "metrics.md").read_text() == PAGE["page"](), "make docs"
