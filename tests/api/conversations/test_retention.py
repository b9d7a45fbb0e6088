"""Retention: a conversation goes once its newest message is older than its `message_retention_days`, and no other."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
from prometheus_client import generate_latest

from cli.archive.export_file import check
from cli.installation.retention import run_retention
from runtime import ids
from store.archive import retention as stored_retention
from tests.api.conversations.test_erasure import converse, hold_more, places
from tests.support.service.console_client import make_key
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import conversation_at
from worker.database import Database
from worker.metrics import METRICS
from worker.sweeping import retention
from worker.sweeping.housekeeping import Housekeeper
from worker.sweeping.retention import MessageRetention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from tests.support.service.running_api import Service

CANARY: Final = "retentionWORD"


@contextmanager
def erasing(service: Service, **fields: Any) -> Iterator[MessageRetention]:
    """Yield the retention of a sweeper with these settings."""
    settings = type(service.settings)(**service.settings.model_dump(exclude_unset=True) | fields)
    database = Database(settings, "test", lock_timeout="1s")
    try:
        yield MessageRetention(settings, database)
    finally:
        database.close()


def do_round(service: Service, **fields: Any) -> int:
    with erasing(service, **fields) as sweeper:
        return sweeper.round()


@pytest.fixture(autouse=True)
def no_retention(service: Service) -> Iterator[None]:
    """Leave no conversation and no policy of a test to the next one."""
    yield
    set_tenant(service, None)
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute("update messages set created_at = now(), said_at = null")
        connection.execute("update conversations set created_at = now(), policy = policy - 'message_retention_days'")


def set_tenant(service: Service, days: int | None) -> None:
    answer = service.client.patch("/v1/tenant", json={"policy": {"message_retention_days": days}})
    assert answer.status_code == 200, answer.text


def make(service: Service, days: int | None = None, *said: datetime | None, client: Any = None) -> str:
    """Make a conversation with a message for each time, None for now; return its path."""
    client = client or service.client
    policy = {} if days is None else {"message_retention_days": days}
    made = client.post("/v1/conversations", json={"policy": policy})
    assert made.status_code == 201, made.text
    path = f"/v1/conversations/{made.json()['id']}"
    for time in said:
        told = {} if time is None else {"created_at": time.isoformat()}
        turn = {"messages": [{"role": "user", "content": "A question."}, {"role": "assistant", "content": "Yes."}]}
        assert client.post(f"{path}/turns", json=turn | told).status_code == 201
    return path


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def is_there(service: Service, path: str) -> bool:
    return bool(service.client.get(path).status_code == 200)


def let_pass(service: Service, path: str, days: int) -> None:
    """Let a conversation and all of its messages be stored so many days ago."""
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        for table, key in (("messages", "conversation_id"), ("conversations", "id")):
            statement = f"update {table} set created_at = now() - make_interval(days => %s) where {key} = %s"  # noqa: S608
            connection.execute(statement.encode(), (days, conversation_at(path)))


class TestAge:
    def test_none_goes_without_a_setting(self, service: Service) -> None:
        path = make(service, None, ago(20_000))
        assert do_round(service) == 0
        assert is_there(service, path)

    def test_the_newest_message_decides(self, service: Service) -> None:
        set_tenant(service, 30)
        old, young, mixed = (
            make(service, None, ago(30.1)),
            make(service, None, ago(29.9)),
            make(service, None, ago(90), None),
        )
        assert do_round(service) == 1
        assert [is_there(service, path) for path in (old, young, mixed)] == [False, True, True]

    def test_a_younger_message_before_an_older_one_keeps_it(self, service: Service) -> None:
        path = make(service, 30, None, ago(90))
        assert do_round(service) == 0
        assert is_there(service, path)

    def test_messages_without_a_time_are_as_old_as_their_storage(self, service: Service) -> None:
        path = make(service, 30, None)
        let_pass(service, path, 29)
        assert do_round(service) == 0
        let_pass(service, path, 31)
        assert do_round(service) == 1
        assert not is_there(service, path)

    def test_without_messages_it_is_as_old_as_itself(self, service: Service) -> None:
        path, young = make(service, 30), make(service, 30)
        let_pass(service, path, 31)
        assert do_round(service) == 1
        assert [is_there(service, each) for each in (path, young)] == [False, True]


class TestPrecedence:
    @pytest.mark.parametrize(
        ("installation", "tenant", "own", "goes"),
        [
            (60, None, None, True),
            (60, 0, None, False),
            (60, 200, None, False),
            (0, 60, None, True),
            (0, 60, 0, False),
            (0, 60, 200, False),
            (0, None, 60, True),
            (200, 200, 60, True),
        ],
    )
    def test_the_nearest_value_is_in_force(
        self, service: Service, installation: int, tenant: int | None, own: int | None, goes: bool
    ) -> None:
        set_tenant(service, tenant)
        path = make(service, own, ago(100))
        do_round(service, policy={"message_retention_days": installation})
        assert is_there(service, path) is not goes

    def test_a_strangers_tenant_keeps_what_it_has(self, service: Service) -> None:
        theirs = make(service, None, ago(100), client=service.stranger)
        set_tenant(service, 30)
        do_round(service)
        assert service.stranger.get(theirs).status_code == 200


@pytest.mark.parametrize("call", ["create", "change"])
def test_a_key_that_may_not_erase_may_not_say_when_to(service: Service, call: str) -> None:
    body = {"policy": {"message_retention_days": 1}}
    path = make(service, None)
    _, key = make_key(service, ["turns:write", "context:read"])
    with service.api.client(key) as backend:
        answer = backend.post("/v1/conversations", json=body) if call == "create" else backend.patch(path, json=body)
        problem(answer, 403, "forbidden")
        assert backend.patch(path, json={"policy": {"min_savings_tokens": 7}}).status_code == 200


@pytest.mark.parametrize("days", [-1, 1.5, "30", 36_501])
def test_impossible_values_are_refused(service: Service, days: Any) -> None:
    answer = service.client.patch("/v1/tenant", json={"policy": {"message_retention_days": days}})
    problem(answer, 422, "invalid", "/policy/message_retention_days")


def test_nothing_of_it_is_anywhere_and_a_tombstone_says_why(service: Service) -> None:
    path = converse(service, CANARY, f"user of {CANARY}")
    hold_more(service, path, CANARY)
    let_pass(service, path, 31)
    assert service.client.patch(path, json={"policy": {"message_retention_days": 30}}).status_code == 200
    assert places(service, CANARY)

    assert do_round(service) == 1

    assert places(service, CANARY) == set()
    identifier = ids.external("conv", conversation_at(path))
    (tombstone,) = service.client.get("/v1/erasures", params={"conversation_id": identifier}).json()["data"]
    assert (tombstone["asked_for"], tombstone["key_id"], tombstone["erased"]["messages"]) == ("retention", None, 21)
    # One that is erased by hand afterwards goes on with the chain of proofs.
    other = make(service, None, None)
    assert service.client.delete(other).json()["number"] == tombstone["number"] + 1
    assert do_round(service) == 0


class TestArchive:
    def test_what_goes_is_in_a_file_that_can_be_imported(self, service: Service, tmp_path: Path) -> None:
        path = converse(service, "archiveWORD", "user")
        let_pass(service, path, 31)
        assert service.client.patch(path, json={"policy": {"message_retention_days": 30}}).status_code == 200
        assert do_round(service, retention_archive_dir=tmp_path) == 1
        assert not places(service, "archiveWORD")
        name = f"{ids.external('conv', conversation_at(path))}.jsonl"
        (written,) = (each for each in tmp_path.rglob("*") if each.is_file())
        assert written == tmp_path / ids.external("ten", service.tenant_id) / name
        assert written.stat().st_mode & 0o077 == 0
        with written.open("rb") as file:
            checked = check(file)
        assert checked.messages == 21
        assert b"archiveWORD" in written.read_bytes()

    def test_nothing_goes_while_it_cannot_be_written(
        self, service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (blocked := tmp_path / "file").write_text("")
        path, other = make(service, 30, ago(31)), make(service, 30, ago(31))
        before = failures()
        assert do_round(service, retention_archive_dir=blocked) == 0
        assert failures() == before + 1
        assert is_there(service, path)
        assert is_there(service, other)
        assert do_round(service, retention_archive_dir=tmp_path / "new") == 2


def failures() -> float:
    value = METRICS.registry.get_sample_value("palimpsest_retention_failures_total", {"why": "archive"})
    return value or 0.0


class TestRaces:
    def test_a_turn_that_comes_meanwhile_keeps_it(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        """The conversation is found, and is young by the time that it is locked."""
        path = make(service, 30, ago(31))
        lock = stored_retention.lock_expired

        def lock_late(connection: Connection, tenant_id: UUID, conversation_id: UUID, days: int) -> bool:
            turn = {"messages": [{"role": "user", "content": "I am back."}]}
            assert service.client.post(f"{path}/turns", json=turn).status_code == 201
            return lock(connection, tenant_id, conversation_id, days)

        monkeypatch.setattr(stored_retention, "lock_expired", lock_late)
        assert do_round(service) == 0
        assert is_there(service, path)

    def test_a_setting_that_is_taken_back_meanwhile_keeps_it(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = make(service, 30, ago(31))
        lock = stored_retention.lock_expired

        def lock_late(connection: Connection, tenant_id: UUID, conversation_id: UUID, days: int) -> bool:
            body = {"policy": {"message_retention_days": None}}
            assert service.client.patch(path, json=body).status_code == 200
            return lock(connection, tenant_id, conversation_id, days)

        monkeypatch.setattr(stored_retention, "lock_expired", lock_late)
        assert do_round(service) == 0
        assert is_there(service, path)

    def test_one_that_somebody_has_locked_is_passed_over(self, service: Service) -> None:
        locked, free = make(service, 30, ago(31)), make(service, 30, ago(31))
        with psycopg.connect(service.database_url) as connection:
            connection.execute("select from conversations where id = %s for update", (conversation_at(locked),))
            assert do_round(service) == 1
        assert not is_there(service, free)
        assert do_round(service) == 1
        assert not is_there(service, locked)

    def test_several_processes_erase_each_once(self, service: Service, tmp_path: Path) -> None:
        paths = [make(service, 30, ago(31)) for _ in range(8)]
        with erasing(service, retention_archive_dir=tmp_path) as one, erasing(service) as other:
            counts: list[int] = []

            def run(sweeper: MessageRetention) -> None:
                counts.extend(sweeper.round() for _ in range(10))

            threads = [threading.Thread(target=run, args=(each,)) for each in (one, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sum(counts) == len(paths)
        assert not any(is_there(service, path) for path in paths)


class TestBounds:
    def test_a_round_erases_so_many_of_a_tenant_and_the_next_goes_on(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "ERASED_OF_TENANT", 2)
        monkeypatch.setattr(retention, "PAGE", 3)
        for _ in range(5):
            make(service, 30, ago(31))
        theirs = make(service, None, ago(31), client=service.stranger)
        answer = service.stranger.patch("/v1/tenant", json={"policy": {"message_retention_days": 30}})
        assert answer.status_code == 200
        with erasing(service) as sweeper:
            assert sweeper.round() == 3
            assert [sweeper.has_more] == [True]
            assert service.stranger.get(theirs).status_code == 404
            assert [sweeper.round() for _ in range(3)] == [2, 1, 0]
            assert [sweeper.has_more] == [False]
        service.stranger.patch("/v1/tenant", json={"policy": {"message_retention_days": None}})


class TestDryRun:
    def listed(self, service: Service, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert run_retention(service.settings, None, as_json=True) == 0
        # The last line is the command's: the API in this process logs to the same place.
        listed: list[dict[str, Any]] = json.loads(capsys.readouterr().out.splitlines()[-1])["conversations"]
        return listed

    def test_it_names_what_a_round_erases_and_erases_nothing(
        self, service: Service, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, young = make(service, 30, ago(31)), make(service, 30, ago(29))
        (each,) = self.listed(service, capsys)
        assert each["conversation_id"] == path.rsplit("/", 1)[1]
        assert each["messages"] == 2
        assert is_there(service, path)
        assert do_round(service) == 1
        assert self.listed(service, capsys) == []
        assert is_there(service, young)

    def test_a_tenant_that_is_not_there(self, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_retention(service.settings, uuid4().hex, as_json=False) == 1
        assert "there is no tenant" in capsys.readouterr().err

    def test_a_table_for_people_says_whether_an_archive_is_written(
        self, service: Service, capsys: pytest.CaptureFixture[str]
    ) -> None:
        make(service, 30, ago(31))
        assert run_retention(service.settings, None, as_json=False) == 0
        assert "will erase a conversation with 2 messages, without an archive" in capsys.readouterr().err


def test_housekeeping_counts_what_it_erased(service: Service, housekeep: Callable[..., dict[str, int]]) -> None:
    make(service, 30, ago(31))
    assert housekeep()["conversations"] == 1
    assert b'palimpsest_rows_removed_total{table="conversations"}' in generate_latest(METRICS.registry)


@pytest.fixture
def housekeep(service: Service) -> Iterator[Callable[..., dict[str, int]]]:
    database = Database(service.settings, "test")
    yield Housekeeper(service.settings, database).round
    database.close()
