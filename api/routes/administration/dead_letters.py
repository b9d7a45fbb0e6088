"""Runs of the whole tenant, and dead ones begun over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from litestar import Request, Response, get, post
from litestar.params import QueryParameter
from msgspec import Meta, Struct

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import read_body
from api.http.paging import AfterId, BeforeId, Limit, Window, page_of, window
from api.http.problem_types import EVERY_BODY
from api.http.problems import ProblemError, not_found
from api.routes.runs import run_page
from api.schema import examples
from api.schema.documentation import RunId, answers, operation, problems
from api.schema.types import Page, RunOut, Strict
from runtime import ids
from store.runs import stranded

if TYPE_CHECKING:
    from uuid import UUID

    from api.services import Services

RunState = Annotated[
    Literal["queued", "running", "committed", "skipped", "failed", "dead"] | None,
    QueryParameter(name="state", description="Only runs in this state."),
]


class RetryIn(Strict):
    """Which dead runs to begin over: all, or those that died of one reason; oldest first."""

    state: Literal["dead"]
    reason: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 100


class RetriedOut(Struct, kw_only=True):
    """The runs that are queued again; `has_more` tells that others could be."""

    run_ids: list[str]
    has_more: bool


@get("/runs", guards=[requires("audit:read")], summary="List runs", responses=problems("bad_cursor"))
async def list_all_runs(
    request: Request[Principal, Any, Any],
    run_state: RunState = None,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[RunOut]:
    """List the runs of all conversations, newest first; `state=dead` are those that are out of attempts."""
    services: Services = request.app.state.services
    span: Window[Any] = window(limit, after_id, before_id, lambda text: ids.parse("run", text))
    tenant = request.user.tenant_id
    found = await services.run(tenant, run_page, tenant, None, span, run_state)
    return page_of(found, span, lambda item: item.id)


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
    services: Services = request.app.state.services
    identifier, tenant = ids.parse("run", run_id), request.user.tenant_id
    match await _retry(services, tenant, identifier) if identifier else "missing":
        case "missing":
            raise not_found()
        case "not_dead":
            raise ProblemError(409, "run_not_dead", "Only a dead run can be retried.")
        case "run_active":
            raise ProblemError(409, "run_active", "Another run of this conversation has not ended yet.")
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
    services: Services = request.app.state.services
    wanted, tenant = await read_body(request, RetryIn), request.user.tenant_id
    found = await services.run(tenant, stranded.retriable, tenant, wanted.limit + 1, wanted.reason)
    # One transaction each: none waits for another's conversation, and what is done stays done.
    chosen = found[: wanted.limit]
    done = [each for each in chosen if await _retry(services, tenant, each) == "queued"]
    return Response(
        RetriedOut(run_ids=[ids.external("run", each) for each in done], has_more=len(found) > len(chosen)),
        status_code=202,
    )


async def _retry(services: Services, tenant_id: UUID, run_id: UUID) -> str:
    retried = await services.run(tenant_id, stranded.retry, tenant_id, run_id)
    if retried.queue is not None:
        services.wakeups.add_run(tenant_id, run_id, retried.queue)
    return retried.outcome
