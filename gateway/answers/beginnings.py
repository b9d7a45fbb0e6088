"""The beginning of a stream, looked at before the client has any of it: there are refusals that come within one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.answers.events import EventSplitter
from gateway.answers.reading import decompressor
from gateway.providers.answers import encoding_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.providers.answers import ProviderAnswer

SECONDS: Final = 2.0
"""Seconds for which a beginning is kept back at most; a refusal comes at once, an answer may be thought of for long."""
_OPENINGS: Final = frozenset({"response.created", "response.in_progress", "response.queued"})
_REFUSALS: Final = frozenset({"response.failed", "error"})
_encode: Final = msgspec.json.Encoder().encode


async def look_at(response: ProviderAnswer) -> tuple[str, ProviderAnswer]:
    """Return a refusal that a stream begins with, "" for none, and the stream whole."""
    decompress = decompressor(encoding_of(response))
    media_type = dict(response.headers).get(b"content-type", b"").lower()
    if decompress is None or not media_type.startswith(b"text/event-stream"):
        return "", response
    chunks = response.pieces()
    following: asyncio.Task[bytes | None] | None = None
    kept: list[bytes] = []
    refusal: str | None = None
    events = EventSplitter()
    try:
        async with asyncio.timeout(SECONDS):
            while refusal is None:
                following = asyncio.ensure_future(anext(chunks, None))
                chunk = await asyncio.shield(following)
                following = None
                if chunk is None:
                    break
                kept.append(chunk)
                refusal = _refusal(events, decompress(chunk))
    except TimeoutError:
        pass
    except Exception:  # noqa: BLE001 - what cannot be read here the client may, and what breaks breaks again
        following = following if following is not None and following.done() else None
    except BaseException:
        # Nobody waits for it any more: the client has gone away.
        _Kept(response, kept, following, chunks).close()
        raise
    return refusal or "", _Kept(response, kept, following, chunks)


def _refusal(events: EventSplitter, chunk: bytes) -> str | None:
    """Return a refusal, "" where the answer has begun, and None while neither is known."""
    for event in events.take(chunk):
        if event.value is None:
            continue
        kind = event.value.get("type")
        if kind in _REFUSALS:
            response: Any = event.value.get("response")
            error = response.get("error") if isinstance(response, dict) else event.value
            return _encode({"error": error}).decode()
        if kind not in _OPENINGS:
            return ""
    return None


class _Kept:
    """A stream from its beginning on, of which some was read before."""

    def __init__(
        self,
        response: ProviderAnswer,
        kept: list[bytes],
        following: asyncio.Task[bytes | None] | None,
        chunks: AsyncIterator[bytes],
    ) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response
        self._kept = kept
        self._following = following
        self._chunks = chunks

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what was read, then what comes."""
        for chunk in self._kept:
            yield chunk
        self._kept = []
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
