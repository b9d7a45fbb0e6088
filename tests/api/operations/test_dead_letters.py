"""Dead runs: listed with their reason and last error, and begun over by hand, one by one or many at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
import redis
from typer.testing import CliRunner

from cli.conversations.runs import Wanted, run_runs
from cli.main import app
from runtime import ids
from runtime.broker import CHECKS, SUMMARIES, queue_keys
from store.runs import runs
from tests.conftest import make_tenant
from tests.support.eventually import eventually
from tests.support.service.in_process import Chat, Workers
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import running_api
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    import httpx2

    from runtime.settings import Settings
    from tests.conftest import Tenant


class Product(NamedTuple):
    """A tenant's conversations, the workers' side of them, and the API in front."""

    settings: Settings
    chat: Chat
    workers: Workers
    client: httpx2.Client
    stranger: httpx2.Client

    def queued(self, queue: str) -> int:
        """Return the messages that wait in a queue."""
        with redis.Redis.from_url(self.settings.broker_url.get_secret_value()) as client:
            return sum(int(client.llen(key)) for key in queue_keys(queue))

    def die(self, conversation: UUID, error: str = "OperationalError") -> str:
        """Let a run of a conversation die in the queue `summaries`; return its id as clients see it."""
        lease = self.workers.hand_over(conversation)
        with self.chat.database.transaction(self.chat.tenant_id) as connection:
            runs.give_back(connection, lease, error)
            assert runs.requeue(connection, lease.run_id, max_attempts=1) == "dead"
        return ids.external("run", lease.run_id)


@pytest.fixture
def product(
    make_settings: Callable[..., Settings], broker_url: str, database_url: str, tenant: Tenant
) -> Iterator[Product]:
    settings = make_settings(broker_url=broker_url)
    other = make_tenant(database_url, "rival")
    with (
        running_api(settings) as api,
        Chat(settings, tenant.id) as chat,
        api.client(tenant.key) as client,
        api.client(other.key) as stranger,
    ):
        yield Product(settings, chat, Workers(chat, StubSummarizer()), client, stranger)


def long_talk(product: Product) -> UUID:
    conversation = product.chat.begin({"input_token_budget": 0})
    product.chat.append(conversation, exchanges(12, 200))
    return conversation


def listed(client: httpx2.Client, **query: Any) -> list[dict[str, Any]]:
    answer = client.get("/v1/runs", params=query)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["data"]
    return rows


def test_runs_are_listed_over_all_conversations_and_by_state(product: Product) -> None:
    dead = product.die(long_talk(product))
    product.workers.settle(committed := long_talk(product))
    done = ids.external("run", product.chat.run(committed).id)
    assert [run["id"] for run in listed(product.client)] == [done, dead]
    assert [run["id"] for run in listed(product.client, state="committed")] == [done]
    assert listed(product.client, state="failed") == []
    (run,) = listed(product.client, state="dead")
    assert (run["id"], run["state"], run["reason"], run["error"]) == (
        dead,
        "dead",
        "attempts_exhausted",
        "OperationalError",
    )
    assert run["finished_at"] is not None
    assert run == product.client.get(f"/v1/runs/{dead}").json()
    assert listed(product.stranger) == []
    assert problem(product.client.get("/v1/runs", params={"state": "ended"}), 422, "invalid", "state")


def test_lists_are_paged(product: Product) -> None:
    items = [product.die(long_talk(product)) for _ in range(5)]
    newest_first = items[::-1]
    page = product.client.get("/v1/runs", params={"state": "dead", "limit": 2}).json()
    assert [run["id"] for run in page["data"]] == newest_first[:2]
    assert page["has_more"]
    older = product.client.get("/v1/runs", params={"state": "dead", "limit": 3, "after_id": page["last_id"]}).json()
    assert [run["id"] for run in older["data"]] == newest_first[2:]
    assert not older["has_more"]
    newer = listed(product.client, state="dead", before_id=newest_first[2])
    assert [run["id"] for run in newer] == newest_first[:2]
    problem(product.client.get("/v1/runs", params={"after_id": "conv_x"}), 400, "bad_cursor", "after_id")


def test_a_dead_run_is_begun_over(product: Product) -> None:
    conversation = long_talk(product)
    run_id = product.die(conversation)
    held = product.chat.row(conversation)
    assert held.summary_hold > 0
    product.workers.settle(conversation)
    assert len(product.chat.runs(conversation)) == 1  # its death holds the conversation back

    answer = product.client.post(f"/v1/runs/{run_id}/retry")
    assert answer.status_code == 202
    assert answer.json() == {"run_ids": [run_id], "has_more": False}
    assert answer.headers["location"] == f"/v1/runs/{run_id}"
    run = product.chat.run(conversation)
    assert (run.state, run.queue, run.attempts, run.reason, run.error) == (
        "queued",
        SUMMARIES,
        0,
        None,
        "OperationalError",
    )
    assert (run.started_at, run.finished_at) == (None, None)
    row = product.chat.row(conversation)
    assert (row.summary_hold, row.tool_results_hold) == (0, 0)
    eventually(lambda: product.queued(SUMMARIES) == 1)

    product.workers.woken.append(run.id)
    product.workers.summarize()
    run = product.chat.run(conversation)
    assert (run.state, run.attempts, run.error) == ("committed", 1, None)


def test_only_what_is_dead_can_be_begun_over(product: Product) -> None:
    conversation = long_talk(product)
    run_id = product.die(conversation)
    problem(product.stranger.post(f"/v1/runs/{run_id}/retry"), 404, "not_found")
    problem(product.client.post(f"/v1/runs/run_{'0' * 32}/retry"), 404, "not_found")
    problem(product.client.post("/v1/runs/nonsense/retry"), 404, "not_found")
    assert product.client.post(f"/v1/runs/{run_id}/retry").status_code == 202
    problem(product.client.post(f"/v1/runs/{run_id}/retry"), 409, "run_not_dead")


def test_a_conversation_has_one_active_run_at_a_time(product: Product) -> None:
    conversation = long_talk(product)
    run_id = product.die(conversation)
    product.chat.append(conversation, exchanges(4, 200, start=12))
    active = product.workers.begin(conversation)
    problem(product.client.post(f"/v1/runs/{run_id}/retry"), 409, "run_active")
    answer = product.client.post("/v1/runs/retry", json={"state": "dead"})
    assert answer.json() == {"run_ids": [], "has_more": False}
    product.workers.dispatcher.execute(active)
    product.workers.summarize()
    assert product.client.post(f"/v1/runs/{run_id}/retry").status_code == 202


def test_a_hold_that_a_restore_set_stays(product: Product) -> None:
    conversation = long_talk(product)
    product.workers.settle(conversation)
    product.chat.append(conversation, exchanges(12, 200, start=20))
    run_id = product.die(conversation)
    path = f"/v1/conversations/{ids.external('conv', conversation)}"
    assert product.client.post(f"{path}/restore", json={"version": 0}).status_code == 200
    before = product.chat.row(conversation).summary_hold
    assert before > 0
    assert product.client.post(f"/v1/runs/{run_id}/retry").status_code == 202
    assert product.chat.row(conversation).summary_hold == before


def test_many_at_once_oldest_first_and_by_reason(product: Product) -> None:
    items = [product.die(long_talk(product)) for _ in range(4)]
    other = product.die(long_talk(product))
    product.chat.query("update runs set reason = 'worker_broken' where id = :r", r=ids.parse("run", other))
    answer = product.client.post("/v1/runs/retry", json={"state": "dead", "reason": "attempts_exhausted", "limit": 3})
    assert answer.status_code == 202
    assert answer.json() == {"run_ids": items[:3], "has_more": True}
    answer = product.client.post("/v1/runs/retry", json={"state": "dead"})
    assert answer.json() == {"run_ids": [items[3], other], "has_more": False}
    assert listed(product.client, state="dead") == []
    eventually(lambda: product.queued(SUMMARIES) == 5)
    assert product.queued(CHECKS) == 0


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/state"),
        ({"state": "failed"}, "/state"),
        ({"state": "dead", "limit": 0}, "/limit"),
        ({"state": "dead", "limit": 101}, "/limit"),
        ({"state": "dead", "reason": ""}, "/reason"),
        ({"state": "dead", "tenant": "x"}, "/tenant"),
    ],
)
def test_what_is_asked_has_to_be_clear(product: Product, body: dict[str, Any], pointer: str) -> None:
    assert problem(product.client.post("/v1/runs/retry", json=body), 422, "invalid", pointer)


def test_a_run_that_retention_takes_meanwhile_is_missing(product: Product, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = long_talk(product)
    run_id = product.die(conversation)
    identifier, database_url = ids.parse("run", run_id), product.settings.database_url.get_secret_value()
    with ThreadPoolExecutor() as threads:
        with psycopg.connect(database_url) as connection:
            connection.execute("select from conversations where id = %s for update", (conversation,))
            asked = threads.submit(run_runs, product.settings, Wanted(retry=[run_id]), as_json=True)
            eventually(lambda: product.chat.query("select 1 from pg_locks where not granted"))
            connection.execute("delete from run_steps where run_id = %s", (identifier,))
            connection.execute("delete from runs where id = %s", (identifier,))
        assert asked.result() == 1
    assert json.loads(capsys.readouterr().out) == [{"id": run_id, "outcome": "missing"}]


def test_a_run_for_a_context_block_is_begun_over_beside_the_conversations_own(product: Product) -> None:
    conversation = long_talk(product)
    path = f"/v1/conversations/{ids.external('conv', conversation)}"
    turn = {
        "messages": [request("read this")],
        "context": [{"source": "doc", "title": "Doc", "text": "# Part\n" + "word " * 20_000}],
    }
    assert product.client.post(f"{path}/turns", json=turn).status_code == 201
    (block,) = product.chat.runs(conversation)
    with product.chat.database.transaction(product.chat.tenant_id) as connection:
        assert runs.requeue(connection, block.id, max_attempts=0) == "dead"
    product.workers.begin(conversation)
    assert product.client.post(f"/v1/runs/{ids.external('run', block.id)}/retry").status_code == 202


class TestCommand:
    """`palimpsest runs`."""

    def run(
        self, product: Product, wanted: Wanted, capsys: pytest.CaptureFixture[str], *, as_json: bool = True
    ) -> tuple[int, Any]:
        capsys.readouterr()
        code = run_runs(product.settings, wanted, as_json=as_json)
        output = capsys.readouterr().out
        return code, json.loads(output) if as_json else output

    def test_dead_runs_of_all_tenants_or_of_one(self, product: Product, capsys: pytest.CaptureFixture[str]) -> None:
        conversation = long_talk(product)
        run_id = product.die(conversation)
        product.workers.settle(long_talk(product))
        for tenant in (None, "acme"):
            code, (run,) = self.run(product, Wanted(tenant, state="dead"), capsys)
            assert code == 0
            assert (run["id"], run["tenant"], run["reason"], run["error"]) == (
                run_id,
                "acme",
                "attempts_exhausted",
                "OperationalError",
            )
            assert run["conversation_id"] == ids.external("conv", conversation)
        assert self.run(product, Wanted("rival", state="dead"), capsys) == (0, [])
        assert len(self.run(product, Wanted(), capsys)[1]) == 2
        assert len(self.run(product, Wanted(limit=1), capsys)[1]) == 1
        code, table = self.run(product, Wanted(state="dead"), capsys, as_json=False)
        assert code == 0
        assert run_id in table
        assert "dead" in table

    def test_an_unknown_tenant(self, product: Product, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_runs(product.settings, Wanted("nobody"), as_json=True) == 1
        assert "'nobody'" in capsys.readouterr().err

    def test_one_by_one(self, product: Product, capsys: pytest.CaptureFixture[str]) -> None:
        run_id = product.die(long_talk(product))
        assert self.run(product, Wanted(retry=[run_id]), capsys) == (0, [{"id": run_id, "outcome": "queued"}])
        assert product.queued(SUMMARIES) == 1
        missing = f"run_{'0' * 32}"
        assert self.run(product, Wanted(retry=[run_id, missing, "x"]), capsys) == (
            1,
            [
                {"id": run_id, "outcome": "not_dead"},
                {"id": missing, "outcome": "missing"},
                {"id": "x", "outcome": "missing"},
            ],
        )

    def test_all_of_them(
        self, product: Product, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cli.conversations.runs.PAGE", 2)
        items = [product.die(long_talk(product)) for _ in range(5)]
        assert self.run(product, Wanted("rival", retry_all=True), capsys) == (0, [])
        code, outcomes = self.run(product, Wanted(retry_all=True), capsys)
        assert code == 0
        assert outcomes == [{"id": each, "outcome": "queued"} for each in items]
        assert product.queued(SUMMARIES) == 5

    def test_a_broker_that_is_away_keeps_nothing_from_being_queued(
        self, product: Product, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run_id = product.die(long_talk(product))
        away = product.settings.model_copy(
            update={"broker_url": type(product.settings.broker_url)("redis://127.0.0.1:1/0")}
        )
        assert run_runs(away, Wanted(retry=[run_id]), as_json=True) == 0
        output = capsys.readouterr()
        assert json.loads(output.out) == [{"id": run_id, "outcome": "queued"}]
        assert "the sweep will do it" in output.err

    def test_the_command_line(self, product: Product) -> None:
        run_id = product.die(long_talk(product))
        urls = {
            "PALIMPSEST_DATABASE_URL": product.settings.database_url.get_secret_value(),
            "PALIMPSEST_BROKER_URL": product.settings.broker_url.get_secret_value(),
        }

        def palimpsest(*arguments: str) -> tuple[int, str]:
            done = CliRunner().invoke(app, ["runs", *arguments], env=urls)
            return done.exit_code, done.stdout

        code, listing = palimpsest("--dead", "--tenant", "acme", "--json")
        assert code == 0
        assert [run["id"] for run in json.loads(listing)] == [run_id]
        assert palimpsest("--retry", run_id, "--retry-all")[0] == 2
        assert palimpsest("--retry", run_id) == (0, f"{run_id}  queued\n")
