"""Pins: what has to stay in the context word for word."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import PathParameter
from msgspec import Meta, Struct

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import read_body
from api.http.problem_types import EVERY_BODY
from api.http.problems import ProblemError, invalid, not_found
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from api.schema.types import Number, Strict
from compaction.pins.pinned import message_text
from compaction.tokens import content_tokens
from runtime import ids
from store.conversations import conversations, messages, pins, repinning

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.tables import AnyRow

MAXIMUM: Final = 100
"""Pins that a conversation may have."""

PinId = Annotated[str, PathParameter(description="A pin's id.")]


class PinIn(Strict):
    """The message to pin, or a span of its text, spelled exactly as it stands there."""

    seq: Number
    text: Annotated[str, Meta(min_length=1)] | None = None


class PinOut(Struct):
    """A text that stays in the context word for word, whatever becomes of its message."""

    id: str
    seq: int
    text: str
    created_at: datetime


class PinList(Struct):
    """All pins of a conversation."""

    data: list[PinOut]


@post(
    "/conversations/{conversation_id:str}/pins",
    status_code=201,
    # What is refused as no part of the message tells what is: spans are for who may read it.
    guards=[requires("turns:write", "context:read")],
    summary="Pin a message",
    operation_class=operation(PinIn, example=examples.PIN_IN),
    responses={
        201: answers(PinOut, "The pin; the one that is there if the same text was pinned before."),
        **problems(*EVERY_BODY, "not_found", "too_many_pins", "pins_full"),
    },
)
async def pin_message(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[PinOut]:
    """Keep a message's text, or a span of it, in the context word for word; it takes effect at once."""
    services: Services = request.app.state.services
    wanted = await read_body(request, PinIn)
    identifier = ids.parse("conv", conversation_id)
    row = await services.run(request.user.tenant_id, _pin, request, identifier, wanted) if identifier else None
    if row is None:
        raise not_found()
    return Response(_pin_out(row), status_code=201)


@get(
    "/conversations/{conversation_id:str}/pins",
    guards=[requires("context:read")],
    summary="List pins",
    responses=problems("not_found"),
)
async def list_pins(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> PinList:
    """List a conversation's pins in the order they were made."""
    services: Services = request.app.state.services
    identifier, tenant = ids.parse("conv", conversation_id), request.user.tenant_id
    rows = await services.run(tenant, _page, tenant, identifier) if identifier else None
    if rows is None:
        raise not_found()
    return PinList([_pin_out(row) for row in rows])


@delete(
    "/conversations/{conversation_id:str}/pins/{pin_id:str}",
    guards=[requires("turns:write")],
    summary="Take a pin off",
    responses=problems("not_found"),
)
async def unpin(request: Request[Principal, Any, Any], conversation_id: ConversationId, pin_id: PinId) -> None:
    """Let a text go the way of its message again."""
    services: Services = request.app.state.services
    identifier, pin = ids.parse("conv", conversation_id), ids.parse("pin", pin_id)
    if identifier is None or pin is None:
        raise not_found()
    if not await services.run(request.user.tenant_id, _unpin, request, identifier, pin):
        raise not_found()


def _pin(
    connection: Connection, request: Request[Principal, Any, Any], conversation_id: UUID, wanted: PinIn
) -> AnyRow | None:
    principal: Principal = request.user
    # Locked before the insert, which takes a weaker lock: two that pin at once would wait for each other to raise it.
    row = conversations.get(connection, principal.tenant_id, conversation_id, lock=True)
    if row is None:
        return None
    policy = principal.policy_for(row.policy, row.model)
    message = messages.get(connection, principal.tenant_id, conversation_id, wanted.seq)
    if message is None or message.superseded_at is not None:
        raise invalid("There is no message with this seq, or another has replaced it.", "/seq")
    whole = message_text(msgspec.json.decode(message.content))
    text = whole if wanted.text is None else wanted.text
    if not text.strip():
        raise invalid("This message has no text to pin.", "/seq")
    if text not in whole:
        raise invalid("This is no part of the message's text.", "/text")
    if content_tokens(text) > policy.pinned_max_tokens:
        raise invalid(
            f"A pin has at most {policy.pinned_max_tokens:,} tokens (pinned_max_tokens); pin a shorter span.", "/text"
        )
    if len(pins.page(connection, principal.tenant_id, conversation_id)) >= MAXIMUM:
        raise ProblemError(409, "too_many_pins", f"A conversation has at most {MAXIMUM} pins.")
    request_id: UUID = request.scope["state"]["request_uuid"]
    made = pins.add(connection, principal.tenant_id, conversation_id, wanted.seq, text, request_id)
    left_out = repinning.repin(connection, principal.tenant_id, conversation_id, policy=policy, request_id=request_id)
    if str(made.id) in left_out:
        raise ProblemError(
            409, "pins_full", f"The pins have more than {policy.pinned_max_tokens:,} tokens (pinned_max_tokens)."
        )
    return made


def _page(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> list[AnyRow] | None:
    if conversations.get(connection, tenant_id, conversation_id) is None:
        return None
    return list(pins.page(connection, tenant_id, conversation_id))


def _unpin(connection: Connection, request: Request[Principal, Any, Any], conversation_id: UUID, pin_id: UUID) -> bool:
    principal: Principal = request.user
    row = conversations.get(connection, principal.tenant_id, conversation_id, lock=True)
    if row is None or not pins.remove(connection, principal.tenant_id, conversation_id, pin_id):
        return False
    repinning.repin(
        connection,
        principal.tenant_id,
        conversation_id,
        policy=principal.policy_for(row.policy, row.model),
        request_id=request.scope["state"]["request_uuid"],
    )
    return True


def _pin_out(row: AnyRow) -> PinOut:
    return PinOut(ids.external("pin", row.id), row.seq, row.text, row.created_at)
