"""The context as it is now: which messages it has, and what stands in the place of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from api.console.views.content import preview, preview_of_beginning
from compaction.coverage import Coverage, find_span
from compaction.steps.snapshot import load_view
from compaction.view import WRITTEN, View
from store.console.contents import Range

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from store.console.contents import Weight
    from store.tables import AnyRow

Label = Literal["kept", "truncated", "summarized", "dropped", "restored", "superseded", "written"]
Show = Literal["context", "all"]
_GONE: Final = frozenset({"summarized", "dropped"})


class Head(NamedTuple):
    """The snapshot in force, read: version 0 has none."""

    version: int = 0
    covers_through: int = -1
    view: View = ()
    coverage: Coverage = ()
    summary: str | None = None
    ancestors: Sequence[Coverage] = ()
    """Coverages of the snapshots that it came from, oldest first; the last is the one that it changed."""


class Entry(NamedTuple):
    """A line of the list before its message was read: a message, a range of such that are not shown, or one written."""

    kind: Literal["message", "gone", "written"]
    first: int
    """Seq; of a written message its place in the head."""
    last: int
    label: Label
    run: str | None = None


class Line(NamedTuple):
    """A line of the list. Tokens are those of the originals, and those that the context has of them."""

    entry: Entry
    role: str | None
    tokens: int
    shown_tokens: int
    messages: int
    beginning: str
    at: datetime | None
    has_summary: bool = False
    is_new: bool = False
    """Whether the head changed what became of it."""


def read_head(row: AnyRow | None, chain: Sequence[AnyRow]) -> Head:
    """Return the head of a snapshot's row and the chain that it ends."""
    if row is None:
        return Head()
    ancestors = [msgspec.convert(each.coverage, Coverage) for each in chain if each.version != row.version]
    return Head(
        row.version,
        row.covers_through,
        load_view(row.messages, row.seqs),
        msgspec.convert(row.coverage, Coverage),
        row.summary,
        ancestors,
    )


def entries(head: Head, next_seq: int, superseded: Collection[int], show: Show) -> list[Entry]:
    """Return the lines of the whole list, oldest first.

    `context` shows the context, with one line for each range that is not in it; `all` shows every message.
    """
    covered = _each_covered(head, superseded) if show == "all" else _covered(head)
    tail = [
        Entry("message", seq, seq, "superseded" if seq in superseded else label_of(head, seq, "kept"))
        for seq in range(head.covers_through + 1, next_seq)
        if show == "all" or seq not in superseded
    ]
    return [*_with_written(covered, head), *tail]


def _covered(head: Head) -> Iterator[Entry]:
    """Yield a line for each message of the head's that is shown, and one for each range that is not."""
    for span in head.coverage:
        if span.fate in _GONE:
            yield Entry("gone", span.first, span.last, span.fate, span.run_id)
        else:
            for seq in range(span.first, span.last + 1):
                yield Entry("message", seq, seq, label_of(head, seq, span.fate), span.run_id)


def _each_covered(head: Head, superseded: Collection[int]) -> Iterator[Entry]:
    """Yield a line for each message up to the head's last."""
    for seq in range(head.covers_through + 1):
        span = find_span(head.coverage, seq)
        if span is None or seq in superseded:
            yield Entry("message", seq, seq, "superseded")
        else:
            yield Entry("message", seq, seq, label_of(head, seq, span.fate), span.run_id)


def _with_written(covered: Iterable[Entry], head: Head) -> Iterator[Entry]:
    """Yield the head's lines with what compaction wrote, each before the message that follows it in the head."""
    before: dict[int, list[Entry]] = {}
    waiting: list[Entry] = []
    for index, message in enumerate(head.view):
        if message.seq == WRITTEN:
            waiting.append(Entry("written", index, index, "written"))
        else:
            before[message.seq], waiting = waiting, []
    for entry in covered:
        if entry.kind == "message":
            yield from before.get(entry.first, ())
        yield entry
    yield from waiting


def is_changed(head: Head, entry: Entry) -> bool:
    """Tell whether the head changed what becomes of a line's messages: before it, their fate was another."""
    before = head.ancestors[-1] if head.ancestors else ()
    span = find_span(head.coverage, entry.first)
    if entry.kind == "written" or span is None:
        return False
    if span.fate == "kept":
        span_before = find_span(before, entry.first)
        return span_before is not None and span_before.fate != "kept"
    same = (each for each in before if each.fate == span.fate and each.first <= entry.last and each.last >= entry.first)
    return sum(min(each.last, entry.last) - max(each.first, entry.first) + 1 for each in same) < (
        entry.last - entry.first + 1
    )


def label_of(head: Head, seq: int, fate: Label) -> Label:
    """Return what became of a message; one that is shown again after it was not is restored."""
    if fate != "kept":
        return fate
    before = (find_span(coverage, seq) for coverage in head.ancestors)
    return "restored" if any(span is not None and span.fate != "kept" for span in before) else "kept"


def lines(
    listed: Sequence[Entry], head: Head, rows: Mapping[int, AnyRow], weights: Mapping[Range, Weight], cap: int
) -> list[Line]:
    """Return lines with what was read of their messages; `cap` are the characters of a tool result that are shown."""
    view = {message.seq: message for message in head.view}
    read: list[Line] = []
    for entry in listed:
        if entry.kind == "written":
            message = head.view[entry.first]
            read.append(
                Line(entry, message.role, 0, message.tokens, 1, preview(message.content), None, has_summary=True)
            )
        elif entry.kind == "gone":
            weight = weights[Range(entry.first, entry.last)]
            read.append(Line(entry, None, weight.tokens, 0, weight.messages, "", None, is_new=is_changed(head, entry)))
        elif (row := rows.get(entry.first)) is not None:
            read.append(_line(entry, row, view.get(entry.first), head, cap))
    return read


def _line(entry: Entry, row: AnyRow, message: Any, head: Head, cap: int) -> Line:
    is_capped = entry.label in {"kept", "restored"} and max(row.result_chars or [0]) > cap
    if is_capped:
        entry = entry._replace(label="truncated")
    is_shown = entry.label not in {"summarized", "dropped", "superseded"}
    tokens = message.tokens if message is not None else row.view_tokens if is_shown else 0
    has_summary = head.summary is not None and message is not None and head.summary in _texts(message.content)
    return Line(
        entry,
        row.role,
        row.tokens,
        tokens,
        1,
        beginning(row),
        row.created_at,
        has_summary=has_summary,
        is_new=is_changed(head, entry),
    )


def beginning(row: AnyRow) -> str:
    """Return how a listed message begins."""
    if row.is_cut:
        return preview_of_beginning(row.beginning)
    return preview(msgspec.json.decode(row.beginning))


def _texts(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(str(block.get("text", "")) for block in content)
