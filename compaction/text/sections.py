"""Sections: where Markdown, HTML, source code and plain text begin something new."""

from __future__ import annotations

import re
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SAMPLE_CHARS: Final = 100_000
"""Characters from the start of a text that decide what kind it is."""
HEADING_CHARS: Final = 200
"""Characters; a longer line is no heading."""

_MARK: Final = "[\u2026 {hidden:,} characters left out]"
_MARK_LINE: Final = re.compile(r"\[\u2026 (\d[\d,]{0,14}) characters left out\]")

_FENCE: Final = re.compile(r"[ \t>]*(?:(?P<mark>`{3,})[^`]*|(?P<tilde>~{3,}).*)")
_ATX: Final = re.compile(r" {0,3}#{1,6}[ \t]+\S")
_UNDERLINE: Final = re.compile(r" {0,3}(?:={2,}|-{3,})[ \t]*\Z")
_NOT_UNDERLINED: Final = re.compile(r"\s*(?:[-*+>|#`~<=]|\d+[.)]\s|\Z)")

_HTML_PAGE: Final = re.compile(r"^[ \t]*<(?:!doctype[ \t]+html|html|head|body)\b", re.IGNORECASE | re.MULTILINE)
_HTML_TAG: Final = re.compile(
    r"</?(?:a|article|b|body|br|div|em|form|h[1-6]|i|img|li|main|nav|ol|p|pre|script|section|span|strong|style|table|t[dhr]"
    r"|title|ul)\b[^<>]*>",
    re.IGNORECASE,
)
_HTML_BLOCK: Final = re.compile(r"<(?:h[1-6]|p|div|section|article|table|ul|ol|tr|li)\b", re.IGNORECASE)

_DECLARATION: Final = re.compile(
    r"[ \t]*(?:export[ \t]+)?(?:const|let|var)[ \t]+[A-Za-z_$][\w$]*[ \t]*=[ \t]*(?:async[ \t]*)?"
    r"(?:function\b|\([^()\n]*\)[ \t]*=>)"
    r"|[ \t]*create[ \t]+(?:or[ \t]+replace[ \t]+)?(?:table|view|function|procedure|trigger)\b"
    r"|[ \t]*(?:(?:export|default|public|private|protected|internal|static|async|abstract|final|pub(?:\([a-z]+\))?"
    r"|unsafe|extern|virtual|override|inline|const|sealed|data|partial|declare)[ \t]+)*+"
    r"(?:def|class|func|fn|fun|function\*?|interface|struct|enum|trait|impl|module|mod|namespace|type|record"
    r"|protocol|object|contract|macro|procedure|package)[ \t]+"
    r"(?:\([^()\n]*\)[ \t]*)?[A-Za-z_$][\w$.]*[ \t]*(?:[({<:=\[;]|extends\b|implements\b|where\b|for\b|struct\b"
    r"|interface\b|$)",
    re.IGNORECASE,
)
_METHOD: Final = re.compile(
    r"[ \t]*(?!(?:if|for|while|switch|catch|return|else|do|with)\b)"
    r"[A-Za-z_][\w<>\[\],:*&~. \t]*\([^;]*\{[ \t]*\Z"
)
_PROTOTYPE: Final = re.compile(
    r"(?!(?:return|throw|new|delete|else|await|yield)\b)[A-Za-z_]\w*[\w \t*&:]*[ \t*&]\w+\([^;]*\)[ \t]*;\Z"
)
_CODE_LINE: Final = re.compile(
    r".*[{};)(\[\]][ \t]*\Z|.*\):[ \t]*\Z|[ \t]*(?:import|from|return|const|let|var|package|use|using|end|else:|try:)\b"
    r"|[ \t]*#(?:include|define|if|endif|!)|[ \t]*(?://|/\*|@\w)"
    r"|[ \t]*[\w.\[\]\"']+[ \t]*(?::[ \t]*\w+[ \t]*)?=[ \t]*\S"
)
_COMMENT: Final = re.compile(r"[ \t]*(?://|/\*|\*|#|--|;;|@\w)")

_NUMBERED: Final = re.compile(
    r"[ \t]*(?:\d{1,3}(?:\.\d{1,3})*[.)]?|[IVXLC]{1,6}\.|(?:Chapter|Section|Part)[ \t]+\w+[.:]?)[ \t]+\S"
)
_LEAST_CAPITALS: Final = 3


class TextKind(StrEnum):
    """What a text is written in."""

    MARKDOWN = "markdown"
    HTML = "html"
    CODE = "code"
    PLAIN = "plain"


class Section(NamedTuple):
    """Offsets of a section: what leads to its heading (comments), the heading line, the body, what follows."""

    start: int
    heading: int
    body: int
    end: int


def mark(hidden: int) -> str:
    """Return the line that stands for `hidden` characters."""
    return _MARK.format(hidden=hidden)


def omitted_chars(line: str) -> int | None:
    """Return how many characters a line stands for, None if it is not such a mark."""
    match = _MARK_LINE.fullmatch(line.strip())
    return int(match[1].replace(",", "")) if match else None


def kind_of(text: str) -> TextKind:
    """Return what `text` is written in, judged by its first SAMPLE_CHARS characters."""
    sample = text[:SAMPLE_CHARS]
    opens_with_tag = sample.lstrip().startswith("<")
    if opens_with_tag and _HTML_PAGE.search(sample):
        return TextKind.HTML
    lines = _lines(sample)
    code = _fence_flags(lines)
    prose = [line for line, inside in zip(lines, code, strict=True) if not inside and line.strip()]
    if _is_code(prose):
        return TextKind.CODE
    tags = len(_HTML_TAG.findall("".join(prose)))
    if opens_with_tag and tags >= 3:  # noqa: PLR2004 - an element has two tags
        return TextKind.HTML
    if any(code) or next(_markdown_headings(lines), None) is not None:
        return TextKind.MARKDOWN
    if tags * 150 > sum(map(len, prose)):
        return TextKind.HTML
    return TextKind.PLAIN


def sections(text: str, kind: TextKind) -> list[Section]:
    """Return the sections of `text` in order; together they are all of it.

    A mark ends a section, so that an outline has the sections of what it outlines. HTML is divided at block tags,
    without headings: `html_text` makes Markdown of it.
    """
    if not text:
        return []
    if kind is TextKind.HTML:
        starts = sorted({0, *(match.start() for match in _HTML_BLOCK.finditer(text))})
        return [Section(start, start, start, end) for start, end in pairwise([*starts, len(text)])]
    lines = _lines(text)
    headings = {
        TextKind.MARKDOWN: _markdown_headings,
        TextKind.CODE: _code_headings,
        TextKind.PLAIN: _plain_headings,
    }[kind](lines)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    begun = {first: (offsets[first], offsets[line], offsets[after]) for first, line, after in headings}
    for number, line in enumerate(lines[:-1]):
        if line.startswith("[") and omitted_chars(line) is not None:
            begun.setdefault(number + 1, (offsets[number + 1],) * 3)
    begun.setdefault(0, (0, 0, 0))
    ordered = [begun[number] for number in sorted(begun)]
    return [Section(*here, there[0]) for here, there in pairwise([*ordered, (len(text),) * 3])]


def open_fence(text: str) -> str:
    """Return the fence that `text` leaves open, empty if none."""
    opened = ""
    for line in _lines(text):
        opened = _after_fence_line(opened, line)
    return opened


def _lines(text: str) -> list[str]:
    """Return the lines of `text` with their ends; only line feeds end one."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _after_fence_line(opened: str, line: str) -> str:
    """Return the open fence after `line`, given the one before it."""
    match = _FENCE.fullmatch(line.rstrip())
    if not match:
        return opened
    fence = match["mark"] or match["tilde"]
    if not opened:
        return fence
    closes = fence[0] == opened[0] and len(fence) >= len(opened) and line.strip(" \t>\r\n") == fence
    return "" if closes else opened


def _fence_flags(lines: Sequence[str]) -> list[bool]:
    """Tell of each line whether it is in a code fence or one of its ends."""
    inside: list[bool] = []
    opened = ""
    for line in lines:
        before, opened = opened, _after_fence_line(opened, line)
        inside.append(bool(before or opened))
    return inside


def _markdown_headings(lines: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield ATX and setext headings as numbers of lines: first, heading, first of the body."""
    fenced = _fence_flags(lines)
    for number, line in enumerate(lines):
        if fenced[number] or len(line) > HEADING_CHARS:
            continue
        if _ATX.match(line):
            yield number, number, number + 1
        elif (
            number + 1 < len(lines)
            and not fenced[number + 1]
            and _UNDERLINE.match(lines[number + 1].rstrip("\r\n"))
            and not _NOT_UNDERLINED.match(line)
            and (number == 0 or not lines[number - 1].strip())
        ):
            yield number, number, number + 2


def _code_headings(lines: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield declarations; the comments and decorators right above one lead to it."""
    free = 0
    for number, line in enumerate(lines):
        if not _declares(line):
            continue
        first = number
        while first > free and _COMMENT.match(lines[first - 1]):
            first -= 1
        yield first, number, number + 1
        free = number + 1


def _plain_headings(lines: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield lines that are alone and are numbered or in capitals."""
    for number, line in enumerate(lines):
        alone = (number == 0 or not lines[number - 1].strip()) and (
            number + 1 == len(lines) or not lines[number + 1].strip() or line.strip().isupper()
        )
        if alone and len(line) <= HEADING_CHARS // 2 and (_NUMBERED.match(line) or _is_in_capitals(line)):
            yield number, number, number + 1


def _is_in_capitals(line: str) -> bool:
    capitals = sum(map(str.isupper, line))
    return line.isupper() and capitals >= _LEAST_CAPITALS and capitals * 2 >= len(line.strip())


def _declares(line: str) -> bool:
    if len(line) > HEADING_CHARS:
        return False
    bare = line.rstrip()
    return bool(_DECLARATION.match(bare) or _METHOD.match(bare) or _PROTOTYPE.match(bare))


def _is_code(lines: Sequence[str]) -> bool:
    """Return whether lines outside fences are source code: something is declared, and much of it is punctuation."""
    declared = sum(map(_declares, lines))
    if not declared:
        return False
    coded = sum(1 for line in lines if _CODE_LINE.match(line[:HEADING_CHARS].rstrip()))
    return coded * 3 >= len(lines)
