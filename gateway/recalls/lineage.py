"""Conversations that another one continues after its client shortened it, and whose messages may be recalled.

Conversations of a session are stored as branches of each other for many reasons. Subagents and requests for titles have
nothing to do with the others. A conversation whose client compacted it begins with the model's summary: if the first
messages of the later one contain an answer of the earlier one, the messages before that answer are its past.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.messages import blocks, tool_use_ids
from compaction.shapes.inner import ShapeError
from gateway.conversations.histories import scope_key
from gateway.conversations.meaning import UNREADABLE, decode_row
from store.gateway import lineage as stored
from store.gateway.lineage import MOST_BYTES, MOST_OPENING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from compaction.shapes.inner import Shape
    from gateway.conversations.turns import PendingExchange
    from store.gateway.lineage import Branch, EncodedMessage

MOST_STEPS: Final = 8
"""Branches that are followed back."""
LEAST_CHARS: Final = 80
"""Least characters of an answer that must be quoted as a whole. Shorter ones may occur by chance."""
LEAST_QUOTED_CHARS: Final = 300
"""Least characters of quoted lines, if not all are: clients remove the model's reasoning before its summary."""
_LINE_CHARS: Final = 40
MOST_SEARCHED_CHARS: Final = 200_000_000
"""Characters searched in one comparison, some tenths of a second: 4,000 lines in an opening of 50,000 characters."""
_value: Final = msgspec.json.Decoder().decode


class EarlierConversation(NamedTuple):
    """A conversation, and the last of its messages that the later one continues."""

    conversation_id: UUID
    through_seq: int


class DecodedMessage(NamedTuple):
    """A message in the inner form."""

    seq: int
    content: Any


@dataclass
class RecallSource:
    """The conversation in which a model recalls, or the request of one that is not stored yet."""

    conversation_id: UUID
    through_seq: int
    """Seq of the last message that the request continues, or -1. Later ones are replaced by it, or belong to another
    client that began with the same words."""
    is_new: bool
    branch_of: UUID | None
    circle: bytes
    in_session: bool
    is_nobodys: bool
    """Whether the request names neither a session nor a user, so that it shares a scope with all such requests."""
    named: UUID | None
    """The conversation that the request names by id."""
    shape: Shape
    rows: Sequence[bytes]
    """First rows of the request."""
    past: Sequence[EarlierConversation] | None = None
    """The conversations that it continues, once they were looked up."""


def recall_source(learned: PendingExchange) -> RecallSource:
    """Return the conversation for calls of recall in the answer to a request."""
    place = learned.place
    return RecallSource(
        place.conversation_id,
        -1 if place.is_new else place.last_seq,
        place.is_new,
        place.branch_of,
        learned.circle,
        learned.session.name is not None or learned.external_id is not None,
        learned.circle == scope_key(learned.shape, session=None, user=None),
        learned.named,
        learned.shape,
        [row for row in learned.history.rows[:MOST_OPENING] if len(row) <= MOST_BYTES] if place.is_new else (),
    )


async def find_past(caller: Caller, asker: RecallSource) -> Sequence[EarlierConversation]:
    """Return the conversations that one continues, the newest first. All calls within an answer share the result."""
    if asker.past is None:
        asker.past = await _walk_branches(caller, asker)
    return asker.past


async def _walk_branches(caller: Caller, asker: RecallSource) -> list[EarlierConversation]:
    """Follow branches back. Texts are compared in a thread, without an open transaction."""
    every: list[EarlierConversation] = []
    branch, beginning = await caller.run(_read_beginning, asker)
    opening = None
    for _ in range(MOST_STEPS):
        if branch is None or (asker.is_nobodys and branch.parent != asker.named):
            break
        if opening is None:
            opening = await asyncio.to_thread(_opening, asker, beginning)
        step = await caller.run(_read_branch, branch)
        through = await asyncio.to_thread(_find_quoted, opening, step.answers)
        if through is not None:
            every.append(EarlierConversation(branch.parent, through))
            opening = await asyncio.to_thread(_decode_rows, step.opening)
        branch = step.branch
    return every


class _BranchRows(NamedTuple):
    """The parts of a conversation that another one may continue."""

    answers: Sequence[EncodedMessage]
    opening: Sequence[EncodedMessage]
    branch: Branch | None


def _read_beginning(
    connection: Connection, tenant_id: UUID, asker: RecallSource
) -> tuple[Branch | None, Sequence[EncodedMessage]]:
    if asker.is_new:
        in_session = asker.in_session
        return stored.branch_of_new(connection, tenant_id, asker.circle, asker.branch_of, in_session=in_session), ()
    branch = stored.branch(connection, tenant_id, asker.conversation_id)
    return branch, stored.opening(connection, tenant_id, asker.conversation_id) if branch is not None else ()


def _read_branch(connection: Connection, tenant_id: UUID, branch: Branch) -> _BranchRows:
    return _BranchRows(
        stored.answers(connection, tenant_id, branch.parent, branch.began),
        stored.opening(connection, tenant_id, branch.parent),
        stored.branch(connection, tenant_id, branch.parent),
    )


def _opening(asker: RecallSource, beginning: Sequence[EncodedMessage]) -> list[DecodedMessage]:
    """Return the first messages of the conversation: stored ones, or else those of the request."""
    every = _decode_rows(beginning)
    for seq, row in enumerate(asker.rows):
        try:
            every.append(DecodedMessage(seq, decode_row(asker.shape, _value(row)).content))
        except (ShapeError, *UNREADABLE):
            continue
    return every


def _find_quoted(opening: Sequence[DecodedMessage], answers: Sequence[EncodedMessage]) -> int | None:
    return oldest_quoted_seq(opening, _decode_rows(answers))


def _decode_rows(rows: Sequence[EncodedMessage]) -> list[DecodedMessage]:
    return [DecodedMessage(row.seq, _value(row.content)) for row in rows]


def oldest_quoted_seq(opening: Sequence[DecodedMessage], answers: Sequence[DecodedMessage]) -> int | None:
    """Return the seq of the oldest answer that an opening quotes, or None.

    Answers at the same place in both do not count: these are branches of one beginning. The result is None, too, if the
    texts are too long and similar to compare all of them.
    """
    shared = {(said.seq, _normalized_text(said.content)) for said in opening}
    whole = _SearchableText(" ".join(_normalized_text(said.content) for said in opening))
    for said in sorted(answers, key=lambda said: said.seq):
        if tool_use_ids(said.content) or (said.seq, _normalized_text(said.content)) in shared:
            continue
        if whole.quotes(said.content):
            return said.seq
        if whole.is_exhausted:
            break
    return None


class _SearchableText:
    """The text of an opening, in which other texts are searched."""

    def __init__(self, text: str) -> None:
        self._text = text
        words = text.split()
        self._pairs = set(pairwise(words))
        self._left = MOST_SEARCHED_CHARS

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit of searched characters is reached."""
        return self._left <= 0

    def quotes(self, content: Any) -> bool:
        """Return whether the text contains a whole message, or enough of its lines."""
        text = _normalized_text(content)
        if len(text) >= LEAST_CHARS and text in self._text:
            return True
        chars = 0
        for line in _plain_text(content).splitlines():
            words = line.split()
            text = " ".join(words)
            if len(text) >= _LINE_CHARS and self._has(text, words):
                chars += len(text)
                if chars >= LEAST_QUOTED_CHARS:
                    return True
        return False

    def _has(self, text: str, words: Sequence[str]) -> bool:
        # The first and the last word may be parts of longer ones; those between must match whole words.
        inner = words[1:-1]
        if self.is_exhausted or not self._pairs.issuperset(pairwise(inner)):
            return False
        self._left -= len(self._text)
        return text in self._text


def _normalized_text(content: Any) -> str:
    """Return the text of a message with single spaces between words, because clients indent and wrap."""
    return " ".join(_plain_text(content).split())


def _plain_text(content: Any) -> str:
    return "\n".join(str(block.get("text") or "") for block in blocks(content) if block.get("type") == "text")
