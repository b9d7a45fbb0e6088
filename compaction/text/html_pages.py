"""HTML documents in tool results: where one begins, and its readable text with the title first."""

from __future__ import annotations

import json
import re
from typing import Final

from compaction.text.html_text import page_text

_BYTE_ORDER_MARK: Final = "\ufeff"
_BLANK: Final = f" \t\r\n{_BYTE_ORDER_MARK}"
_PAGE: Final = r"(?:<!doctype\s+html\b|<html(?=[\s>/]))"
_PAGE_AT_START: Final = re.compile(rf"{_PAGE}|<(?:head|body)(?=[\s>])", re.IGNORECASE)
_PAGE_ON_A_LINE: Final = re.compile(rf"^[ \t{_BYTE_ORDER_MARK}]*{_PAGE}", re.IGNORECASE | re.MULTILINE)
_FRAGMENT: Final = re.compile(
    r"<(?:a|article|aside|b|blockquote|center|div|em|figure|font|footer|form|h[1-6]|header|img|link|main|meta|nav|ol|p"
    r"|section|span|strong|style|table|tbody|title|td|th|tr|ul)(?=[\s>/])",
    re.IGNORECASE,
)
_TAG: Final = re.compile(
    r"</?(?:a|article|aside|b|body|br|center|div|em|font|h[1-6]|head|header|html|img|li|link|main|meta|nav|ol|p|section"
    r"|span|strong|style|table|tbody|title|td|th|tr|ul)(?=[\s>/])",
    re.IGNORECASE,
)
_FRAGMENT_TAGS: Final = 4
"""Tags that the first characters of a fragment have at least."""
_SAMPLE_CHARS: Final = 4_000
_TRAILER_CHARS: Final = 200
"""Characters that may follow a page that other text precedes, such as a closing fence. A program with a page in it has
more."""
_JSON_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*+)(?:"|\Z)', re.DOTALL)
_TORN_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_MAX_READ: Final = 2_000_000
"""Characters of a page that are read."""
_MAX_NESTING: Final = 4
"""JSON texts inside JSON texts."""


def readable_text(text: str, most: int | None = None, *, depth: int = 0) -> str | None:
    """Return `text` with its HTML document as readable text, None if it holds no HTML document.

    The text before a document, such as the headers of an email, stays in front of it. HTML in a string of JSON is
    replaced inside that string, also if the JSON was cut off. Only the first `most` characters of the answer are
    wanted, so reading may stop after them.
    """
    bare = text.lstrip(_BLANK)
    if bare.startswith(("{", "[")):
        return _read_json(text, most, depth) if depth < _MAX_NESTING else None
    start = _find_page(text, most)
    if start is None:
        return None
    lead = text[:start].lstrip(_BLANK) if start else ""
    room = None if most is None else max(0, most - len(lead))
    page = page_text(text[start : start + _MAX_READ].lstrip(_BLANK), room).strip("\n")
    return lead + page if page else None


def _find_page(text: str, most: int | None) -> int | None:
    """Return where the HTML document in `text` begins, None if there is none."""
    start = _skip_prologue(text)
    if _PAGE_AT_START.match(text, start):
        return 0
    if _FRAGMENT.match(text, start):
        is_closed = text.rstrip(_BLANK).endswith(">")
        tags = len(_TAG.findall(text, start, start + _SAMPLE_CHARS))
        return 0 if is_closed and tags >= _FRAGMENT_TAGS else None
    found = _PAGE_ON_A_LINE.search(text, 0, len(text) if most is None else most + len("<!doctype html"))
    if found is None:
        return None
    end = text.lower().rfind("</html")
    is_last = end < found.start() or len(text) - end <= _TRAILER_CHARS
    return found.start() if is_last else None


def _skip_prologue(text: str) -> int:
    """Return where the first tag stands behind blanks, comments and an XML declaration."""
    position = 0
    while True:
        while position < len(text) and text[position] in _BLANK:
            position += 1
        closing = "-->" if text.startswith("<!--", position) else "?>" if text.startswith("<?xml", position) else ""
        end = text.find(closing, position) if closing else -1
        if end < 0:
            return position
        position = end + len(closing)


def _read_json(text: str, most: int | None, depth: int) -> str | None:
    """Return JSON with the HTML documents in its strings as readable text, None if there are none."""
    pieces: list[str] = []
    done = length = 0
    is_found = False
    for match in _JSON_STRING.finditer(text):
        if most is not None and length + match.start() - done >= most:
            break
        raw = match[1]
        if "<" not in raw and "\\u003" not in raw:
            continue
        is_torn = match.end() == len(text) and not match[0].endswith('"')
        try:
            value = json.loads(f'"{_TORN_ESCAPE.sub("", raw) if is_torn else raw}"', strict=False)
        except ValueError:
            continue
        page = readable_text(value, most, depth=depth + 1)
        if page is not None:
            is_found = True
            piece = f'{text[done : match.start()]}"{json.dumps(page, ensure_ascii=False)[1:-1]}"'
            pieces.append(piece)
            length += len(piece)
            done = match.end()
    return "".join([*pieces, text[done:]]) if is_found else None
