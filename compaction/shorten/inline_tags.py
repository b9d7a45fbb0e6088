"""Tool results pasted into assistant text as XML-like elements: their inner text is cut (requirement P17).

The text is not XML, only some of it looks so. An element counts when its opening tag stands outside code and everything
up to its closing tag balances; whatever else looks like a tag is text and stays.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.recall.handles import NO_HANDLE, WHERE
from compaction.tokens import content_tokens
from compaction.view import MARKER, View, ViewMessage, map_blocks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from compaction.messages import Content
    from compaction.recall.handles import Handles

_HANDLE: Final = "\n[{hidden:,} more characters{where}]"
_HANDLE_FOUND: Final = re.compile(rf"\n\[(?P<hidden>[0-9][0-9,]{{0,14}}) more characters{WHERE}\]\Z")
_HANDLE_CHARS: Final = 80
"""Characters; no handle is longer."""
_CDATA: Final = "<![CDATA["
_CDATA_END: Final = "]]>"
_CODE: Final = re.compile(r"^[ \t>]*(?:(?P<fence>`{3,})|(?P<tilde>~{3,}))|(?P<run>`+)", re.MULTILINE)
_RUN: Final = re.compile(r"`+")


class _Token(NamedTuple):
    """A named tag, a CDATA section (no name), or the start of a section that is never closed (no name, closing)."""

    name: str
    closing: bool
    start: int
    end: int


class _Element(NamedTuple):
    """Offsets of an element: its opening tag, its inner text, its closing tag, what follows."""

    start: int
    inner: int
    close: int
    end: int


def cut_inline_results(
    text: str, tags: Collection[str], limit: int, note: str = MARKER, *, where: str = NO_HANDLE.where
) -> str:
    """Return `text` with the inner text of every element named in `tags` cut to `limit` characters and `note`.

    The tags themselves and all text outside such elements stay byte for byte; names are case-sensitive. Left alone:
    elements that are unclosed, that overlap or hold a named tag without its partner; those whose opening tag stands
    in a code fence, a code span or a CDATA section; and those already cut, so that a second run changes nothing.
    Where the cut falls inside elements nested in the one cut, their closing tags follow `note`. `where` says before it
    how the rest can be had back.
    """
    names = sorted({tag for tag in tags if tag})
    if not names or "<" not in text:
        return text
    tag = re.compile(
        r"<(?:(?P<open>" + (choice := "|".join(map(re.escape, names))) + r")(?=[\s/>])"
        # No part of a tag runs across a `<`, so that no attempt reads further than to the next one.
        r"""(?:[^<>"']|"[^"<]*"|'[^'<]*')*+>"""
        rf"|/(?P<close>{choice})\s*>|!\[CDATA\[)"
    )
    parts: list[str] = []
    done = 0
    for element in _outermost(text, _elements(_tokens(text, tag)), limit):
        parts += (text[done : element.inner], _cut(text[element.inner : element.close], tag, limit, note, where))
        done = element.close
    parts.append(text[done:])
    return "".join(parts)


def cut_inline(view: Sequence[ViewMessage], tags: Collection[str], limit: int, handles: Handles | None = None) -> View:
    """Return `view` with inline results cut in the text of assistant messages; unchanged messages are the same.

    With `handles` a cut says how to have the rest back.
    """

    def cut(where: str, block: dict[str, Any]) -> dict[str, Any]:
        text = block.get("text")
        if block.get("type") != "text" or not isinstance(text, str):
            return block
        shorter = cut_inline_results(text, tags, limit, where=where)
        return block if shorter == text else {**block, "text": shorter}

    def shortened(message: ViewMessage) -> ViewMessage:
        if message.role != "assistant":
            return message
        where = (NO_HANDLE if handles is None else handles.message_handle(message)).where
        if not isinstance(message.content, str):
            return map_blocks(message, partial(cut, where))
        shorter = cut_inline_results(message.content, tags, limit, where=where)
        return message if shorter == message.content else message.with_content(shorter)

    return tuple(map(shortened, view)) if tags else tuple(view)


def hidden_tokens(role: str, content: Content, tags: Collection[str], limit: int) -> int:
    """Return how many tokens fewer a message has in the view."""
    (cut,) = cut_inline([ViewMessage(role, content)], tags, limit)
    return 0 if cut.content is content else content_tokens(content) - cut.tokens


def _tokens(text: str, tag: re.Pattern[str]) -> Iterator[_Token]:
    """Yield the named tags and CDATA sections of `text`; self-closing tags hold nothing and are passed over."""
    position = 0
    section_end = -1
    while match := tag.search(text, position):
        start, position = match.span()
        if name := match["close"]:
            yield _Token(name, closing=True, start=start, end=position)
        elif name := match["open"]:
            if not match[0].endswith("/>"):
                yield _Token(name, closing=False, start=start, end=position)
        else:
            if section_end < position:
                section_end = text.find(_CDATA_END, position)
                section_end = len(text) if section_end < 0 else section_end
            # A section that holds the start of another was never closed: the end is the other's.
            closed = section_end < len(text) and text.find(_CDATA, position, section_end) < 0
            if closed:
                position = section_end + len(_CDATA_END)
            yield _Token("", closing=not closed, start=start, end=position)


def _elements(tokens: Iterator[_Token]) -> list[_Element]:
    """Return the well-formed elements, nested ones included, by where they start."""
    elements: list[_Element] = []
    opened: list[_Token] = []
    spoilt: list[bool] = []  # for each open element: it holds something that does not balance
    pending: dict[str, int] = {}
    for token in tokens:
        if token.name and not token.closing:
            opened.append(token)
            spoilt.append(False)
            pending[token.name] = pending.get(token.name, 0) + 1
        elif token.closing and not pending.get(token.name):
            if spoilt:
                spoilt[-1] = True
        elif token.closing:
            broken = False
            while (top := opened.pop()).name != token.name:
                spoilt.pop()
                pending[top.name] -= 1
                broken = True
            pending[top.name] -= 1
            if not (spoilt.pop() or broken):
                elements.append(_Element(top.start, top.end, token.start, token.end))
            elif spoilt:
                spoilt[-1] = True
    return sorted(elements)


def _outermost(text: str, elements: Sequence[_Element], limit: int) -> Iterator[_Element]:
    """Yield the elements that are inside no other one and whose opening tag is not in code."""
    code = _Code(text, [element for element in elements if element.close - element.inner > limit])
    position = 0
    for element in elements:
        while position <= element.start and (end := code.end_of_next(position, element.start)) is not None:
            position = end
        if position <= element.start:
            yield element
            position = element.end


class _Code:
    """Where code fences and code spans of a text are, outside its elements.

    `long` are the elements that are to be cut. What decides about code looks neither into nor beyond one of them, so
    that cutting it moves no code.
    """

    def __init__(self, text: str, long: Sequence[_Element]) -> None:
        self._text = text
        self._long = long
        self._long_starts = [element.start for element in long]
        self._last_line_end = -1
        self._runs: dict[int, list[int]] = {}
        for run in _RUN.finditer(text) if long else ():
            self._runs.setdefault(run.end() - run.start(), []).append(run.start())

    def end_of_next(self, position: int, stop: int) -> int | None:
        """Return where the first code that starts in `position..stop` ends, None if none does."""
        while match := _CODE.search(self._text, position, stop):
            position = match.end()
            if end := self._fence_end(match) or self._span_end(match):
                return end
        return None

    def _fence_end(self, match: re.Match[str]) -> int | None:
        mark = match["fence"] or match["tilde"]
        if not mark:
            return None
        line_end = self._line_end(match.end())
        barrier = self._barrier(match.start())
        info_end = min(line_end, barrier.start) if barrier else line_end
        if match["fence"] and "`" in self._text[match.end() : info_end]:
            return None
        closing = re.compile(rf"^[ \t>]*{mark[0]}{{{len(mark)},}}[ \t]*$", re.MULTILINE)
        closed = closing.search(self._text, line_end)
        return closed.end() if closed else len(self._text)

    def _span_end(self, match: re.Match[str]) -> int | None:
        mark = match["fence"] or match["run"]
        if not mark:
            return None
        starts = self._runs.get(len(mark), [])
        following = bisect_right(starts, match.end() - 1)
        if following == len(starts) or starts[following] >= self._line_end(match.end()):
            return None
        end = starts[following] + len(mark)
        barrier = self._barrier(match.start())
        return None if barrier and barrier.end < end else end

    def _barrier(self, position: int) -> _Element | None:
        following = bisect_right(self._long_starts, position)
        return self._long[following] if following < len(self._long) else None

    def _line_end(self, position: int) -> int:
        # Positions ascend: the end of a line is looked for once, however much code is in it.
        if position > self._last_line_end:
            end = self._text.find("\n", position)
            self._last_line_end = len(self._text) if end < 0 else end
        return self._last_line_end


def _cut(inner: str, tag: re.Pattern[str], limit: int, note: str, where: str) -> str:
    """Return the inner text of a well-formed element cut to `limit` characters, `note` and what has to be closed.

    What that would make no shorter stays as it is.
    """
    if len(inner) <= limit:
        return inner
    tokens = list(_tokens(inner, tag))
    left = _length_when_cut(inner, tokens, note)
    noted = _HANDLE_FOUND.search(inner, max(0, left - _HANDLE_CHARS), left) if left >= 0 else None
    if 0 <= (noted.start() if noted else left) <= limit:
        return inner
    cut, closers = _boundary(inner, tokens, limit)
    # The marker begins with a bracket: after this it would open a section.
    kept = inner[:cut].removesuffix(_CDATA[:-1])
    # What an earlier note says is missing is missing still.
    hidden = len(inner) - len(kept) - (len(note) if left >= 0 else 0)
    if noted:
        hidden += int(noted["hidden"].replace(",", "")) - len(noted[0])
    handle = _HANDLE.format(hidden=hidden, where=where) if where else ""
    shortened = kept + handle + note + "".join(closers)
    return shortened if len(shortened) < len(inner) else inner


def _boundary(inner: str, tokens: Sequence[_Token], limit: int) -> tuple[int, list[str]]:
    """Return where to cut, `limit` or the start of the tag it falls into, and what closes what is open there."""
    cut = limit
    depth = 0
    closers: list[str] = []
    for token in tokens:
        if token.end <= cut:
            continue
        if not token.name:
            if token.start + len(_CDATA) <= cut:
                cut = min(cut, token.end - len(_CDATA_END))
                closers.append(_CDATA_END)
            else:
                cut = min(cut, token.start)
            continue
        cut = min(cut, token.start)
        depth += -1 if token.closing else 1
        if depth < 0:
            closers.append(inner[token.start : token.end])
            depth = 0
    return cut, closers


def _length_when_cut(inner: str, tokens: Sequence[_Token], note: str) -> int:
    """Return how many characters an earlier cut has left of `inner`, -1 if there was none."""
    end = len(inner)
    for token in reversed(tokens):
        if token.end != end or not (token.closing or not token.name):
            break
        end = token.start if token.name else token.end - len(_CDATA_END)
        if not token.name:
            break
    return end - len(note) if inner.endswith(note, 0, end) else -1
