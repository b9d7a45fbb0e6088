"""The whole payload, assembled under one budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Request, Response, post

from api.actions.assemblies import payload_record
from api.actions.context_layers import context_layers
from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import aside, check_content, check_size, read_body
from api.http.bytes_under_way import HOLD
from api.http.problem_types import EVERY_BODY
from api.http.problems import invalid, not_found
from api.routes.context import dropped_before, history_of, working_view
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from api.schema.types import PayloadHistory, PayloadIn, PayloadLayers, PayloadOut
from compaction.cache_marks import MAX_MARKS, Marked, keep_last
from compaction.messages import blocks, count_marks, is_blank
from compaction.payload.assembly import Assembly, Layers, UserMessageError, assemble, fixed_tokens
from compaction.view import ViewMessage
from runtime import ids
from store import hot_path
from store.conversations import conversations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from api.http.strict_json import Limits
    from api.services import Services
    from compaction.policy import Policy
    from store.hot_path import ContextRead
    from store.tables import AnyRow

_encode: Final = msgspec.json.Encoder().encode


@post(
    "/conversations/{conversation_id:str}/context",
    status_code=200,
    guards=[requires("context:read")],
    summary="Assemble the payload",
    operation_class=operation(PayloadIn, example=examples.PAYLOAD_IN),
    responses={
        200: answers(PayloadOut, "What to send to the model.", example=examples.PAYLOAD),
        **problems(*EVERY_BODY, "not_found"),
    },
)
async def assemble_payload(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Put system prompt, carried and new context, history and the user's message under the total budget.

    No model, worker or broker has a part in it.
    """
    services: Services = request.app.state.services
    wanted = await read_body(request, PayloadIn)
    for name, given in (("prior_context", wanted.prior_context), ("turn_context", wanted.turn_context)):
        check_size(len(given or ()), services.strict.limits.context_blocks, "context blocks", f"/{name}")
    user = _user_message(wanted.user_message, services.strict.limits)
    identifier, tenant = ids.parse("conv", conversation_id), request.user.tenant_id
    row = await services.run(tenant, conversations.get, tenant, identifier) if identifier else None
    if row is None or identifier is None:
        raise not_found()
    policy, _, ignored = request.user.in_force(row.policy, row.model)
    context = await context_layers(services, tenant, row, wanted, user, policy)
    layers = Layers(
        system=row.system if wanted.system is None else wanted.system,
        tools=row.tools,
        prior=context.prior,
        turn=context.turn,
        user_message=user,
    )
    found = await hot_path.read_context(
        services.pool,
        tenant_id=tenant,
        conversation_id=identifier,
        etag=None,
        policy=policy,
        # What the guard will leave to history at the most; it reckons exactly.
        room=policy.total_token_budget,
        take=request.scope["state"][HOLD].take,
    )
    if found is None:
        raise not_found()
    size = len(await request.body()) + len(found.head or "") + len(found.tail or "")
    size += sum(len(block.text) for block in (*context.prior, *context.turn))
    unstored = _unstored(row, layers, found.factor)
    assembly, warnings = await aside(size, _assemble, found, layers, policy, wanted.max_output_tokens, unstored)
    told = len(warnings) + len(assembly.warnings)
    services.assemblies.add(
        payload_record(tenant, identifier, found.head_version, assembly, told), request.scope["state"]["request_uuid"]
    )
    body = await aside(size, _answer, layers, assembly, (*warnings, *ignored))
    return Response(body, media_type="application/json")


def _assemble(
    found: ContextRead, layers: Layers, policy: Policy, reserved: int | None, unstored: int
) -> tuple[Assembly, tuple[str, ...]]:
    """Return the payload with what was read as its history, and what there is to say of that."""
    working = working_view(found, policy)
    layers = layers._replace(history=working.view)
    try:
        about = history_of(found, working)._replace(unstored=unstored)
        return assemble(layers, policy, about, reserved=reserved), (*working.warnings, *dropped_before(found))
    except UserMessageError:
        detail = "Nothing of the user's message can follow the history: tool results answer calls that are still open."
        raise invalid(detail, "/user_message") from None


def _unstored(row: AnyRow, layers: Layers, factor: float) -> int:
    """Return the estimated tokens that were learned to stand beside what is stored, less what this request brings."""
    if not row.unstored_tokens:
        return 0
    brought = fixed_tokens(layers.system, layers.tools) - (row.fixed_tokens - row.carried_tokens)
    left: int = max(0, round(row.unstored_tokens / factor) - max(0, brought))
    return left


def _answer(layers: Layers, assembly: Assembly, warnings: Sequence[str]) -> bytes:
    fitted = assembly.fitted
    # Whoever reads this sends the tools too, with their marks.
    marked = keep_last(Marked(None, layers.system, assembly.messages), MAX_MARKS - count_marks(layers.tools))
    return _encode(
        PayloadOut(
            system=marked.system,
            messages=[message.as_message() for message in marked.messages],
            layers=PayloadLayers(
                assembly.system_tokens,
                assembly.prior_tokens,
                assembly.turn_tokens,
                fitted.tokens,
                assembly.user_tokens,
            ),
            budget=assembly.budget,
            reserved_output=assembly.reserved,
            total=assembly.total,
            history=PayloadHistory(
                assembly.exchanges_total,
                fitted.kept,
                assembly.exchanges_dropped,
                fitted.cut,
            ),
            warnings=[*warnings, *assembly.warnings],
        )
    )


def _user_message(given: Any, limits: Limits) -> ViewMessage | None:
    """Return the user's message from a string, a list of blocks, or a whole message."""
    if given is None:
        return None
    content, pointer = given, "/user_message"
    if isinstance(given, dict):
        if given.get("role") != "user" or set(given) != {"role", "content"}:
            raise invalid("Expected a message with the role user and its content.", pointer)
        content, pointer = given["content"], "/user_message/content"
    check_content(content, pointer, limits)
    if all(is_blank(block) for block in blocks(content)):
        raise invalid("The user's message is empty.", pointer)
    return ViewMessage("user", content)
