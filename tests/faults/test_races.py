"""What happens at the same time, more than once, or not at all: repeated messages, two workers, turns and erasures
while a summary is made, transactions that roll back.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from runtime.broker import CHECK_TASK, CHECKS, RUN_TASK, SUMMARIES
from tests.faults.installation import CUT_BY_CHECKS, SETTLE_SECONDS
from tests.support.eventually import eventually
from tests.support.talk import answer, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from runtime.fault_points import Point
    from tests.faults.installation import Installation, Talk
    from tests.support.processes import Worker

pytestmark = pytest.mark.slow
COPIES = 50
ONCE = [("committed", None)]


@pytest.fixture(scope="module", autouse=True)
def workers(installation: Installation) -> Iterator[Sequence[Worker]]:
    """A checks worker with two processes, two workers of summaries, a sweeper."""
    with installation.running("checks", "summaries", "summaries", "beat") as started:
        yield started
        for worker in started:
            assert worker.process.poll() is None
            assert "Traceback" not in worker.log.read_text()


def send_run(installation: Installation, talk: Talk, copies: int = COPIES) -> None:
    """Send the message of a conversation's only run so many times."""
    run = installation.chat.run(talk.id)
    for _ in range(copies):
        installation.app.send_task(RUN_TASK, args=[str(installation.tenant.id), str(run.id)], queue=SUMMARIES)


@pytest.mark.fault("F7", "F8")
def test_fifty_copies_of_a_runs_message_before_two_workers(
    installation: Installation, workers: Sequence[Worker]
) -> None:
    """All of them are there before anybody looks: the workers claim at the same time."""
    summaries = workers[1:3]
    talk = installation.talk()
    for worker in summaries:
        worker.process.send_signal(signal.SIGSTOP)
    talk.append(*talk.long())
    eventually(lambda: [run.queue for run in installation.chat.runs(talk.id)] == [SUMMARIES], SETTLE_SECONDS)
    send_run(installation, talk)
    for worker in summaries:
        worker.process.send_signal(signal.SIGCONT)
    installation.drain()
    end = talk.end_state(runs=1)
    assert (end.outcome, end.runs[0].attempts, len(end.snapshots), end.calls) == (ONCE, 1, 1, 1)


@pytest.mark.fault("F7")
def test_fifty_copies_while_it_is_worked_on_and_after_it_has_ended(installation: Installation) -> None:
    talk = installation.talk()
    installation.model.hold()
    talk.append(*talk.long())
    talk.wait_for_calls()
    send_run(installation, talk)
    for _ in range(COPIES):
        installation.wake(talk.id)
    installation.drain(under_way=1)
    installation.model.release()
    first = talk.end_state(runs=1)
    assert (first.outcome, first.runs[0].attempts, len(first.snapshots), first.calls) == (ONCE, 1, 1, 1)
    send_run(installation, talk)
    for _ in range(COPIES):
        installation.wake(talk.id)
    installation.drain()
    assert talk.end_state(runs=1) == first


@pytest.mark.fault("F7", "F8")
def test_two_processes_check_a_conversation_at_once(installation: Installation) -> None:
    talk = installation.talk(CUT_BY_CHECKS)
    installation.points.hold("check.started", 2)
    talk.append(*talk.tool_rounds())
    installation.wake(talk.id)
    both = [installation.points.arrival("check.started") for _ in range(2)]
    assert len({held.pid for held in both}) == 2
    for held in both:
        held.release()
    end = talk.end_state(runs=1)
    installation.drain()
    assert (end.outcome, end.runs[0].attempts, len(end.snapshots)) == (ONCE, 1, 1)
    assert talk.end_state() == end


@pytest.mark.fault("F15")
def test_messages_that_make_no_sense_are_put_aside_and_the_queue_goes_on(installation: Installation) -> None:
    app = installation.app
    for arguments in ([["no id"]], [], [None, 7], [[{"a": 1}]]):
        app.send_task(CHECK_TASK, args=arguments, queue=CHECKS)
        app.send_task(RUN_TASK, args=arguments, queue=SUMMARIES)
    for queue in (CHECKS, SUMMARIES):
        app.send_task("palimpsest.unheard_of", args=[], queue=queue)
        app.send_task(CHECK_TASK, args=[[object.__name__]], queue=queue, serializer="yaml")
    installation.drain()
    talk = installation.talk()
    talk.append(*talk.long())
    assert talk.end_state(runs=1).outcome == ONCE


@pytest.mark.fault("F24")
def test_turns_that_arrive_while_a_summary_is_made_are_the_tail(installation: Installation) -> None:
    talk = installation.talk()
    installation.model.hold()
    talk.append(*talk.long())
    before = list(talk.sent)
    talk.wait_for_calls()
    late = [request(f"{talk.label} are you there?"), answer(f"{talk.label} yes"), request(f"{talk.label} and now?")]
    for message in late:
        talk.append(message)
        assert talk.context()["messages"] == talk.sent
    installation.model.release()
    end = talk.end_state(runs=1)
    assert (end.outcome, end.calls) == (ONCE, 1)
    (snapshot,) = end.snapshots
    assert snapshot.covers_through < len(before)
    tail = len(talk.sent) - 1 - snapshot.covers_through
    assert end.served["messages"][-tail:] == talk.sent[-tail:]
    assert end.served["messages"][-3:] == late
    assert not [each for each in installation.model.requests if late[0]["content"] in each.prompt]


@pytest.mark.fault("F24")
def test_turns_that_arrive_at_the_commit_and_go_over_the_threshold_again_are_checked_again(
    installation: Installation,
) -> None:
    """Their own check finds a run under way, and leaves it to that run to ask for another."""
    talk = installation.talk()
    installation.points.hold("snapshot.committed")
    talk.append(*talk.long())
    held = installation.points.arrival("snapshot.committed")
    talk.append(*talk.long())
    installation.wake(talk.id)
    eventually(lambda: not installation.queued(CHECKS), SETTLE_SECONDS)
    held.release()
    end = talk.end_state(runs=2)
    assert {state for state, _ in end.outcome} == {"committed"}
    assert len(end.snapshots) == 2
    assert end.calls == 2


@pytest.mark.fault("F25")
def test_an_edit_while_a_summary_is_made_discards_it(installation: Installation) -> None:
    """The messages that it was made from are not in the conversation any more; what is there now is summarized."""
    talk = installation.talk()
    installation.model.hold()
    talk.append(*talk.long())
    talk.wait_for_calls()
    words = request(f"{talk.label} instead", 200)
    edited = installation.client.post(f"{talk.path}/turns", json={"messages": [words], "replace_from": 4})
    assert edited.status_code == 201, edited.text
    installation.model.release()
    eventually(talk.is_at_rest, SETTLE_SECONDS)
    installation.drain()
    lost = installation.chat.run(talk.id)
    assert (lost.state, lost.reason, lost.snapshot_version) == ("skipped", "head_moved", None)
    served = talk.context()
    assert served["messages"] == [*talk.sent[:4], words]
    assert served["snapshot"] is None
    assert len(installation.chat.query("select 1 from messages where conversation_id = :c", c=talk.id)) == 25


@pytest.mark.fault("F25")
@pytest.mark.parametrize("point", ["run.claimed", "summary.answered", "snapshot.written", "snapshot.committed"])
def test_a_conversation_that_is_erased_under_a_run_stays_erased(installation: Installation, point: Point) -> None:
    """By the operator, in the database. The worker's attempt comes to nothing, and it goes on with others."""
    talk = installation.talk()
    installation.points.hold(point)
    talk.append(*talk.long())
    held = installation.points.arrival(point)
    with ThreadPoolExecutor(1) as threads:
        erasure = threads.submit(erase, installation, talk)
        if point == "snapshot.written":  # whose transaction holds the conversation
            eventually(lambda: waits_for_a_lock(installation), SETTLE_SECONDS)
        else:
            erasure.result(60)
        held.release()
        erasure.result(60)
    installation.drain()
    assert left_of(installation, talk) == {}
    assert installation.client.get(talk.path).status_code == 404
    other = installation.talk()
    other.append(*other.long())
    assert other.end_state(runs=1).outcome == ONCE
    assert left_of(installation, talk) == {}


def tables(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Return the tables that have rows of conversations, with the column that says of which."""
    rows = connection.execute(
        "select table_name from information_schema.columns"
        " join information_schema.tables using (table_schema, table_name)"
        " where column_name = 'conversation_id' and table_schema = 'public' and table_type = 'BASE TABLE'"
    ).fetchall()
    return {"conversations": "id"} | {name: "conversation_id" for (name,) in rows}


def erase(installation: Installation, talk: Talk) -> None:
    """Remove a conversation as a superuser does, around the triggers that keep everybody else from it."""
    with installation.owner() as connection, connection.transaction():
        connection.execute("set local session_replication_role = replica")
        steps = "delete from run_steps where run_id in (select id from runs where conversation_id = %s)"
        for number, (table, column) in enumerate(tables(connection).items()):
            if number == 1:
                connection.execute(steps, (talk.id,))
            statement = sql.SQL("delete from {} where {} = %s").format(sql.Identifier(table), sql.Identifier(column))
            connection.execute(statement, (talk.id,))


def left_of(installation: Installation, talk: Talk) -> dict[str, int]:
    """Return the tables that have rows of a conversation, and how many."""
    with installation.owner() as connection:
        counts = {
            table: connection.execute(
                sql.SQL("select count(*) from {} where {} = %s").format(sql.Identifier(table), sql.Identifier(column)),
                (talk.id,),
            ).fetchall()[0][0]
            for table, column in tables(connection).items()
        }
    return {table: count for table, count in counts.items() if count}


def waits_for_a_lock(installation: Installation) -> bool:
    with installation.owner() as connection:
        return bool(
            connection.execute(
                "select from pg_stat_activity"
                " where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
            ).fetchall()
        )


@pytest.mark.fault("F32")
def test_a_turn_that_is_rolled_back_wakes_nobody(installation: Installation) -> None:
    """Its connection is cut while it waits for the conversation; the same turn, sent again, is stored once."""
    talk = installation.talk()
    installation.drain()
    sent = installation.points.counts["wakeup.sent"]
    turn = {"messages": talk.long()}
    key = {"idempotency-key": talk.label}
    with ThreadPoolExecutor(1) as threads, installation.owner() as connection, connection.transaction():
        connection.execute("select from conversations where id = %s for update", (talk.id,))
        under_way = threads.submit(installation.client.post, f"{talk.path}/turns", json=turn, headers=key)
        eventually(lambda: waits_for_a_lock(installation), SETTLE_SECONDS)
        ((cut,),) = connection.execute(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
        ).fetchall()
        refused = under_way.result(60)
    assert cut == 1
    assert refused.status_code == 503, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    talk.end_state()
    assert installation.chat.runs(talk.id) == []
    assert installation.points.counts["wakeup.sent"] == sent
    again = installation.client.post(f"{talk.path}/turns", json=turn, headers=key)
    assert (again.status_code, "idempotency-replayed" in again.headers) == (201, False)
    talk.sent.extend(turn["messages"])
    assert talk.end_state(runs=1).outcome == ONCE


@pytest.mark.fault("F32")
def test_an_api_that_is_killed_after_the_commit_leaves_its_wake_up_to_the_sweeper(
    installation: Installation, measured: Callable[[str, float], None]
) -> None:
    """The turn counts although nobody was told: stored is due."""
    talk = installation.talk(CUT_BY_CHECKS)
    messages = talk.tool_rounds()
    with installation.api() as api, ThreadPoolExecutor(1) as threads:
        installation.points.hold("turn.stored")
        under_way = threads.submit(installation.client.post, f"{talk.path}/turns", json={"messages": messages})
        held = installation.points.arrival("turn.stored")
        stored_at = installation.now()
        held.kill()
        assert api.process.wait(60) == -signal.SIGKILL
        assert under_way.exception(60) is not None
    talk.sent.extend(messages)
    end = talk.end_state(runs=1)
    assert end.outcome == ONCE
    measured("wake-up lost with the API: check done after", (end.runs[0].finished_at - stored_at).total_seconds())
