"""Splits a stream into events, each with its original bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gateway.conversations.meaning import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
DONE: Final = b"[DONE]"
MOST_LINES: Final = 128 * 1024
"""Largest number of lines in a piece. Some compressed kilobytes can expand into millions."""


class TooManyLinesError(ValueError):
    """A piece of a stream has more than MOST_LINES lines."""


def check_lines(piece: bytes) -> None:
    """Raise TooManyLinesError for a piece of more than MOST_LINES lines."""
    if piece.count(b"\n") > MOST_LINES:
        raise TooManyLinesError("too many lines")


class StreamEvent(NamedTuple):
    """An event; `value` is None for a comment, and for the end of a stream of Chat Completions."""

    raw: bytes
    value: dict[str, Any] | None = None
    is_done: bool = False


class EventSplitter:
    """Splits the bytes of a stream into complete events."""

    def __init__(self) -> None:
        self._rest = bytearray()
        """The incomplete last line."""
        self._raw = bytearray()
        """The lines of the incomplete event."""
        self._data: list[bytes] = []

    def take(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that end within the next bytes. Raises TooManyLinesError and keeps the bytes for `end`."""
        ended: list[StreamEvent] = []
        self._rest += chunk
        if b"\n" not in chunk:
            return ended
        check_lines(chunk)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self._raw += line
            self._raw += b"\n"
            text = line.removesuffix(b"\r")
            if not text:
                ended.append(_event(bytes(self._raw), b"\n".join(self._data)))
                self._raw.clear()
                self._data.clear()
            elif text.startswith(b"data:"):
                self._data.append(bytes(text[5:].removeprefix(b" ")))
        return ended

    def end(self) -> bytes:
        """Return the bytes after the last whole event."""
        rest = bytes(self._raw + self._rest)
        self._rest, self._raw, self._data = bytearray(), bytearray(), []
        return rest


def _event(raw: bytes, data: bytes) -> StreamEvent:
    if data == DONE:
        return StreamEvent(raw, is_done=True)
    try:
        value = _value(data) if data else None
    except UNREADABLE:
        value = None
    return StreamEvent(raw, value if isinstance(value, dict) else None)


def encode_event(event: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """Return an event in a provider's format, with its name if the shape has names."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + _encode(event) + b"\n\n"
