"""Events of a stream, one by one, each with the bytes that it came as."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
DONE: Final = b"[DONE]"


class StreamEvent(NamedTuple):
    """An event; `value` is None for a comment, and for the end of a stream of Chat Completions."""

    raw: bytes
    value: dict[str, Any] | None = None
    is_done: bool = False


class EventSplitter:
    """Takes the bytes of a stream as they come, and gives back its events as soon as they are whole."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._lines: list[bytes] = []

    def take(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that end within the next bytes."""
        ended: list[StreamEvent] = []
        self._rest += chunk
        if b"\n" not in chunk:
            return ended
        *lines, self._rest = self._rest.split(b"\n")
        for line in map(bytes, lines):
            self._lines.append(line + b"\n")
            if not line.removesuffix(b"\r"):
                every, self._lines = self._lines, []
                ended.append(_event(every))
        return ended

    def end(self) -> bytes:
        """Return the bytes after the last whole event."""
        rest = b"".join(self._lines) + self._rest
        self._lines, self._rest = [], bytearray()
        return rest


def _event(lines: list[bytes]) -> StreamEvent:
    data = b"\n".join(line.rstrip(b"\r\n")[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    raw = b"".join(lines)
    if data == DONE:
        return StreamEvent(raw, is_done=True)
    try:
        value = _value(data) if data else None
    except msgspec.DecodeError:
        value = None
    return StreamEvent(raw, value if isinstance(value, dict) else None)


def written(event: Mapping[str, Any], *, name: str | None = None) -> bytes:
    """Return an event as a provider writes it, with its name before it where the shape has names."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + _encode(event) + b"\n\n"
