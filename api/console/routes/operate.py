"""What operators may do: go back to a version, compact now, retry a dead run; each with a look at it beforehand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from actions import branches
from actions import compact as compactions
from actions.auth.principals import Principal
from actions.errors import InvalidError, from_msgspec, id_or_not_found, or_not_found
from actions.runs import check_retried, retry_run
from actions.types.compactions import CompactionIn
from api.callers import caller_of
from api.console.forms import read_form
from api.console.pages import page, redirect
from api.console.routes.retries import retry_and_record
from api.console.routes.snapshots import read_sides
from api.console.sessions import ACT, READ, may
from api.console.views.content import parts
from api.console.views.versions.comparison import compared
from api.schema.documentation import ConversationId, RunId
from runtime import ids
from store.conversations import conversations
from store.operations import operator_actions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller
    from runtime.queues import Queue

_Version = Annotated[int, QueryParameter(ge=0, le=2**31 - 1)]

POLICY_FIELDS: Final = (
    "compaction_threshold_tokens",
    "input_token_budget",
    "protected_tail_messages",
    "tool_result_retention_chars",
    "max_conversation_messages",
    "min_savings_tokens",
)
"""Keys of the policy that the form offers for one run."""


@get("/conversations/{conversation_id:str}/restore", include_in_schema=False, guards=[may(READ)])
async def preview_restore(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, version: _Version
) -> Response[bytes]:
    """Show what the model would see again, and what not any more, after going back to a version."""
    caller = caller_of(request)
    row = or_not_found(await caller.run(conversations.get, id_or_not_found("conv", conversation_id)))
    sides = or_not_found(await caller.run(read_sides, row.id, row.head_version, version))
    plan = await branches.plan_restore(caller, row.id, version)
    comparison = await asyncio.to_thread(compared, sides.before, sides.after)
    return page(
        request,
        "restore.html",
        conversation=row,
        tab="snapshots",
        version=version,
        sides=sides,
        comparison=comparison,
        plan=plan,
    )


@post("/conversations/{conversation_id:str}/restore", include_in_schema=False, guards=[may(ACT)])
async def restore(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Go back to a version, and write down who did."""
    version = _number("version", str((await read_form(request)).get("version", "")))
    if not 0 <= version < 2**31:
        raise InvalidError("There is no such version.", "version")
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    await caller.run_and_wake(_restore, conversation, caller, version)
    return redirect(f"/console/conversations/{conversation_id}?done=restored")


@get("/conversations/{conversation_id:str}/compact", include_in_schema=False, guards=[may(READ)])
async def show_compact(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Show the form for a run by hand; once it was filled in, what such a run would do."""
    caller = caller_of(request)
    row = or_not_found(await caller.run(conversations.get, id_or_not_found("conv", conversation_id)))
    asked = dict(request.query_params)
    plan = await compactions.plan_compaction(caller, row.id, _wanted(asked)) if "strategy" in asked else None
    return page(
        request,
        "compact.html",
        conversation=row,
        tab="compact",
        asked=asked,
        plan=plan,
        plan_messages=[(each["role"], parts(each["content"], 4_000)) for each in plan.messages[:50]] if plan else [],
        strategies=compactions.strategy_names(),
        fields=POLICY_FIELDS,
        policy=msgspec.to_builtins(request.user.policy_for(row.policy, row.model)),
    )


@post("/conversations/{conversation_id:str}/compact", include_in_schema=False, guards=[may(ACT)])
async def compact(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Queue a run, write down who did, and lead to its page."""
    wanted = _wanted({name: str(value) for name, value in (await read_form(request)).items()})
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    run_id, is_ours = await compactions.queue_compaction(caller, conversation, wanted, _compact)
    return redirect(f"/console/runs/{ids.external('run', run_id)}" + ("" if is_ours else "?done=busy"))


@post("/runs/{run_id:str}/retry", include_in_schema=False, guards=[may(ACT)])
async def retry(request: Request[Principal, Any, Any], run_id: RunId) -> Response[bytes]:
    """Queue a dead run again, and write down who did."""
    identifier = id_or_not_found("run", run_id)
    check_retried(await retry_run(caller_of(request), identifier, retry_and_record(caller_of(request).operator)))
    return redirect(f"/console/runs/{run_id}")


def _restore(connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, version: int) -> None:
    branches.restore_version(connection, tenant_id, conversation_id, caller, version, pointer=None)
    operator_actions.record(connection, caller.operator, "restore", conversation_id=conversation_id, version=version)


def _compact(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, wanted: CompactionIn, queue: Queue
) -> tuple[UUID, bool]:
    run_id, is_ours = compactions.request_run(connection, tenant_id, conversation_id, caller, wanted, queue)
    operator_actions.record(
        connection,
        caller.operator,
        "compact",
        "queued" if is_ours else "another_run_is_active",
        conversation_id=conversation_id,
        run_id=run_id,
    )
    return run_id, is_ours


def _wanted(asked: Mapping[str, str]) -> CompactionIn:
    """Return what a form asks for; raise the problem of what cannot be taken."""
    policy = {name: _number(name, asked[name]) for name in POLICY_FIELDS if asked.get(name, "").strip()}
    fields = {"strategy": asked.get("strategy") or "auto", "policy": policy or None}
    if instructions := asked.get("instructions", "").strip():
        fields["instructions"] = instructions
    try:
        wanted = msgspec.convert(fields, CompactionIn)
    except msgspec.ValidationError as error:
        raise from_msgspec(error, CompactionIn) from None
    compactions.check_wanted(wanted, "instructions")
    return wanted


def _number(name: str, text: str) -> int:
    try:
        return int(text.strip().replace(",", ""))
    except ValueError:
        raise InvalidError("Expected a whole number.", name) from None
