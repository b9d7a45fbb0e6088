"""What is made of a request before it goes on: whose it is, and the context that is sent in its place."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from compaction.media.limits import MediaLimits, limits_of
from compaction.pins.pinned import masked_pins
from compaction.pins.serving import reading_bytes
from compaction.shapes.inner import ShapeError
from gateway.body_limits import OverLimitsError, read_body_aside
from gateway.contexts import NO_LIMITS, shorten
from gateway.conversations.histories import (
    LISTS,
    BeginningKeys,
    NotJsonError,
    circle_of,
    read_history,
    refuse_unreadable,
    replace_lone_surrogates,
)
from gateway.conversations.increments import as_the_provider_has_it, previous_in, response_key
from gateway.conversations.meaning import UNREADABLE
from gateway.conversations.put_back import put_back
from gateway.conversations.recognition import may_go_on, new_place, pending_place, recognize
from gateway.conversations.rewritten import AlignmentScope
from gateway.conversations.sessions import MOST_NAME_CHARS, conversation_name, session_of
from gateway.conversations.turns import Learned
from gateway.doors import DoorError
from gateway.headers import CODING, CONVERSATION, is_bypassed
from gateway.recalls.calls import declared
from gateway.recalls.thoughts import has_thoughts, without_thoughts
from gateway.timeouts import AwayError
from runtime import ids
from runtime.threads import run_aside

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from uuid import UUID

    from actions.caller import Caller
    from gateway.contexts import CompactedRequest
    from gateway.conversations.histories import ResentHistory
    from gateway.conversations.recognition import Recognized
    from gateway.doors import Door
    from gateway.metrics import FailedOpen
    from gateway.services import GatewayServices

log = structlog.get_logger()

RETRY_SECONDS: Final = 10.0
"""Seconds for a smaller context after a refusal; the client has waited for a model's answer before."""
_value: Final = msgspec.json.Decoder().decode


class PreparedRequest(NamedTuple):
    """What goes on to the provider, and what is to be learned of its answer; None for nothing."""

    body: bytes
    outcome: str
    learned: Learned | None = None
    history: ResentHistory | None = None
    """The whole of it, for a second try with less."""
    as_it_came: bytes | None = None
    """The body before the recall tool was declared in it; None where it is not."""
    repaired: int = 0
    """Malformed rows of the client's that went on repaired."""
    limits: MediaLimits = NO_LIMITS
    """Limits of the model on media, which hold for a second try as well."""
    place_later: Callable[[], Awaitable[PreparedRequest]] | None = None
    """Prepares a request that failed open once more, with time; None for any other."""
    accept: Callable[[], Coroutine[Any, Any, int | None]] | None = None
    """Makes the smaller context of a retry the head, and returns its version; to be called once it was accepted."""
    committed: asyncio.Task[int | None] | None = None
    """The same under way; None where the context is the head already."""

    @property
    def conversation(self) -> str | None:
        """The conversation as clients see it."""
        return ids.external("conv", self.learned.place.conversation_id) if self.learned else None

    @property
    def size(self) -> int:
        """Bytes of what is to be learned."""
        return sum(map(len, self.learned.history.rows)) if self.learned else 0

    @property
    def saved_tokens(self) -> int:
        """Tokens that are not sent, by estimate."""
        return self.learned.saved_tokens if self.learned else 0

    @property
    def rules(self) -> str:
        """The hash over the rules that stand in it, "" where nothing was compacted."""
        return self.learned.rules if self.learned else ""

    def as_sent(self) -> PreparedRequest:
        """Return the request without the texts that are not needed once it is sent."""
        learned = without_text(self.learned) if self.learned else None
        return PreparedRequest(b"", self.outcome, learned, repaired=self.repaired, committed=self.committed)


async def prepare(
    services: GatewayServices, caller: Caller | None, door: Door, headers: Mapping[bytes, bytes], body: bytes
) -> PreparedRequest:
    """Return what goes on of a request; as it came where nothing is to be done to it, or nothing can be done now.

    Raises DoorError for what is no JSON.
    """
    try:
        prepared = await _prepare(services, caller, door, headers, body)
    except OverLimitsError:
        return _failed_open(services, body, "limits")
    if prepared.outcome != "failed_open":
        services.core.gateway_outcomes.add(is_open=False)
    return prepared


async def _prepare(
    services: GatewayServices, caller: Caller | None, door: Door, headers: Mapping[bytes, bytes], body: bytes
) -> PreparedRequest:
    if is_bypassed(headers):
        return PreparedRequest(body, "bypassed")
    if not body or headers.get(CODING, b"identity") != b"identity":
        return PreparedRequest(body, "unchanged")
    try:
        read = await read_body_aside(services, caller, body, _read, services, door, body)
    except NotJsonError as error:
        raise DoorError(400, f"The body is no JSON: {error}") from None
    if read is None:
        return PreparedRequest(await _increment(services, caller, door, body), "unchanged")
    history, links, body = read
    if caller is None:
        return _failed_open(services, body, "key", repaired=history.repairs)
    place = partial(_in_place, services, caller, headers, body, history, links)
    try:
        prepared = await place()
    except AwayError:
        opened = _failed_open(services, body, "database", repaired=history.repairs)
        limits = limits_of(caller.principal.policy_of("{}", _model(history)).policy)
        opened = await with_head(opened._replace(limits=limits), history, new_place())
        return opened._replace(history=history, place_later=partial(place, seconds=RETRY_SECONDS))
    return prepared._replace(repaired=history.repairs)


def _failed_open(services: GatewayServices, body: bytes, why: FailedOpen, *, repaired: int = 0) -> PreparedRequest:
    """Return a request that goes on as it came, but for rows that were `repaired`."""
    services.metrics.failed_open[why].inc()
    services.core.gateway_outcomes.add(is_open=why != "limits")
    return PreparedRequest(body, "failed_open", repaired=repaired)


async def _increment(services: GatewayServices, caller: Caller | None, door: Door, body: bytes) -> bytes:
    """Return a request whose history the provider has, with the id by which it has that."""
    previous = previous_in(body) if door.shape == "responses" and caller is not None else None
    if previous is None or caller is None:
        return body
    try:
        return await services.deadline.within(
            _increment_of(services, caller, body, previous), tenant_id=caller.tenant_id
        )
    except AwayError:
        return body


async def _increment_of(services: GatewayServices, caller: Caller, body: bytes, previous: str) -> bytes:
    await services.learning.settled(caller.tenant_id, [response_key(previous)])
    return await as_the_provider_has_it(services.core.pool, caller.tenant_id, body, previous)


def _read(services: GatewayServices, door: Door, body: bytes) -> tuple[ResentHistory, list[bytes], bytes] | None:
    """Return the history in a body, what stands for each of its beginnings, and the body as a provider may have it."""
    clean, replaced = replace_lone_surrogates(body)
    read = _read_clean(services, door, clean)
    if read is None or not replaced:
        return read
    history, links, clean = read
    if any(bytes(value) not in body for name, value in history.fields.items() if name != LISTS[history.shape]):
        # Beside the rows it is the provider's to refuse.
        return None
    log.info("gateway.text_repaired", count=replaced, shape=history.shape)
    return history._replace(replaced=replaced), links, clean


def _read_clean(services: GatewayServices, door: Door, body: bytes) -> tuple[ResentHistory, list[bytes], bytes] | None:
    if (known := services.seen.known(door.shape, body)) is not None:
        return _with_repairs(services, *known, body)
    history = read_history(door.shape, body)
    if history is None:
        return None
    has_own = has_thoughts(body)
    try:
        if has_own:
            history = history._replace(rows=without_thoughts(history.rows))
        links = services.seen.links(door.shape, history.rows)
    except UNREADABLE:
        refuse_unreadable(body)
        return None
    if has_own:
        body = history.with_rows(history.rows)
    else:
        services.seen.remember(body, history, links)
    return _with_repairs(services, history, links, body)


def _with_repairs(
    services: GatewayServices, history: ResentHistory, links: list[bytes], body: bytes
) -> tuple[ResentHistory, list[bytes], bytes]:
    """Return a history that knows its malformed rows, and the body with these repaired; the original is stored."""
    malformed = services.seen.malformed(history.shape, history.rows)
    if malformed:
        history = history._replace(malformed=malformed)
        body = history.with_rows(history.repaired().rows)
        log.info("gateway.rows_repaired", count=len(malformed), shape=history.shape)
    return history, links, body


async def _in_place(
    services: GatewayServices,
    caller: Caller,
    headers: Mapping[bytes, bytes],
    body: bytes,
    history: ResentHistory,
    links: list[bytes],
    *,
    seconds: float | None = None,
) -> PreparedRequest:
    session = session_of(headers, history.fields)
    name = conversation_name(headers.get(CONVERSATION, b""))
    named = ids.parse("conv", name) if name else None
    external_id = name if named is None else None
    circle = circle_of(history.shape, session=external_id or session.name, user=None if name else session.user)
    keys = BeginningKeys(circle, links)
    in_session = name is not None or session.name is not None
    # A session, a user or the conversation's own name says where a rewritten history may be looked for. A conversation
    # that is named by its id alone has the circle of all who name nothing: it is looked for in that conversation.
    near = named.bytes if named is not None else circle
    can_align = in_session or session.user is not None
    scope = AlignmentScope(near, in_session, services.meanings) if can_align else None
    place = await _recognized(
        services, caller, history, keys, (named, external_id), in_session=in_session, scope=scope, seconds=seconds
    )
    policy = caller.principal.policy_of(place.policy, _model(history)).policy
    place = place._replace(shown_rules=masked_pins(place.rules, policy))
    with_tool = declared(history) if policy.gateway_recall else None
    history = with_tool or history
    learned = Learned(
        history.shape,
        history,
        place.keyed,
        keys,
        place,
        circle,
        session,
        named,
        external_id,
        _model(history),
        "unchanged",
        0,
        0,
        scope=scope,
    )
    came = body if with_tool is not None else None
    prepared = PreparedRequest(body, "unchanged", learned, history, came, limits=limits_of(policy))
    return await with_head(prepared, history, place)


async def _recognized(
    services: GatewayServices,
    caller: Caller,
    history: ResentHistory,
    keys: Sequence[bytes],
    named: tuple[UUID | None, str | None],
    *,
    in_session: bool,
    scope: AlignmentScope | None,
    seconds: float | None,
) -> Recognized:
    services.deadline.require()
    if not may_go_on(history, in_session=in_session):
        return new_place()
    storing = services.learning.under_way(caller.tenant_id, keys)
    if storing is None and scope is not None and in_session and len(history.rows) > 1:
        # A history that was rewritten since then has other keys.
        earlier = services.learning.under_way(caller.tenant_id, [scope.circle])
        if earlier is not None and earlier.is_long:
            return pending_place(earlier.conversation_id, 0)
        if earlier is not None:
            await services.deadline.within(asyncio.wait({earlier.task}), seconds=seconds)
    if storing is not None and storing.is_long:
        # Longer than anybody waits: it goes on as it came, and is stored after what it goes on from.
        return pending_place(storing.conversation_id, storing.rows)
    if storing is not None:
        await services.deadline.within(asyncio.wait({storing.task}), seconds=seconds)
    recognizing = recognize(
        services.core.pool, caller.tenant_id, history, keys, only=named[0], external_id=named[1], scope=scope
    )
    return await services.deadline.within(recognizing, tenant_id=caller.tenant_id, seconds=seconds)


async def with_head(prepared: PreparedRequest, history: ResentHistory, place: Recognized) -> PreparedRequest:
    """Return what goes on with the head in the place of what it covers, as it is where none can stand there."""
    learned = prepared.learned and prepared.learned._replace(place=place, first=place.keyed)
    sendable = whole = history.repaired()
    try:
        if place.recalls:
            whole = sendable._replace(rows=put_back(history.shape, sendable.rows, place.recalls, place.removed))
        size = len(prepared.body)
        if place.head is not None:
            size += reading_bytes((rule.text for rule in place.rules), size)
        shorter: CompactedRequest | None = await run_aside(size, partial(shorten, whole, place, prepared.limits))
    except (ShapeError, *UNREADABLE) as error:
        # What this service cannot read the provider may.
        log.info("gateway.not_read", error=str(error), conversation=str(place.conversation_id))
        shorter = None
    if shorter is None:
        body = prepared.body
        if place.recalls and not all(whole.rows):
            # What the head stands for was not read: the client's own rows are a history too.
            whole = sendable
        if prepared.as_it_came is not None or place.recalls:
            body = whole.with_rows(whole.rows)
        return prepared._replace(body=body, learned=learned, history=learned and history)
    if learned is None:
        return prepared._replace(body=shorter.body)
    learned = learned._replace(
        outcome="compacted", saved_tokens=shorter.saved_tokens, version=shorter.version, rules=shorter.rules
    )
    return prepared._replace(body=shorter.body, outcome="compacted", learned=learned, history=history)


def without_text(learned: Learned) -> Learned:
    """Return what is to be learned without the rows that are stored already."""
    history, first = learned.history, learned.first
    unstored = history._replace(fields={}, lead=[], rows=[*[b""] * first, *history.rows[first:]])
    return learned._replace(history=unstored)


def _model(history: ResentHistory) -> str | None:
    try:
        model = _value(history.fields.get("model", b"null"))
    except UNREADABLE:
        return None
    return model if isinstance(model, str) and 0 < len(model) <= MOST_NAME_CHARS else None
