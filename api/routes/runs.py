"""Runs: every execution of compaction, with its steps."""

from __future__ import annotations

from typing import Any

from litestar import Request, get

from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.paging import page_of
from actions.runs import page_of_runs, read_run
from actions.types.core import Page
from actions.types.runs import RunOut
from api.auth.guards import requires
from api.callers import caller_of
from api.http.paging import AfterId, BeforeId, Limit, window
from api.schema.documentation import ConversationId, RunId, Wait, problems
from runtime import ids


@get(
    "/conversations/{conversation_id:str}/runs",
    guards=[requires("audit:read")],
    summary="List a conversation's runs",
    responses=problems("bad_cursor", "not_found"),
)
async def list_runs(
    request: Request[Principal, Any, Any],
    conversation_id: ConversationId,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[RunOut]:
    """List runs, newest first."""
    span = window(limit, after_id, before_id, lambda text: ids.parse("run", text))
    runs = await caller_of(request).run_in(id_or_not_found("conv", conversation_id), page_of_runs, span)
    return page_of(runs, span, lambda item: item.id)


@get("/runs/{run_id:str}", guards=[requires("audit:read")], summary="Read a run", responses=problems("not_found"))
async def get_run(
    request: Request[Principal, Any, Any],
    run_id: RunId,
    wait: Wait = 0,
) -> RunOut:
    """Answer with one run; with `wait`, once it has ended or after that many seconds."""
    return await read_run(caller_of(request), id_or_not_found("run", run_id), wait)
