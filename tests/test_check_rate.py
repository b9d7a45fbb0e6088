"""What keeps checks cheap: one statement reads them, one clears them, and no clearing waits for the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import event, text

from store import conversations
from tests.in_process import Chat, Workers, chat, check_state
from tests.talk import request

if TYPE_CHECKING:
    from uuid import UUID

__all__ = ["chat"]


def due(chat: Chat, count: int) -> list[UUID]:
    made = [chat.begin() for _ in range(count)]
    for conversation in made:
        chat.append(conversation, [request("hello")])
    return made


def test_a_batch_with_nothing_due_is_two_statements(chat: Chat) -> None:
    made = due(chat, 5)
    workers = Workers(chat)
    said: list[str] = []

    def hear(_: Any, __: Any, statement: str, *___: Any) -> None:
        said.append(statement)

    event.listen(chat.database.engine, "before_cursor_execute", hear)
    workers.check(*made)
    event.remove(chat.database.engine, "before_cursor_execute", hear)
    assert len(said) == 2
    assert "due_states" in said[0]
    assert "clear_checks" in said[1]
    assert [check_state(chat, conversation) for conversation in made] == [None] * 5


def test_clearing_marks_does_not_wait_for_the_disk(chat: Chat) -> None:
    made = due(chat, 2)
    shown = text("show synchronous_commit")
    with chat.database.transaction(None) as connection:
        connection.execute(text("set local synchronous_commit = on"))
        states = conversations.check_states(connection, made)
        assert connection.scalar(shown) == "on"
        assert conversations.clear_checks(connection, states) == set(made)
        assert connection.scalar(shown) == "off"
