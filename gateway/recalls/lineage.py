"""Conversations that one goes on from after its client has shortened it: what was said there may be recalled.

Conversations of a session are noted as branches of each other for many reasons: subagents and requests for titles have
nothing to do with what was said beside them. One whose client has compacted it begins with the model's own answer to
that: where an answer of the earlier one stands in the first messages of the later, what came before it is its past.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.messages import blocks, tool_use_ids
from compaction.shapes.inner import ShapeError
from gateway.conversations.histories import circle_of
from gateway.conversations.meaning import UNREADABLE, decode_row
from store.gateway import lineage as stored
from store.gateway.lineage import MOST_BYTES, MOST_OPENING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from compaction.shapes.inner import Shape
    from gateway.conversations.turns import Learned
    from store.gateway.lineage import Branch, EncodedMessage

MOST_STEPS: Final = 8
"""Branches that are gone back."""
LEAST_CHARS: Final = 80
"""Of an answer that stands in another conversation as a whole; shorter ones are said anywhere."""
LEAST_QUOTED_CHARS: Final = 300
"""Of its lines where not all of it does: clients take out what the model thought before its summary."""
_LINE_CHARS: Final = 40
MOST_SEARCHED_CHARS: Final = 200_000_000
"""Characters in which lines are looked for in one comparison, some tenths of a second: 4,000 lines in an opening of
50,000 characters. Few lines are looked for that are not there."""
_value: Final = msgspec.json.Decoder().decode


class Past(NamedTuple):
    """A conversation, and the last of its messages that the later one goes on from."""

    conversation_id: UUID
    through_seq: int


class Said(NamedTuple):
    """A message in the inner form."""

    seq: int
    content: Any


@dataclass
class Asker:
    """The conversation in which a model recalls; of one that is not stored yet, what tells where it goes on from."""

    conversation_id: UUID
    through_seq: int
    """Of the last message that the request goes on from; what else is there it puts something in the place of, or it is
    another client's who began with the same words. -1 for none."""
    is_new: bool
    branch_of: UUID | None
    circle: bytes
    in_session: bool
    is_nobodys: bool
    """Whether neither a session nor a user is said, so that the circle is everybody's who says nothing."""
    named: UUID | None
    """The conversation that the request names by its id."""
    shape: Shape
    rows: Sequence[bytes]
    """Its first ones."""
    past: Sequence[Past] | None = None
    """What it goes on from, once somebody asked."""


def asker_of(learned: Learned) -> Asker:
    """Return who recalls within the answer to a request."""
    place = learned.place
    return Asker(
        place.conversation_id,
        -1 if place.is_new else place.last_seq,
        place.is_new,
        place.branch_of,
        learned.circle,
        learned.session.name is not None or learned.external_id is not None,
        learned.circle == circle_of(learned.shape, session=None, user=None),
        learned.named,
        learned.shape,
        [row for row in learned.history.rows[:MOST_OPENING] if len(row) <= MOST_BYTES] if place.is_new else (),
    )


async def past_of(caller: Caller, asker: Asker) -> Sequence[Past]:
    """Return what a conversation goes on from, the newest first: all calls within an answer have the same."""
    if asker.past is None:
        asker.past = await _past_of(caller, asker)
    return asker.past


async def _past_of(caller: Caller, asker: Asker) -> list[Past]:
    """Go back from one branch to the next. Texts are read and compared in a thread, with no transaction open."""
    every: list[Past] = []
    branch, beginning = await caller.run(_beginning, asker)
    opening = None
    for _ in range(MOST_STEPS):
        if branch is None or (asker.is_nobodys and branch.parent != asker.named):
            break
        if opening is None:
            opening = await asyncio.to_thread(_opening, asker, beginning)
        step = await caller.run(_step, branch)
        through = await asyncio.to_thread(_through, opening, step.answers)
        if through is not None:
            every.append(Past(branch.parent, through))
            opening = await asyncio.to_thread(_read, step.opening)
        branch = step.branch
    return every


class _Step(NamedTuple):
    """What there is of a conversation that another may go on from."""

    answers: Sequence[EncodedMessage]
    opening: Sequence[EncodedMessage]
    branch: Branch | None


def _beginning(connection: Connection, tenant_id: UUID, asker: Asker) -> tuple[Branch | None, Sequence[EncodedMessage]]:
    if asker.is_new:
        in_session = asker.in_session
        return stored.branch_of_new(connection, tenant_id, asker.circle, asker.branch_of, in_session=in_session), ()
    branch = stored.branch(connection, tenant_id, asker.conversation_id)
    return branch, stored.opening(connection, tenant_id, asker.conversation_id) if branch is not None else ()


def _step(connection: Connection, tenant_id: UUID, branch: Branch) -> _Step:
    return _Step(
        stored.answers(connection, tenant_id, branch.parent, branch.began),
        stored.opening(connection, tenant_id, branch.parent),
        stored.branch(connection, tenant_id, branch.parent),
    )


def _opening(asker: Asker, beginning: Sequence[EncodedMessage]) -> list[Said]:
    """Return the first messages of who asks: those that are stored, or else those of the request."""
    every = _read(beginning)
    for seq, row in enumerate(asker.rows):
        try:
            every.append(Said(seq, decode_row(asker.shape, _value(row)).content))
        except (ShapeError, *UNREADABLE):
            continue
    return every


def _through(opening: Sequence[Said], answers: Sequence[EncodedMessage]) -> int | None:
    return quoted_in(opening, _read(answers))


def _read(rows: Sequence[EncodedMessage]) -> list[Said]:
    return [Said(row.seq, _value(row.content)) for row in rows]


def quoted_in(opening: Sequence[Said], answers: Sequence[Said]) -> int | None:
    """Return the seq of the oldest of these answers that stands in an opening, None where none does.

    Answers that both have in the same place do not count: these are branches of one beginning, with all of it. None
    too where the texts are so long and alike that not all could be looked for.
    """
    shared = {(said.seq, _text(said.content)) for said in opening}
    whole = _Whole(" ".join(_text(said.content) for said in opening))
    for said in sorted(answers, key=lambda said: said.seq):
        if tool_use_ids(said.content) or (said.seq, _text(said.content)) in shared:
            continue
        if whole.quotes(said.content):
            return said.seq
        if whole.is_exhausted:
            break
    return None


class _Whole:
    """The text of an opening, in which other texts are looked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        words = text.split()
        self._pairs = set(pairwise(words))
        self._left = MOST_SEARCHED_CHARS

    @property
    def is_exhausted(self) -> bool:
        """Whether no more may be looked for."""
        return self._left <= 0

    def quotes(self, content: Any) -> bool:
        """Tell whether it has all of a message, or enough of its lines."""
        text = _text(content)
        if len(text) >= LEAST_CHARS and text in self._text:
            return True
        chars = 0
        for line in _said(content).splitlines():
            words = line.split()
            text = " ".join(words)
            if len(text) >= _LINE_CHARS and self._has(text, words):
                chars += len(text)
                if chars >= LEAST_QUOTED_CHARS:
                    return True
        return False

    def _has(self, text: str, words: Sequence[str]) -> bool:
        # Where the first and the last word may be parts of longer ones, those between are words here too.
        inner = words[1:-1]
        if self.is_exhausted or not self._pairs.issuperset(pairwise(inner)):
            return False
        self._left -= len(self._text)
        return text in self._text


def _text(content: Any) -> str:
    """Return what is said, with spaces alone between its words: clients indent and wrap."""
    return " ".join(_said(content).split())


def _said(content: Any) -> str:
    return "\n".join(str(block.get("text") or "") for block in blocks(content) if block.get("type") == "text")
