"""Erasure in the middle of everything else: whoever was at a conversation ends with nothing, and leaves nothing."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from compaction.payload.context_blocks import prepare
from compaction.policy import merge
from compaction.steps.runs import StepState
from compaction.text.outline import ContextBlock
from runtime import ids
from runtime.queues import Queue
from store.archive import erasures
from store.conversations import branches, overflows, pins
from store.conversations.context_blocks import new_blocks
from store.engine import transaction
from store.operations.operator_actions import Operator
from store.runs import requested, runs
from store.runs.requested import ManualRun
from tests.support.eventually import eventually
from tests.support.service.in_process import Chat, Workers, head
from tests.support.service.stepped_workers import Process
from tests.support.talk import answer, exchanges, prose, request, rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection


WORDS: Final = ("lorem", "They spoke")
"""What was said, and what a model or an extract makes of it."""
LONGEST_TASK: Final = 40
"""Stops of a process that a test may come to; a task that has more hangs."""


def erase(chat: Chat, conversation: UUID) -> None:
    asking = Operator(chat.tenant_id, ids.new_id(), ids.new_id())
    with chat.database.transaction(chat.tenant_id) as connection:
        assert erasures.erase(connection, asking, conversation) is not None


def told(chat: Chat, conversation: UUID) -> str:
    """Return all that the owner still sees of a conversation, as text."""
    tables = {
        "conversations": "id = %(c)s",
        "run_steps": "run_id in (select id from runs where conversation_id = %(c)s)",
        "webhook_deliveries": "run_id in (select id from runs where conversation_id = %(c)s)",
        **dict.fromkeys(
            (
                "messages",
                "snapshot_parts",
                "context_blocks",
                "pins",
                "idempotency_keys",
                "assemblies",
                "turn_usages",
                "runs",
            ),
            "conversation_id = %(c)s",
        ),
    }
    with psycopg.connect(chat.url) as connection:
        items = [
            row[0]
            for table, where in tables.items()
            for row in connection.execute(
                f"select to_jsonb(t)::text from {table} as t where {where}".encode(),  # noqa: S608 - constants
                {"c": conversation},
            )
        ]
    return "\n".join(items)


def nothing_is_left(chat: Chat, conversation: UUID) -> None:
    left = told(chat, conversation)
    assert left
    assert not [word for word in WORDS if word in left]
    assert chat.query("select from messages where conversation_id = :c", c=conversation) == []
    assert chat.query("select from snapshots where conversation_id = :c", c=conversation) == []
    assert chat.query("select from conversations where id = :c", c=conversation) == []
    states = chat.query("select state, reason, lease_token from runs where conversation_id = :c", c=conversation)
    assert {row.state for row in states} <= {"committed", "skipped", "failed"}
    assert {row.lease_token for row in states} <= {None}


def long_talk(chat: Chat, **policy: Any) -> UUID:
    """Begin a conversation that is over the small policy's threshold for summaries."""
    conversation = chat.begin(policy)
    chat.append(conversation, [*exchanges(8, 300), request("last")])
    return conversation


def steps_of(chat: Chat, run: Callable[[UUID], Process], begin: Callable[[], UUID]) -> int:
    """Let a process run through, erasing the conversation at each of its stops in turn; return how many there were."""
    for number in range(LONGEST_TASK):
        conversation = begin()
        process = run(conversation)
        for _ in range(number):
            if process.ended:
                break
            process.step()
        ended = process.ended
        erase(chat, conversation)
        process.finish()
        nothing_is_left(chat, conversation)
        Workers(chat).settle(conversation)
        nothing_is_left(chat, conversation)
        if ended:
            return number
    raise AssertionError("the task does not end")


def test_while_a_check_and_its_steps_run(chat: Chat) -> None:
    def begin() -> UUID:
        conversation = chat.begin()
        chat.append(conversation, [request("request"), *rounds(6, 1_500)])
        return conversation

    stops = steps_of(chat, lambda c: Process(chat, lambda workers: workers.check(c)), begin)
    assert stops > 5


def test_while_a_summary_is_made(chat: Chat) -> None:
    queued: dict[UUID, UUID] = {}

    def begin() -> UUID:
        conversation = long_talk(chat)
        workers = Workers(chat)
        workers.check(conversation)
        queued[conversation] = workers.woken.popleft()
        return conversation

    def run(conversation: UUID) -> Process:
        return Process(chat, lambda workers: workers.carry_out(queued[conversation]))

    assert steps_of(chat, run, begin) > 5


@pytest.mark.parametrize("outcome", ["failure", "bug", "long", "blank"])
def test_while_a_model_answers_badly(chat: Chat, outcome: Any) -> None:
    conversation = long_talk(chat)
    workers = Workers(chat)
    workers.check(conversation)
    run = workers.woken.popleft()
    process = Process(chat, lambda workers: workers.carry_out(run))
    while not process.at_model:
        process.step()
    erase(chat, conversation)
    process.finish(outcome)
    nothing_is_left(chat, conversation)


def test_while_a_context_block_is_summarized(chat: Chat) -> None:
    policy = merge(chat.settings.policy, {"context_block_compact_chars": 2_000})
    queued: dict[UUID, UUID] = {}

    def begin() -> UUID:
        conversation = chat.begin()
        chat.append(conversation, [request("request")])
        block = ContextBlock("doc", "Doc", "\n\n".join(f"# Part {n}\n{prose('part', 200)}" for n in range(6)))
        made = new_blocks(prepare([block], policy), policy)
        chat.query(
            "select add_context_blocks(:t, :c, :r, 0, cast(:blocks as json), :most, cast(:policy as jsonb))",
            t=chat.tenant_id,
            c=conversation,
            r=uuid4(),
            blocks=made.context.blocks,
            most=made.context.carried_max_tokens,
            policy=made.context.policy,
        )
        (queued[conversation],) = made.run_ids
        return conversation

    def run(conversation: UUID) -> Process:
        return Process(chat, lambda workers: workers.carry_out(queued[conversation]))

    assert steps_of(chat, run, begin) > 4


def test_what_the_model_was_paid_is_told(chat: Chat) -> None:
    """A summary that comes too late is discarded, and its cost stays in the audit."""
    conversation = long_talk(chat)
    workers = Workers(chat)
    workers.check(conversation)
    run = workers.woken.popleft()
    process = Process(chat, lambda workers: workers.carry_out(run))
    while not process.at_model:
        process.step()
    erase(chat, conversation)
    process.finish()
    (row,) = chat.query("select state, reason, instructions, error from runs where id = :r", r=run)
    assert tuple(row) == ("failed", "erased", None, None)
    late = chat.steps(run)[-1]
    assert (late.reason, late.detail, late.error) == ("lease_lost", None, None)
    assert late.model_input_tokens
    nothing_is_left(chat, conversation)


def test_a_queued_run(chat: Chat) -> None:
    conversation = long_talk(chat)
    workers = Workers(chat)
    workers.check(conversation)
    erase(chat, conversation)
    assert workers.claim(workers.woken.popleft()) is None
    nothing_is_left(chat, conversation)


def test_a_snapshot_that_waits_for_the_end_of_a_tool_loop(chat: Chat) -> None:
    conversation = chat.begin()
    chat.append(conversation, [request("request"), *rounds(4, 1_000, thinking=True)])
    Workers(chat).settle(conversation)
    assert head(chat, conversation).pending is not None
    erase(chat, conversation)
    nothing_is_left(chat, conversation)


def test_a_restored_conversation(chat: Chat) -> None:
    conversation = long_talk(chat)
    Workers(chat, "extractive").settle(conversation)
    policy = merge(chat.settings.policy, chat.row(conversation).policy)
    with chat.database.transaction(chat.tenant_id) as connection:
        assert branches.restore(connection, chat.tenant_id, conversation, 1, policy, uuid4())
    erase(chat, conversation)
    nothing_is_left(chat, conversation)


def test_an_overflow_whose_summary_is_queued(chat: Chat) -> None:
    conversation = long_talk(chat)
    policy = merge(chat.settings.policy, chat.row(conversation).policy)
    with chat.database.transaction(chat.tenant_id) as connection:
        done = overflows.overflow(
            connection,
            chat.tenant_id,
            conversation,
            policy=policy,
            request_id=uuid4(),
            snapshot_version=None,
            refusal=None,
            summarize=True,
        )
    run = done.summary_run_id
    assert run is not None
    process = Process(chat, lambda workers: workers.carry_out(run))
    while not process.at_model:
        process.step()
    erase(chat, conversation)
    process.finish()
    nothing_is_left(chat, conversation)


# Writers that meet an erasure


def pin(connection: Connection, conversation: UUID, chat: Chat) -> None:
    pins.add(connection, chat.tenant_id, conversation, 0, "lorem", uuid4())


def ask(connection: Connection, conversation: UUID, chat: Chat) -> None:
    wanted = ManualRun("summary", "Stress lorem.", merge(chat.settings.policy))
    requested.request(connection, chat.tenant_id, conversation, wanted, queue=Queue.SUMMARIES, request_id=uuid4())


def say(connection: Connection, conversation: UUID, chat: Chat) -> None:
    """Append as the API does, within this transaction."""
    del chat
    connection.exec_driver_sql("update conversations set next_seq = next_seq + 1 where id = %(c)s", {"c": conversation})
    connection.exec_driver_sql(
        "insert into messages (tenant_id, conversation_id, seq, role, content, tokens, view_tokens, bytes, is_request,"
        " has_thinking) select tenant_id, id, next_seq - 1, 'user', '\"lorem\"', 1, 1, 7, true, false"
        " from conversations where id = %(c)s",
        {"c": conversation},
    )


WRITES: Final = {"pin": pin, "run": ask, "message": say}


def waits(chat: Chat) -> bool:
    """Tell whether a session of the test's database waits for a lock."""
    with psycopg.connect(chat.url) as connection:
        found = connection.execute(
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        return found.fetchone() is not None


@pytest.mark.parametrize("write", WRITES)
def test_what_was_being_written_goes_too(chat: Chat, write: str) -> None:
    conversation = chat.begin()
    chat.append(conversation, [request("request"), answer("answer")])
    eraser = Thread(target=erase, args=(chat, conversation))
    with transaction(chat.database.engine, chat.tenant_id) as connection:
        WRITES[write](connection, conversation, chat)
        eraser.start()
        eventually(lambda: waits(chat))
    eraser.join(30)
    nothing_is_left(chat, conversation)


@pytest.mark.parametrize("write", WRITES)
def test_what_is_to_be_written_meanwhile_is_not(chat: Chat, write: str) -> None:
    conversation = chat.begin()
    chat.append(conversation, [request("request"), answer("answer")])
    errors: list[DBAPIError] = []

    def late() -> None:
        try:
            with transaction(chat.database.engine, chat.tenant_id) as connection:
                WRITES[write](connection, conversation, chat)
        except DBAPIError as error:
            errors.append(error)

    writer = Thread(target=late)
    asking = Operator(chat.tenant_id, ids.new_id(), ids.new_id())
    with transaction(chat.database.engine, chat.tenant_id) as connection:
        assert erasures.erase(connection, asking, conversation) is not None
        writer.start()
        eventually(lambda: waits(chat))
    writer.join(30)
    nothing_is_left(chat, conversation)
    if write != "message":  # An append finds no row to count up, and answers that the conversation is missing.
        assert [getattr(error.orig, "sqlstate", None) for error in errors] == [erasures.GONE]


def test_a_step_that_is_written_late(chat: Chat) -> None:
    """Steps hold no lock of the conversation: the words of one go, whichever comes first."""
    for first in ("step", "erasure"):
        conversation = long_talk(chat)
        lease = Workers(chat).begin(conversation)
        step = runs.StepRecord("summary", StepState.FAILED, 1, 1, 1, 1, 0, detail="lorem", error="lorem")
        one = Thread(target=erase, args=(chat, conversation))
        with transaction(chat.database.engine, chat.tenant_id) as connection:
            if first == "step":
                runs.add_step(connection, lease, step)
                one.start()
            else:
                asking = Operator(chat.tenant_id, ids.new_id(), ids.new_id())
                erasures.erase(connection, asking, conversation)
                one = Thread(target=add_step, args=(chat, lease, step))
                one.start()
            eventually(lambda: waits(chat))
        one.join(30)
        assert len(chat.steps(lease.run_id)) == 1
        nothing_is_left(chat, conversation)


def add_step(chat: Chat, lease: runs.Lease, step: runs.StepRecord) -> None:
    with transaction(chat.database.engine, chat.tenant_id) as connection:
        runs.add_step(connection, lease, step)


def test_two_who_erase_the_same_user(chat: Chat) -> None:
    """And a third who erases one of the conversations: nobody waits for ever, and each goes once."""
    items = [chat.begin() for _ in range(50)]
    chat.query("update conversations set user_ref = 'lorem' where id = any(:c)", c=items)

    def all_of_user() -> None:
        asking = Operator(chat.tenant_id, ids.new_id(), ids.new_id())
        while True:
            with transaction(chat.database.engine, chat.tenant_id) as connection:
                if not erasures.erase_of_user(connection, asking, "lorem"):
                    return

    threads = [Thread(target=all_of_user), Thread(target=all_of_user), Thread(target=erase, args=(chat, items[-1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    rows = chat.query("select number, conversation_id from erasures order by number")
    assert [row.number for row in rows] == list(range(1, 51))
    assert sorted(row.conversation_id for row in rows) == sorted(items)
    for conversation in items:
        nothing_is_left(chat, conversation)


def test_many_who_talk_while_it_is_erased(chat: Chat) -> None:
    """Each turn is either stored before, and erased with the rest, or refused."""
    conversation = chat.begin()
    chat.append(conversation, [request("request")])
    stored: list[int] = []

    def talk() -> None:
        while True:
            try:
                stored.append(chat.append(conversation, [answer("answer"), request("request")]).first_seq)
            except AssertionError:  # the outcome is "missing"
                return

    talkers = [Thread(target=talk) for _ in range(3)]
    for talker in talkers:
        talker.start()
    eventually(lambda: len(stored) >= 20)
    erase(chat, conversation)
    for talker in talkers:
        talker.join(30)
        assert not talker.is_alive()
    nothing_is_left(chat, conversation)


def test_a_long_conversation_at_once(chat: Chat) -> None:
    """Ten thousand messages within the ten seconds that a request's statement may take, by far."""
    conversation = chat.begin({"compaction_enabled": False})
    chat.query(
        "insert into messages (tenant_id, conversation_id, seq, role, content, tokens, view_tokens, bytes, is_request,"
        " has_thinking) select :t, :c, n, 'user', to_json(repeat('lorem ', 500)), 1, 1, 3000, true, false"
        " from generate_series(0, 9999) as n",
        t=chat.tenant_id,
        c=conversation,
    )
    with chat.database.transaction(chat.tenant_id) as connection:
        connection.exec_driver_sql("set local statement_timeout = '10s'")
        erased = erasures.erase(connection, Operator(chat.tenant_id, ids.new_id(), ids.new_id()), conversation)
    assert erased is not None
    assert erased.message_count == 10_000
    nothing_is_left(chat, conversation)
