"""Appending turns."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from litestar import Request, Response, post
from litestar.openapi.spec import OpenAPIType, Schema

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import aside, read_turn
from api.http.problem_types import EVERY_BODY
from api.http.problems import ProblemError, invalid, not_found
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from api.schema.types import TurnIn, TurnOut
from compaction.payload.context_blocks import prepare
from runtime import ids
from runtime.fault_points import reach
from store import hot_path
from store.conversations import conversations
from store.conversations.context_blocks import new_blocks

if TYPE_CHECKING:
    from uuid import UUID

    from api.http.bodies import Turn
    from api.services import Services
    from store.conversations.context_blocks import NewBlocks
    from store.hot_path import Appended, TurnContext

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
        TurnIn,
        example=examples.TURN_IN,
        request_headers={"Idempotency-Key": IDEMPOTENCY_KEY},
        headers={201: ("Idempotency-Replayed",)},
    ),
    responses={
        201: answers(TurnOut, "The turn is stored.", example=examples.TURN),
        **problems(*EVERY_BODY, "bad_idempotency_key", "not_found", "unexpected_seq", "idempotency_key_reused"),
    },
)
async def append_turn(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Store the messages of a turn and have the token budget checked, in one transaction."""
    services: Services = request.app.state.services
    conversation = ids.parse("conv", conversation_id)
    if conversation is None:
        raise not_found()
    body = await request.body()
    turn = await aside(len(body), read_turn, body, request.user.policy, services.strict)
    key = _idempotency_key(request.headers.get("idempotency-key"))
    blocks = await _new_blocks(services, request, conversation, turn) if turn.context else None
    done = await _append(services, request, conversation, turn, key, body, blocks and blocks.context)
    reach("turn.stored")
    replayed = _refuse_or_accept(done)
    for run_id in blocks.run_ids if blocks and not replayed else ():
        services.wakeups.add_run(request.user.tenant_id, run_id)
    services.metrics.took(replayed=replayed, messages=len(turn.contents), size=len(body))
    check = _check(services, request.user.tenant_id, conversation, queued=done.queued)
    return Response(
        _encode(TurnOut(done.first_seq, done.last_seq, done.context_tokens, check)),
        media_type="application/json",
        headers={"idempotency-replayed": "true"} if replayed else None,
    )


async def _append(
    services: Services,
    request: Request[Principal, Any, Any],
    conversation: UUID,
    turn: Turn,
    key: str | None,
    body: bytes,
    context: TurnContext | None,
) -> Appended:
    return await hot_path.append_turn(
        services.pool,
        tenant_id=request.user.tenant_id,
        conversation_id=conversation,
        request_id=request.scope["state"]["request_uuid"],
        contents=turn.contents,
        facts=turn.facts,
        usage=turn.usage,
        hidden=turn.hidden,
        result_cap=request.user.policy.max_tool_result_chars,
        expected_seq=turn.expected_seq,
        replace_from=turn.replace_from,
        idempotency_key=key,
        body_hash=hashlib.sha256(body).digest() if key else None,
        context=context,
        policy=request.user.policy,
    )


async def _new_blocks(
    services: Services, request: Request[Principal, Any, Any], conversation: UUID, turn: Turn
) -> NewBlocks:
    """Return what is to be stored of the turn's context under the conversation's policy."""
    tenant = request.user.tenant_id
    row = await services.run(tenant, conversations.get, tenant, conversation)
    if row is None:
        raise not_found()
    policy = request.user.policy_for(row.policy, row.model)
    # Outlining megabytes takes its time: not on the thread that answers everybody.
    return await asyncio.to_thread(lambda: new_blocks(prepare(turn.context, policy), policy))


def _refuse_or_accept(done: Appended) -> bool:
    """Return whether the answer is an earlier one's; raise if there is none to give."""
    match done.outcome:
        case "missing":
            raise not_found()
        case "out_of_order":
            raise ProblemError(
                409,
                "unexpected_seq",
                f"The next seq of this conversation is {done.first_seq}.",
                pointer="/expected_next_seq",
                next_seq=done.first_seq,
            )
        case "beyond_end":
            raise invalid(f"The next seq of this conversation is {done.first_seq}.", "/replace_from")
        case "other_body":
            raise ProblemError(422, "idempotency_key_reused", "This Idempotency-Key was used with another body.")
    return done.outcome == "replayed"


def _check(
    services: Services, tenant: UUID, conversation: UUID, *, queued: bool
) -> Literal["queued", "coalesced", "deferred"]:
    """Wake the workers, unless a check of this conversation is pending already."""
    if queued:
        return services.wakeups.add(conversation, tenant)
    return "coalesced" if services.wakeups.broker_reachable else "deferred"


def _idempotency_key(header: str | None) -> str | None:
    if header is None:
        return None
    # The draft standard wants a quoted string; bare ones are common.
    key = header.strip().strip('"')
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise ProblemError(400, "bad_idempotency_key", f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters.")
    return key
