"""Whose history it is: the stored conversation that a request goes on from, and what of it is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.messages import CACHE_MARK, OPAQUE, THINKING, blocks
from compaction.shapes import codecs
from compaction.shapes.inner import Decoded, ShapeError
from runtime import ids
from store.gateway import histories as stored

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from compaction.shapes.inner import Shape
    from gateway.conversations.histories import ResentHistory
    from store.gateway.histories import Beginning, Head
    from store.hot_path import Pool

_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_value: Final = msgspec.json.Decoder().decode


class Recognized(NamedTuple):
    """Where a request stands in what is stored."""

    conversation_id: UUID
    is_new: bool
    matched: int = 0
    """Rows of the request that are stored."""
    keyed: int = 0
    """Those of them that were recognized by their keys; the others are answers that say what was stored."""
    equal_seqs: tuple[int, ...] = ()
    """Seqs of these answers."""
    last_seq: int = -1
    """Of the last row that is stored."""
    next_seq: int = 0
    replace_from: int | None = None
    """The first stored message that the request does not have; None where it has all of them."""
    removed: tuple[int, ...] = ()
    strip_thinking_through: int = -1
    broken_through: int = -1
    head: Head | None = None
    """The snapshot that stands for a beginning of what is matched; None for none."""
    branch_of: UUID | None = None

    @property
    def is_edit(self) -> bool:
        """Whether it takes the place of something that was stored."""
        return self.replace_from is not None


def new_place(branch_of: UUID | None = None) -> Recognized:
    """Return the place of a conversation that is to be made."""
    return Recognized(ids.new_id(), is_new=True, branch_of=branch_of)


def may_go_on(history: ResentHistory, *, in_session: bool) -> bool:
    """Tell whether a history can be recognized at all.

    Of one without an answer nobody can say whose it is, unless its session says so: others begin with the same words.
    """
    return in_session or any(b'"assistant"' in row or b'"function_call"' in row for row in history.rows)


async def recognize(
    pool: Pool, tenant_id: UUID, history: ResentHistory, keys: Sequence[bytes], *, only: UUID | None = None
) -> Recognized:
    """Return where a request stands in what its tenant has stored; a new place where nothing is recognized."""
    beginning = await stored.find(pool, tenant_id, keys, only=only, rows=len(history.rows) + 1)
    if beginning is None and only is not None:
        beginning = await stored.find(pool, tenant_id, keys, rows=len(history.rows) + 1)
    if beginning is None:
        return new_place(branch_of=only)
    if beginning.is_superseded:
        # An edit took its place, and now it goes on: it is a conversation beside that one.
        return new_place(branch_of=beginning.conversation_id)
    place = _compared(beginning, history)
    if place is None:
        return new_place(branch_of=beginning.conversation_id)
    head = beginning.head
    if head is not None and head.covers_through > place.last_seq:
        head = await stored.head_below(pool, tenant_id, place.conversation_id, place.last_seq + 1)
        place = place._replace(strip_thinking_through=place.last_seq)
    return place._replace(head=head)


def _compared(beginning: Beginning, history: ResentHistory) -> Recognized | None:
    """Return the place of a request once its rows were compared with what is stored; None if that cannot be done."""
    if beginning.place != live_before(beginning.seq + 1, beginning.removed):
        # Somebody else has appended to it: which row is which message is not known any more.
        return None
    rows = history.rows[beginning.place :]
    equal = 0
    for row, stored_row in zip(rows, beginning.after, strict=False):
        if not says_the_same(history.shape, row, stored_row.role, stored_row.content):
            break
        equal += 1
    replaced = beginning.after[equal].seq if equal < len(beginning.after) else None
    equal_seqs = tuple(row.seq for row in beginning.after[:equal])
    return Recognized(
        beginning.conversation_id,
        is_new=False,
        matched=beginning.place + equal,
        keyed=beginning.place,
        equal_seqs=equal_seqs,
        last_seq=equal_seqs[-1] if equal_seqs else beginning.seq,
        next_seq=beginning.next_seq,
        replace_from=replaced,
        removed=tuple(beginning.removed),
        strip_thinking_through=beginning.strip_thinking_through,
        broken_through=beginning.broken_through,
    )


def live_before(seq: int, removed: Sequence[int]) -> int:
    """Return how many messages stand before `seq`, without those that edits have superseded."""
    return seq - sum(each < seq for each in removed)


def says_the_same(shape: Shape, row: bytes, role: str, content: Any) -> bool:
    """Tell whether a row of a request says what a stored message does.

    What clients leave out of an answer when they send it again, or write otherwise, makes no difference.
    """
    try:
        sent = decoded(shape, _value(row))
    except (ShapeError, msgspec.DecodeError):
        return False
    return sent.role == role and _said(sent.content) == _said(content)


def decoded(shape: Shape, row: Any) -> Decoded:
    """Return a row in the inner form. Raises ShapeError for what has none."""
    if not isinstance(row, dict):
        raise ShapeError("A message is an object.")
    if shape != "messages":
        return codecs.decode(shape, row)
    role, content = row.get("role"), row.get("content")
    if role not in {"user", "assistant"} or not isinstance(content, str | list):
        raise ShapeError("Expected a message of the user's or the assistant's.")
    return Decoded(str(role), content)


def _said(content: Any) -> tuple[str, list[bytes]]:
    texts: list[str] = []
    others: list[bytes] = []
    for block in blocks(content):
        match block.get("type"):
            case "text":
                texts.append(str(block.get("text") or ""))
            case str(kind) if kind in THINKING or kind == OPAQUE:
                continue
            case "tool_use":
                others.append(_sorted([block.get("id"), block.get("name"), block.get("input")]))
            case _:
                kept = {name: each for name, each in block.items() if name != CACHE_MARK and each is not None}
                others.append(_sorted(kept))
    return "".join(texts).strip(), others
