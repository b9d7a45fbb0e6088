"""Reading the context."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Request, Response, get

from api.auth import Principal, requires
from api.documentation import PROBLEMS, ConversationId, answers
from api.problems import not_found
from api.types import ContextOut, ContextTokens, SnapshotRef
from compaction.guard import fit_history
from compaction.snapshot import Original, Snapshot, build, context_json, dump_messages, load_view
from store import hot_path, ids

if TYPE_CHECKING:
    from api.services import Services
    from compaction.policy import Policy
    from compaction.snapshot import Working
    from store.hot_path import ContextRead

_encode: Final = msgspec.json.Encoder().encode
_rows: Final = msgspec.json.Decoder(list[tuple[int, str, msgspec.Raw]]).decode


@get(
    "/conversations/{conversation_id:str}/context",
    guards=[requires("context:read")],
    summary="Read the context",
    responses={200: answers(ContextOut, "What to send as `messages`."), **PROBLEMS},
)
async def read_context(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Answer with the head snapshot and the tail; no model, worker or broker has a part in it."""
    services: Services = request.app.state.services
    conversation = ids.parse("conv", conversation_id)
    found = conversation and await hot_path.read_context(
        services.pool,
        tenant_id=request.user.tenant_id,
        conversation_id=conversation,
        etag=_etag(request.headers.get("if-none-match")),
        policy=request.user.policy,
    )
    if not found:
        raise not_found()
    headers = {"etag": f'"{found.etag}"', "cache-control": "private, no-cache"}
    if found.not_modified:
        services.metrics.contexts["not_modified"].inc()
        return Response(b"", status_code=304, headers=headers)
    services.metrics.contexts["plain" if found.plain else "mended"].inc()
    body = context_body(found, request.user.policy_of(found.policy))
    return Response(body, media_type="application/json", headers=headers)


def context_body(found: ContextRead, policy: Policy) -> bytes:
    """Return the answer's bytes; what is stored sound is passed on without being parsed."""
    warnings: list[str] = []
    tokens_served = found.context_tokens
    if found.plain:
        messages = context_json(found.head, found.tail)
    else:
        messages, warnings, tokens_served = _mended(found, policy)
    room = policy.total_token_budget - policy.reserved_output_tokens
    if tokens_served > room:
        warnings.append(
            f"the context has {tokens_served:,} tokens, {tokens_served - room:,} over the budget of "
            f"{policy.total_token_budget:,} less {policy.reserved_output_tokens:,} for the answer"
        )
    head = SnapshotRef(found.head_version, found.covers_through) if found.head_version else None
    tokens = ContextTokens(tokens_served, found.measured_input_tokens, policy.total_token_budget)
    rest = _encode({"snapshot": head, "last_seq": found.last_seq, "tokens": tokens, "warnings": warnings})
    return b'{"messages":' + messages.encode() + b"," + rest[1:]


def _mended(found: ContextRead, policy: Policy) -> tuple[str, list[str], int]:
    """Return messages that had to be parsed: to be capped, stripped of stale thinking, repaired, or fitted."""
    working = working_view(found, policy)
    fixed = math.ceil(found.fixed_tokens * found.factor)
    room = policy.total_token_budget - policy.reserved_output_tokens - fixed
    fitted = fit_history(
        working.view,
        room,
        lambda message: message.tokens * found.factor,
        carries_summary=bool(found.has_summary),
    )
    warnings = list(working.warnings)
    if (dropped := found.exchanges - fitted.kept) > 0:
        warnings.append(f"the oldest {dropped} of {found.exchanges} exchanges were left out to fit the token budget")
    if fitted.cut:
        warnings.append(f"{fitted.cut} long response(s) or result(s) were cut to their start to fit the token budget")
    return dump_messages(fitted.view), warnings, fixed + fitted.tokens


def working_view(found: ContextRead, policy: Policy) -> Working:
    """Return the view of what was read."""
    messages = load_view(found.head, found.head_seqs or ()) if found.head else ()
    if found.gap:
        # Between the snapshot and the tail something is left out: of the snapshot only its summary may stand before.
        messages = messages[:1] if found.has_summary else ()
    snapshot = Snapshot(
        version=found.head_version,
        covers_through=found.covers_through,
        messages=messages,
    )
    tail = [Original(seq, role, bytes(content).decode()) for seq, role, content in _rows(found.tail or "[]")]
    return build(snapshot, tail, policy, strip_thinking_through=found.strip_thinking_through)


def _etag(header: str | None) -> str | None:
    return header.strip().removeprefix("W/").strip('"') if header else None
