"""Shortening: a text keeps its beginning and its end, with a note of how much is left out between."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from compaction.recall.handles import ABOUT, NO_HANDLE, WHERE, Handle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.recall.handles import Handles

_GAP: Final = "\n[{about}{hidden:>{width},} characters between are stored but not shown{where}]\n"
_GAP_FOUND: Final = re.compile(
    rf"\n\[(?P<about>{ABOUT}) {{0,14}}(?P<hidden>\d[\d,]{{0,14}}) characters between are stored but not shown"
    rf"(?P<where>(?:{WHERE})?)\]\n"
)


def hidden_characters(text: str) -> int:
    """Return how many characters earlier cuts took out of a text, less those of the notes that say so."""
    return sum(_hidden(gap) - len(gap[0]) for gap in _GAP_FOUND.finditer(text))


def without_middle(texts: Sequence[str], head: int, tail: int, handle: Handle = NO_HANDLE) -> list[str] | None:
    """Return texts, taken as one, with only the first `head` and the last `tail` characters; None if not shorter.

    The note says by `handle` what was cut and how to have it back; without one, what an earlier gap's note says of it.
    A gap that an earlier cut left is widened, never followed by a second one. The note is as long for every `head` and
    `tail`, so that keeping more is never shorter. A text that is all between the two comes back empty.
    """
    whole = "".join(texts)
    gap = _GAP_FOUND.search(whole)
    first, last = gap.span() if gap else (len(whole), 0)
    start, end = min(head, first), max(len(whole) - tail, last)
    hidden = end - start
    if gap:
        hidden += _hidden(gap) - (last - first)
    total = len(whole) + (_hidden(gap) - len(gap[0]) if gap else 0)
    about, where = Handle(gap["about"], gap["where"]) if gap and not handle.where else handle
    note = _GAP.format(about=about, hidden=hidden, width=len(f"{total:,}"), where=where)
    if end - start <= len(note):
        return None
    shorter: list[str] = []
    offset = 0
    for text in texts:
        begins, offset = offset, offset + len(text)
        kept = text[: max(0, start - begins)]
        if begins <= start < offset:
            kept += note
        shorter.append(kept + text[max(0, end - begins) :])
    return shorter


def result_without_middle(
    block: dict[str, Any], head: int, tail: int, *, ending: str = "", handles: Handles | None = None
) -> dict[str, Any] | None:
    """Return a tool result whose text, its text blocks as one, lost its middle; None if it would not be shorter.

    Other blocks (images) stay as they are. The text ends with `ending`, also where it did before. With `handles` the
    note says what was cut and how to have it back.
    """
    content = block.get("content", "")
    if not isinstance(content, (str, list)):
        return None
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [text_of(part) for part in parts]
    last = max((index for index, text in enumerate(texts) if text), default=-1)
    bare = [text.removesuffix(ending) if index == last else text for index, text in enumerate(texts)]
    shorter = without_middle(bare, head, tail, NO_HANDLE if handles is None else handles.handle_of(block))
    if shorter is None:
        return None
    shorter[max(index for index, text in enumerate(shorter) if text)] += ending
    if sum(map(len, shorter)) >= sum(map(len, texts)):
        return None
    if isinstance(content, str):
        return {**block, "content": shorter[0]}
    kept = [
        part if text == new else {**part, "text": new}
        for part, text, new in zip(parts, texts, shorter, strict=True)
        # The API refuses text blocks that are blank.
        if not text or new.strip()
    ]
    return {**block, "content": kept}


def text_of(part: Any) -> str:
    """Return the text of a text block, "" for any other."""
    return str(part.get("text") or "") if isinstance(part, dict) and part.get("type") == "text" else ""


def _hidden(gap: re.Match[str]) -> int:
    return int(gap["hidden"].replace(",", ""))
