"""An answer whose calls of recall are answered here: the model is asked again with what it recalled, and goes on."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from gateway.answers.events import EventSplitter, TooManyLinesError
from gateway.answers.reading import LAST, MOST_BYTES, Answered, decompressor
from gateway.conversations.histories import LISTS
from gateway.conversations.meaning import UNREADABLE
from gateway.conversations.recognition import says_nothing
from gateway.doors import DoorError, error_body
from gateway.providers.answers import CutOffError, encoding_of, read_within
from gateway.recalls.asking import TOO_MANY, answer_without
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
"""Times that a model may recall within one answer; then it is told to answer with what it has, and asked once more."""
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
    """What a client is shown of an answer, and what is to be stored of it.

    `ask` sends a request on to the provider, `recall` answers calls of the tool. What is not understood passes as it
    comes, and is not stored.
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
        """Of the rounds before, with what was recalled."""
        self._size = 0
        """Bytes that were read, and those that were written beyond them."""
        self._is_readable = True
        self._is_closed = False
        self.is_complete = False

    async def stream(self, response: ProviderAnswer) -> AsyncGenerator[bytes]:
        """Yield what the client gets of a stream, and of those that follow; raise what reading from a provider does."""
        current: ProviderAnswer | None = response
        try:
            while current is not None:
                events = EventSplitter()
                async for chunk in _read_pieces(current):
                    if piece := self._take(events, chunk):
                        yield piece
                if rest := events.end():
                    yield rest
                current.close()
                current = None
                if self._is_readable and self._splice.goes_on:
                    piece, current = await self._next()
                    if piece:
                        yield piece
        finally:
            if current is not None:
                current.close()

    async def whole(self, response: ProviderAnswer) -> tuple[ReadAnswer, bytes | None]:
        """Return the last answer of the provider, and the body that the client gets in place of its own, if any.

        Raises DoorError, and what reading from the provider does.
        """
        last, body = await _read(response)
        words = ""
        while self._understands(body, words) and self._splice.goes_on:
            words, following = await self._go_on()
            if following is None:
                break
            last, body = await _read(following)
            if last.status != _OK:
                self._is_readable = False
        self.is_complete = True
        if not self._is_readable or not (self._splice.round or self._splice.hidden):
            return last, None
        return last, _encode(self._splice.together())

    def _understands(self, body: bytes, words: str) -> bool:
        if self._is_readable:
            try:
                self._splice.whole(_value(body), words)
            except Exception as error:  # noqa: BLE001 - whatever a provider sends, the client has it
                self._not_read(error)
        return self._is_readable

    def end(self) -> Answered | None:
        """Return what was answered, None for what was not understood."""
        splice = self._splice
        if not self._is_readable:
            return None
        try:
            rows, visible = splice.said.rows(), splice.shown.rows()
        except Exception:  # noqa: BLE001 - as above
            return None
        is_whole = splice.said.is_whole and (self._is_closed or not splice.goes_on)
        if not splice.round and not splice.hidden:
            return Answered([_encode(row) for row in rows], splice.said.usage, is_whole)
        if not visible:
            # The client cannot send again what it has not seen.
            return Answered([], None, is_whole)
        while rows and not splice.hidden and says_nothing(self._shape, rows[-1]):
            # Reasoning that nothing follows, which no provider takes, and few clients send again.
            rows.pop()
        every = [*self._rows, *rows]
        results: list[Any] = []
        if self._shape == "messages" and not rows:
            results = every.pop()["content"]
        return Answered(
            [_encode(row) for row in every],
            splice.said.usage,
            is_whole,
            [_encode(row) for row in visible],
            results,
            calls_in(self._shape, rows),
            splice.response_ids,
        )

    def _take(self, events: EventSplitter, chunk: bytes) -> bytes:
        if not self._is_readable:
            return chunk
        self._size += len(chunk)
        try:
            piece = b"".join(map(self._shown, events.take(chunk)))
        except TooManyLinesError as error:
            self._not_read(error)
            piece = b""
        if self._size > MOST_BYTES or not self._is_readable:
            self._is_readable = False
            piece += events.end()
        return piece

    def _shown(self, event: StreamEvent) -> bytes:
        if not self._is_readable:
            return event.raw
        try:
            piece = self._splice.event(event)
        except Exception as error:  # noqa: BLE001 - as above
            self._not_read(error)
            return event.raw
        self._size += max(0, len(piece) - len(event.raw))
        if self._size > MOST_BYTES:
            self._is_readable = False
        is_last = event.is_done or (event.value is not None and event.value.get("type") in LAST)
        self.is_complete = self.is_complete or (is_last and not self._splice.goes_on)
        return piece

    def _not_read(self, error: Exception) -> None:
        log.info("gateway.not_read", error=type(error).__name__)
        self._is_readable = False

    async def _go_on(self) -> tuple[str, ProviderAnswer | None]:
        """Answer what was called; return it in words, and what the model says to it, None if it is not asked again."""
        splice = self._splice
        if splice.round > MOST_ROUNDS:
            self._is_closed = True
            return "", None
        rows = splice.said.rows()
        calls = calls_in(self._shape, rows)
        answered = await self._recall(calls) if splice.round < MOST_ROUNDS else answer_without(calls, TOO_MANY)
        more = [*rows, *result_rows(self._shape, answered)]
        words = "\n".join(f"Recall: {call.words}" for call in calls) + "\n" if self._as_thinking else ""
        self._rows += more
        splice.next_round()
        self._body = _with_more(self._shape, self._body, more)
        return words, await self._ask(self._body)

    async def _next(self) -> tuple[bytes, ProviderAnswer | None]:
        """Return what the client gets before the next stream, and that stream; None where it has come to its end."""
        try:
            words, following = await self._go_on()
        except DoorError as error:
            self.is_complete = True
            refusal = error_body(self._shape, error.status, error.detail, error.code)
            return self._splice.failed(_value(refusal)), None
        piece = self._splice.thinks(words) if words else b""
        if following is None or following.status != _OK:
            return piece + await self._end_of(following), None
        return piece, following

    async def _end_of(self, refusal: ProviderAnswer | None) -> bytes:
        """Return how a stream ends that cannot go on."""
        self.is_complete = True
        if refusal is None:
            return self._splice.close()
        answer, body = await _read(refusal)
        answer.close()
        try:
            error = _value(body)
        except UNREADABLE:
            error = None
        return self._splice.failed(error)


def _with_more(shape: Shape, body: bytes, rows: Sequence[Any]) -> bytes:
    """Return a request with rows at the end of its own."""
    fields = _fields(body)
    name = LISTS[shape]
    own = bytes(fields[name])
    parts = [_encode(key) + b":" + (bytes(value) if key != name else b"") for key, value in fields.items()]
    at = list(fields).index(name)
    parts[at] += own[:-1] + b"," + _encode(rows)[1:]
    return b"{" + b",".join(parts) + b"}"


async def _read_pieces(response: ProviderAnswer) -> AsyncIterator[bytes]:
    """Yield a stream as it reads; raise CutOffError where it is not in its encoding."""
    decompress = decompressor(encoding_of(response))
    async for chunk in response.pieces():
        try:
            yield decompress(chunk) if decompress is not None else chunk
        except zlib.error as error:
            raise CutOffError(str(error)) from None


async def _read(response: ProviderAnswer) -> tuple[ReadAnswer, bytes]:
    """Read a body; return it with what it reads as: nothing where it is not in its encoding, or too long."""
    answer = await read_within(response, MOST_BYTES)
    decompress = decompressor(encoding_of(response))
    try:
        body = decompress(answer.body) if decompress is not None else answer.body
    except zlib.error:
        body = b""
    return answer, body if answer.is_whole else b""
