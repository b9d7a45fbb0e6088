"""Calling the provider. A request that it refuses as too large is sent once more with less."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog

from actions.overflow import RefusedCall, preview_overflow, shrink_after
from compaction.pins.pinned import IN_LEDGER, Pin
from compaction.steps.overflow import MARGIN
from compaction.steps.refusals import MAX_CHARS, read_refusal
from gateway.answers.beginnings import AnswerError, read_beginning
from gateway.answers.reading import ReceivedAnswer
from gateway.conversations.recognition import recognize
from gateway.conversations.turns import LostTurnError, store_exchange
from gateway.providers.answers import encoding_of, read_within
from gateway.request.recognise import recognise
from gateway.request.rewrite import rewrite
from gateway.request.values import PreparedRequest, Shrink
from gateway.timeouts import AwayError
from runtime.errors import RequestError
from store.gateway import histories as stored
from store.gateway.histories import Head

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping

    from actions.caller import Caller
    from compaction.steps.refusals import Refusal
    from gateway.conversations.recognition import RecognizedPlace
    from gateway.conversations.turns import PendingExchange
    from gateway.doors import Door
    from gateway.providers.answers import ProviderAnswer
    from gateway.request.values import PlacedRequest
    from gateway.services import GatewayServices
    from store.conversations.overflows import Previewed

log = structlog.get_logger()

RETRY_SECONDS: Final = 10.0
"""Seconds for a smaller context after a refusal; the client has waited for a model's answer before."""
MAX_BYTES: Final = 256 * 1024
"""Bytes of an error that are read."""
_OK: Final = 200
_LEAST_ERROR: Final = 400
_MALFORMED: Final = frozenset({400, 413, 422})
"""Statuses with which a provider refuses the request itself."""
_WITHOUT_TOOLS: Final = frozenset({400, 404, 422})
"""Statuses with which a provider refuses tools for a model."""
_value: Final = msgspec.json.Decoder().decode
_ledger: Final = msgspec.json.Decoder(list[tuple[str, int, str, str]]).decode


class CalledRequest(NamedTuple):
    """A request that was sent, and the answer to it."""

    response: ProviderAnswer
    request: PreparedRequest
    committed: asyncio.Task[int | None] | None = None
    """The smaller context of the request on its way to become the head; its result is the version, None for none."""

    @property
    def learned(self) -> PendingExchange | None:
        """The turn that is to be stored."""
        return self.request.learned

    def without_text(self) -> CalledRequest:
        """Return it without the texts that are stored already, or that nobody needs once the request is sent."""
        learned = self.learned
        if learned is not None:
            history, first = learned.history, learned.first
            unstored = history._replace(fields={}, lead=[], rows=[*[b""] * first, *history.rows[first:]])
            learned = learned._replace(history=unstored)
        request = self.request
        kept = PreparedRequest(b"", request.outcome, learned, repaired=request.repaired, opaque=request.opaque)
        return CalledRequest(self.response, kept, self.committed)


class ProviderCall:
    """One call of a provider, and a smaller one in its place if the provider refuses its size."""

    def __init__(
        self,
        services: GatewayServices,
        caller: Caller | None,
        door: Door,
        headers: Mapping[bytes, bytes],
        send: Callable[[PreparedRequest], Awaitable[ProviderAnswer]],
    ) -> None:
        self._services = services
        self._caller = caller
        self._door = door
        self._headers = headers
        self._send = send

    async def answer(self, prepared: PreparedRequest) -> CalledRequest:
        """Return the answer to a request and the request that it is the answer to. Raises DoorError."""
        response = await self._send(prepared)
        if not self._door.is_conversation or self._caller is None or not (prepared.placed or prepared.unplaced):
            return CalledRequest(response, prepared)
        error, response = await _read_error(response, self._door)
        if error is None:
            return CalledRequest(response, prepared)
        try:
            other = await self._in_place_of(self._caller, prepared, error)
        except BaseException:
            response.close()
            raise
        if other is None:
            return CalledRequest(response, prepared)
        response.close()
        error, response = await _read_error(await self._send(other), self._door)
        if error is not None:
            self._note_refused(other, error)
            return CalledRequest(response, other)
        if other.shrink is None:
            return CalledRequest(response, other)
        committed = self._services.learning.begin(_commit(self._services, self._caller, other.shrink))
        return CalledRequest(response, other, committed)

    async def _in_place_of(
        self, caller: Caller, refused: PreparedRequest, error: AnswerError
    ) -> PreparedRequest | None:
        """Return the request to send in the place of one that was refused, None for none."""
        refusal = _read_refusal(refused, error)
        if refusal is None:
            without_tool = refused.placed.body_without_tool if refused.placed else None
            if without_tool is not None and error.status in _WITHOUT_TOOLS and "tool" in error.text.lower():
                return PreparedRequest(
                    without_tool, "unchanged", refused.learned, repaired=refused.repaired, opaque=refused.opaque
                )
            if error.status is None or error.status in _MALFORMED:
                self._services.metrics.unread_refusals.labels(self._provider(caller), error.status or _OK).inc()
            return None
        if not refusal.is_of_history:
            return None
        try:
            smaller = await self._services.deadline.within(
                self._make_smaller(caller, refused, refusal), seconds=RETRY_SECONDS
            )
        except (AwayError, RequestError, LostTurnError) as reason:
            log.info("gateway.not_smaller", reason=type(reason).__name__)
            return None
        if smaller is not None:
            self._services.metrics.retries.inc()
        return smaller

    async def _make_smaller(self, caller: Caller, refused: PreparedRequest, refusal: Refusal) -> PreparedRequest | None:
        """Return a request with a smaller history. It is stored first: a history is made smaller where it is known."""
        tried = refused
        if refused.unplaced is not None:
            placed = await recognise(self._services, caller, self._headers, refused.unplaced, seconds=RETRY_SECONDS)
            tried = await rewrite(placed)
        if tried.learned is None or tried.placed is None:
            return None
        if tried.learned.place.is_pending:
            await self._services.learning.settled(caller.tenant_id, tried.learned.keys)
        await store_exchange(caller, tried.learned, ReceivedAnswer([], None, is_whole=True))
        if tried is not refused:
            refusal, fits = _as_placed(refusal, refused, tried)
            if fits:
                return tried
        shorter = await self._with_smaller_head(caller, tried.placed, tried.learned.version, refusal)
        return None if shorter is None or shorter.body == refused.body else shorter

    async def _with_smaller_head(
        self, caller: Caller, placed: PlacedRequest, version: int, refusal: Refusal
    ) -> PreparedRequest | None:
        """Return a request with the head that an overflow would leave; nothing of it is stored yet.

        `version` is that of the head that was refused.
        """
        learned = placed.learned
        pool, tenant_id = caller.services.pool, caller.tenant_id
        place = await recognize(pool, tenant_id, placed.history, learned.keys, scope=learned.scope)
        if place.is_new:
            return None
        conversation_id = place.conversation_id
        tries = self._services.refused_shrinks.of(conversation_id)
        call = RefusedCall(refusal, version, tries, is_fitted=False)
        preview = await preview_overflow(caller, conversation_id, call)
        shrink = None
        if preview.done.outcome != "shrunk_since":
            if preview.head is None:
                return None
            place = await _with_previewed_head(caller, place, preview)
            shrink = Shrink(conversation_id, call)
        shorter = await rewrite(placed.at(place))
        if shorter.outcome != "compacted" or shorter.learned is None:
            return None
        return shorter._replace(learned=shorter.learned._replace(retried=True), shrink=shrink)

    def _note_refused(self, sent: PreparedRequest, error: AnswerError) -> None:
        """Remember that a smaller context was refused too, so that the next one is smaller still."""
        refusal = _read_refusal(sent, error)
        if refusal is not None and refusal.is_of_history and sent.learned is not None:
            self._services.refused_shrinks.add(sent.learned.place.conversation_id)

    def _provider(self, caller: Caller) -> str:
        """Return the name of the provider's host."""
        return urlsplit(self._services.providers.of(caller.tenant_id, self._door.shape).url).hostname or ""


def _read_refusal(refused: PreparedRequest, error: AnswerError) -> Refusal | None:
    known = refused.placed or refused.unplaced
    output_tokens = known.history.requested_output if known is not None else None
    refusal = read_refusal(error.text, status=error.status, output_tokens=output_tokens)
    return None if refusal is None else refusal.with_size(len(refused.body))


async def _commit(services: GatewayServices, caller: Caller, shrink: Shrink) -> int | None:
    """Make a smaller context the head; return its version, None if that was not possible."""
    try:
        done = await shrink_after(caller, shrink.conversation_id, shrink.call)
    except Exception as error:  # noqa: BLE001 - the turn is stored without it
        log.warning("gateway.overflow_lost", why=type(error).__name__)
        return None
    services.refused_shrinks.forget(shrink.conversation_id)
    return done.version


async def _read_error(response: ProviderAnswer, door: Door) -> tuple[AnswerError | None, ProviderAnswer]:
    """Return the error that an answer is, None for none, and the answer from its start."""
    if response.status == _OK:
        return await read_beginning(response, door.shape)
    if response.status < _LEAST_ERROR:
        return None, response
    read = await read_within(response, MAX_BYTES)
    return AnswerError(error_text(read.body, encoding_of(response)) if read.is_whole else "", read.status), read


def error_text(body: bytes, encoding: bytes) -> str:
    """Return an error's body as text, "" if it is not in its encoding."""
    if encoding in {b"gzip", b"deflate"}:
        try:
            body = zlib.decompressobj(32 + zlib.MAX_WBITS).decompress(body, MAX_BYTES)
        except zlib.error:
            return ""
    return body[:MAX_CHARS].decode(errors="replace")


def _as_placed(refusal: Refusal, refused: PreparedRequest, placed: PreparedRequest) -> tuple[Refusal, bool]:
    """Return a refusal as it would be of the same request with its head, and whether that is small enough."""
    share = len(placed.body) / max(1, len(refused.body))
    if refusal.amount is None or refusal.limit is None:
        return refusal, share < MARGIN
    amount = max(1, round(refusal.amount * share))
    if amount <= refusal.limit * MARGIN:
        return refusal, True
    return refusal._replace(amount=max(amount, refusal.limit + 1), size=len(placed.body)), False


async def _with_previewed_head(caller: Caller, place: RecognizedPlace, preview: Previewed) -> RecognizedPlace:
    row: Any = preview.head
    head = Head(row.version, row.covers_through, row.head, row.head_seqs, row.head_tokens, int(row.covered_tokens))
    recalls = place.recalls
    if recalls:
        pool = caller.services.pool
        recalls = tuple(await stored.recalls_beside(pool, caller.tenant_id, place.conversation_id, head))
    rules = tuple(
        Pin(entry, seq, text, IN_LEDGER[source])
        for entry, seq, text, source in _ledger(row.rules or "[]")
        if source in IN_LEDGER and seq <= place.last_seq
    )
    return place._replace(
        head=head,
        recalls=recalls,
        rules=rules,
        strip_thinking_through=row.strip_thinking_through,
        broken_through=row.broken_through,
    )
