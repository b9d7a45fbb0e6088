"""A request that its provider refuses as too large is sent again with less, before the client gets anything."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog

from actions.overflow import RefusedCall, preview_overflow, shrink_after
from compaction.pins.pinned import IN_LEDGER, Pin
from compaction.steps.overflow import MARGIN
from compaction.steps.refusals import MAX_CHARS, read_refusal
from gateway.answers.beginnings import AnswerError, read_beginning
from gateway.answers.reading import Answered
from gateway.conversations.recognition import recognize
from gateway.conversations.storing import store
from gateway.conversations.turns import LostTurnError, learn
from gateway.preparing import RETRY_SECONDS, PreparedRequest, with_head
from gateway.providers.answers import encoding_of, read_within
from gateway.timeouts import AwayError
from runtime.errors import RequestError
from store.gateway import histories as stored
from store.gateway.histories import Head

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from actions.caller import Caller
    from compaction.steps.refusals import Refusal
    from gateway.conversations.histories import ResentHistory
    from gateway.conversations.recognition import Recognized
    from gateway.doors import Door
    from gateway.providers.answers import ProviderAnswer
    from gateway.services import GatewayServices
    from store.conversations.overflows import Previewed

log = structlog.get_logger()

MAX_BYTES: Final = 256 * 1024
"""Bytes of an error that are read."""
_OK: Final = 200
_LEAST_ERROR: Final = 400
_MALFORMED: Final = frozenset({400, 413, 422})
"""Statuses with which a provider refuses the request itself."""
_WITHOUT_TOOLS: Final = frozenset({400, 404, 422})
"""Statuses with which a provider refuses tools for a model."""
_OUTPUT_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_value: Final = msgspec.json.Decoder().decode
_ledger: Final = msgspec.json.Decoder(list[tuple[str, int, str, str]]).decode


class RetriedCall:
    """One call of a provider, and a smaller one in its place if the provider refuses its size."""

    def __init__(
        self,
        services: GatewayServices,
        caller: Caller | None,
        door: Door,
        send: Callable[[PreparedRequest], Awaitable[ProviderAnswer]],
    ) -> None:
        self._services = services
        self._caller = caller
        self._door = door
        self._send = send

    async def answer(self, prepared: PreparedRequest) -> tuple[ProviderAnswer, PreparedRequest]:
        """Return the answer to a request and the request that it is the answer to. Raises DoorError."""
        response = await self._send(prepared)
        if not self._door.is_conversation or self._caller is None or prepared.history is None:
            return response, prepared
        error, response = await _read_error(response, self._door)
        if error is None:
            return response, prepared
        try:
            other = await self._in_place_of(prepared, error)
        except BaseException:
            response.close()
            raise
        if other is None:
            return response, prepared
        response.close()
        error, response = await _read_error(await self._send(other), self._door)
        if error is not None:
            self._note_refused(other, error)
            return response, other
        committed = None if other.accept is None else self._services.learning.begin(other.accept())
        return response, other._replace(committed=committed)

    async def _in_place_of(self, refused: PreparedRequest, error: AnswerError) -> PreparedRequest | None:
        """Return the request to send in the place of one that was refused, None for none."""
        refusal = self._read(refused, error)
        if refusal is None:
            if refused.as_it_came is not None and error.status in _WITHOUT_TOOLS and "tool" in error.text.lower():
                return PreparedRequest(refused.as_it_came, "unchanged", refused.learned, repaired=refused.repaired)
            if error.status is None or error.status in _MALFORMED:
                self._services.metrics.unread_refusals.labels(self._provider(), error.status or _OK).inc()
            return None
        if not refusal.is_of_history:
            return None
        try:
            smaller = await self._services.deadline.within(self._shrunk(refused, refusal), seconds=RETRY_SECONDS)
        except (AwayError, RequestError, LostTurnError) as reason:
            log.info("gateway.not_smaller", reason=type(reason).__name__)
            return None
        if smaller is not None:
            self._services.metrics.retries.inc()
        return smaller

    def _read(self, refused: PreparedRequest, error: AnswerError) -> Refusal | None:
        refusal = read_refusal(error.text, status=error.status, output_tokens=_output_tokens(refused.history))
        return None if refusal is None else refusal.with_size(len(refused.body))

    async def _shrunk(self, refused: PreparedRequest, refusal: Refusal) -> PreparedRequest | None:
        """Return a request with a smaller history. It is stored first: a history is made smaller where it is known."""
        caller = self._caller
        placed = refused if refused.place_later is None else await refused.place_later()
        if caller is None or placed.learned is None or placed.history is None:
            return None
        if placed.learned.place.is_pending:
            await self._services.learning.settled(caller.tenant_id, placed.learned.keys)
        await learn(caller, placed.learned, Answered([], None, is_whole=True))
        if placed is not refused:
            refusal, fits = _as_placed(refusal, refused, placed)
            if fits:
                return placed
        shorter = await self._with_smaller_head(caller, placed, refusal)
        return None if shorter is None or shorter.body == refused.body else shorter

    async def _with_smaller_head(
        self, caller: Caller, placed: PreparedRequest, refusal: Refusal
    ) -> PreparedRequest | None:
        """Return a request with the head that an overflow would leave; nothing of it is stored yet."""
        learned, history = placed.learned, placed.history
        if learned is None or history is None:
            return None
        pool, tenant_id = caller.services.pool, caller.tenant_id
        place = await recognize(pool, tenant_id, history, learned.keys, scope=learned.scope)
        if place.is_new:
            return None
        conversation_id = place.conversation_id
        tries = self._services.refused_shrinks.of(conversation_id)
        call = RefusedCall(refusal, learned.version, tries, is_fitted=False)
        preview = await preview_overflow(caller, conversation_id, call)
        if preview.done.outcome == "shrunk_since":
            return _as_retry(await with_head(placed, history, place))
        if preview.head is None:
            return None
        shorter = await with_head(placed, history, await _with_previewed_head(caller, place, preview))
        if shorter.outcome != "compacted":
            return None
        commit = partial(_commit, self._services, caller, conversation_id, call)
        return _as_retry(shorter)._replace(accept=commit)

    def _note_refused(self, sent: PreparedRequest, error: AnswerError) -> None:
        """Remember that a smaller context was refused too, so that the next one is smaller still."""
        refusal = self._read(sent, error)
        if refusal is not None and refusal.is_of_history and sent.learned is not None:
            self._services.refused_shrinks.add(sent.learned.place.conversation_id)

    def _provider(self) -> str:
        """Return the name of the provider's host."""
        tenant_id = self._caller.tenant_id if self._caller is not None else None
        return urlsplit(self._services.providers.of(tenant_id, self._door.shape).url).hostname or ""


async def store_accepted(
    services: GatewayServices, caller: Caller, prepared: PreparedRequest, answered: Answered | None
) -> None:
    """Store a turn, after the smaller context that was made for it has become the head."""
    if prepared.committed is not None:
        version = await prepared.committed
        if version is None and answered is not None:
            # What was counted is the count of a context that there is not.
            answered = answered._replace(usage=None)
        prepared = prepared._replace(learned=prepared.learned and prepared.learned._replace(version=version or 0))
    await store(services, caller, prepared, answered)


async def _commit(services: GatewayServices, caller: Caller, conversation_id: UUID, refused: RefusedCall) -> int | None:
    """Make a smaller context the head; return its version, None if that was not possible."""
    try:
        done = await shrink_after(caller, conversation_id, refused)
    except Exception as error:  # noqa: BLE001 - the turn is stored without it
        log.warning("gateway.overflow_lost", why=type(error).__name__)
        return None
    services.refused_shrinks.forget(conversation_id)
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


def _as_retry(prepared: PreparedRequest) -> PreparedRequest:
    return prepared._replace(learned=prepared.learned and prepared.learned._replace(retried=True))


def _as_placed(refusal: Refusal, refused: PreparedRequest, placed: PreparedRequest) -> tuple[Refusal, bool]:
    """Return a refusal as it would be of the same request with its head, and whether that is small enough."""
    share = len(placed.body) / max(1, len(refused.body))
    if refusal.amount is None or refusal.limit is None:
        return refusal, share < MARGIN
    amount = max(1, round(refusal.amount * share))
    if amount <= refusal.limit * MARGIN:
        return refusal, True
    return refusal._replace(amount=max(amount, refusal.limit + 1), size=len(placed.body)), False


async def _with_previewed_head(caller: Caller, place: Recognized, preview: Previewed) -> Recognized:
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


def _output_tokens(history: ResentHistory | None) -> int | None:
    """Return the tokens of output that a request asks for at most, None if it does not say."""
    for name in _OUTPUT_FIELDS:
        raw = history.fields.get(name) if history is not None else None
        value = _value(raw) if raw is not None else None
        if isinstance(value, int) and value > 0:
            return value
    return None
