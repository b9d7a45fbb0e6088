"""Reading the context."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from litestar import Request, Response, get
from litestar.openapi.spec import OpenAPIType, Schema

from api.actions.assemblies import FittedContext, context_record
from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import aside
from api.http.bytes_under_way import HOLD
from api.http.problems import not_found
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from api.schema.types import ContextOut, ContextTokens, SnapshotRef
from compaction.cache_marks import MAX_MARKS, Marked, keep_last
from compaction.messages import count_marks, is_request
from compaction.payload.assembly import History, drop_warnings, fixed_warnings
from compaction.shorten.fitting import count_exchanges, fit_history
from compaction.shorten.trimming import exchanges, last_answer, rounds
from compaction.steps.snapshot import Original, Snapshot, build, context_json, dump_messages, load_view
from compaction.summary.zone import opening_length
from compaction.view import WRITTEN
from runtime import ids
from store import hot_path
from store.bytes_held import MOST_READ_BYTES
from store.conversations import conversations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from api.services import Services
    from compaction.policy import Policy
    from compaction.steps.snapshot import Working
    from compaction.view import View
    from store.hot_path import ContextRead

IF_NONE_MATCH: Final = Schema(
    type=OpenAPIType.STRING, description="The `ETag` of the context that the caller has, or several."
)
_encode: Final = msgspec.json.Encoder().encode
_content: Final = msgspec.json.Decoder().decode
_rows: Final = msgspec.json.Decoder(list[tuple[int, str, msgspec.Raw]]).decode


@get(
    "/conversations/{conversation_id:str}/context",
    guards=[requires("context:read")],
    summary="Read the context",
    operation_class=operation(
        request_headers={"If-None-Match": IF_NONE_MATCH}, headers={200: ("ETag",), 304: ("ETag",)}
    ),
    responses={
        200: answers(ContextOut, "What to send as `messages`.", example=examples.CONTEXT),
        304: answers(None, "It still is what `If-None-Match` stands for."),
        **problems("not_found"),
    },
)
async def read_context(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Answer with the head snapshot and the tail; no model, worker or broker has a part in it."""
    conversation = ids.parse("conv", conversation_id)
    if conversation is None:
        raise not_found()
    return await answer_context(request, conversation, _etags(request.headers.getall("if-none-match", [])))


async def answer_context(
    request: Request[Principal, Any, Any], conversation: UUID, etags: Sequence[str] = ()
) -> Response[bytes]:
    """Return the answer that has the context; raise the problem that there is no such conversation."""
    services: Services = request.app.state.services
    read = partial(
        hot_path.read_context, services.pool, tenant_id=request.user.tenant_id, policy_digest=request.user.policy_digest
    )
    take = request.scope["state"][HOLD].take
    # Of one entity tag the database tells whether it is current, without reading the messages.
    etag = etags[0] if len(etags) == 1 else None
    found = await read(conversation_id=conversation, etag=etag, policy=request.user.policy, take=take)
    if found is None:
        raise not_found()
    headers = {"etag": f'"{found.etag}"', "cache-control": "private, no-cache"}
    if found.not_modified or found.etag in etags or "*" in etags:
        services.metrics.contexts["not_modified"].inc()
        return Response(b"", status_code=304, headers=headers)
    services.metrics.contexts["plain" if found.plain else "mended"].inc()
    policy, _, ignored = request.user.policy_of(found.policy, found.model)
    if ignored:
        # The database has reckoned with overrides that are not in force.
        room = policy.context_limit_tokens
        found = await read(conversation_id=conversation, etag=None, policy=policy, room=room) or found
    size = 0 if found.plain else len(found.head or "") + len(found.tail or "")
    marks = 0 if found.plain else await _fixed_marks(services, request.user.tenant_id, conversation, found)
    served = await aside(size, partial(serve, fixed_marks=marks), found, policy, ignored)
    if (fitted := served.fitted) is not None and fitted.gave_way:
        services.assemblies.add(
            context_record(request.user.tenant_id, conversation, found.head_version, policy, fitted, served.warnings),
            request.scope["state"]["request_uuid"],
        )
    return Response(served.body, media_type="application/json", headers=headers)


async def _fixed_marks(services: Services, tenant: UUID, conversation: UUID, found: ContextRead) -> int:
    """Return the marks for the prompt cache in what goes with the messages; 0 where these have none themselves."""
    if "cache_control" not in (found.tail or ""):
        return 0
    row = await services.run(tenant, conversations.get, tenant, conversation)
    return count_marks(row.tools) + count_marks(row.system) if row else 0


class Served(NamedTuple):
    """An answer's bytes, how many warnings it has, and what had to be fitted for it."""

    body: bytes
    warnings: int
    fitted: FittedContext | None


def context_body(found: ContextRead, policy: Policy, ignored: Sequence[str] = ()) -> bytes:
    """Return the answer's bytes; see `serve`."""
    return serve(found, policy, ignored).body


def serve(found: ContextRead, policy: Policy, ignored: Sequence[str] = (), *, fixed_marks: int = 0) -> Served:
    """Return the answer; what is stored sound is passed on without being parsed.

    `ignored` tells what of the conversation's policy is not in force, `fixed_marks` how many marks for the prompt cache
    system prompt and tools have.
    """
    fitted = None if found.plain else _fit(found, policy)
    if fitted is None:
        messages, warnings, tokens_served = context_json(found.head, found.tail), [], found.context_tokens
    else:
        marked = keep_last(Marked(None, None, fitted.history.view), MAX_MARKS - fixed_marks)
        messages, warnings = dump_messages(marked.messages), list(fitted.warnings)
        tokens_served = fitted.fixed + fitted.history.tokens
    fixed = math.ceil(found.fixed_tokens * found.factor)
    warnings += [*fixed_warnings(fixed, policy), *ignored, *dropped_before(found)]
    room = policy.context_limit_tokens
    if tokens_served > room:
        warnings.append(
            f"the context has {tokens_served:,} tokens, {tokens_served - room:,} over the budget of "
            f"{policy.total_token_budget:,} less {policy.reserved_output_tokens:,} for the answer"
        )
    head = SnapshotRef(found.head_version, found.covers_through) if found.head_version else None
    tokens = ContextTokens(tokens_served, found.measured_input_tokens, policy.total_token_budget)
    rest = _encode({"snapshot": head, "last_seq": found.last_seq, "tokens": tokens, "warnings": warnings})
    return Served(b'{"messages":' + messages.encode() + b"," + rest[1:], len(warnings), fitted)


def dropped_before(found: ContextRead) -> list[str]:
    """Say what is not shown although no summary stands for it: what was dropped, and what is too large to read."""
    dropped = [f"dropped without a summary: messages {found.left_out}"] if found.left_out else []
    if found.gap and found.context_bytes > MOST_READ_BYTES:
        size = f"{found.context_bytes:,} bytes"
        dropped.append(f"the context has {size}: only the newest messages were read, {MOST_READ_BYTES:,} bytes at most")
    return dropped


def _fit(found: ContextRead, policy: Policy) -> FittedContext:
    working = working_view(found, policy)
    about = history_of(found, working)
    fixed = math.ceil(found.fixed_tokens * found.factor)
    fitted = fit_history(
        working.view,
        policy.context_limit_tokens - fixed,
        lambda message: message.tokens * found.factor,
        carries_summary=about.carries_summary,
        lacks_rounds=about.lacks_rounds,
        unread=about.unread,
    )
    warnings = (*working.warnings, *drop_warnings(fitted, about.exchanges))
    return FittedContext(fitted, about.exchanges, fixed, warnings)


def history_of(found: ContextRead, working: Working) -> History:
    """Return what is known of the history besides its view. What repair left out of a view that is whole was none."""
    return History(
        found.exchanges if found.gap else count_exchanges(working.view),
        found.factor,
        carries_summary=bool(found.has_summary),
        lacks_rounds=found.gap and _skips_rounds(working.view),
        unread=_unread(found, working) if found.gap else (),
    )


def _unread(found: ContextRead, working: Working) -> list[int]:
    """Return the seqs between which the view has a gap."""
    read = {row.seq for row in working.tail}.union(message.seq for message in working.snapshot.messages)
    stored = (*(found.head_seqs or ()), *range(found.covers_through + 1, found.last_seq + 1))
    return [seq for seq in stored if seq not in read and seq != WRITTEN]


def _skips_rounds(view: View) -> bool:
    """Tell whether what follows the request that was answered last is not what was stored next to it."""
    answer = last_answer(view)
    request = next(
        (index for index in reversed(range(answer)) if is_request(view[index].role, view[index].content)), -1
    )
    return request >= 0 and view[request + 1].seq != view[request].seq + 1


def working_view(found: ContextRead, policy: Policy) -> Working:
    """Return the view of what was read."""
    messages = load_view(found.head, found.head_seqs or ()) if found.head else ()
    tail = [Original(seq, role, bytes(content).decode()) for seq, role, content in _rows(found.tail or "[]")]
    if found.gap:
        messages = _before_gap(messages, tail, has_summary=bool(found.has_summary))
    snapshot = Snapshot(
        version=found.head_version,
        covers_through=found.covers_through,
        messages=messages,
    )
    # What was thought with more before it was signed for that.
    changed_through = found.last_seq if found.gap else found.strip_thinking_through
    return build(snapshot, tail, policy, strip_thinking_through=changed_through)


def _before_gap(messages: View, tail: Sequence[Original], *, has_summary: bool) -> View:
    """Return what of a snapshot stands before a tail that begins later: its summary, and what the tail goes on from.

    That is the request of rounds that were read; where nothing was answered since, the answer to it as well.
    """
    opening = opening_length(messages, carries_summary=has_summary)
    is_answered = any(row.role == "assistant" for row in tail)
    if not messages or (is_answered and is_request(tail[0].role, _content(tail[0].content))):
        return messages[:opening]
    last = exchanges(messages)[-1]
    newest = rounds(messages, last)[-1:]
    before = newest[0].start if newest and not is_answered else len(messages)
    asked = [index for index in range(before) if is_request(messages[index].role, messages[index].content)][-1:]
    core = {*range(opening), *asked, *(index for part in newest if not is_answered for index in part)}
    return tuple(message for index, message in enumerate(messages) if index in core)


def _etags(headers: Sequence[str]) -> list[str]:
    """Return the entity tags of `If-None-Match`, weak ones compared as strong, as it asks; `*` stands for any."""
    tags = (tag for header in headers for tag in header.split(","))
    return [tag.strip('"') for each in tags if (tag := each.strip().removeprefix("W/")) and tag != '"*"']
