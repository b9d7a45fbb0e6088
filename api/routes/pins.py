"""Pins: what has to stay in the context word for word."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, delete, get, post
from litestar.params import PathParameter

from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.rules import pin, pins_of, remove_pin, shown_text
from actions.types.pins import PinIn, PinList, PinOut, pin_out
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from runtime.http.problem_types import EVERY_BODY

PinId = Annotated[str, PathParameter(description="A pin's id.")]


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
    wanted = await read_body(request, PinIn)
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    return Response(await caller.run_and_wake(pin, conversation, caller, wanted), status_code=201)


@get(
    "/conversations/{conversation_id:str}/pins",
    guards=[requires("context:read")],
    summary="List pins",
    responses=problems("not_found"),
)
async def list_pins(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> PinList:
    """List a conversation's pins in the order they were made."""
    conversation = id_or_not_found("conv", conversation_id)
    caller = caller_of(request)
    rows, policy = await caller.run(pins_of, conversation, caller)
    return PinList([pin_out(row, shown_text(row, policy)) for row in rows])


@delete(
    "/conversations/{conversation_id:str}/pins/{pin_id:str}",
    guards=[requires("turns:write")],
    summary="Take a pin off",
    responses=problems("not_found"),
)
async def unpin(request: Request[Principal, Any, Any], conversation_id: ConversationId, pin_id: PinId) -> None:
    """Let a text go the way of its message again."""
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    await caller.run_and_wake(remove_pin, conversation, caller, id_or_not_found("pin", pin_id))
