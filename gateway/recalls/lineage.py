"""Conversations that one goes on from after its client has shortened it: what was said there may be recalled.

Conversations of a session are noted as branches of each other for many reasons: subagents and requests for titles have
nothing to do with what was said beside them. One whose client has compacted it begins with the model's own answer to
that: where an answer of the earlier one stands in the first messages of the later, what came before it is its past.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.messages import blocks, tool_use_ids
from compaction.shapes.inner import ShapeError
from gateway.conversations.histories import circle_of
from gateway.conversations.recognition import decoded
from store.gateway import lineage as stored
from store.gateway.lineage import MOST_BYTES, MOST_OPENING, Said

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.shapes.inner import Shape
    from gateway.conversations.turns import Learned

MOST_STEPS: Final = 8
"""Branches that are gone back."""
LEAST_CHARS: Final = 80
"""Of an answer that stands in another conversation as a whole; shorter ones are said anywhere."""
LEAST_QUOTED_CHARS: Final = 300
"""Of its lines where not all of it does: clients take out what the model thought before its summary."""
_LINE_CHARS: Final = 40
_value: Final = msgspec.json.Decoder().decode


class Past(NamedTuple):
    """A conversation, and the last of its messages that the later one goes on from."""

    conversation_id: UUID
    through_seq: int


class Asker(NamedTuple):
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


def past_of(connection: Connection, tenant_id: UUID, asker: Asker) -> list[Past]:
    """Return what a conversation goes on from, the newest first."""
    every: list[Past] = []
    if asker.is_new:
        in_session = asker.in_session
        branch = stored.branch_of_new(connection, tenant_id, asker.circle, asker.branch_of, in_session=in_session)
        opening = _opening(asker) if branch is not None else []
    else:
        branch = stored.branch(connection, tenant_id, asker.conversation_id)
        opening = stored.opening(connection, tenant_id, asker.conversation_id) if branch is not None else []
    for _ in range(MOST_STEPS):
        if branch is None or (asker.is_nobodys and branch.parent != asker.named):
            break
        answers = stored.answers(connection, tenant_id, branch.parent, branch.began)
        if (through := quoted_in(opening, answers)) is not None:
            every.append(Past(branch.parent, through))
            opening = stored.opening(connection, tenant_id, branch.parent)
        branch = stored.branch(connection, tenant_id, branch.parent)
    return every


def _opening(asker: Asker) -> list[Said]:
    every = []
    for seq, row in enumerate(asker.rows):
        try:
            every.append(Said(seq, decoded(asker.shape, _value(row)).content))
        except (ShapeError, msgspec.DecodeError):
            continue
    return every


def quoted_in(opening: Sequence[Said], answers: Sequence[Said]) -> int | None:
    """Return the seq of the oldest of these answers that stands in an opening, None where none does.

    Answers that both have in the same place do not count: these are branches of one beginning, with all of it.
    """
    shared = {(said.seq, _text(said.content)) for said in opening}
    whole = " ".join(_text(said.content) for said in opening)
    quoted = [
        said.seq
        for said in answers
        if not tool_use_ids(said.content)
        and (said.seq, _text(said.content)) not in shared
        and _is_quoted(said.content, whole)
    ]
    return min(quoted, default=None)


def _is_quoted(content: Any, whole: str) -> bool:
    text = _text(content)
    if len(text) >= LEAST_CHARS and text in whole:
        return True
    lines = (" ".join(line.split()) for line in _said(content).splitlines())
    return sum(len(line) for line in lines if len(line) >= _LINE_CHARS and line in whole) >= LEAST_QUOTED_CHARS


def _text(content: Any) -> str:
    """Return what is said, with spaces alone between its words: clients indent and wrap."""
    return " ".join(_said(content).split())


def _said(content: Any) -> str:
    return "\n".join(str(block.get("text") or "") for block in blocks(content) if block.get("type") == "text")
