"""The overview, and what operators did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from litestar import Request, Response, get
from litestar.params import PathParameter, QueryParameter

from actions.auth.principals import Principal
from actions.errors import NotFoundError
from actions.monitoring.alerts import PROMETHEUS_ALONE, alerts
from actions.types.recall import regret_out
from api.console.pages import error_page, is_fragment, page, redirect
from api.console.sessions import HOME, READ, may
from api.console.views.health import Health, health
from api.console.views.overview import figures
from runtime import ids
from runtime.errors import RequestError
from store.console import overview
from store.operations import diagnosis, operator_actions
from store.recall import requests
from store.tenants import budgets
from store.tenants.budgets import Budget

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services
    from runtime.settings import Settings

ACTIONS_ON_A_PAGE = 50

_Days = Annotated[Literal["1", "7", "30"], QueryParameter()]
_Rest = Annotated[str, PathParameter()]
_After = Annotated[str | None, QueryParameter(max_length=64)]


class _OverviewPage(NamedTuple):
    overview: overview.Overview
    recalled: requests.Figures
    today: budgets.Today


@get("/", include_in_schema=False, guards=[may(READ)])
async def show_overview(request: Request[Principal, Any, Any], days: _Days = "7") -> Response[bytes]:
    """Show whether the service is well, and what it saved and spent."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    content = await services.run(tenant, _load, tenant, int(days), services.settings)
    return page(
        request,
        "overview_live.html" if is_fragment(request) else "overview.html",
        days=int(days),
        figures=figures(content.overview),
        recalled=content.recalled,
        regrets=[regret_out(each) for each in content.recalled.regrets],
        today=content.today,
        health=await _health(services),
        watched_elsewhere=len(PROMETHEUS_ALONE),
    )


@get("/health", include_in_schema=False, guards=[may(READ)])
async def show_health(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """Show in every page's head whether the installation does its work; as a page of its own it is the overview."""
    if not is_fragment(request):
        return redirect(f"{HOME}#workers")
    return page(request, "health_mark.html", health=await _health(request.app.state.services))


@get("/operators", include_in_schema=False, guards=[may(READ)])
async def show_operators(request: Request[Principal, Any, Any], after: _After = None) -> Response[bytes]:
    """Show what operators did, newest first."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    cursor = None if after is None else ids.parse("act", after)
    if after is not None and cursor is None:
        raise RequestError("bad_cursor", "This is not an id of this list.", pointer="after")
    listed = await services.run(tenant, operator_actions.page, tenant, limit=ACTIONS_ON_A_PAGE + 1, after=cursor)
    actions = listed[:ACTIONS_ON_A_PAGE]
    older = ids.external("act", actions[-1].id) if len(listed) > ACTIONS_ON_A_PAGE else None
    return page(request, "operators.html", actions=actions, older=older, done=request.query_params.get("done"))


@get("/{rest:path}", include_in_schema=False)
async def find_nothing(request: Request[Any, Any, Any], rest: _Rest) -> Response[bytes]:  # noqa: ARG001
    """Answer for pages that there are not."""
    return error_page(request, NotFoundError())


async def _health(services: Services) -> Health:
    seen = await services.operations.seen()
    there = await services.run_without_tenant(diagnosis.processes_seen)
    return health(seen, there, alerts(seen.families()), services.settings.heartbeat_seconds)


def _load(connection: Connection, tenant_id: UUID, days: int, settings: Settings) -> _OverviewPage:
    return _OverviewPage(
        overview.overview(connection, tenant_id, days),
        requests.read_figures(connection, tenant_id, days),
        budgets.today(connection, tenant_id, Budget.of(settings)),
    )
