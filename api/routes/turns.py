"""Appending turns."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Request, Response, post
from litestar.openapi.spec import OpenAPIType, Schema

from actions import append_turn as turns
from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.input.turn_bodies import read_turn
from actions.types.core import ChatTurnIn, ItemsTurnIn, TurnIn, TurnOut
from api.auth.guards import requires
from api.callers import caller_of
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from runtime.errors import RequestError
from runtime.http.problem_types import EVERY_BODY
from runtime.threads import run_aside

MAX_KEY_LENGTH: Final = 255
IDEMPOTENCY_KEY: Final = Schema(
    type=OpenAPIType.STRING,
    min_length=1,
    max_length=MAX_KEY_LENGTH,
    description="A turn that is sent again with the same key is stored once; while the first is still being stored, "
    "the second waits for its answer.",
)
_encode: Final = msgspec.json.Encoder().encode


@post(
    "/conversations/{conversation_id:str}/turns",
    status_code=201,
    guards=[requires("turns:write")],
    summary="Append a turn",
    operation_class=operation(
        TurnIn | ChatTurnIn | ItemsTurnIn,
        example=examples.TURN_IN,
        request_headers={"Idempotency-Key": IDEMPOTENCY_KEY},
        headers={201: ("Idempotency-Replayed", "Palimpsest-Timeline")},
    ),
    responses={
        201: answers(TurnOut, "The turn is stored.", example=examples.TURN),
        **problems(*EVERY_BODY, "bad_idempotency_key", "not_found", "unexpected_seq", "idempotency_key_reused"),
    },
)
async def append_turn(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Store the messages of a turn and have the token budget checked, in one transaction."""
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    body = await request.body()
    turn = await run_aside(len(body), read_turn, body, request.user.policy, caller.services.strict)
    key = _idempotency_key(request.headers.get("idempotency-key"))
    answer, replayed = await turns.append_turn(caller, conversation, turn, body, key)
    headers = {**caller.services.timeline, **({"idempotency-replayed": "true"} if replayed else {})}
    return Response(_encode(answer), media_type="application/json", headers=headers)


def _idempotency_key(header: str | None) -> str | None:
    if header is None:
        return None
    # The draft standard wants a quoted string; bare ones are common.
    key = header.strip().strip('"')
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise RequestError("bad_idempotency_key", f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters.")
    return key
