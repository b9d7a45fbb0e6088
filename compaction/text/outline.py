"""Outlines: a context block reduced to its headings and the start of each section, with no model (requirement P16)."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from compaction.text.html_text import html_text
from compaction.text.sections import Section, TextKind, kind_of, mark, omitted_chars, open_fence, sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_READ: Final = 2_000_000
"""Characters that the outlines of one call's blocks are made from; what comes after a block's share is left out."""
_ROOM: Final = 48
"""Characters that a mark with its line ends and a closing fence may take; what is not longer is not worth cutting."""
_WINDOW: Final = 10
"""Text without headings is divided into windows of so many times what is shown of each."""
_LONG_SECTION: Final = 4
"""Windows; a section under a heading is divided into them if it is longer than this."""


Form = Literal["whole", "summary", "outline"]


class ContextBlock(NamedTuple):
    """A context block: where it comes from, what it is called, what it says, and shorter forms that are known of it."""

    source: str
    title: str
    text: str
    summary: str | None = None
    outline: str | None = None
    form: Form = "whole"
    """Which of its forms `text` is; of one that is carried over the outline is the whole."""
    handle: str = ""
    """What says how the whole can be had back, "" where it can't be or where there are no handles."""
    is_carried: bool = False
    seq: int | None = None
    """Of the message that it came with, where it is stored."""

    @property
    def note(self) -> str:
        """Return what follows the text: the handle, unless the text is the whole."""
        return self.handle if self.is_carried or self.form != "whole" else ""


def outline(text: str, *, section_chars: int, max_chars: int | None = None, max_read: int | None = None) -> str:
    """Return the headings of `text` and the first `section_chars` characters of each section.

    Markdown, HTML, source code and plain text are distinguished by content (`sections.kind_of`). HTML comes out as text
    with Markdown headings. In code, declarations are the headings, and the comments above one are part of its
    section. Text without headings and very long sections are divided into windows, each shown by its start. A line
    of its own says how many characters were left out; what this line would not make shorter stays whole. With
    `max_chars`, less of each section is shown until the outline has at most so many characters, and in the end its
    last sections are left out. Never longer than `text`; an outline of an outline is the same or shorter, and no mark
    follows another. With `max_read`, what comes after so many characters is left out unread: reading markup and code
    takes about a second a million characters.
    """
    if max_read is not None and len(text) > max_read + _ROOM:
        room = None if max_chars is None else max(0, max_chars - _ROOM)
        start, hidden = _without_mark(outline(text[:max_read], section_chars=section_chars, max_chars=room))
        return _with_mark(start, hidden + len(text) - max_read)[:max_chars]
    kind = kind_of(text)
    source = text
    if kind is TextKind.HTML:
        source = html_text(text)
        kind = TextKind.MARKDOWN
        if not any(section.heading < section.body for section in sections(source, kind)):
            kind = TextKind.PLAIN
    parts = [part for section in sections(source, kind) for part in _windows(source, section, section_chars)]
    chars = section_chars
    result = _previews(source, parts, chars)
    if max_chars is not None and len(result) > max_chars:
        # Where the headings alone are too long, nothing in between would do.
        barest = _previews(source, parts, 0)
        chars = 0 if len(barest) > max_chars else chars // 2
        result = _previews(source, parts, chars) if chars else barest
    while max_chars is not None and len(result) > max_chars and chars:
        chars //= 2
        result = _previews(source, parts, chars)
    if max_chars is not None and len(result) > max_chars:
        result = _cut_end(result, max_chars)
    return result if len(result) < len(text) else text


def read_share(lengths: Iterable[int], most: int = MAX_READ) -> int:
    """Return the `max_read` of each of several texts that together are read for `most` characters.

    Shares are equal, but what short texts leave of theirs goes to the long ones.
    """
    room, ordered = most, sorted(lengths)
    for place, length in enumerate(ordered):
        share = room // (len(ordered) - place)
        if length > share:
            return share
        room -= length
    return most


def split_structured(text: str, max_chars: int) -> list[str]:
    """Return `text` in parts of at most `max_chars` characters, which together are `text` again.

    A part ends before a section where one begins in its second half, else after a paragraph, a line, a sentence or a
    word, else where it is full. Raises ValueError if `max_chars` is not positive.
    """
    if max_chars < 1:
        raise ValueError("max_chars must be positive")
    if len(text) <= max_chars:
        return [text] if text else []
    starts = [section.start for section in sections(text, kind_of(text))]
    parts: list[str] = []
    position = 0
    while position < len(text):
        end = _break(text, position, max_chars, starts)
        parts.append(text[position:end])
        position = end
    return parts


def _previews(text: str, parts: Sequence[Section], chars: int) -> str:
    pieces: list[str] = []
    for part in parts:
        piece = _preview(text, part, chars)
        if pieces and not (own := _without_mark(piece))[0].strip() and own[1]:
            before, hidden = _without_mark(pieces[-1])
            if hidden:
                pieces[-1] = f"{before}{mark(hidden + own[1])}\n"
                continue
        pieces.append(piece)
    return "".join(pieces)


def _preview(text: str, section: Section, chars: int) -> str:
    """Return a section's heading and its first `chars` characters, or all of it if that is hardly more."""
    whole = text[section.start : section.end]
    lead = text[section.start : section.heading]
    body, hidden = _without_mark(text[section.body : section.end])
    if len(lead) + len(body) <= chars + _ROOM:
        return whole
    lead_shown = _clip(lead, chars // 2)
    body_shown = _clip(body, chars - len(lead_shown))
    hidden += len(lead) - len(lead_shown) + len(body) - len(body_shown)
    if lead_shown and not lead_shown.endswith("\n"):
        lead_shown += "\n"
    start = lead_shown + text[section.heading : section.body] + body_shown
    ends = whole[len(whole.rstrip("\n")) :][:2] or "\n"
    piece = _with_mark(start, hidden) + ends
    return piece if len(piece) < len(whole) else whole


def _with_mark(text: str, hidden: int) -> str:
    lines = [text.rstrip()] if text.strip() else []
    if fence := open_fence(text):
        lines.append(fence)
    return "\n".join([*lines, mark(hidden)])


def _without_mark(text: str) -> tuple[str, int]:
    """Return `text` without a mark on its last line, and how many characters that stands for."""
    bare = text.rstrip()
    start = bare.rfind("\n") + 1
    hidden = omitted_chars(bare[start:])
    return (text, 0) if hidden is None else (text[:start], hidden)


def _clip(text: str, chars: int) -> str:
    """Return the first `chars` characters, fewer if a word would be torn apart and few are lost by it."""
    if len(text) <= chars:
        return text
    clipped = text[:chars]
    if not text[chars].isspace():
        torn = max(clipped.rfind(" "), clipped.rfind("\n"))
        clipped = clipped[: torn + 1] if torn > chars * 3 // 4 else clipped
    return clipped.rstrip()


def _cut_end(text: str, max_chars: int) -> str:
    """Return the start of an outline and a mark, at most `max_chars` characters in all."""
    room = max_chars - _ROOM
    if room <= 0:
        return text[:max_chars]
    kept = text[: text.rfind("\n", 0, room) + 1 or room]
    hidden = sum(
        len(line) if (stands_for := omitted_chars(line)) is None else stands_for
        for line in text[len(kept) :].splitlines(keepends=True)
    )
    kept, before = _without_mark(kept)
    marked_end = _with_mark(kept, hidden + before)
    return marked_end if len(marked_end) <= max_chars else text[:max_chars]


def _windows(text: str, section: Section, section_chars: int) -> Iterator[Section]:
    """Yield a section, or if it is too long for one start to represent it, the windows it is divided into."""
    size = _WINDOW * (section_chars + _ROOM)
    patience = _LONG_SECTION if section.heading < section.body else 1
    start, heading, body, stop = section
    while stop - start > size * patience:
        end = min(stop, _break(text, body, size, ()))
        yield Section(start, heading, body, end)
        start = heading = body = end
        patience = 1
    if start < stop:
        yield Section(start, heading, body, stop)


def _break(text: str, start: int, chars: int, starts: Sequence[int]) -> int:
    """Return where a part that begins at `start` and may have `chars` characters best ends."""
    stop = start + chars
    if len(text) <= stop:
        return len(text)
    half = start + chars // 2
    before = bisect_right(starts, stop)
    if before and starts[before - 1] > half:
        return starts[before - 1]
    for pause in ("\n\n", "\n", ". ", " "):
        if (index := text.rfind(pause, half, stop)) >= 0:
            return index + len(pause)
    return stop
