"""Runs: the list of all, and one of them with its path, its steps and what it spent."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from litestar import Request, Response, get
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from actions.compact import TO_A_MODEL
from actions.errors import NotFoundError
from api.console.forms import Cost, Day, User, narrowed
from api.console.pages import is_fragment, page
from api.console.routes.operate import POLICY_FIELDS
from api.console.routes.retries import AT_ONCE
from api.console.sessions import READ, may
from api.console.views.run_path import run_path
from api.console.views.summary import summary
from api.schema.documentation import RunId
from compaction.policy import Policy
from compaction.steps.runs import RunReason, RunState
from runtime import ids
from runtime.errors import RequestError
from store.console import overview, summaries
from store.conversations import conversations
from store.runs import runs

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services
    from store.tables import AnyRow

ON_A_PAGE = 50

_State = Annotated[RunState | None, QueryParameter(name="state")]
_Reason = Annotated[str | None, QueryParameter(max_length=200, pattern=r"^[^\x00]*$")]
_Id = Annotated[str | None, QueryParameter(max_length=64)]
_Count = Annotated[int | None, QueryParameter(ge=0, le=AT_ONCE)]


@get("/runs", include_in_schema=False, guards=[may(READ)])
async def list_runs(
    request: Request[Principal, Any, Any],
    run_state: _State = None,
    reason: _Reason = None,
    conversation: _Id = None,
    after: _Id = None,
    since: Day = None,
    until: Day = None,
    user: User = None,
    cost: Cost = None,
    retried: _Count = None,
) -> Response[bytes]:
    """Show runs, newest first, of one conversation or of all, narrowed to days, a user and a cost."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    of_one = None if conversation is None else ids.parse("conv", conversation)
    cursor = None if after is None else ids.parse("run", after)
    if (conversation and of_one is None) or (after and cursor is None):
        raise RequestError("bad_cursor", "This is not an id.", pointer="after" if after else "conversation")
    row = await services.run(tenant, conversations.get, tenant, of_one) if of_one else None
    if of_one and row is None:
        raise NotFoundError
    listed = await services.run(
        tenant,
        overview.run_page,
        tenant,
        limit=ON_A_PAGE,
        conversation_id=of_one,
        state=run_state,
        reason=reason or None,
        after=cursor,
        narrowed=narrowed(since, until, user, cost),
    )
    filters = {"since": since, "until": until, "user": user, "cost": cost}
    asked = {"state": run_state, "reason": reason, "conversation": conversation, **filters}
    query = urlencode({name: value for name, value in asked.items() if value not in {None, ""}})
    older = urlencode({"after": ids.external("run", listed.rows[-1].id)}) if listed.more else None
    return page(
        request,
        "runs_table.html" if is_fragment(request) else "runs.html",
        runs=listed.rows,
        states=tuple(RunState),
        asked=asked,
        retried=retried,
        reasons=sorted({*RunReason, *([reason] if reason else [])}),
        conversation=row,
        tab="runs",
        here=f"/console/runs?{query}" + (f"&{urlencode({'after': after})}" if after else ""),
        older=f"/console/runs?{query}&{older}" if older else None,
    )


class _RunPage(NamedTuple):
    row: AnyRow
    steps: list[AnyRow]
    conversation: AnyRow


@get("/runs/{run_id:str}", include_in_schema=False, guards=[may(READ)])
async def show_run(request: Request[Principal, Any, Any], run_id: RunId) -> Response[bytes]:
    """Show a run: its path of states, its steps, and the policy that was in force."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("run", run_id)
    content = await services.run(tenant, _load, tenant, identifier) if identifier else None
    if content is None:
        raise NotFoundError
    # As it is stored: lists, where the policy itself has tuples.
    defaults = msgspec.json.decode(msgspec.json.encode(Policy()))
    return page(
        request,
        "run_live.html" if is_fragment(request) else "run.html",
        run=content.row,
        done=request.query_params.get("done"),
        steps=content.steps,
        conversation=content.conversation,
        path_of_run=run_path(content.row, content.steps, datetime.now(UTC)),
        attempts_at_most=services.settings.max_attempts,
        changed={key: value for key, value in content.row.policy.items() if defaults.get(key) != value},
        policy=content.row.policy,
        again=_again(content.row),
        has_summary=content.row.block_id is None and any(step.name in summaries.WRITERS for step in content.steps),
    )


@get("/runs/{run_id:str}/summary", include_in_schema=False, guards=[may(READ)])
async def show_summary(request: Request[Principal, Any, Any], run_id: RunId) -> Response[bytes]:
    """Show what a summary's model was asked, what it answered, and which values the quality guard missed."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("run", run_id)
    source = await services.run(tenant, summaries.source, tenant, identifier) if identifier else None
    if source is None:
        raise NotFoundError
    return page(
        request,
        "summary.html",
        run=source.run,
        steps=source.steps,
        version=source.snapshot.version if source.snapshot else None,
        summary=await asyncio.to_thread(summary, source),
    )


def _again(run: AnyRow) -> dict[str, str]:
    """Return what the form for a run by hand is filled in with to do the same under the same policy."""
    filled = {"strategy": run.strategy or "auto"}
    if run.instructions and filled["strategy"] in TO_A_MODEL:
        filled["instructions"] = run.instructions
    return filled | {name: str(run.policy[name]) for name in POLICY_FIELDS if run.policy.get(name) is not None}


def _load(connection: Connection, tenant_id: UUID, run_id: UUID) -> _RunPage | None:
    row = runs.get(connection, tenant_id, run_id)
    conversation = row and conversations.get(connection, tenant_id, row.conversation_id)
    if not row or not conversation:
        return None
    return _RunPage(row, list(runs.steps_of(connection, [run_id])), conversation)
