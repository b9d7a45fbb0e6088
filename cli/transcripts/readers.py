"""Readers of recorded conversations; the format is told from a file's content, never from its name."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from cli.client.types import Message
from cli.transcripts.claude_code_session import joined_messages
from cli.transcripts.raw_json import ABSENT, FieldError, field_error, join_path, present
from cli.transcripts.shaped import json_path, sent_message
from compaction.shapes import codecs
from compaction.shapes.inner import Shape, ShapeError
from compaction.text.surrogates import replace_lone_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

T = TypeVar("T")

_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_USER_AND_ASSISTANT: Final = frozenset({"user", "assistant"})
_LISTS: Final = ("messages", "items")
"""Keys of what a conversation's object has its messages under."""


class TranscriptError(Exception):
    """A file that cannot be read as a conversation; printed as `file:line: field: detail`."""

    def __init__(self, path: Path, line: int, field: str, detail: str) -> None:
        super().__init__(f"{path}:{line}: {field}: {detail}")
        self.path = path
        self.line = line
        self.field = field
        self.detail = detail


class Turn(msgspec.Struct, frozen=True):
    """Messages that a chat backend posts together: what the user's side sent, and the answer to it."""

    messages: tuple[Message, ...]
    usage: msgspec.Raw | None = None


class Transcript(msgspec.Struct, frozen=True):
    """One recorded conversation; system and tools as JSON text."""

    id: str
    system: msgspec.Raw | None
    tools: msgspec.Raw | None
    turns: tuple[Turn, ...]
    shape: Shape = "messages"

    @property
    def messages(self) -> Iterator[Message]:
        """Every message in order."""
        return (message for turn in self.turns for message in turn.messages)


class Entry(msgspec.Struct, frozen=True):
    """A message with the usage that the file records with it."""

    message: Message
    usage: msgspec.Raw | None = None


class _Document(msgspec.Struct, frozen=True):
    """One JSON value of the file and the line it starts on."""

    value: msgspec.Raw
    line: int
    path: Any

    def error(self, field: str, detail: str, line: int | None = None) -> TranscriptError:
        return TranscriptError(self.path, line or self.line, field, detail)

    def line_of(self, items: Sequence[msgspec.Raw], index: int) -> int:
        """Return the line on which `items[index]`, a value inside this document, starts."""
        text, start, end = bytes(self.value), 0, 0
        for item in items[: index + 1]:
            start = text.index(bytes(item), end)
            end = start + len(bytes(item))
        return self.line + text.count(b"\n", 0, start)


class _Block(msgspec.Struct):
    type: str


class _PlainMessage(msgspec.Struct):
    role: str
    content: msgspec.Raw
    usage: msgspec.Raw = ABSENT


class _Conversation(msgspec.Struct):
    messages: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    items: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    id: str | None = None
    session_id: str | None = msgspec.field(default=None, name="sessionId")
    system: str | list[msgspec.Raw] | None = None
    system_prompt: str | None = None
    instructions: str | None = None
    tools: list[msgspec.Raw] | None = None


def read_transcripts(path: Path) -> list[Transcript]:
    """Return the conversations of a file, in its order.

    Formats: conversations in the Messages API's, Chat Completions' or Responses' shape (one JSON object, an array of
    messages, or one of either a line), and Claude Code sessions (one event a line). Raises TranscriptError, and OSError
    when the file cannot be read.
    """
    documents = _documents(path, path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    first = documents[0]
    keys = _keys(first)
    if keys is None:
        return [
            transcript
            for place, document in enumerate(documents)
            for transcript in _array(document, _name(path, place, len(documents)))
        ]
    if not keys.isdisjoint(_LISTS):
        return [_conversation(document, _name(path, place, len(documents))) for place, document in enumerate(documents)]
    if "role" in keys:
        entries, shape = _entries(first, [document.value for document in documents], "$", documents)
        return [_transcript(path.stem, entries, shape)]
    if "type" in keys:
        return [_session(path, documents)]
    raise first.error("$", "an object with `messages`, an array of messages or session events are expected")


def split_turns(entries: Sequence[Entry], shape: Shape = "messages") -> tuple[Turn, ...]:
    """Group messages as a chat backend posts them: a turn ends with an answer, which in Responses may be many items."""
    turns: list[Turn] = []
    pending: list[Message] = []
    for entry, following in zip_longest(entries, entries[1:]):
        pending.append(entry.message)
        goes_on = shape == "responses" and following is not None and following.message.role == "assistant"
        if entry.message.role == "assistant" and not goes_on:
            turns.append(Turn(messages=tuple(pending), usage=entry.usage))
            pending = []
    if pending:
        turns.append(Turn(messages=tuple(pending)))
    return tuple(turns)


def _name(path: Path, place: int, count: int) -> str:
    return path.stem if count == 1 else f"{path.stem}-{place:03d}"


def _documents(path: Path, data: bytes) -> list[_Document]:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        at_line = data.count(b"\n", 0, error.start) + 1
        raise TranscriptError(path, at_line, "$", f"the file is not UTF-8: {error.reason}") from None
    if not data.strip():
        raise TranscriptError(path, 1, "$", "the file is empty")
    data, _ = replace_lone_surrogates(data)
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()]
    documents: list[_Document] = []
    for number, line in lines:
        try:
            documents.append(_Document(msgspec.json.decode(line, type=msgspec.Raw), number, path))
        except msgspec.DecodeError as error:
            if documents:
                raise TranscriptError(path, number, "$", str(error)) from None
            break
    return documents or [_whole(path, data, lines[0][0])]


def _whole(path: Path, data: bytes, first_line: int) -> _Document:
    """Read a file that is one JSON value over several lines."""
    try:
        return _Document(msgspec.json.decode(data, type=msgspec.Raw), first_line, path)
    except msgspec.DecodeError as error:
        place = _BYTE.search(str(error))
        line = data.count(b"\n", 0, int(place[1]) if place else len(data.rstrip())) + 1
        raise TranscriptError(path, line, "$", str(error)) from None


def _keys(document: _Document) -> set[str] | None:
    """Return the keys of an object, None for an array."""
    if bytes(document.value).startswith(b"["):
        return None
    return set(_decode(document, document.value, dict[str, msgspec.Raw], "$"))


def _decode(document: _Document, value: msgspec.Raw, kind: type[T], at: str, line: int | None = None) -> T:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.ValidationError as error:
        field = field_error(0, error)
        raise document.error(join_path(at, field.field), field.detail, line) from None


def _array(document: _Document, name: str) -> Iterator[Transcript]:
    items = _decode(document, document.value, list[msgspec.Raw], "$")
    inner = [_Document(item, document.line_of(items, place), document.path) for place, item in enumerate(items)]
    if inner and not (_keys(inner[0]) or set()).isdisjoint(_LISTS):
        yield from (_conversation(item, f"{name}-{place:03d}") for place, item in enumerate(inner))
        return
    yield _transcript(name, *_entries(document, items, "$"))


def _conversation(document: _Document, name: str) -> Transcript:
    given = _decode(document, document.value, _Conversation, "$")
    at, messages = ("messages", given.messages) if given.messages is not msgspec.UNSET else ("items", given.items)
    if messages is msgspec.UNSET:
        raise document.error("$", "`messages` or `items` are expected")
    entries, shape = _entries(document, messages, f"$.{at}")
    system = given.system or given.system_prompt or given.instructions
    tools = given.tools or []
    for place, tool in enumerate(tools):
        _decode(document, tool, dict[str, msgspec.Raw], f"$.tools[{place}]", document.line_of(tools, place))
    return _transcript(given.id or given.session_id or name, entries, shape, system, tools)


def _transcript(
    name: str, entries: list[Entry], shape: Shape = "messages", system: Any = None, tools: Any = None
) -> Transcript:
    return Transcript(
        id=name,
        system=msgspec.Raw(msgspec.json.encode(system)) if system else None,
        tools=msgspec.Raw(msgspec.json.encode(tools)) if tools else None,
        turns=split_turns(entries, shape),
        shape=shape,
    )


def _entries(
    document: _Document, items: list[msgspec.Raw], at: str, documents: Sequence[_Document] = ()
) -> tuple[list[Entry], Shape]:
    """Read messages of the shape that they can only have; `documents` has each one's own line where they are apart."""
    if not items:
        raise document.error(at, "there are no messages")
    try:
        shape = codecs.shape_of({"messages": [_value(item, index) for index, item in enumerate(items)]}) or "messages"
        if shape == "messages":
            return [_plain(item, index) for index, item in enumerate(items)], shape
        return [Entry(_of_other_shape(item, index, shape)) for index, item in enumerate(items)], shape
    except FieldError as error:
        if documents:
            raise documents[error.index].error(join_path(at, error.field), error.detail) from None
        line = document.line_of(items, error.index)
        raise document.error(join_path(f"{at}[{error.index}]", error.field), error.detail, line) from None


def _value(item: msgspec.Raw, index: int) -> Any:
    try:
        return msgspec.json.decode(item)
    except msgspec.ValidationError as error:
        raise field_error(index, error) from None


def _of_other_shape(item: msgspec.Raw, index: int, shape: Shape) -> Message:
    try:
        return sent_message(item, shape)
    except ShapeError as error:
        raise FieldError(index, json_path(error.path), error.detail) from None


def _plain(item: msgspec.Raw, index: int) -> Entry:
    try:
        message = msgspec.json.decode(item, type=_PlainMessage)
    except msgspec.ValidationError as error:
        raise field_error(index, error) from None
    if message.role not in _USER_AND_ASSISTANT:
        raise FieldError(index, "role", f"unknown role {message.role!r}")
    try:
        msgspec.json.decode(message.content, type=str | list[_Block])
    except msgspec.ValidationError as error:
        inner = field_error(index, error)
        raise FieldError(index, join_path("content", inner.field), inner.detail) from None
    return Entry(Message(role=message.role, content=message.content), present(message.usage))


def _session(path: Path, documents: list[_Document]) -> Transcript:
    try:
        session_id, messages = joined_messages([document.value for document in documents])
    except FieldError as error:
        raise documents[error.index].error(join_path("$", error.field), error.detail) from None
    if not messages:
        raise documents[0].error("$.type", "the session has no user or assistant message")
    entries = [Entry(message, usage) for message, usage in messages]
    return _transcript(session_id or path.stem, entries)
