"""What is asked of a conversation with many edits takes as long as there are many, not as many times as long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
import pytest
from sqlalchemy import event, text

from compaction.policy import merge
from runtime import ids
from store.conversations import branches
from tests.support.service.in_process import chat_alone as chat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.support.service.in_process import Chat

__all__ = ["chat"]

MESSAGES: Final = 900
VERSIONS: Final = 9
SUPERSEDED: Final = 3
"""Of so many messages one was replaced."""


@pytest.fixture
def edited(chat: Chat) -> UUID:
    """A conversation whose every third message was replaced, with a chain of snapshots of the others."""
    conversation = chat.begin()
    with psycopg.connect(chat.url, autocommit=True) as owner:
        owner.execute("set session_replication_role = replica")
        owner.execute(
            "insert into messages (tenant_id, conversation_id, seq, role, content, tokens, view_tokens, bytes,"
            " is_request, has_thinking, superseded_at)"
            " select %s, %s, n, 'user', '\"words\"', 5, 5, 40, true, false, case when n %% %s = 1 then now() end"
            " from generate_series(0, %s) as n",
            (chat.tenant_id, conversation, SUPERSEDED, MESSAGES - 1),
        )
        for version in range(1, VERSIONS + 1):
            through = version * MESSAGES // VERSIONS - 1
            live = [seq for seq in range(through + 1) if seq % SUPERSEDED != 1]
            spans = [[seq, seq, "kept", None] for seq in live]
            owner.execute(
                "insert into snapshot_parts (tenant_id, conversation_id, version, parent_version, step, covers_through,"
                " messages, seqs, coverage, tokens, message_count, bytes, exchanges, prefix_hash)"
                " values (%s, %s, %s, %s, 'summary', %s, '[]', '{}', %s, 5, 0, 2, 0, '')",
                (chat.tenant_id, conversation, version, version - 1, through, msgspec.json.encode(spans).decode()),
            )
        owner.execute(
            "update conversations set next_seq = %s, head_version = %s, last_version = %s, covers_through = %s"
            " where id = %s",
            (MESSAGES, VERSIONS, VERSIONS, MESSAGES - 1, conversation),
        )
        owner.execute("analyze messages, snapshot_parts")
    return conversation


def rows_handled(plan: Any) -> Iterator[int]:
    """Yield how many rows each step of a plan has looked at."""
    passed_over = sum(rows for name, rows in plan.items() if name.startswith("Rows Removed by"))
    yield (plan["Actual Rows"] + passed_over) * plan["Actual Loops"]
    for step in plan.get("Plans", ()):
        yield from rows_handled(step)


def test_a_fork_looks_at_each_message_once_for_each_version(chat: Chat, edited: UUID) -> None:
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "superseded_at is not null" in statement:
            asked.append((statement, parameters))

    with chat.database.transaction(chat.tenant_id) as connection:
        event.listen(connection, "before_cursor_execute", note)
        fork = branches.fork(connection, chat.tenant_id, edited, MESSAGES - 1, None, merge({}), ids.new_id())
        assert connection.scalar(text("select head_version from conversations where id = :f"), {"f": fork}) == VERSIONS
        ((statement, parameters),) = asked
        plan = connection.exec_driver_sql(f"explain (analyze, format json) {statement}", parameters).scalar_one()
    assert sum(rows_handled(plan[0]["Plan"])) < 10 * VERSIONS * MESSAGES
