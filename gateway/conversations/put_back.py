"""What a client does not have of a history, put back into its place: calls of recall that were answered for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.cache_marks import with_mark
from gateway.conversations.marks import mark_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.shapes.inner import Shape
    from store.gateway.histories import AnsweredRecall

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def live_before(seq: int, removed: Sequence[int]) -> int:
    """Return how many messages stand before `seq`, without those that edits have superseded."""
    return seq - sum(each < seq for each in removed)


def resent_before(seq: int, removed: Sequence[int], recalls: Sequence[AnsweredRecall]) -> int | None:
    """Return how many rows a client sends for the messages before `seq`; None where that is not known."""
    count = live_before(seq, removed)
    for each in recalls:
        if each.through_seq < seq:
            if each.resent is None:
                return None
            count -= each.through_seq - each.seq + 1 - each.resent
        elif each.seq < seq:
            return None
    return count


def put_back(
    shape: Shape, rows: Sequence[bytes], recalls: Sequence[AnsweredRecall], removed: Sequence[int]
) -> list[bytes]:
    """Return a client's rows as the model has them: one for each message that is stored, then those that are new."""
    every: list[bytes] = []
    taken = left_out = 0
    results: list[dict[str, Any]] = []
    for recall in recalls:
        first = live_before(recall.seq, removed) - left_out
        end = first + (recall.resent or 0)
        every += _begun_with(shape, rows[taken:first], results)
        every += _as_said(recall, rows[first:end])
        taken, results = end, recall.results
        left_out += len(recall.messages) - (recall.resent or 0)
    return every + _begun_with(shape, rows[taken:], results)


def with_results(shape: Shape, row: bytes, results: Sequence[dict[str, Any]]) -> list[bytes]:
    """Return a row after calls whose results the client does not have, and these: within it, or as rows before it."""
    if not results:
        return [row]
    if shape != "messages":
        return [*map(_encode, results), row]
    fields = _fields(row)
    content = bytes(fields["content"])
    given = _encode(results)[1:-1]
    if content.startswith(b'"'):
        content = b'[{"type":"text","text":' + content + b"}]"
    rest = content[1:].lstrip()
    fields["content"] = msgspec.Raw(b"[" + given + (b"" if rest.startswith(b"]") else b",") + rest)
    return [_encode(fields)]


def can_begin_with_results(shape: Shape, row: bytes) -> bool:
    """Return whether results can be put at the beginning of a row, or before it."""
    if shape != "messages":
        return True
    value = _value(row)
    return isinstance(value, dict) and value.get("role") == "user" and isinstance(value.get("content"), str | list)


def _begun_with(shape: Shape, rows: Sequence[bytes], results: Sequence[dict[str, Any]]) -> list[bytes]:
    return [*with_results(shape, rows[0], results), *rows[1:]] if rows else []


def _as_said(recall: AnsweredRecall, own: Sequence[bytes]) -> list[bytes]:
    """Return the messages that stand for a client's own rows, with the mark for the cache that these end with."""
    messages = [b"" if bytes(each) == b"null" else bytes(each) for each in recall.messages]
    mark = mark_of(own[-1]) if own else None
    if mark is not None and messages[-1]:
        value = _value(messages[-1])
        messages[-1] = _encode({**value, "content": with_mark(value["content"], mark)})
    return messages
