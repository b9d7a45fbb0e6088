"""The beginning of an answer, read before the client gets it, because some refusals come with status 200."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.steps.refusals import status_of
from gateway.answers.events import EventSplitter
from gateway.answers.reading import decompressor
from gateway.providers.answers import encoding_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from compaction.shapes.inner import Shape
    from gateway.providers.answers import ProviderAnswer

SECONDS: Final = 5.0
"""Seconds for which a beginning is held back. A refusal comes at once, an answer may take long."""
MAX_BYTES: Final = 64 * 1024
"""Bytes of a beginning that are held back; no refusal is longer."""
EMPTY_STATUS: Final = 200
"""The status under which the table of refusals has streams without any answer."""
_EMPTY_TEXTS: Final = ("text", "thinking")
_MESSAGES_OPENINGS: Final = frozenset({"ping", "message_start"})
_RESPONSES_OPENINGS: Final = frozenset(
    {
        "keepalive",
        "ping",
        "response.content_part.added",
        "response.created",
        "response.in_progress",
        "response.queued",
        "response.reasoning_summary_part.added",
    }
)
_EMPTY_ITEMS: Final = ("message", "reasoning")
_value: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class AnswerError(NamedTuple):
    """An error of a provider: its text, and the status that it has or names."""

    text: str
    status: int | None


async def read_beginning(response: ProviderAnswer, shape: Shape) -> tuple[AnswerError | None, ProviderAnswer]:
    """Return the error that an answer with status 200 begins with, None for an answer, and the answer from its start.

    It ends with the first piece of an answer, or after SECONDS or MAX_BYTES.
    """
    decompress = decompressor(encoding_of(response))
    media_type = dict(response.headers).get(b"content-type", b"").lower()
    if decompress is None:
        return None, response
    if media_type.startswith(b"text/event-stream"):
        return await _hold(response, _StreamBeginning(shape, decompress))
    if media_type.startswith(b"application/json"):
        return await _hold(response, _JsonBeginning(decompress))
    return None, response


async def _hold(
    response: ProviderAnswer, beginning: _StreamBeginning | _JsonBeginning
) -> tuple[AnswerError | None, ProviderAnswer]:
    chunks = response.pieces()
    following: asyncio.Task[bytes | None] | None = None
    held: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(SECONDS):
            while not beginning.is_known and size <= MAX_BYTES:
                following = asyncio.ensure_future(anext(chunks, None))
                chunk = await asyncio.shield(following)
                following = None
                if chunk is None:
                    beginning.end()
                    break
                held.append(chunk)
                size += len(chunk)
                beginning.take(chunk)
    except TimeoutError:
        pass
    except Exception:  # noqa: BLE001 - the client may decode the bytes, and a broken stream fails again
        following = following if following is not None and following.done() else None
    except BaseException:
        # The client has disconnected.
        _HeldAnswer(response, held, following, chunks).close()
        raise
    return beginning.error, _HeldAnswer(response, held, following, chunks)


class _StreamBeginning:
    """The events of a stream up to the first piece of an answer."""

    def __init__(self, shape: Shape, decompress: Callable[[bytes], bytes]) -> None:
        self._shape = shape
        self._decompress = decompress
        self._events = EventSplitter()
        self._has_events = False
        self.is_known = False
        self.error: AnswerError | None = None

    def take(self, chunk: bytes) -> None:
        """Process the next bytes."""
        for event in self._events.take(self._decompress(chunk)):
            if event.is_done:
                self._end_of_stream()
            elif event.value is not None:
                self._take_event(event.value)
            if self.is_known:
                return

    def end(self) -> None:
        """Process the end of the body. A body that is no stream may be an error in JSON."""
        try:
            value = _value(self._events.end())
        except (msgspec.DecodeError, RecursionError):
            value = None
        if value is not None:
            self.error = _error_of(value)
        elif not self.is_known:
            self._end_of_stream()
        self.is_known = True

    def _take_event(self, event: Mapping[str, Any]) -> None:
        self._has_events = True
        self.error = _error_of(event)
        self.is_known = self.error is not None or _is_piece(self._shape, event)

    def _end_of_stream(self) -> None:
        self.is_known = True
        if self._shape == "chat" and not self._has_events:
            self.error = AnswerError("", EMPTY_STATUS)


class _JsonBeginning:
    """A JSON body, which is an error only as a whole."""

    def __init__(self, decompress: Callable[[bytes], bytes]) -> None:
        self._decompress = decompress
        self._body = bytearray()
        self.is_known = False
        self.error: AnswerError | None = None

    def take(self, chunk: bytes) -> None:
        """Process the next bytes."""
        self._body += self._decompress(chunk)

    def end(self) -> None:
        """Process the end of the body."""
        self.is_known = True
        self.error = _error_of(_value(self._body))


def _error_of(value: Any) -> AnswerError | None:
    """Return the error in an event or a body, or None."""
    if isinstance(value, list) and value:
        value = value[0]
    error = _error_in(value) if isinstance(value, dict) else None
    return None if error is None else AnswerError(_encode({"error": error}).decode(), status_of(error))


def _error_in(value: Mapping[str, Any]) -> Any:
    if value.get("type") == "error" or value.get("error_message"):
        return value.get("error") or value
    if value.get("type") == "response.failed":
        response = value.get("response")
        return (response.get("error") if isinstance(response, dict) else None) or value
    if value.get("error"):
        return value["error"]
    if value.get("status") == "failed":
        return value
    failed = (each for each in _choices(value) if each.get("finish_reason") == "error" or each.get("error"))
    return next((each.get("error") or value for each in failed), None)


def _is_piece(shape: Shape, event: Mapping[str, Any]) -> bool:
    """Return whether an event contains a part of the answer, or ends it."""
    kind = event.get("type")
    match shape:
        case "messages":
            if kind == "content_block_start":
                block = event.get("content_block")
                return not isinstance(block, dict) or not _is_empty(block)
            return kind not in _MESSAGES_OPENINGS
        case "chat":
            return "choices" not in event or any(map(_has_delta, _choices(event)))
        case "responses":
            if kind == "response.output_item.added":
                item = event.get("item")
                return not isinstance(item, dict) or item.get("type") not in _EMPTY_ITEMS
            return kind not in _RESPONSES_OPENINGS


def _is_empty(block: Mapping[str, Any]) -> bool:
    return block.get("type") in _EMPTY_TEXTS and not any(block.get(name) for name in _EMPTY_TEXTS)


def _has_delta(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    said = isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")
    return said or bool(choice.get("finish_reason"))


def _choices(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = value.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


class _HeldAnswer:
    """An answer whose beginning was read before."""

    def __init__(
        self,
        response: ProviderAnswer,
        held: list[bytes],
        following: asyncio.Task[bytes | None] | None,
        chunks: AsyncIterator[bytes],
    ) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response
        self._held = held
        self._following = following
        self._chunks = chunks

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the held pieces, then the following ones."""
        for chunk in self._held:
            yield chunk
        self._held = []
        if self._following is not None:
            next_chunk = await self._following
            self._following = None
            if next_chunk is None:
                return
            yield next_chunk
        async for chunk in self._chunks:
            yield chunk

    def close(self) -> None:
        """End the call."""
        if self._following is not None:
            self._following.cancel()
        self._response.close()
