"""Conversations to measure with, written straight into the tables; their ids are made from numbers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import msgspec

from bench.measure import progress

if TYPE_CHECKING:
    import psycopg

UUID_START: Final = "00000000-0000-7000-8000-"
"""A conversation's id is this and its number, twelve decimal digits."""
EXTERNAL_START: Final = "/v1/conversations/conv_00000000000070008000"
"""The start of a conversation's path; its number follows."""
SNAPSHOT_BYTES: Final = 40_000
TAIL_MESSAGES: Final = 8
_MESSAGE_BYTES: Final = 1_040
_VARIANTS: Final = 20
_words: Final = random.Random(7)  # noqa: S311 - text to measure with
_VOCABULARY: Final = [
    "".join(_words.choices("etaoinshrdlucmfwypvbgkjqxz", weights=range(26, 0, -1), k=_words.randint(2, 10)))
    for _ in range(4_000)
]


class Group(NamedTuple):
    """Conversations with consecutive numbers."""

    first: int
    size: int


APPENDS: Final = 100_000_000_000
READS: Final = 200_000_000_000
LENGTHS: Final = 300_000_000_000
CHECKS: Final = 400_000_000_000
ASSEMBLIES: Final = 500_000_000_000
HANDLES: Final = 600_000_000_000
SHAPES: Final = 700_000_000_000
"""Where the numbers of each row's conversations start."""


def conversation_id(number: int) -> UUID:
    """Return the id of a conversation."""
    return UUID(f"{UUID_START}{number:012}")


def prose(characters: int) -> str:
    """Return words that add up to about as many characters; they compress a little worse than English does."""
    words: list[str] = []
    while characters > 0:
        words.append(_words.choice(_VOCABULARY))
        characters -= len(words[-1]) + 1
    return " ".join(words)


def turn_body() -> str:
    """Return the body of a turn: a request and an answer, 1.5 KB together."""
    return json_text(
        {
            "messages": [
                {"role": "user", "content": prose(400)},
                {"role": "assistant", "content": [{"type": "text", "text": prose(950)}]},
            ]
        }
    )


def json_text(value: object) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


def add_conversations(connection: psycopg.Connection, tenant_id: UUID, group: Group) -> None:
    """Make empty conversations."""
    progress(f"making {group.size:,} conversations")
    connection.execute(
        """
        insert into conversations (id, tenant_id)
        select (%s::text || number)::uuid, %s from generate_series(%s::bigint, %s) as number
        on conflict do nothing
        """,
        [UUID_START, tenant_id, group.first, group.first + group.size - 1],
    )


def set_policy(connection: psycopg.Connection, group: Group, policy: dict[str, object]) -> None:
    """Give the conversations of a group their own policy."""
    connection.execute(
        "update conversations set policy = %s where id between (%s::text || %s)::uuid and (%s::text || %s)::uuid",
        [json_text(policy), UUID_START, str(group.first), UUID_START, str(group.first + group.size - 1)],
    )


def add_compacted(
    connection: psycopg.Connection,
    tenant_id: UUID,
    group: Group,
    *,
    messages: int,
    snapshot_bytes: int = SNAPSHOT_BYTES,
) -> None:
    """Make conversations with a snapshot, of which the last eight of `messages` messages are the tail."""
    add_conversations(connection, tenant_id, group)
    numbers = [group.first, group.first + group.size - 1]
    covers = messages - TAIL_MESSAGES - 1
    contents = [json_text(prose(1_000)) for _ in range(_VARIANTS)]
    snapshot_messages = _snapshot(snapshot_bytes)
    count = len(snapshot_messages[0])
    tokens = snapshot_bytes // 4
    with connection.transaction():
        connection.execute(
            """
            insert into messages (tenant_id, conversation_id, seq, role, content, tokens, view_tokens, bytes,
                                  is_request, has_thinking)
            select %s, (%s::text || number)::uuid, seq, case when seq %% 2 = 0 then 'user' else 'assistant' end,
                   case when seq > %s then (%s::text[])[1 + seq %% 20] else '"said long ago"' end::json,
                   250, 250, %s, seq %% 2 = 0, false
            from generate_series(%s::bigint, %s) as number, generate_series(0, %s) as seq
            """,
            [tenant_id, UUID_START, covers, contents, _MESSAGE_BYTES, *numbers, messages - 1],
        )
        connection.execute(
            """
            insert into snapshots (tenant_id, conversation_id, version, parent_version, step, covers_through, messages,
                                   seqs, coverage, tokens, message_count, bytes, exchanges, prefix_hash)
            select %s, (%s::text || number)::uuid, 1, 0, 'tool_results', %s, (%s::text[])[1 + number %% 20]::json,
                   array_fill(-1, array[%s]), '[]', %s, %s, %s, %s, ''
            from generate_series(%s::bigint, %s) as number
            """,
            [
                *(tenant_id, UUID_START, covers, list(map(json_text, snapshot_messages)), count),
                *(tokens, count, snapshot_bytes, count // 2, *numbers),
            ],
        )
        connection.execute(
            """
            update conversations
            set next_seq = %s, turn_count = %s, revision = %s, head_version = 1, last_version = 1, covers_through = %s,
                head_moved_at = %s, last_request = %s, context_tokens = %s, context_messages = %s, context_bytes = %s,
                context_exchanges = %s
            where id between (%s::text || %s)::uuid and (%s::text || %s)::uuid
            """,
            [
                *(messages, messages // 2, messages // 2, covers, messages - 2, messages - 2),
                *(tokens + TAIL_MESSAGES * 250, count + TAIL_MESSAGES),
                *(snapshot_bytes + TAIL_MESSAGES * _MESSAGE_BYTES, (count + TAIL_MESSAGES) // 2),
                *(UUID_START, str(numbers[0]), UUID_START, str(numbers[1])),
            ],
        )
    connection.execute("analyze conversations, messages, snapshots")


def _snapshot(size: int) -> list[list[dict[str, str]]]:
    """Return variants of a snapshot's messages, `size` bytes each."""
    each = size // 20
    return [
        [{"role": "assistant" if index % 2 else "user", "content": prose(each - 40)} for index in range(20)]
        for _ in range(_VARIANTS)
    ]
