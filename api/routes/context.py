"""Reading the context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Request, Response, get

from api.auth import Principal, requires
from api.documentation import PROBLEMS, ConversationId, answers
from api.problems import not_found
from api.types import ContextOut, ContextTokens, SnapshotRef
from compaction.snapshot import Original, Snapshot, build, context_json, load_view, render
from store import hot_path, ids

if TYPE_CHECKING:
    from api.services import Services
    from compaction.policy import Policy
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
        result_cap=request.user.policy.max_tool_result_chars,
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
    if found.plain:
        messages = context_json(found.head, found.tail)
    else:
        messages, warnings = _mended(found, policy)
    room = policy.total_token_budget - policy.reserved_output_tokens
    if found.context_tokens > room:
        warnings.append(
            f"the context has {found.context_tokens:,} tokens, {found.context_tokens - room:,} over the budget of "
            f"{policy.total_token_budget:,} less {policy.reserved_output_tokens:,} for the answer"
        )
    head = SnapshotRef(found.head_version, found.covers_through) if found.head_version else None
    tokens = ContextTokens(found.context_tokens, found.measured_input_tokens, policy.total_token_budget)
    rest = _encode({"snapshot": head, "last_seq": found.last_seq, "tokens": tokens, "warnings": warnings})
    return b'{"messages":' + messages.encode() + b"," + rest[1:]


def _mended(found: ContextRead, policy: Policy) -> tuple[str, list[str]]:
    """Return messages that had to be parsed: to be capped, stripped of stale thinking, or repaired."""
    snapshot = Snapshot(
        version=found.head_version,
        covers_through=found.covers_through,
        messages=load_view(found.head, found.head_seqs or ()) if found.head else (),
    )
    tail = [Original(seq, role, bytes(content).decode()) for seq, role, content in _rows(found.tail or "[]")]
    working = build(snapshot, tail, policy, strip_thinking_through=found.strip_thinking_through)
    return render(working), list(working.warnings)


def _etag(header: str | None) -> str | None:
    return header.strip().removeprefix("W/").strip('"') if header else None
