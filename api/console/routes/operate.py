"""What operators may do: go back to a version, compact now, retry a dead run; each with a look at it beforehand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec
from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from api.auth.principals import Principal
from api.console.forms import read_form
from api.console.pages import page, redirect
from api.console.routes.retries import retry as retry_one
from api.console.routes.snapshots import read_sides
from api.console.sessions import ACT, READ, may, operator_of
from api.console.views.comparison import compared
from api.console.views.content import parts
from api.http.problems import ProblemError, from_msgspec, invalid, not_found
from api.routes import branches as branch_routes
from api.routes.compactions import TO_A_MODEL, check_strategy, find_material, plan_out, request_run
from api.schema.compactions import CompactionIn
from api.schema.documentation import ConversationId, RunId
from compaction.steps.ladder import Strategy
from runtime import ids, strategies
from runtime.broker import CHECKS, SUMMARIES
from store.conversations import branches, conversations
from store.operations import operator_actions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.runs.runs import Queue

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
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    row = await services.run(tenant, conversations.get, tenant, identifier) if identifier else None
    if row is None or identifier is None:
        raise not_found()
    sides = await services.run(tenant, read_sides, tenant, identifier, row.head_version, version)
    if sides is None:
        raise not_found()
    try:
        plan = await branch_routes.preview(services, request.user, identifier, version)
    except branches.SupersededError:
        plan = None
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
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    version = _number("version", str((await read_form(request)).get("version", "")))
    if not 0 <= version < 2**31:
        raise invalid("There is no such version.", "version")
    try:
        done = await services.run(tenant, _restore, request, identifier, version) if identifier else False
    except branches.SupersededError:
        detail = "This version shows messages that were replaced since."
        raise ProblemError(409, "superseded", detail) from None
    if not done:
        raise not_found()
    return redirect(f"/console/conversations/{conversation_id}?done=restored")


@get("/conversations/{conversation_id:str}/compact", include_in_schema=False, guards=[may(READ)])
async def show_compact(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Show the form for a run by hand; once it was filled in, what such a run would do."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    row = await services.run(tenant, conversations.get, tenant, identifier) if identifier else None
    if row is None or identifier is None:
        raise not_found()
    asked = dict(request.query_params)
    plan = None
    if "strategy" in asked:
        wanted = _wanted(asked)
        found = await services.run(tenant, find_material, request.user, identifier, wanted.policy or {})
        plan = await asyncio.to_thread(plan_out, found, wanted, services.settings.chosen_summarizer)
    return page(
        request,
        "compact.html",
        conversation=row,
        tab="compact",
        asked=asked,
        plan=plan,
        plan_messages=[(each["role"], parts(each["content"], 4_000)) for each in plan.messages[:50]] if plan else [],
        strategies=(*get_args(Strategy), *strategies.names()),
        fields=POLICY_FIELDS,
        policy=msgspec.to_builtins(request.user.policy_for(row.policy, row.model)),
    )


@post("/conversations/{conversation_id:str}/compact", include_in_schema=False, guards=[may(ACT)])
async def compact(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Queue a run, write down who did, and lead to its page."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    wanted = _wanted({name: str(value) for name, value in (await read_form(request)).items()})
    queue: Queue = SUMMARIES if wanted.strategy == "summary" else CHECKS
    run_id, is_ours = await services.run(tenant, _compact, request, identifier, wanted, queue)
    if is_ours:
        services.wakeups.add_run(tenant, run_id, queue)
    return redirect(f"/console/runs/{ids.external('run', run_id)}" + ("" if is_ours else "?done=busy"))


@post("/runs/{run_id:str}/retry", include_in_schema=False, guards=[may(ACT)])
async def retry(request: Request[Principal, Any, Any], run_id: RunId) -> Response[bytes]:
    """Queue a dead run again, and write down who did."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("run", run_id)
    retried = await services.run(tenant, retry_one, request, identifier) if identifier else None
    if retried is None or retried.outcome == "missing":
        raise not_found()
    if retried.queue is None or identifier is None:
        detail = {
            "not_dead": "Only a dead run can be retried.",
            "run_active": "Another run of this conversation has not ended yet.",
        }[retried.outcome]
        raise ProblemError(409, retried.outcome, detail)
    services.wakeups.add_run(tenant, identifier, retried.queue)
    return redirect(f"/console/runs/{run_id}")


def _restore(
    connection: Connection, request: Request[Principal, Any, Any], conversation_id: UUID, version: int
) -> bool:
    if branch_routes.restore(connection, request, conversation_id, version) is None:
        return False
    operator_actions.record(
        connection, operator_of(request), "restore", conversation_id=conversation_id, version=version
    )
    return True


def _compact(
    connection: Connection,
    request: Request[Principal, Any, Any],
    conversation_id: UUID | None,
    wanted: CompactionIn,
    queue: Queue,
) -> tuple[UUID, bool]:
    run_id, is_ours = request_run(connection, request, conversation_id, wanted, queue)
    operator_actions.record(
        connection,
        operator_of(request),
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
        raise from_msgspec(error) from None
    check_strategy(wanted.strategy)
    if wanted.instructions is not None and wanted.strategy not in TO_A_MODEL:
        raise invalid(f"The strategy {wanted.strategy} asks no model, so nothing would follow them.", "instructions")
    return wanted


def _number(name: str, text: str) -> int:
    try:
        return int(text.strip().replace(",", ""))
    except ValueError:
        raise invalid("Expected a whole number.", name) from None
