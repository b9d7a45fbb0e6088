"""What one tenant with thousands of conversations asks for is looked up, not searched for among them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from sqlalchemy import text

from store.conversations import conversations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.service.in_process import Chat

MANY: Final = 5_000
CONVERSATIONS: Final = f"""
    insert into conversations (id, tenant_id, external_id, user_ref)
    select gen_random_uuid(), current_setting('app.tenant_id')::uuid, 'chat-' || i, 'user-' || i % 100
    from generate_series(1, {MANY}) as i
"""  # noqa: S608 - a constant
ROWS_READ: Final = text("select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables")


@pytest.fixture
def busy(chat: Chat) -> Chat:
    """A tenant with many conversations, of whose rows Postgres keeps statistics."""
    chat.query(CONVERSATIONS)
    with psycopg.connect(chat.url, autocommit=True) as owner:
        owner.execute("analyze conversations")
    return chat


def read(chat: Chat, function: Callable[..., Sequence[Any]], **asked: Any) -> tuple[int, Sequence[Any]]:
    """Return how many rows of any table a function of the store reads, and what it returns."""
    with chat.database.transaction(chat.tenant_id) as connection:
        before = connection.scalar(ROWS_READ) or 0
        rows = function(connection, chat.tenant_id, **asked)
        return connection.scalar(ROWS_READ) - before, rows


def test_a_conversation_is_looked_up_by_its_name(busy: Chat) -> None:
    count, (row,) = read(busy, conversations.page, external_id="chat-77", limit=1)
    assert row.external_id == "chat-77"
    assert count <= 2
    for bound in ("after", "before"):
        assert read(busy, conversations.page, external_id="chat-77", limit=1, **{bound: row.id}) == (count, [])
    assert read(busy, conversations.page, external_id="chat-0", limit=1)[1] == []


def test_a_users_conversations_are_looked_up(busy: Chat) -> None:
    count, rows = read(busy, conversations.page, user_ref="user-7", limit=10)
    assert {row.user_ref for row in rows} == {"user-7"}
    assert len(rows) == 10
    assert count <= 20
