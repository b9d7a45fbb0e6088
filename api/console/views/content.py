"""What a message holds, part by part, as text for people."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.messages import CALLS, INSTRUCTION, OPAQUE, THINKING, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SHOWN_CHARS: Final = 100_000
"""Characters of one part that a page shows; the API has the rest."""
PREVIEW_CHARS: Final = 180
_FIRST_TEXT: Final = re.compile(
    r"""(?:^|"(?:text|content|thinking)"\s*:\s*)"((?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*)"""
)
_RESULT: Final = re.compile(r'"tool_result"')


class Part(NamedTuple):
    """A block as it is shown; `hidden` characters of its text are not."""

    kind: str
    title: str
    text: str
    hidden: int = 0


def parts(content: Any, most: int = SHOWN_CHARS) -> list[Part]:
    """Return the parts of a message's content."""
    return [_cut(part, most) for block in blocks(content) for part in _parts_of(block)]


def preview(content: Any) -> str:
    """Return one line that tells how a message begins."""
    begun: list[str] = []
    for part in parts(content, PREVIEW_CHARS):
        line = " ".join(part.text.split())
        begun.append(line if part.kind == "text" else f"{part.title}: {line}" if line else part.title)
        if sum(map(len, begun)) > PREVIEW_CHARS:
            break
    text = " · ".join(begun)
    return text if len(text) <= PREVIEW_CHARS else f"{text[:PREVIEW_CHARS]}…"


def preview_of_beginning(text: str) -> str:
    """Return one line that tells how a message begins, from the first characters of its JSON text."""
    match = _FIRST_TEXT.search(text)
    if match is None:
        line = text
    else:
        # Half of a surrogate pair may be left at the end.
        line = json.loads(f'"{match[1]}"').encode("utf-8", "replace").decode()
        line = f"Tool result: {line}" if _RESULT.search(text, 0, match.start()) else line
    return " ".join(line.split())[:PREVIEW_CHARS] + "…"


def as_text(content: Any) -> str:
    """Return a message as one text, for comparing."""
    return "\n".join(part.text if part.kind == "text" else f"[{part.title}]\n{part.text}" for part in parts(content))


def _cut(part: Part, most: int) -> Part:
    hidden = len(part.text) - most
    return part._replace(text=part.text[:most], hidden=hidden) if hidden > 0 else part


def _parts_of(block: Mapping[str, Any]) -> Iterator[Part]:
    kind = str(block.get("type"))
    if kind == "text":
        yield Part("text", "Text", str(block.get("text") or ""))
    elif kind in CALLS:
        yield Part("call", f"Call of {block.get('name')}", as_json(block.get("input")))
    elif kind.endswith("tool_result"):
        yield from _results(block)
    elif kind in THINKING:
        yield Part("thinking", "Thinking", str(block.get("thinking") or "(redacted)"))
    elif kind in {"image", "document"}:
        source = block.get("source")
        media = source.get("media_type") if isinstance(source, dict) else None
        yield Part("media", kind.capitalize(), str(media or "not shown here"))
    elif kind == INSTRUCTION:
        yield Part("other", f"{str(block.get('by')).capitalize()} message", str(block.get("text") or ""))
    elif kind == OPAQUE:
        yield Part(
            "other", str(block.get("of")), str(block.get("text") or "(only the shape that it was sent in has it)")
        )
    else:
        yield Part("other", kind, as_json(block))


def _results(block: Mapping[str, Any]) -> Iterator[Part]:
    content = block.get("content", "")
    title = "Error from a tool" if block.get("is_error") is True else "Tool result"
    if isinstance(content, str):
        yield Part("result", title, content)
        return
    if not isinstance(content, list):
        yield Part("result", title, as_json(content))
        return
    for inner in blocks(content):
        for part in _parts_of(inner):
            yield Part("result", title if part.kind == "text" else f"{title}, {part.title}", part.text)


def as_json(value: Any) -> str:
    """Return a value as JSON for people."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
