"""Runs recall rounds within one answer: calls of recall are answered here, and the model is asked again."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from gateway.answers.events import EventSplitter, TooManyLinesError
from gateway.answers.reading import LAST, MOST_BYTES, ReceivedAnswer, decompressor
from gateway.conversations.histories import LISTS
from gateway.conversations.meaning import UNREADABLE
from gateway.conversations.recognition import says_nothing
from gateway.doors import DoorError, error_body
from gateway.providers.answers import CutOffError, encoding_of, read_within
from gateway.recalls.asking import TOO_MANY, answer_with_error
from gateway.recalls.calls import calls_in, result_rows
from gateway.recalls.splice_chat import ChatSplice
from gateway.recalls.splice_messages import MessagesSplice
from gateway.recalls.splice_responses import ResponsesSplice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from compaction.shapes.inner import Shape
    from gateway.answers.events import StreamEvent
    from gateway.providers.answers import ProviderAnswer, ReadAnswer
    from gateway.recalls.calls import AnsweredCall, RecallCall
    from gateway.recalls.splice import Splice

log = structlog.get_logger()

MOST_ROUNDS: Final = 4
"""Recall rounds within one answer. After them the model is asked once more, to answer with what it has."""
_OK: Final = 200
_SPLICES: Final[Mapping[Shape, Callable[[], Splice]]] = {
    "messages": MessagesSplice,
    "chat": ChatSplice,
    "responses": ResponsesSplice,
}
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class RecallingAnswer:
    """The answer as shown to the client and as stored.

    `ask` sends a request to the provider, `recall` answers calls of the tool. An answer that cannot be decoded passes
    unchanged and is not stored.
    """

    def __init__(
        self,
        shape: Shape,
        body: bytes,
        ask: Callable[[bytes], Awaitable[ProviderAnswer]],
        recall: Callable[[Sequence[RecallCall]], Awaitable[list[AnsweredCall]]],
        *,
        as_thinking: bool,
    ) -> None:
        self._shape = shape
        self._body = body
        self._ask = ask
        self._recall = recall
        self._as_thinking = as_thinking
        self._splice = _SPLICES[shape]()
        self._rows: list[Any] = []
        """Rows of earlier rounds, with recalled text."""
        self._size = 0
        """Bytes read, and bytes written in addition."""
        self._is_readable = True
        self._is_closed = False
        self.is_complete = False

    async def stream(self, response: ProviderAnswer) -> AsyncGenerator[bytes]:
        """Yield the client's bytes of a stream and of the streams that follow. Raises the errors of reading."""
        current: ProviderAnswer | None = response
        try:
            while current is not None:
                events = EventSplitter()
                async for chunk in _read_pieces(current):
                    if piece := self._rewrite_chunk(events, chunk):
                        yield piece
                if rest := events.end():
                    yield rest
                current.close()
                current = None
                if self._is_readable and self._splice.goes_on:
                    piece, current = await self._next_stream()
                    if piece:
                        yield piece
        finally:
            if current is not None:
                current.close()

    async def whole(self, response: ProviderAnswer) -> tuple[ReadAnswer, bytes | None]:
        """Return the provider's last answer, and the body that replaces it for the client, if any.

        Raises DoorError and the errors of reading.
        """
        last, body = await _read_body(response)
        words = ""
        while self._read_whole(body, words) and self._splice.goes_on:
            words, following = await self._start_round()
            if following is None:
                break
            last, body = await _read_body(following)
            if last.status != _OK:
                self._is_readable = False
        self.is_complete = True
        if not self._is_readable or not (self._splice.round or self._splice.hidden):
            return last, None
        return last, _encode(self._splice.combined_body())

    def _read_whole(self, body: bytes, words: str) -> bool:
        if self._is_readable:
            try:
                self._splice.add_whole(_value(body), words)
            except Exception as error:  # noqa: BLE001 - the client gets the provider's bytes in any case
                self._log_unreadable(error)
        return self._is_readable

    def end(self) -> ReceivedAnswer | None:
        """Return the received answer, or None if it could not be decoded."""
        splice = self._splice
        if not self._is_readable:
            return None
        try:
            rows, visible = splice.said.rows(), splice.shown.rows()
        except Exception:  # noqa: BLE001 - as above
            return None
        is_whole = splice.said.is_whole and (self._is_closed or not splice.goes_on)
        if not splice.round and not splice.hidden:
            return ReceivedAnswer([_encode(row) for row in rows], splice.said.usage, is_whole)
        if not visible:
            # The client cannot resend rows that it has not seen.
            return ReceivedAnswer([], None, is_whole)
        while rows and not splice.hidden and says_nothing(self._shape, rows[-1]):
            # Reasoning without a following item, which providers refuse and few clients resend.
            rows.pop()
        every = [*self._rows, *rows]
        results: list[Any] = []
        if self._shape == "messages" and not rows:
            results = every.pop()["content"]
        return ReceivedAnswer(
            [_encode(row) for row in every],
            splice.said.usage,
            is_whole,
            [_encode(row) for row in visible],
            results,
            calls_in(self._shape, rows),
            splice.response_ids,
        )

    def _rewrite_chunk(self, events: EventSplitter, chunk: bytes) -> bytes:
        if not self._is_readable:
            return chunk
        self._size += len(chunk)
        try:
            piece = b"".join(map(self._rewrite_event, events.take(chunk)))
        except TooManyLinesError as error:
            self._log_unreadable(error)
            piece = b""
        if self._size > MOST_BYTES or not self._is_readable:
            self._is_readable = False
            piece += events.end()
        return piece

    def _rewrite_event(self, event: StreamEvent) -> bytes:
        if not self._is_readable:
            return event.raw
        try:
            piece = self._splice.process_event(event)
        except Exception as error:  # noqa: BLE001 - as above
            self._log_unreadable(error)
            return event.raw
        self._size += max(0, len(piece) - len(event.raw))
        if self._size > MOST_BYTES:
            self._is_readable = False
        is_last = event.is_done or (event.value is not None and event.value.get("type") in LAST)
        self.is_complete = self.is_complete or (is_last and not self._splice.goes_on)
        return piece

    def _log_unreadable(self, error: Exception) -> None:
        log.info("gateway.not_read", error=type(error).__name__)
        self._is_readable = False

    async def _start_round(self) -> tuple[str, ProviderAnswer | None]:
        """Answer the calls. Return them in words, and the model's next response, or None if it is not asked again."""
        splice = self._splice
        if splice.round > MOST_ROUNDS:
            self._is_closed = True
            return "", None
        rows = splice.said.rows()
        calls = calls_in(self._shape, rows)
        answered = await self._recall(calls) if splice.round < MOST_ROUNDS else answer_with_error(calls, TOO_MANY)
        more = [*rows, *result_rows(self._shape, answered)]
        words = "\n".join(f"Recall: {call.words}" for call in calls) + "\n" if self._as_thinking else ""
        self._rows += more
        splice.next_round()
        self._body = _append_rows(self._shape, self._body, more)
        return words, await self._ask(self._body)

    async def _next_stream(self) -> tuple[bytes, ProviderAnswer | None]:
        """Return the client's bytes before the next stream, and that stream, or None at the end."""
        try:
            words, following = await self._start_round()
        except DoorError as error:
            self.is_complete = True
            refusal = error_body(self._shape, error.status, error.detail, error.code)
            return self._splice.error_event(_value(refusal)), None
        piece = self._splice.thinking_events(words) if words else b""
        if following is None or following.status != _OK:
            return piece + await self._closing_events(following), None
        return piece, following

    async def _closing_events(self, refusal: ProviderAnswer | None) -> bytes:
        """Return the end of a stream that cannot continue."""
        self.is_complete = True
        if refusal is None:
            return self._splice.closing_events()
        answer, body = await _read_body(refusal)
        answer.close()
        try:
            error = _value(body)
        except UNREADABLE:
            error = None
        return self._splice.error_event(error)


def _append_rows(shape: Shape, body: bytes, rows: Sequence[Any]) -> bytes:
    """Return a request with rows appended to its own."""
    fields = _fields(body)
    name = LISTS[shape]
    own = bytes(fields[name])
    parts = [_encode(key) + b":" + (bytes(value) if key != name else b"") for key, value in fields.items()]
    at = list(fields).index(name)
    parts[at] += own[:-1] + b"," + _encode(rows)[1:]
    return b"{" + b",".join(parts) + b"}"


async def _read_pieces(response: ProviderAnswer) -> AsyncIterator[bytes]:
    """Yield a decoded stream. Raises CutOffError if it is not in its encoding."""
    decompress = decompressor(encoding_of(response))
    async for chunk in response.pieces():
        try:
            yield decompress(chunk) if decompress is not None else chunk
        except zlib.error as error:
            raise CutOffError(str(error)) from None


async def _read_body(response: ProviderAnswer) -> tuple[ReadAnswer, bytes]:
    """Return a body and its parsed answer, which is empty if the body is too long or not in its encoding."""
    answer = await read_within(response, MOST_BYTES)
    decompress = decompressor(encoding_of(response))
    try:
        body = decompress(answer.body) if decompress is not None else answer.body
    except zlib.error:
        body = b""
    return answer, body if answer.is_whole else b""
