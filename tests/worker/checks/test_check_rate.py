"""What keeps checks cheap: few statements, one reading of a conversation, and no wait for the disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text

from store.conversations import conversations
from tests.support.eventually import eventually
from tests.support.service.in_process import Chat, Workers, check_state
from tests.support.talk import request, rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from sqlalchemy import Connection


def due(chat: Chat, count: int) -> list[UUID]:
    items = [chat.begin() for _ in range(count)]
    for conversation in items:
        chat.append(conversation, [request("hello")])
    return items


@contextmanager
def hearing(chat: Chat) -> Iterator[list[str]]:
    """Collect the statements that the product sends."""
    said: list[str] = []

    def hear(_: Any, __: Any, statement: str, *___: Any) -> None:
        said.append(statement)

    event.listen(chat.database.engine, "before_cursor_execute", hear)
    yield said
    event.remove(chat.database.engine, "before_cursor_execute", hear)


def test_a_batch_with_nothing_due_is_two_statements(chat: Chat) -> None:
    made = due(chat, 5)
    workers = Workers(chat)
    with hearing(chat) as said:
        workers.check(*made)
    assert len(said) == 2
    assert "due_states" in said[0]
    assert "clear_checks" in said[1]
    assert [check_state(chat, conversation) for conversation in made] == [None] * 5


@pytest.mark.parametrize(("threshold", "reads"), [(100_000, 1), (1_500, 2)])
def test_a_conversation_is_read_again_only_for_another_step(chat: Chat, threshold: int, reads: int) -> None:
    conversation = chat.begin({"input_token_budget": 2_000, "compaction_threshold_tokens": threshold})
    chat.append(conversation, rounds(6, 1_000))
    workers = Workers(chat)
    with hearing(chat) as said:
        workers.check(conversation)
    # Pins name speakers by the beginnings of their own messages alone.
    assert sum("CAST(messages.content AS TEXT)" in statement for statement in said) == reads
    assert chat.steps(chat.run(conversation).id)[0].state == "committed"


def test_clearing_marks_does_not_wait_for_the_disk(chat: Chat) -> None:
    made = due(chat, 2)
    shown = text("show synchronous_commit")
    with chat.database.transaction(None) as connection:
        connection.execute(text("set local synchronous_commit = on"))
        states = conversations.check_states(connection, made)
        assert connection.scalar(shown) == "on"
        assert conversations.clear_checks(connection, states) == set(made)
        assert connection.scalar(shown) == "off"


def clear(connection: Connection, wanted: list[UUID]) -> None:
    """Take marks off in the order of `wanted`."""
    states = {state.conversation_id: state for state in conversations.check_states(connection, wanted)}
    conversations.clear_checks(connection, [states[each] for each in wanted])


@pytest.mark.parametrize("lock_many", [clear])
def test_many_conversations_are_locked_in_the_order_of_their_ids(
    chat: Chat, lock_many: Callable[[Connection, list[UUID]], None]
) -> None:
    low, high = sorted(due(chat, 2))

    def lock() -> None:
        with chat.database.transaction(None) as connection:
            # The plan for a large table: each conversation is looked up by its id.
            connection.execute(text("set local enable_seqscan = off"))
            connection.execute(text("set local enable_hashjoin = off"))
            connection.execute(text("set local enable_mergejoin = off"))
            lock_many(connection, [high, low])

    unlocked = "select id from conversations where id = :id for update skip locked"
    with ThreadPoolExecutor() as threads:
        with chat.database.transaction(chat.tenant_id) as holding:
            holding.execute(text("select from conversations where id = :id for update"), {"id": high})
            done = threads.submit(lock)
            eventually(lambda: chat.query("select 1 from pg_locks where not granted"))
            assert chat.query(unlocked, id=low) == []
        done.exception()  # It waits, or has given up by now.


@pytest.mark.fault("F46")
def test_a_conversation_that_somebody_has_locked_keeps_no_other_from_its_check(chat: Chat) -> None:
    low, locked, over, high = sorted(due(chat, 4))
    chat.append(over, rounds(6, 1_000))
    workers = Workers(chat)
    locks = text("select from conversations where id = any (:ids) for update")
    with chat.database.transaction(chat.tenant_id) as holding:
        holding.execute(locks, {"ids": [locked, over]})
        workers.check(low, locked, over, high)
        assert [check_state(chat, each) is None for each in (low, locked, over, high)] == [True, False, False, True]
        assert chat.runs(over) == []
    workers.check(locked, over)
    assert check_state(chat, locked) is None
    assert [run.state for run in chat.runs(over)] == ["committed"]


def test_a_conversation_whose_size_no_integer_holds_keeps_no_other_from_its_check(chat: Chat) -> None:
    low, large, high = sorted(due(chat, 3))
    most = 2**31 - 1
    chat.query(
        "update conversations set context_tokens = :most, fixed_tokens = :most where id = :id", most=most, id=large
    )
    state = check_state(chat, large)
    assert state is not None
    assert state.estimated == most
    Workers(chat).check(low, large, high)
    assert [check_state(chat, each) for each in (low, high)] == [None, None]
    assert chat.runs(large)
