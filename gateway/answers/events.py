"""Events of a stream, one by one, each with the bytes that it came as."""

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
"""Lines of one piece of a stream that are read. A piece of some kilobytes can be unpacked into millions of them."""


class TooManyLinesError(ValueError):
    """A piece of a stream that has more lines than any provider sends at a time."""


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
    """Takes the bytes of a stream as they come, and gives back its events as soon as they are whole."""

    def __init__(self) -> None:
        self._rest = bytearray()
        """The last line, which has not ended."""
        self._raw = bytearray()
        """The lines of the event that has not ended."""
        self._data: list[bytes] = []

    def take(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that end within the next bytes. Raises TooManyLinesError, and keeps them for `end`."""
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


def written(event: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """Return an event as a provider writes it, with its name before it where the shape has names."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + _encode(event) + b"\n\n"
