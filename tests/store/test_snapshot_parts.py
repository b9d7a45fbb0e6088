"""Snapshots that share what they have in common: as a whole they are what was written, byte for byte."""

from __future__ import annotations

import json
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from compaction.policy import merge
from runtime import ids
from store.conversations import branches
from store.operations import housekeeping
from tests.support.service.hot_calls import CAP
from tests.support.service.in_process import Chat, Workers
from tests.support.talk import answer, request, rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_PARTS: Final = 17
"""A snapshot's own and those that it follows."""
ELEMENTS: Final = st.sampled_from(
    [
        '{"role":"user","content":"a"}',
        '{ "role" : "user",\n"content": "]},{[" }',
        '{"role":"user","content":"\\u005d\\","}',
        '{"role":"user","content":"żółw 🐢"}',
        '{"role":"user","role":"assistant","content":1.0e5}',
        "[]",
        "[[1],[2]]",
    ]
)
SPACES: Final = st.sampled_from(["", " ", "\n"])
WRITE: Final = """
insert into snapshots (tenant_id, conversation_id, version, parent_version, step, covers_through, messages, seqs,
                       coverage, tokens, message_count, bytes, exchanges, prefix_hash)
values (%s, %s, %s, %s, 'tool_results', -1, %s::json, '{}', '[]', 0, 0, 0, 0, '')
"""
READ: Final = "select version, messages::text from snapshots where conversation_id = %s order by version"
STORED: Final = "select version, part, follows from snapshot_parts where conversation_id = %s order by version"
CONTEXT: Final = """
select head from read_context(%s, %s, p_etag => null, p_limits => row(%s, 128000, 4096)::context_limits, p_policy => '',
    p_inline_tags => false, p_room => null, p_least_tokens => 25, p_read_bytes => 1000000, p_most_bytes => null,
    p_shape => 'messages')
"""


class Service:
    """A service, in the role of all services."""

    def __init__(self, url: str, tenant_id: UUID) -> None:
        self.tenant_id = tenant_id
        self.connection = psycopg.connect(url, options="-c role=palimpsest_service", autocommit=True)
        self.call("select set_config('app.tenant_id', %s, false)", str(tenant_id))

    def call(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def conversation(self) -> UUID:
        identifier = ids.new_id()
        self.call("insert into conversations (id, tenant_id) values (%s, %s)", identifier, self.tenant_id)
        return identifier

    def write(self, conversation: UUID, messages: str, *, version: int, parent: int) -> None:
        """Write a snapshot and make it the head."""
        self.call(WRITE, self.tenant_id, conversation, version, parent, messages)
        self.call("select move_head(%s, %s)", conversation, version)

    def wholes(self, conversation: UUID) -> list[str]:
        return [messages for _, messages in self.call(READ, conversation)]

    def head(self, conversation: UUID) -> str:
        """Return what a context begins with."""
        text: str = self.call(CONTEXT, self.tenant_id, conversation, CAP)[0][0]
        return text


class Step(NamedTuple):
    """How a snapshot comes from an earlier one: what is left of its elements, and what comes after them."""

    parent: int
    kept: int | None
    added: list[str]
    before: str
    between: str


steps = st.builds(
    Step,
    parent=st.integers(0, 5),
    kept=st.none() | st.integers(0, 4),
    added=st.lists(ELEMENTS, max_size=3),
    before=SPACES,
    between=SPACES,
)


@given(st.lists(steps, max_size=8))
def test_what_is_written_is_read(chat: Chat, taken: Sequence[Step]) -> None:
    service = Service(chat.url, chat.tenant_id)
    conversation = service.conversation()
    items: list[list[str]] = [[]]
    written: list[str] = []
    for version, step in enumerate(taken, 1):
        parent = step.parent % version
        elements = [*items[parent][: step.kept], *step.added]
        items.append(elements)
        written.append(f"{step.before}[{f',{step.between}'.join(elements)}]")
        service.write(conversation, written[-1], version=version, parent=parent)
        assert service.head(conversation) == written[-1]
    assert service.wholes(conversation) == written
    # No more is stored than has to be, and nothing that cannot be read.
    for version, part, follows in service.call(STORED, conversation):
        parent = taken[version - 1].parent % version
        goes_on = parent > 0 and written[version - 1].startswith(f"{written[parent - 1][:-1]},")
        assert bool(follows) is goes_on
        assert part == written[version - 1][len(written[parent - 1]) - 1 if goes_on else 0 : -1]
    service.connection.close()


def test_a_chain_ends_where_it_would_be_too_long(chat: Chat) -> None:
    service = Service(chat.url, chat.tenant_id)
    conversation = service.conversation()
    written = [json.dumps(list(range(length))) for length in range(1, MOST_PARTS + 3)]
    for version, messages in enumerate(written, 1):
        service.write(conversation, messages, version=version, parent=version - 1)
    assert service.wholes(conversation) == written
    follows = [len(row[2]) for row in service.call(STORED, conversation)]
    assert follows == [*range(MOST_PARTS), 0, 1]
    service.connection.close()


def test_only_an_array_is_taken(chat: Chat) -> None:
    service = Service(chat.url, chat.tenant_id)
    conversation = service.conversation()
    with pytest.raises(psycopg.errors.CheckViolation):
        service.write(conversation, "{}", version=1, parent=0)
    service.write(conversation, "[1] \n", version=1, parent=0)
    service.write(conversation, "[1,2]\t", version=2, parent=1)
    assert service.wholes(conversation) == ["[1]", "[1,2]"]
    service.connection.close()


def compacted(chat: Chat, cuts: int = 4) -> UUID:
    """Return a conversation whose tool results were cut again and again."""
    conversation = chat.begin({"compaction_enabled": False, "max_conversation_messages": 1_000})
    chat.append(conversation, [request("go", 200)])
    grow(chat, conversation, through=cuts)
    return conversation


def grow(chat: Chat, conversation: UUID, *, through: int, start: int = 0) -> None:
    """Append until the head is that version."""
    workers = Workers(chat)
    for number in count(start):
        chat.append(conversation, [*rounds(1, 1_000, start=number), answer(f"step {number}", 200)])
        workers.settle(conversation)
        if chat.row(conversation).head_version == through:
            return


def wholes(chat: Chat, conversation: UUID) -> list[tuple[int, str]]:
    return [(row.version, row.messages) for row in chat.query(READ.replace("%s", ":c"), c=conversation)]


def parts(chat: Chat, conversation: UUID) -> list[tuple[int, str, list[int]]]:
    return [(row.version, row.part, row.follows) for row in chat.query(STORED.replace("%s", ":c"), c=conversation)]


def test_every_cut_of_tool_results_is_stored_once(chat: Chat) -> None:
    conversation = compacted(chat)
    found = wholes(chat, conversation)
    for (_, before), (_, after) in pairwise(found):
        assert after.startswith(f"{before[:-1]},")
    stored = parts(chat, conversation)
    assert [follows for _, _, follows in stored] == [list(range(1, version)) for version, _, _ in stored]
    assert "".join(part for _, part, _ in stored) + "]" == found[-1][1]
    assert chat.context_text(conversation).startswith(f'{{"messages":{found[-1][1][:-1]},'.encode())


def test_a_fork_rests_on_nothing_of_what_it_came_from(chat: Chat) -> None:
    conversation = compacted(chat)
    before, context = wholes(chat, conversation), chat.context(conversation)["messages"]
    with chat.database.transaction(chat.tenant_id) as connection:
        through = chat.row(conversation).next_seq - 1
        fork = branches.fork(connection, chat.tenant_id, conversation, through, None, merge({}), ids.new_id())
    assert fork is not None
    assert [len(follows) for _, _, follows in parts(chat, fork)] == [0, 1, 2, 3]
    with chat.database.transaction(chat.tenant_id) as connection:
        connection.execute(
            text("select erase_conversation(:i, :c, 'conversation', null, null)"), {"i": uuid4(), "c": conversation}
        )
    assert parts(chat, conversation) == []
    assert wholes(chat, fork) == before
    assert chat.context(fork)["messages"] == context


def test_a_restored_version_is_what_it_was(chat: Chat) -> None:
    conversation = compacted(chat)
    before = dict(wholes(chat, conversation))
    with chat.database.transaction(chat.tenant_id) as connection:
        restored = branches.restore(connection, chat.tenant_id, conversation, 2, merge({}), ids.new_id())
    assert restored is not None
    assert dict(wholes(chat, conversation)) == before | {restored: before[2]}


def test_retention_takes_no_part_from_under_a_later_one(chat: Chat) -> None:
    conversation = compacted(chat)
    edited = chat.snapshot(conversation, 2).covers_through + 1
    with chat.database.transaction(chat.tenant_id) as connection:
        connection.execute(text("select supersede(:c, :s)"), {"c": conversation, "s": edited})
    assert chat.row(conversation).head_version == 2
    grow(chat, conversation, through=5, start=100)
    before = dict(wholes(chat, conversation))
    assert [follows for _, _, follows in parts(chat, conversation)] == [[], [1], [1, 2], [1, 2, 3], [1, 2]]
    for left in ([1, 2, 3, 5], [1, 2, 5], [1, 2, 5]):
        with chat.database.transaction(None) as connection:
            housekeeping.expire_snapshots(connection, housekeeping.FIRST, -1, 100)
        assert wholes(chat, conversation) == [(version, before[version]) for version in left]
