"""The compacted head in the place of the rows that it covers; everything else of a request as it came."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.cache_marks import MAX_MARKS, with_mark
from compaction.media.limits import MediaLimits, may_exceed
from compaction.media.shedding import shed_media
from compaction.messages import CACHE_MARK, count_marks
from compaction.pins.serving import check
from compaction.repair import repair
from compaction.shapes import codecs
from compaction.shapes.inner import InnerMessage, SentMessage, ShapeError
from compaction.steps.snapshot import load_view
from compaction.tokens import CHARS_PER_TOKEN
from compaction.view import ViewMessage, strip_thinking
from gateway.conversations.carried_over import (
    find_open_results,
    with_client_clearings,
    with_client_dates,
    with_client_ids,
)
from gateway.conversations.marks import MARK, mark_of
from gateway.conversations.meaning import UNREADABLE, UNREADABLE_ROW, decode_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.shapes.inner import Shape
    from compaction.view import View
    from gateway.conversations.histories import ResentHistory
    from gateway.conversations.recognition import RecognizedPlace
    from store.gateway.histories import Head

_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
_CALL_WORDS: Final = (b"tool", b"function", b"_call")
"""One of them is in every call and every result, of whichever shape."""
_EDITS: Final = "context_management"
NO_LIMITS: Final = MediaLimits()


class CompactedRequest(NamedTuple):
    """What is sent in the place of a request, and what was saved by it."""

    body: bytes
    saved_tokens: int
    """By estimate."""
    version: int
    """Of the snapshot."""
    rules: str
    """The hash over the rules that stand in its messages word for word, as answers of the API have it."""


def shorten(history: ResentHistory, place: RecognizedPlace, limits: MediaLimits = NO_LIMITS) -> CompactedRequest | None:
    """Return a request with the head in the place of what it covers, and within the limits on media.

    None where there is no head that can stand there, and nothing is over a limit.
    """
    head = place.head
    # Between a head and the rows behind it a client may have left out messages that neither has.
    if head is not None and not place.lacking_through <= head.covers_through <= place.last_seq:
        head = None
    first = 0 if head is None else place.rows_before(head.covers_through + 1)
    has_other_ids = head is not None and bool(find_open_results(history, head, first))
    kept = b"".join([b"" if head is None else head.messages.encode(), *history.rows[first:]])
    if may_exceed(kept, limits):
        rows, shed = _carefully(history, place, head, first, limits, has_other_ids=has_other_ids)
        if head is None and not shed:
            return None
    elif head is None:
        return None
    elif history.shape == "messages" and not has_other_ids and not _needs_care(history, place, head, first):
        rows = [row for row in (_marked(head.messages, history, first)[1:-1], *history.rows[first:]) if row]
    else:
        rows, _ = _carefully(history, place, head, first, limits, has_other_ids=has_other_ids)
    saved = 0 if head is None else max(0, head.covered_tokens - head.tokens)
    if place.seqs and head is not None:
        # A client that shortens its history itself may send less than the head.
        room = sum(map(len, history.rows)) - sum(map(len, rows))
        if room <= 0:
            return shorten(history, place._replace(head=None), limits)
        saved = room // CHARS_PER_TOKEN
    shown = without_lost_thinking(history, rows).with_rows(rows)
    served = b"[" + b",".join([*history.lead, *rows]) + b"]" if place.rules else b"[]"
    version = 0 if head is None else head.version
    return CompactedRequest(shown, saved, version, check(served, place.rules, place.shown_rules).sha256)


def without_lost_thinking(history: ResentHistory, rows: Sequence[bytes]) -> ResentHistory:
    """Return a history that asks for no thinking if `rows` lack what was thought in the tool loop that they end with.

    The Messages API takes such a loop only from a request that has thinking disabled.
    """
    thinking = history.fields.get("thinking")
    if history.shape != "messages" or thinking is None or _has_loop_thinking(rows):
        return history
    asked = _value(thinking)
    is_enabled = isinstance(asked, dict) and asked.get("type") == "enabled"
    if not is_enabled or not _has_loop_thinking(history.rows):
        return history
    fields = {**history.fields, "thinking": msgspec.Raw(_encode({"type": "disabled"}))}
    if _EDITS in fields:
        edits = _value(fields[_EDITS])
        fields[_EDITS] = msgspec.Raw(_encode(_without_thinking_edits(edits)))
    return history._replace(fields=fields)


def _has_loop_thinking(rows: Sequence[bytes]) -> bool:
    """Return whether rows end within a tool loop, and anything that was thought in it is there."""
    if not rows or b'"tool_result"' not in rows[-1]:
        return False
    for row in reversed(rows):
        if b'thinking"' in row:
            return True
        if b'"tool_use"' not in row and b'"tool_result"' not in row:
            break
    return False


def _without_thinking_edits(edits: Any) -> Any:
    """Return the API's context edits without those that it takes only from requests that think."""
    listed = edits.get("edits") if isinstance(edits, dict) else None
    if not isinstance(listed, list):
        return edits
    kept = [each for each in listed if not (isinstance(each, dict) and "thinking" in str(each.get("type")))]
    return {**edits, "edits": kept}


def _needs_care(history: ResentHistory, place: RecognizedPlace, head: Head, first: int) -> bool:
    """Tell whether rows after the head cannot be passed on unread."""
    if place.redated or place.cleared_through >= 0 or place.broken_through > head.covers_through:
        return True
    through = place.rows_before(place.strip_thinking_through + 1)
    return any(b'thinking"' in row for row in history.rows[first : max(first, through)])


def _carefully(
    history: ResentHistory,
    place: RecognizedPlace,
    head: Head | None,
    first: int,
    limits: MediaLimits,
    *,
    has_other_ids: bool,
) -> tuple[list[bytes], int]:
    """Return the head and what comes after it as rows of the request's shape, read, stripped and mended.

    How many media gave way to the limits comes with them.
    """
    seqs = _seqs(place, len(history.rows))
    tail = []
    sent: dict[int, SentMessage] = {}
    for at in range(first, len(history.rows)):
        row = _read_row(history.shape, history.rows[at])
        tail.append(ViewMessage(row.decoded.role, row.decoded.content, seqs[at]))
        sent[seqs[at]] = row
    before = () if head is None else _head_view(history, place, head, first, has_other_ids=has_other_ids)
    if history.shape != "messages":
        places = {seq: at for at, seq in enumerate(seqs[:first])}
        for message in before:
            if message.seq in places:
                sent[message.seq] = _read_row(history.shape, history.rows[places[message.seq]])
    view: View = (*before, *(tail if head is None else strip_thinking(tail, place.strip_thinking_through)))
    if head is not None and place.broken_through > head.covers_through:
        view, _ = repair(view)
    shed = shed_media(view, limits)
    view = shed.view
    if history.shape != "messages":
        return [_encode(row) for row in codecs.encode(history.shape, view, sent).messages], shed.replaced
    by_seq = {seq: message for seq, message in sent.items() if seq >= 0}
    rows = []
    for message in view:
        own = by_seq.get(message.seq)
        same = own is not None and own.decoded.content is message.content
        rows.append(own.text.encode() if own is not None and same else _encode(message.as_message()))
    return rows, shed.replaced


def _read_row(shape: Shape, row: bytes) -> SentMessage:
    """Return a row as it goes on. One that cannot be read goes on byte for byte, as a text that nothing changes.

    Raises ShapeError or what reading raises if the row may be part of a tool call, which has to stay with its result.
    """
    value: Any = {}
    try:
        value = _value(row)
        return SentMessage(row.decode(), value, decode_row(shape, value))
    except (ShapeError, *UNREADABLE):
        if any(word in row for word in _CALL_WORDS):
            raise
    role = "assistant" if isinstance(value, dict) and value.get("role") == "assistant" else "user"
    return SentMessage(row.decode(), {"role": role}, InnerMessage(role, UNREADABLE_ROW))


def _head_view(
    history: ResentHistory, place: RecognizedPlace, head: Head, first: int, *, has_other_ids: bool
) -> Sequence[ViewMessage]:
    """Return the messages of the head as they go on: with the client's mark, and with what it has rewritten."""
    before: Sequence[ViewMessage] = load_view(head.messages, head.seqs)
    if has_other_ids or place.cleared_through >= 0:
        seqs = _seqs(place, len(history.rows))
        own = dict(zip(seqs[:first], history.rows[:first], strict=True))
        before = with_client_ids(history.shape, before, own) if has_other_ids else before
        before = with_client_clearings(history.shape, before, own)
    if place.redated:
        before = with_client_dates(history, before, place.redated)
    if history.shape == "messages" and before and (mark := _mark_of_head(history, first)) is not None:
        before = (*before[:-1], before[-1].with_content(with_mark(before[-1].content, mark)))
    return before


def _seqs(place: RecognizedPlace, count: int) -> list[int]:
    """Return the seq of each row: those that are stored, then those that will be."""
    if place.seqs:
        # Notes of the client's own are no messages: a number for each that no message has.
        notes = itertools.count(place.next_seq + count)
        known = [seq if seq >= 0 else next(notes) for seq in place.seqs]
        return [*known, *range(place.next_seq, place.next_seq + count - len(known))]
    removed = set(place.removed)
    live = [seq for seq in range(place.last_seq + 1) if seq not in removed]
    return [*live, *range(place.next_seq, place.next_seq + count - len(live))]


def _marked(messages: str, history: ResentHistory, first: int) -> bytes:
    """Return a snapshot's messages as JSON, the last with the mark that it is to have."""
    mark = _mark_of_head(history, first)
    if mark is None:
        return messages.encode()
    every: list[dict[str, Any]] = _value(messages)
    if every:
        every[-1] = {**every[-1], "content": with_mark(every[-1]["content"], mark)}
    return _encode(every)


def _mark_of_head(history: ResentHistory, first: int) -> Any:
    """Return the mark for the end of the head: one where the client marks its own rows and there is room for another.

    A snapshot stays the same until the next one: what ends with it is read from the cache in every call.
    """
    rows = (*reversed(history.rows[:first]), *history.rows[first:])
    mark = next((mark for row in rows if (mark := mark_of(row))), None)
    return mark if mark is not None and _marks(history, first) < MAX_MARKS else None


def _marks(history: ResentHistory, first: int) -> int:
    """Return how many marks a request has without the rows before `first`."""
    beside = [_value(history.fields[name]) for name in ("system", "tools") if name in history.fields]
    own = 1 if CACHE_MARK in history.fields else 0
    rows = [_value(row) for row in history.rows[first:] if MARK in row]
    return own + sum(map(count_marks, beside)) + sum(count_marks(row.get("content")) for row in rows)
