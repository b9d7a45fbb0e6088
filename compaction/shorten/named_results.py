"""Results of a chat cut to head and tail, each under a name that its original can be asked for by.

For whoever keeps the history and asks for shorter rows in the place of the same number of them. What is made of a row
depends on that row alone, so that rows which are sent again come out the same.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from compaction.recall.handles import Handle
from compaction.shorten.shortening import text_of, without_middle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME_DIGITS: Final = 24
"""Hexadecimal digits of a name, the most that Headroom's clients take."""
LEAST_SAVED_CHARS: Final = 400
"""Characters that have to go: about as many as the note and a call for the original take."""
_WHERE: Final = ": retrieve hash={name}"
_RESULTS: Final = frozenset({"tool", "function"})


class NamedResult(NamedTuple):
    """A row with its content cut."""

    row: dict[str, Any]
    name: str


def named_results(rows: Sequence[Any], head_chars: int, tail_chars: int) -> dict[int, NamedResult]:
    """Return the results of Chat Completions that are worth cutting, by their index.

    A result keeps its first and its last characters. Those behind the last answer stay: the model is yet to read them.
    """
    answers = [at for at, row in enumerate(rows) if _role(row) == "assistant"]
    end = answers[-1] if answers else len(rows)
    named = ((at, _named(rows[at], head_chars, tail_chars)) for at in range(end) if _role(rows[at]) in _RESULTS)
    return {at: result for at, result in named if result is not None}


def whole_text(content: Any) -> str:
    """Return the text of a result, its parts as one."""
    return content if isinstance(content, str) else "".join(map(text_of, content if isinstance(content, list) else ()))


def name_of(text: str) -> str:
    """Return the name of an original: it is that of the same text wherever it stands."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:NAME_DIGITS]


def _role(row: Any) -> Any:
    role = row.get("role") if isinstance(row, dict) else None
    return role if isinstance(role, str) else None


def _named(row: Mapping[str, Any], head_chars: int, tail_chars: int) -> NamedResult | None:
    content = row.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
        return None
    texts = [text for part in parts if isinstance(text := part.get("text"), str)]
    if not texts or len(texts) < len(parts):
        return None
    name = name_of("".join(texts))
    shorter = without_middle(texts, head_chars, tail_chars, Handle(where=_WHERE.format(name=name)))
    if shorter is None or sum(map(len, texts)) - sum(map(len, shorter)) < LEAST_SAVED_CHARS:
        return None
    if isinstance(content, str):
        return NamedResult({**row, "content": shorter[0]}, name)
    kept = [{**part, "text": text} for part, text in zip(parts, shorter, strict=True) if text.strip()]
    return NamedResult({**row, "content": kept}, name)
