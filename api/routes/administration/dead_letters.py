"""Runs of the whole tenant, and dead ones begun over."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from actions import runs
from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.paging import page_of
from actions.types.core import Page
from actions.types.runs import RetriedOut, RetryIn, RunOut
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.http.paging import AfterId, BeforeId, Limit, window
from api.schema import examples
from api.schema.documentation import RunId, answers, operation, problems
from compaction.steps.runs import RunState
from runtime import ids
from runtime.http.problem_types import EVERY_BODY

_State = Annotated[
    RunState | None,
    QueryParameter(name="state", description="Only runs in this state."),
]


@get("/runs", guards=[requires("audit:read")], summary="List runs", responses=problems("bad_cursor"))
async def list_all_runs(
    request: Request[Principal, Any, Any],
    run_state: _State = None,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[RunOut]:
    """List the runs of all conversations, newest first; `state=dead` are those that are out of attempts."""
    span = window(limit, after_id, before_id, lambda text: ids.parse("run", text))
    listed = await caller_of(request).run(runs.page_of_runs, None, span, run_state)
    return page_of(listed, span, lambda item: item.id)


@post(
    "/runs/{run_id:str}/retry",
    status_code=202,
    guards=[requires("turns:write")],
    summary="Retry a dead run",
    operation_class=operation(headers={202: ("Location",)}),
    responses={202: answers(RetriedOut, "It is queued again."), **problems("not_found", "run_not_dead", "run_active")},
)
async def retry_run(request: Request[Principal, Any, Any], run_id: RunId) -> Response[RetriedOut]:
    """Queue a dead run again, with its attempts counted from the start."""
    runs.check_retried(await runs.retry_run(caller_of(request), id_or_not_found("run", run_id)))
    headers = {"location": f"/v1/runs/{run_id}"}
    return Response(RetriedOut(run_ids=[run_id], has_more=False), status_code=202, headers=headers)


@post(
    "/runs/retry",
    status_code=202,
    guards=[requires("turns:write")],
    summary="Retry dead runs",
    operation_class=operation(RetryIn, example=examples.RETRY_IN),
    responses={202: answers(RetriedOut, "They are queued again."), **problems(*EVERY_BODY)},
)
async def retry_runs(request: Request[Principal, Any, Any]) -> Response[RetriedOut]:
    """Queue dead runs again, oldest first, but those whose conversation has an active run."""
    wanted = await read_body(request, RetryIn)
    retried, has_more = await runs.retry_dead_runs(caller_of(request), wanted.limit, wanted.reason)
    names = [ids.external("run", run_id) for run_id in retried]
    return Response(RetriedOut(run_ids=names, has_more=has_more), status_code=202)
