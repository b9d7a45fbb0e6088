"""The note of what is left out: a line in the summary's frame, or after the first request where there is no summary.

It is stored with the pins of its view and, as their frame is, taken off before a step changes a view and put on after
it. Only the very text that is stored is ever taken off, from the one place where it was put: what people or tools wrote
is never taken for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from compaction.frames.codes import code_line_end
from compaction.frames.wordings import LEFT_OUT
from compaction.summary.zone import CLOSES, OPENS, frames_index, is_signed_alone, opening_length
from compaction.view import WRITTEN, View, ViewMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

_JOINT: Final = "\n\n"
_MOST_CHARS: Final = 600
"""Characters; no note is longer."""


def with_note(view: Sequence[ViewMessage], note: str) -> View:
    """Return `view` with `note` in its first user message; after a summary that the API signed, in one of its own."""
    if not view:
        return ()
    at = opening_length(view)
    host = frames_index(view)
    if host is None or is_signed_alone(view):
        return (*view[:at], ViewMessage("user", note), *view[at:])
    content = view[host].content
    if isinstance(content, str):
        begins = _inside(content)
        noted: Any = f"{content}{_JOINT}{note}" if begins is None else f"{content[:begins]}{note}\n{content[begins:]}"
    else:
        last = _text(content)
        begins = _inside(last)
        if begins is None:
            noted = [*content, {"type": "text", "text": note}]
        else:
            noted = [*content[:-1], {**content[-1], "text": f"{last[:begins]}{note}\n{last[begins:]}"}]
    return (*view[:host], view[host].with_content(noted), *view[host + 1 :])


def without_note(view: Sequence[ViewMessage], note: str) -> View:
    """Return `view` as it was before `with_note` put `note` into it; unchanged where that very note is not there."""
    host = frames_index(view)
    if host is None:
        return tuple(view)
    message = view[host]
    if message.seq == WRITTEN and message.content == note:
        return (*view[:host], *view[host + 1 :])
    bare = _remove_note(message.content, note)
    return tuple(view) if bare is None else (*view[:host], message.with_content(bare), *view[host + 1 :])


def without_words(text: str, note: str) -> str | None:
    """Return a text without the note at its end or in the summary's frame that ends it; None for one that has none."""
    begins = _inside(text)
    if begins is not None and text.startswith(f"{note}\n", begins):
        return text[:begins] + text[begins + len(note) + 1 :]
    return text.removesuffix(f"{_JOINT}{note}") if text.endswith(f"{_JOINT}{note}") else None


def note_at(text: str) -> int:
    """Return where what reads as a note begins that ends `text`, the break before it included; its length for none."""
    noted = LEFT_OUT.search(text, max(0, len(text) - _MOST_CHARS))
    return noted.start() if noted else len(text)


def _remove_note(content: Any, note: str) -> Any:
    if isinstance(content, str):
        return without_words(content, note)
    last = _text(content)
    if last == note:
        return content[:-1]
    bare = without_words(last, note) if _inside(last) is not None else None
    return None if bare is None else [*content[:-1], {**content[-1], "text": bare}]


def _inside(text: str) -> int | None:
    """Return where the words of the summary begin whose frame ends `text`, after its code; None for none."""
    at = text.rfind(f"{OPENS}\n") if text.endswith(CLOSES) else -1
    return code_line_end(text, at + len(OPENS) + 1) if at == 0 or (at > 0 and text.endswith(_JOINT, 0, at)) else None


def _text(content: Sequence[Any]) -> str:
    last = content[-1] if content else None
    return str(last.get("text") or "") if isinstance(last, dict) and last.get("type") == "text" else ""
