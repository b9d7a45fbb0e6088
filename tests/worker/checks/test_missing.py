"""Leases of processes that are gone: given back at once where that is certain, and of nobody who lives."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from compaction.steps.runs import RunState
from runtime import ids
from store.operations import processes
from store.operations.processes import MISSED_BEATS, Activity, Process
from store.runs import runs
from store.runs.runs import LeaseHolder
from tests.support.service.in_process import Chat, Workers
from tests.support.service.in_process import chat_alone as chat
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges
from worker.database import Database
from worker.process import place
from worker.sweeping.missing import Missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from store.runs.runs import Lease

__all__ = ["chat"]

BEAT, LEASE = 2.0, 45.0
PATIENCE = BEAT * MISSED_BEATS


def other(*, at: str | None = "another host", pid: int = 1, pid_started: int | None = 7) -> Process:
    return Process(ids.new_id(), "worker", "there", pid, ["summaries"], "1", 2, None, None, at, pid_started, BEAT)


@pytest.fixture
def missing(chat: Chat) -> Iterator[Missing]:
    database = Database(chat.settings, "heartbeat")
    yield Missing(chat.settings, database)
    database.close()


def beat(chat: Chat, process: Process) -> None:
    with chat.database.transaction(None) as connection:
        processes.beat(connection, process, Activity())


def held_by(chat: Chat, process_id: UUID | None, worker: str = "there:1") -> Lease:
    """Have a process claim a run that waits for a model."""
    conversation = chat.begin({"input_token_budget": 0})
    chat.append(conversation, exchanges(12, 200))
    Workers(chat, StubSummarizer()).check(conversation)
    with chat.database.transaction(chat.tenant_id) as connection:
        lease = runs.claim(
            connection,
            chat.run(conversation).id,
            holder=LeaseHolder(worker, process_id),
            lease_seconds=LEASE,
            max_attempts=9,
        )
    assert lease is not None
    return lease


def pass_by(chat: Chat, seconds: float) -> None:
    """Let everything that was written be that much older."""
    chat.query("update processes set seen_at = seen_at - make_interval(secs => :s)", s=seconds)
    chat.query("update runs set lease_expires_at = lease_expires_at - make_interval(secs => :s)", s=seconds)


def expire_missed(chat: Chat, watched: float = PATIENCE) -> dict[UUID, int]:
    with chat.database.transaction(None) as connection:
        return processes.expire_missed(connection, BEAT, LEASE, watched)


def is_free(chat: Chat, lease: Lease) -> bool:
    """Tell whether somebody else could take the run."""
    (row,) = chat.query("select lease_expires_at < now() as free from runs where id = :r", r=lease.run_id)
    return bool(row.free)


class TestMissedHeartbeats:
    def test_whoever_missed_them_loses_its_leases_once(self, chat: Chat) -> None:
        process = other()
        beat(chat, process)
        lease = held_by(chat, process.id)
        pass_by(chat, PATIENCE + 0.5)
        assert expire_missed(chat) == {process.id: 1}
        assert is_free(chat, lease)
        assert expire_missed(chat) == {}

    def test_whoever_is_heard_of_keeps_them(self, chat: Chat) -> None:
        process = other()
        beat(chat, process)
        lease = held_by(chat, process.id)
        pass_by(chat, PATIENCE + 0.5)
        beat(chat, process)
        assert expire_missed(chat) == {}
        assert not is_free(chat, lease)

    def test_claims_and_leases_kept_alive_are_signs_of_life(self, chat: Chat) -> None:
        process = other()
        beat(chat, process)
        kept = held_by(chat, process.id)
        pass_by(chat, PATIENCE + 0.5)
        claimed = held_by(chat, process.id)
        with chat.database.transaction(chat.tenant_id) as connection:
            assert runs.heartbeat(connection, [kept], LEASE)
        assert expire_missed(chat) == {}
        assert not is_free(chat, kept)
        assert not is_free(chat, claimed)

    def test_nobody_is_missed_in_less_time_than_the_heartbeats_take(self, chat: Chat) -> None:
        process = other()
        beat(chat, process)
        held_by(chat, process.id)
        pass_by(chat, 2 * PATIENCE)
        assert expire_missed(chat, watched=PATIENCE - 0.5) == {}

    def test_each_is_waited_for_as_long_as_its_own_heartbeats_take(self, chat: Chat) -> None:
        process = other()._replace(beat_seconds=3 * BEAT)
        beat(chat, process)
        held_by(chat, process.id)
        pass_by(chat, 2 * PATIENCE)
        assert expire_missed(chat, watched=60) == {}
        pass_by(chat, PATIENCE + 0.5)
        assert expire_missed(chat, watched=60) == {process.id: 1}

    def test_one_without_a_row_was_missed_long_ago(self, chat: Chat) -> None:
        lease = held_by(chat, process_id := ids.new_id())
        assert expire_missed(chat) == {}
        pass_by(chat, PATIENCE + 0.5)
        assert expire_missed(chat) == {process_id: 1}
        assert is_free(chat, lease)

    def test_leases_without_a_process_only_run_out(self, chat: Chat) -> None:
        lease = held_by(chat, None)
        pass_by(chat, LEASE - 1)
        assert expire_missed(chat, watched=3_600) == {}
        assert not is_free(chat, lease)

    def test_a_process_that_comes_back_cannot_write_what_is_others_by_then(self, chat: Chat) -> None:
        process = other()
        beat(chat, process)
        lease = held_by(chat, process.id)
        pass_by(chat, PATIENCE + 0.5)
        expire_missed(chat)
        with chat.database.transaction(chat.tenant_id) as connection:
            assert runs.requeue(connection, lease.run_id, 9) == "summaries"
            assert not runs.heartbeat(connection, [lease], LEASE)
            assert not runs.release(connection, lease)


class TestHolders:
    def test_a_claim_that_names_no_process_does_not_keep_the_last_one(self, chat: Chat) -> None:
        """As the release before does, which knows nothing of the column."""
        lease = held_by(chat, ids.new_id())
        run = text("select process_id from runs where id = :r")
        with chat.database.transaction(chat.tenant_id) as connection:
            assert connection.scalar(run, {"r": lease.run_id}) is not None
            connection.execute(
                text("update runs set lease_token = gen_random_uuid() where id = :r"), {"r": lease.run_id}
            )
            assert connection.scalar(run, {"r": lease.run_id}) is None

    @pytest.mark.parametrize("how", ["release", "give_back", "end"])
    def test_whoever_lets_go_holds_nothing(self, chat: Chat, how: str) -> None:
        lease = held_by(chat, ids.new_id())
        with chat.database.transaction(chat.tenant_id) as connection:
            match how:
                case "release":
                    runs.release(connection, lease)
                case "give_back":
                    runs.give_back(connection, lease, "Error")
                case _:
                    runs.end(connection, lease, RunState.SKIPPED, None, None)
        (row,) = chat.query("select process_id, lease_token from runs where id = :r", r=lease.run_id)
        assert (row.process_id, row.lease_token) == (None, None)

    def test_those_of_a_pool_lose_theirs_by_themselves(self, chat: Chat) -> None:
        process = other()
        ended, alive = held_by(chat, process.id, "there:2"), held_by(chat, process.id, "there:3")
        with chat.database.transaction(None) as connection:
            assert processes.expire_leases(connection, process.id, ["there:2", "there:9"]) == 1
        assert (is_free(chat, ended), is_free(chat, alive)) == (True, False)

    def test_what_is_being_committed_is_left_alone(self, chat: Chat) -> None:
        lease = held_by(chat, process_id := ids.new_id())
        with chat.database.transaction(chat.tenant_id) as committing:
            committing.execute(text("select from runs where id = :r for update"), {"r": lease.run_id})
            with chat.database.transaction(None) as connection:
                assert processes.expire_leases(connection, process_id) == 0

    def test_whoever_leaves_gives_back_what_is_left(self, chat: Chat) -> None:
        process = other()
        beat(chat, process)
        lease = held_by(chat, process.id)
        with chat.database.transaction(None) as connection:
            assert processes.leave(connection, process.id) == 1
        assert is_free(chat, lease)
        assert chat.query("select 1 from processes") == []


class TestLooks:
    def test_one_that_ended_here_is_found_at_the_first_look(self, chat: Chat, missing: Missing) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            process = other(at=place.here(), pid=child.pid, pid_started=place.started(child.pid))
            beat(chat, process)
            lease = held_by(chat, process.id)
            assert missing.look() == 0
            assert not is_free(chat, lease)
            child.kill()  # from here on a zombie, as its parent has not asked for it
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            with capture_logs() as logs:
                assert missing.look() == 1
        assert is_free(chat, lease)
        assert chat.query("select 1 from processes") == []
        (told,) = logs
        assert (told["event"], told["leases"]) == ("process.missing", 1)
        assert (told["kind"], told["queues"], told["host"], told["pid"]) == (
            "worker",
            ["summaries"],
            "there",
            child.pid,
        )

    def test_an_id_that_another_process_has_by_now_is_no_sign_of_life(self, chat: Chat, missing: Missing) -> None:
        began = place.started(os.getpid())
        assert began is not None
        process = other(at=place.here(), pid=os.getpid(), pid_started=began - 1)
        beat(chat, process)
        held_by(chat, process.id)
        assert missing.look() == 1

    def test_the_same_id_elsewhere_says_nothing(self, chat: Chat, missing: Missing) -> None:
        for at in ("another host", None):
            process = other(at=at, pid=2**22 - 1)
            beat(chat, process)
            held_by(chat, process.id)
        assert missing.look() == 0

    def test_after_an_outage_everybody_has_as_long_again(self, chat: Chat) -> None:
        beat_seconds = 0.2
        settings = chat.settings.model_copy(update={"heartbeat_seconds": beat_seconds})
        process = other()._replace(beat_seconds=beat_seconds)
        database = Database(settings, "heartbeat")
        missing = Missing(settings, database)
        beat(chat, process)
        held_by(chat, process.id)
        pass_by(chat, 10)
        with capture_logs() as logs:
            looks = [missing.look()]
            while not looks[-1]:
                chat.query("select pg_sleep(0.05)")
                looks.append(missing.look())
        database.close()
        assert [(each["host"], each["pid"]) for each in logs] == [("there", 1)]
        assert len(looks) > MISSED_BEATS * beat_seconds / 0.3
        assert sum(looks) == 1

    def test_a_gap_between_looks_begins_anew(self, chat: Chat) -> None:
        settings = chat.settings.model_copy(update={"heartbeat_seconds": 0.1})
        process = other()._replace(beat_seconds=0.1)
        database = Database(settings, "heartbeat")
        missing = Missing(settings, database)
        beat(chat, process)
        held_by(chat, process.id)
        pass_by(chat, 10)
        for _ in range(5):
            chat.query("select pg_sleep(0.4)")
            assert missing.look() == 0
        database.close()

    def test_a_database_that_is_away_is_no_sign_of_anything(self, chat: Chat) -> None:
        away = chat.settings.model_copy(
            update={"database_url": type(chat.settings.database_url)("postgresql://127.0.0.1:1/x")}
        )
        database = Database(away, "heartbeat")
        assert Missing(away, database).look() == 0
        database.close()
