"""Reads an answer while it passes, as events or one body and in any encoding, into rows of its shape."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from gateway.answers.chat import ChatAnswer
from gateway.answers.events import check_lines
from gateway.answers.messages import MessagesAnswer
from gateway.answers.responses import ResponsesAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from compaction.shapes.inner import Shape
    from gateway.recalls.calls import RecallCall
    from store.gateway.histories import ResponseIds

MOST_BYTES: Final = 16 * 1024 * 1024
"""Largest answer that is read, in bytes. A longer one is learned from the client's next request."""
_MOST_DIGITS: Final = 18
"""Most digits of a length, because Python refuses thousands."""
LAST: Final = frozenset({"message_stop", "response.completed", "response.incomplete", "response.failed"})
"""Events that end a stream. Chat Completions ends it with `[DONE]`."""
_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class ReceivedAnswer(NamedTuple):
    """An answer: rows as clients resend them, and the provider's usage."""

    rows: list[bytes]
    usage: dict[str, Any] | None
    is_whole: bool
    """Whether the answer is complete."""
    shown: list[bytes] | None = None
    """Rows shown to the client instead of `rows`, or None if they are the same."""
    results: list[Any] = []  # noqa: RUF012 - of a tuple, never changed
    """Blocks that the next message must begin with and the client lacks."""
    calls: Sequence[RecallCall] = ()
    """Unanswered calls of recall."""
    response_ids: ResponseIds | None = None
    """Ids of an answer with recall for the client and the provider, or None."""


class AnswerOfShape(Protocol):
    """Collects the events, or the body, of an answer in one shape."""

    is_whole: bool
    usage: dict[str, Any] | None

    def event(self, event: Mapping[str, Any]) -> None:
        """Process an event. Raises an exception for an unknown one."""

    def whole(self, body: Mapping[str, Any]) -> None:
        """Process an answer without a stream."""

    def rows(self) -> list[Any]:
        """Return the rows so far."""


_SHAPES: Final[Mapping[Shape, Callable[[], AnswerOfShape]]] = {
    "messages": MessagesAnswer,
    "chat": ChatAnswer,
    "responses": ResponsesAnswer,
}


class AnswerReader:
    """Collects the bytes of an answer. It never raises; an answer that cannot be decoded is not stored."""

    def __init__(self, shape: Shape, headers: Mapping[bytes, bytes]) -> None:
        self._answer = _SHAPES[shape]()
        self._is_stream = headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        self._decompress = decompressor(headers.get(b"content-encoding", b"identity").strip().lower())
        self._kept = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        length = headers.get(b"content-length", b"")
        self._left = int(length) if length.isdigit() and len(length) <= _MOST_DIGITS else -1
        self._is_done = False
        self.is_readable = self._decompress is not None

    def take(self, chunk: bytes) -> None:
        """Process the next bytes."""
        if not self.is_readable or self._decompress is None:
            return
        self._left -= len(chunk)
        try:
            piece = self._decompress(chunk)
            self._size += len(piece)
            if self._size > MOST_BYTES:
                raise ValueError("too long an answer")  # noqa: TRY301 - as every other that is not read
            self._kept += piece
            # The incomplete part is not scanned again with each piece.
            if self._is_stream and b"\n" in piece:
                check_lines(piece)
                self._take_lines()
        except Exception:  # noqa: BLE001 - whatever a provider sends, the client has it
            self.is_readable = False
            self._kept.clear()
            self._data.clear()

    @property
    def is_complete(self) -> bool:
        """Whether the client has received the whole answer, and may continue."""
        return self._is_done if self._is_stream else not self._left

    def end(self) -> ReceivedAnswer | None:
        """Return the answer, or None if it is empty or could not be decoded."""
        if not self.is_readable:
            return None
        try:
            if not self._is_stream:
                self._answer.whole(_value(self._kept))
            rows = [_encode(row) for row in self._answer.rows()]
        except Exception:  # noqa: BLE001 - as above; a body that was cut off is none
            return None
        return ReceivedAnswer(rows, self._answer.usage, self._answer.is_whole)

    def _take_lines(self) -> None:
        *lines, rest = self._kept.split(b"\n")
        self._kept = rest
        for line in lines:
            text = bytes(line.removesuffix(b"\r"))
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
            elif not text and self._data:
                data, self._data = b"\n".join(self._data), []
                if data == b"[DONE]":
                    self._answer.is_whole = self._is_done = True
                else:
                    event = _value(data)
                    self._answer.event(event)
                    self._is_done = self._is_done or event.get("type") in LAST


def decompressor(encoding: bytes) -> Callable[[bytes], bytes] | None:
    """Return a function that decodes the pieces of a body, or None for an unsupported encoding.

    The function raises zlib.error for invalid data, and for a piece that expands to more than MOST_BYTES.
    """
    match encoding:
        case b"identity" | b"":
            return bytes
        case b"gzip" | b"deflate":
            # 32: the header says which of the two it is.
            return partial(_decompress_piece, zlib.decompressobj(32 + zlib.MAX_WBITS))
    return None


def _decompress_piece(decompress: zlib._Decompress, piece: bytes) -> bytes:
    read = decompress.decompress(piece, MOST_BYTES + 1)
    if len(read) > MOST_BYTES:
        raise zlib.error("too long an answer")
    return read
