"""The meaning of a row: its words, calls, results and media, whatever else its client writes into it.

Clients add positions, ids, times and nulls to rows that they resend. They write a text as a string or as a block, put
the time into the first message, and clear old results. A row's meaning tells such changes from edits.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.messages import CACHE_MARK, CALLS, INSTRUCTION, OPAQUE, THINKING, blocks, disarm_inner_blocks
from compaction.shapes import codecs
from compaction.shapes.inner import InnerMessage, ShapeError
from compaction.shapes.spoken import spoken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from compaction.shapes.inner import Shape

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading raises for what is no JSON, or none that every reader takes."""
UNREADABLE_ROW: Final = "(A message that could not be read here is left out.)"
"""The text that is stored in the place of a row that cannot be read."""
MOST_PLACEHOLDER_CHARS: Final = 400
"""Characters of a text that a client puts in the place of what it has cleared."""
_DIGEST_BYTES: Final = 16
_START_CHARS: Final = 32
"""Characters by which the beginning of a text is known again where the client has cut its end."""
_VOLATILE: Final = frozenset({"index", "id", "timestamp", "created_at", "created", "caller", "status", CACHE_MARK})
"""Fields of rows and blocks that say nothing to a model."""
_MEDIA: Final = frozenset({"image", "document"})
_CLEARED: Final = re.compile(
    r"\b(?:clear|remov|omit|truncat|trim|elid|prun|delet|drop|compact|expir|hid|strip|collaps|evict|offload|persist|shorten"
    r"|no longer|not shown|unavailable)",
    re.IGNORECASE,
)
_CLEARABLE: Final = re.compile(
    r"\b(?:tool|result|output|content|input|argument|response|message|file|image)", re.IGNORECASE
)
_MOST_REMARK_CHARS: Final = 120
_BRACKETED: Final = re.compile(r"\s*[\[<(\u2026].*[\]>)\u2026]\s*\Z", re.DOTALL)
_BESIDE: Final = re.compile(
    r"<(?P<tag>system[-_]reminder|environment_(?:details|context)|current_(?:time|date|datetime)|time|date|datetime|timestamp"
    r"|now|ide_(?:selection|opened_file))\b[^>]*>.*?</(?P=tag)>",
    re.DOTALL | re.IGNORECASE,
)
"""What clients put into a user's message for one request, in tags of their own."""
_MONTH: Final = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_STAMP: Final = (
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:\s?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
    r"|\b\d{1,2}[/.]\d{1,2}[/.]\d{2,4}\b"
    r"|\b\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?:\s?[ap]\.?m\b\.?)?(?:\s?(?:UTC|GMT|[+-]\d\d:?\d\d))?"
    rf"|\b(?:\d{{1,2}}\.?\s)?{_MONTH}\s\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s\d{{4}})?\b|\b\d{{1,2}}\.?\s{_MONTH}\s\d{{4}}\b"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"
    r"|\b1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?\b"
)
"""A date or a time of day."""
_SAID_TIME: Final = re.compile(
    r"[\[(]*(?:\b(?:it is|it's|the|currently|current|local|today's|today|now|datetime|date|timestamp|time|is|utc)\b"
    rf"[\s:,=-]*){{0,6}}(?:{_STAMP})[\s.,;:)\]]*",
    re.IGNORECASE,
)
"""A date or a time of day with what introduces it."""
_MOST_STAMPED_CHARS: Final = 200_000
"""Characters of a first message in which times are looked for."""
_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_value: Final = msgspec.json.Decoder().decode


class ClearablePart(NamedTuple):
    """A piece of a row that clients clear to save room: a result, a call's input, an image or a document."""

    kind: str
    digest: bytes
    chars: int
    start: bytes
    is_placeholder: bool
    """Whether it reads like what a client puts in the place of something that it has cleared."""

    def is_cleared_from(self, stored: ClearablePart) -> bool:
        """Return whether a client has put this in the place of a stored part to save room."""
        if self.digest == stored.digest:
            return True
        if self.kind != stored.kind or self.kind in _MEDIA:
            return False
        is_cut = self.start == stored.start and self.chars < stored.chars
        return self.is_placeholder or is_cut


class RowMeaning(NamedTuple):
    """What a row says."""

    exact: bytes
    """Digest of role, texts, calls by name and input, results and media by their content; reasoning does not count."""
    gist: bytes
    """Digest of what stays when the client clears parts of it: role, texts, names of calls."""
    undated: bytes
    """The gist without dates and times of day; the gist itself except in a user's message."""
    parts: tuple[ClearablePart, ...]
    role: str
    is_tool_traffic: bool
    """Whether it is calls or results, not words of the user's."""
    is_compacted: bool
    """Whether it has the client's or the provider's own compaction of what came before."""
    is_note: bool
    """Whether it reads like a note of the client's about messages that it has left out."""
    call_ids: tuple[str, ...] = ()
    """Ids of its calls and results, in their order; some clients name calls anew in each request."""

    @property
    def says_nothing(self) -> bool:
        """Whether it is reasoning and nothing else."""
        return self.exact == NOTHING

    def is_same_as(self, stored: RowMeaning) -> bool:
        """Return whether it means what a stored row does: the same, or the same without what its client cleared."""
        return self.exact == stored.exact or (self.gist == stored.gist and self._is_cleared_from(stored))

    def is_redated_from(self, stored: RowMeaning) -> bool:
        """Return whether it is a stored row of the user's with another date or time in it."""
        return self.undated == stored.undated and self.role == "user" and self._is_cleared_from(stored)

    def _is_cleared_from(self, stored: RowMeaning) -> bool:
        if len(self.parts) == len(stored.parts):
            pairs = zip(self.parts, stored.parts, strict=True)
            if all(mine.is_cleared_from(theirs) for mine, theirs in pairs):
                return True
        # Media may be gone without anything in their place; everything else has to be there.
        mine, theirs = _without_media(self.parts), _without_media(stored.parts)
        left = {part.digest for part in self.parts if part.kind in _MEDIA}
        return (
            len(mine) == len(theirs)
            and all(one.is_cleared_from(other) for one, other in zip(mine, theirs, strict=True))
            and left <= {part.digest for part in stored.parts if part.kind in _MEDIA}
        )


def _without_media(parts: Iterable[ClearablePart]) -> list[ClearablePart]:
    return [part for part in parts if part.kind not in _MEDIA]


def decode_row(shape: Shape, row: Any) -> InnerMessage:
    """Return a row in the inner form. Raises ShapeError for what has none."""
    if not isinstance(row, dict):
        raise ShapeError("A message is an object.")
    if shape != "messages":
        return codecs.decode(shape, row)
    row = system_row_as_user(row)
    role, content = row.get("role"), row.get("content")
    if role not in ("user", "assistant") or not isinstance(content, str | list):
        raise ShapeError("Expected a message of the user's or the assistant's.")
    return InnerMessage(str(role), disarm_inner_blocks(content))


def can_be_read(shape: Shape, value: Any) -> bool:
    """Return whether a row has an inner form."""
    try:
        decode_row(shape, value)
    except ShapeError:
        return False
    return True


def system_row_as_user(row: Any) -> Any:
    """Return a system message among the others of the Messages API as text of the user's; any other row unchanged."""
    if not isinstance(row, dict) or row.get("role") != "system":
        return row
    content = row.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(map(_is_text, parts)):
        return row
    text = "\n".join(part["text"] for part in parts)
    return {"role": "user", "content": spoken({"type": INSTRUCTION, "by": "system", "text": text})}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def row_digest(shape: Shape, value: Any) -> bytes:
    """Return the digest by which a row of a request is recognized.

    Reasoning, ids of calls and blocks that the inner form does not know count as well: they tell two histories with the
    same words apart where no session does.
    """
    try:
        inner = decode_row(shape, value)
    except ShapeError:
        return _digest(_without_volatile_fields(value))
    others = [block for block in blocks(inner.content) if _kind(block) in THINKING]
    name = value.get("name") if value.get("role") in ("user", "assistant") else None
    has_opaque = any(block.get("type") == OPAQUE for block in blocks(inner.content))
    own = _without_volatile_fields(value) if has_opaque else None
    ids = _call_ids(blocks(inner.content))
    return _digest([_statement(inner.role, inner.content), ids, _without_volatile_fields(others), name, own])


def meaning_of(role: str, content: Any) -> RowMeaning:
    """Return the meaning of a message in the inner form."""
    said = _statement(role, content)
    texts: list[str] = []
    notes: list[str] = []
    names: list[str] = []
    others: list[Any] = []
    parts: list[ClearablePart] = []
    for block in blocks(content):
        kind = _kind(block)
        if kind == "text":
            text = str(block.get("text") or "")
            (notes if _is_placeholder(text) else texts).append(text)
        elif kind in CALLS:
            names.append(str(block.get("name")))
            parts.append(_clearable_part("input", _sorted(block.get("input") or {}).decode()))
        elif kind.endswith("tool_result"):
            names.append("result")
            parts.append(_clearable_part("result", _content_text(block.get("content"))))
        elif kind in _MEDIA:
            parts.append(_clearable_part(kind, _sorted(_without_volatile_fields(block.get("source"))).decode()))
        elif not _is_unsaid(block):
            others.append(_without_volatile_fields(block))
    # If every text reads like a note, the row has nothing else to be known by.
    words = "".join(texts or notes)
    if role == "user":
        words = _BESIDE.sub("", words)
    words = " ".join(words.split())
    gist = _digest([role, words, names, others])
    is_dated = role == "user" and len(words) <= _MOST_STAMPED_CHARS and _SAID_TIME.search(words) is not None
    undated = _digest([role, " ".join(_SAID_TIME.sub(" ", words).split()), names, others]) if is_dated else gist
    return RowMeaning(
        _digest(said),
        gist,
        undated,
        tuple(parts),
        role,
        is_tool_traffic=bool(names) or (role == "assistant" and any(block.get("type") == OPAQUE for block in others)),
        is_compacted=any(_is_compaction(block) for block in blocks(content)),
        is_note=bool(notes) and not texts and not names,
        call_ids=tuple(str(identifier) for identifier in _call_ids(blocks(content))),
    )


def exact_digest(role: str, content: Any) -> bytes:
    """Return the digest of a message's words, calls, results and media, ids of calls included.

    Blocks that only its own shape has do not count.
    """
    said = [block for block in blocks(content) if _kind(block) != OPAQUE]
    return _digest([_statement(role, said), _call_ids(said)])


def _call_ids(given: Iterable[Mapping[str, Any]]) -> list[Any]:
    kinds = ((block, _kind(block)) for block in given)
    return [
        block.get("id" if kind in CALLS else "tool_use_id")
        for block, kind in kinds
        if kind in CALLS or kind.endswith("tool_result")
    ]


def _statement(role: str, content: Any) -> list[Any]:
    """Return role, words and other blocks of a message, without fields that say nothing."""
    texts: list[str] = []
    others: list[Any] = []
    for block in blocks(content):
        kind = _kind(block)
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind in CALLS:
            # The model chose the names in the input: none of them is left out.
            others.append(["call", block.get("name"), block.get("input") or {}])
        elif kind == "tool_result":
            others.append(["result", _result_content(block.get("content")), bool(block.get("is_error"))])
        elif not _is_unsaid(block):
            others.append(_without_volatile_fields(block))
    return [role, "".join(texts).strip(), others]


def _result_content(content: Any) -> Any:
    """Return a result's content: texts alone as one text, anything else as its blocks."""
    parts = blocks(content)
    if content is None or isinstance(content, str) or all(part.get("type") == "text" for part in parts):
        return _content_text(content)
    return [_without_volatile_fields(part) for part in parts]


def _content_text(content: Any) -> str:
    parts = blocks(content)
    texts = [str(part.get("text") or "") for part in parts if part.get("type") == "text"]
    others = [_sorted(_without_volatile_fields(part)).decode() for part in parts if part.get("type") != "text"]
    return "\n".join([*texts, *others]).strip()


def _without_volatile_fields(value: Any) -> Any:
    """Return a value without fields that say nothing: nulls, empty lists, and those that clients rewrite."""
    if isinstance(value, dict):
        return {
            name: each if name == "input" else _without_volatile_fields(each)
            for name, each in value.items()
            if name not in _VOLATILE and each is not None and each != []
        }
    if isinstance(value, list):
        return [_without_volatile_fields(each) for each in value]
    return value


def _is_unsaid(block: Mapping[str, Any]) -> bool:
    """Return whether a block is reasoning, or stands for a message without content."""
    kind = _kind(block)
    return kind in THINKING or (kind == OPAQUE and block.get("of") == "nothing")


def _kind(block: Mapping[str, Any]) -> str:
    """Return a block's type; any JSON value may stand there."""
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def _is_compaction(block: Mapping[str, Any]) -> bool:
    return any(str(block.get(name, "")).startswith("compaction") for name in ("type", "item"))


def _clearable_part(kind: str, text: str) -> ClearablePart:
    is_placeholder = text in ("", "{}") or _is_placeholder(text) or _is_about_clearing(text)
    return ClearablePart(kind, _digest(text), len(text), _digest(text[:_START_CHARS])[:8], is_placeholder)


def _is_placeholder(text: str) -> bool:
    """Return whether a text reads like what clients put in the place of something that they have left out."""
    return len(text) <= MOST_PLACEHOLDER_CHARS and bool(_BRACKETED.match(text)) and bool(_CLEARED.search(text))


def _is_about_clearing(text: str) -> bool:
    return len(text) <= _MOST_REMARK_CHARS and bool(_CLEARED.search(text)) and bool(_CLEARABLE.search(text))


def _digest(value: Any) -> bytes:
    return hashlib.sha256(_sorted(value)).digest()[:_DIGEST_BYTES]


def meaning_of_row(shape: Shape, row: bytes) -> RowMeaning:
    """Return the meaning of a request's row. A row without an inner form means its own bytes alone."""
    try:
        return meaning_of(*decode_row(shape, _value(row)))
    except (ShapeError, *UNREADABLE):
        own = hashlib.sha256(row).digest()[:_DIGEST_BYTES]
        return RowMeaning(own, own, own, (), "", is_tool_traffic=False, is_compacted=False, is_note=False)


NOTHING: Final = meaning_of("assistant", "").exact
SAYS_NOTHING: Final = exact_digest("assistant", "")
"""The meaning of an answer without words, calls and anything else."""
