"""Finding the conversation that a request goes on from."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from compaction.media.limits import limits_of
from compaction.pins.pinned import masked_pins
from gateway.conversations.histories import BeginningKeys, scope_key
from gateway.conversations.meaning import UNREADABLE
from gateway.conversations.recognition import may_go_on, new_place, pending_place, recognize
from gateway.conversations.rewritten import AlignmentScope
from gateway.conversations.sessions import MOST_NAME_CHARS, conversation_name, session_of
from gateway.conversations.turns import PendingExchange
from gateway.headers import CONVERSATION
from gateway.recalls.calls import declare_tool
from gateway.request.values import PlacedRequest
from runtime import ids

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from actions.caller import Caller
    from gateway.conversations.histories import ResentHistory
    from gateway.conversations.recognition import RecognizedPlace
    from gateway.conversations.sessions import Session
    from gateway.request.values import ParsedRequest
    from gateway.services import GatewayServices

_value: Final = msgspec.json.Decoder().decode


class ConversationClues(NamedTuple):
    """The names and digests by which a request's conversation is looked for."""

    session: Session
    named: UUID | None
    external_id: str | None
    circle: bytes
    keys: BeginningKeys
    in_session: bool
    scope: AlignmentScope | None
    """Where a history that its client has rewritten is looked for; None for nowhere."""


async def recognise(
    services: GatewayServices,
    caller: Caller,
    headers: Mapping[bytes, bytes],
    parsed: ParsedRequest,
    *,
    seconds: float | None = None,
) -> PlacedRequest:
    """Return a request with its place in a conversation. Raises AwayError where it cannot be found in time."""
    history = parsed.history
    clues = _collect_clues(services, headers, parsed)
    place = await _find_place(services, caller, history, clues, seconds=seconds)
    model = model_of(history)
    policy = caller.principal.policy_of(place.policy, model).policy
    place = place._replace(shown_rules=masked_pins(place.rules, policy))
    with_tool = declare_tool(history) if policy.gateway_recall else None
    learned = PendingExchange(
        history.shape,
        with_tool or history,
        place.keyed,
        clues.keys,
        place,
        clues.circle,
        clues.session,
        clues.named,
        clues.external_id,
        model,
        "unchanged",
        0,
        0,
        scope=clues.scope,
        requested_output=history.requested_output,
    )
    return PlacedRequest(parsed.body, learned, limits_of(policy), None if with_tool is None else parsed.body)


def model_of(history: ResentHistory) -> str | None:
    """Return the model that a request names."""
    try:
        model = _value(history.fields.get("model", b"null"))
    except UNREADABLE:
        return None
    return model if isinstance(model, str) and 0 < len(model) <= MOST_NAME_CHARS else None


def _collect_clues(
    services: GatewayServices, headers: Mapping[bytes, bytes], parsed: ParsedRequest
) -> ConversationClues:
    history = parsed.history
    session = session_of(headers, history.fields)
    name = conversation_name(headers.get(CONVERSATION, b""))
    named = ids.parse("conv", name) if name else None
    external_id = name if named is None else None
    circle = scope_key(history.shape, session=external_id or session.name, user=None if name else session.user)
    in_session = name is not None or session.name is not None
    # A session, a user or the conversation's own name says where a rewritten history may be looked for. A conversation
    # that is named by its id alone has the circle of all who name nothing: it is looked for in that conversation.
    near = named.bytes if named is not None else circle
    can_align = in_session or session.user is not None
    scope = AlignmentScope(near, in_session, services.meanings) if can_align else None
    keys = BeginningKeys(circle, parsed.links)
    return ConversationClues(session, named, external_id, circle, keys, in_session, scope)


async def _find_place(
    services: GatewayServices,
    caller: Caller,
    history: ResentHistory,
    clues: ConversationClues,
    *,
    seconds: float | None,
) -> RecognizedPlace:
    services.deadline.require()
    if not may_go_on(history, in_session=clues.in_session):
        return new_place()
    storing = services.learning.under_way(caller.tenant_id, clues.keys)
    if storing is None and clues.scope is not None and clues.in_session and len(history.rows) > 1:
        # A history that was rewritten since then has other keys.
        earlier = services.learning.under_way(caller.tenant_id, [clues.scope.circle])
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
        services.core.pool,
        caller.tenant_id,
        history,
        clues.keys,
        only=clues.named,
        external_id=clues.external_id,
        scope=clues.scope,
    )
    return await services.deadline.within(recognizing, tenant_id=caller.tenant_id, seconds=seconds)
