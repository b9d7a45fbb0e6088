"""Whether processes live and do their work: heartbeats, readiness, metrics, and workers that are stuck."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from structlog.testing import capture_logs

from actions.monitoring import installation
from runtime import ids
from runtime.broker import CHECK_TASK, CHECKS, LATER, QUEUES, SUMMARIES, celery_app
from store.operations import processes
from store.operations.processes import Activity, Beat, Process
from tests.support.eventually import eventually
from tests.support.processes import Product, ended, product
from tests.support.service.in_process import Chat, Workers
from tests.support.service.in_process import chat_alone as chat
from tests.support.service.running_api import RunningApi, running_api
from tests.support.talk import exchanges, request, rounds
from worker.process.losses import Losses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.settings import Settings

__all__ = ["chat", "product"]


def seen(chat: Chat) -> dict[int, Any]:
    """Return the rows of processes by process id."""
    return {row.pid: row for row in chat.query("select * from processes")}


class TestHeartbeats:
    def test_processes_tell_what_they_are_and_leave_when_they_end(self, product: Product) -> None:
        product.env |= {"PALIMPSEST_HEARTBEAT_SECONDS": "0.1", "PALIMPSEST_SUMMARIZER": "extractive"}
        with (
            product.worker("checks", "--concurrency", "3") as checks,
            product.worker("summaries", "--concurrency", "5") as summaries,
            product.worker("beat") as sweeper,
        ):
            pids = {each.process.pid for each in (checks, summaries, sweeper)}
            eventually(lambda: set(seen(product.chat)) >= pids, 60)
            rows = seen(product.chat)
            row = rows[checks.process.pid]
            assert (row.kind, row.queues, row.slots) == ("worker", ["checks"], 3)
            assert row.host
            assert row.version
            assert row.seen_at >= row.started_at
            row = rows[summaries.process.pid]
            assert (row.kind, row.queues, row.slots) == ("worker", ["summaries"], 5)
            row = rows[sweeper.process.pid]
            assert (row.kind, row.queues, row.slots) == ("beat", [], 1)
            eventually(lambda: seen(product.chat)[sweeper.process.pid].seen_at > row.seen_at)
            assert seen(product.chat)[sweeper.process.pid].started_at == row.started_at
            assert [each.end() for each in (checks, summaries, sweeper)] == [0, 0, 0]
        assert seen(product.chat) == {}

    def test_a_task_under_way_shows(self, product: Product) -> None:
        product.env |= {"PALIMPSEST_HEARTBEAT_SECONDS": "0.1"}
        conversation = product.chat.begin()
        product.chat.append(conversation, [request("go"), *rounds(6, 600)])
        with (
            product.worker("checks", "--concurrency", "1") as worker,
            product.chat.database.transaction(product.chat.tenant_id) as connection,
        ):
            connection.execute(text("select from conversations where id = :c for update"), {"c": conversation})
            product.wake(conversation)
            (row,) = eventually(lambda: [row for row in seen(product.chat).values() if row.busy], 60)
            assert row.pid == worker.process.pid
            assert row.oldest_task_at <= row.seen_at
            connection.rollback()
            eventually(lambda: not seen(product.chat)[worker.process.pid].busy)
            assert worker.end() == 0

    def test_a_row_that_was_removed_is_made_again(self, chat: Chat) -> None:
        process = Process(ids.new_id(), "worker", "here", 1, [CHECKS], "1", 2)
        with chat.database.transaction(None) as connection:
            processes.beat(connection, process, Activity())
            processes.beat(connection, process, Activity(2, 30.0))
            assert processes.alive(connection, 5) == [process]
            assert processes.forget(connection, 60) == 0
            connection.execute(text("update processes set seen_at = now() - interval '61 s'"))
            assert processes.alive(connection, 5) == []
            assert processes.forget(connection, 60) == 1
            processes.beat(connection, process, Activity(1, 30.0))
            (row,) = connection.execute(text("select *, seen_at - oldest_task_at as age from processes")).all()
            assert (row.busy, row.age.total_seconds()) == (1, 30)
            processes.leave(connection, process.id)
            assert processes.alive(connection, 5) == []

    def test_a_process_that_a_backup_is_too_old_for_says_what_is_lost_and_one_that_was_taken_off_nothing(
        self, chat: Chat
    ) -> None:
        own, other = (Process(ids.new_id(), "worker", "here", pid, [CHECKS], "1", 2) for pid in (1, 2))
        losses = Losses()

        def beat(process: Process) -> Beat:
            with chat.database.transaction(None) as connection:
                return processes.beat(connection, process, Activity())

        def met_without(*gone: Process) -> list[Any]:
            with chat.database.transaction(None) as connection:
                for each in gone:
                    processes.leave(connection, each.id)
            with capture_logs() as logs:
                losses.note(beat(own))
            return [(log["since"], log["through"]) for log in logs if log["event"] == "commits.lost"]

        backed_up = beat(other).at
        stored = beat(own)
        losses.note(stored)
        assert met_without(own) == [(backed_up.isoformat(), stored.at.isoformat())]
        assert met_without() == []
        beat(other)
        assert met_without(own) == []
        assert met_without(own, other) == []


@pytest.fixture
def api(
    make_settings: Callable[..., Settings], broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningApi]:
    monkeypatch.setattr(installation, "CACHE_SECONDS", 0)
    with running_api(make_settings(broker_url=broker_url)) as running:
        yield running


def ready(api: RunningApi) -> tuple[int, str, dict[str, str]]:
    with api.client() as client:
        answer = client.get("/readyz")
    document = answer.json()
    return answer.status_code, document["status"], document["services"]


def metrics(api: RunningApi) -> dict[tuple[str, ...], float]:
    """Return the gauges of the installation: name and label values."""
    with api.client() as client:
        families = text_string_to_metric_families(client.get("/metrics").text)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def be_there(chat: Chat, kind: processes.Kind, *queues: str, slots: int = 1) -> Process:
    process = Process(ids.new_id(), kind, "here", 1, queues, "1", slots)
    with chat.database.transaction(None) as connection:
        processes.beat(connection, process, Activity())
    return process


class TestReadiness:
    def test_every_part_is_named_and_missing_workers_only_degrade(self, api: RunningApi, chat: Chat) -> None:
        missing = {"checks": "missing", "summaries": "missing", "beat": "missing"}
        fine = {"database": "ok", "migrations": "ok", "broker": "ok"}
        assert ready(api) == (200, "degraded", fine | missing)
        worker = be_there(chat, "worker", CHECKS)
        be_there(chat, "beat")
        assert ready(api) == (200, "degraded", fine | {"checks": "ok", "summaries": "missing", "beat": "ok"})
        be_there(chat, "worker", *QUEUES)
        assert ready(api) == (200, "ok", fine | dict.fromkeys(missing, "ok"))
        chat.query(
            "update processes set seen_at = now() - interval '16 s' where kind = 'worker' and id <> :i", i=worker.id
        )
        assert ready(api)[2]["summaries"] == "missing"

    @pytest.mark.fault("F26")
    @pytest.mark.parametrize(("revision", "status", "state"), [("0002", 503, "behind"), ("9999_later", 200, "ok")])
    def test_a_schema_that_is_older_than_the_code_cannot_be_served_from(
        self, api: RunningApi, database_url: str, revision: str, status: int, state: str
    ) -> None:
        with psycopg.connect(database_url) as connection:
            connection.execute("update alembic_version set version_num = %s", (revision,))
        code, _, parts = ready(api)
        assert (code, parts["migrations"], parts["database"]) == (status, state, "ok")

    def test_a_database_that_was_never_migrated(
        self, make_settings: Callable[..., Settings], empty_database_url: str, broker_url: str
    ) -> None:
        with running_api(make_settings(database_url=empty_database_url, broker_url=broker_url)) as api:
            code, status, parts = ready(api)
        assert (code, status, parts["migrations"], parts["checks"]) == (503, "unavailable", "behind", "unknown")


class TestMetrics:
    def test_what_is_left_to_do_in_numbers(
        self, api: RunningApi, chat: Chat, make_settings: Callable[..., Settings], broker_url: str
    ) -> None:
        idle = metrics(api)
        for name in ("due_checks", "oldest_due_check_seconds", "expired_leases", "dead_runs", "beats_alive"):
            assert idle[(f"palimpsest_{name}",)] == 0
        for state in ("queued", "running"):
            assert idle["palimpsest_active_runs", state] == 0
        for queue in QUEUES:
            assert idle["palimpsest_workers_alive", queue] == idle["palimpsest_queue_depth", queue] == 0

        workers = Workers(chat)
        due, running, queued, dead = (chat.begin({"input_token_budget": 0}) for _ in range(4))
        for conversation in (running, queued, dead):
            chat.append(conversation, exchanges(12, 200))
        expired = workers.begin(running)
        workers.check(queued)
        lease = workers.begin(dead)
        chat.query("update runs set state = 'dead', finished_at = now() where id = :r", r=lease.run_id)
        chat.query("update conversations set check_due_at = null")
        chat.append(due, [request("hello")])
        chat.query("update conversations set check_due_at = now() - interval '90 s' where id = :c", c=due)
        chat.expire_lease(expired.run_id)
        be_there(chat, "worker", CHECKS, slots=2)
        be_there(chat, "worker", *QUEUES, slots=64)
        be_there(chat, "beat")
        app = celery_app(make_settings(broker_url=broker_url), "test")
        app.send_task(CHECK_TASK, args=[[]], queue=CHECKS)
        app.send_task(CHECK_TASK, args=[[]], queue=CHECKS, priority=LATER)
        app.close()

        busy = metrics(api)
        assert busy[("palimpsest_due_checks",)] == 1
        assert 90 <= busy[("palimpsest_oldest_due_check_seconds",)] < 600
        assert busy["palimpsest_active_runs", "running"] == busy[("palimpsest_expired_leases",)] == 1
        assert busy["palimpsest_active_runs", "queued"] == busy[("palimpsest_dead_runs",)] == 1
        assert (busy["palimpsest_workers_alive", CHECKS], busy["palimpsest_workers_alive", SUMMARIES]) == (2, 1)
        assert (busy["palimpsest_worker_slots", CHECKS], busy["palimpsest_worker_slots", SUMMARIES]) == (66, 64)
        assert busy[("palimpsest_beats_alive",)] == 1
        assert (busy["palimpsest_queue_depth", CHECKS], busy["palimpsest_queue_depth", SUMMARIES]) == (2, 0)

    def test_nothing_old_stands_for_what_cannot_be_known(
        self, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(installation, "CACHE_SECONDS", 0)
        nowhere = make_settings(database_url="postgresql://127.0.0.1:1/x", broker_url="redis://127.0.0.1:1/0")
        with running_api(nowhere) as api:
            names = {name for name, *_ in metrics(api)}
        assert "palimpsest_turns_total" in names
        assert not names & {"palimpsest_due_checks", "palimpsest_workers_alive", "palimpsest_queue_depth"}

    def test_many_scrapes_are_one_look(
        self, make_settings: Callable[..., Settings], broker_url: str, chat: Chat
    ) -> None:
        with running_api(make_settings(broker_url=broker_url)) as api:
            before = metrics(api)
            be_there(chat, "beat")
            assert metrics(api)[("palimpsest_beats_alive",)] == before[("palimpsest_beats_alive",)] == 0


class TestLeases:
    def test_a_call_over_the_limit_keeps_its_lease_no_longer(self, chat: Chat) -> None:
        workers = Workers(chat)
        conversation = chat.begin({"input_token_budget": 0})
        chat.append(conversation, exchanges(12, 200))
        lease = workers.hand_over(conversation)
        workers.resources.leases.lease_seconds = 0.03
        workers.resources.leases.limit_seconds = 0
        before = chat.run(conversation).lease_expires_at
        with workers.resources.leases.keeping(lease):
            workers.resources.wait(lambda: threading.Event().wait(0.2), lease)
        assert chat.run(conversation).lease_expires_at == before


@pytest.mark.slow
def test_a_pool_process_over_the_time_limit_is_replaced_and_its_check_done(product: Product) -> None:
    product.env |= {"PALIMPSEST_TASK_TIME_LIMIT_SECONDS": "2"}
    conversation = product.chat.begin()
    product.chat.append(conversation, [request("go"), *rounds(6, 600)])
    with product.worker("checks", "--concurrency", "1") as worker, product.worker("beat") as beat:
        with product.chat.database.transaction(product.chat.tenant_id) as connection:
            connection.execute(text("select from conversations where id = :c for update"), {"c": conversation})
            product.wake(conversation)
            eventually(lambda: "Hard time limit" in worker.log.read_text(), 60)
            connection.rollback()
        eventually(ended(product, conversation), 60)
        assert worker.process.poll() is None
        assert (worker.end(), beat.end()) == (0, 0)
    assert product.chat.run(conversation).state == "committed"
