"""Many dead runs begun over at once, after a look at how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from api.auth.principals import Principal
from api.console.forms import read_form
from api.console.pages import page, redirect
from api.console.sessions import ACT, HOME, may, operator_of
from api.http.problems import invalid
from store.operations import operator_actions
from store.runs import stranded

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services

AT_ONCE: Final = 100
"""Runs that one form begins over, as `POST /v1/runs/retry` does."""

Reason = Annotated[str | None, QueryParameter(name="reason", max_length=200, pattern=r"^[^\x00]*$")]


@get("/runs/retry", include_in_schema=False, guards=[may(ACT)])
async def show_retries(request: Request[Principal, Any, Any], reason: Reason = None) -> Response[bytes]:
    """Show how many dead runs can be begun over, those that died of one reason or all, and ask."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    found = await services.run(tenant, stranded.retriable, tenant, AT_ONCE + 1, reason or None)
    return page(request, "retry.html", reason=reason, count=min(len(found), AT_ONCE), more=len(found) > AT_ONCE)


@post("/runs/retry", include_in_schema=False, guards=[may(ACT)])
async def retry_runs(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """Queue dead runs again, oldest first, each in a transaction that writes down who did."""
    services: Services = request.app.state.services
    form = await read_form(request)
    reason = str(form.get("reason", ""))
    if len(reason) > 200:  # noqa: PLR2004 - as in the address
        raise invalid("This is no reason.", "reason")
    tenant = request.user.tenant_id
    found = await services.run(tenant, stranded.retriable, tenant, AT_ONCE, reason or None)
    done = 0
    for identifier in found:
        retried = await services.run(tenant, retry, request, identifier)
        if retried.queue is not None:
            services.wakeups.add_run(tenant, identifier, retried.queue)
            done += 1
    return redirect(f"{HOME}/runs?{urlencode({'state': 'queued', 'retried': done})}")


def retry(connection: Connection, request: Request[Principal, Any, Any], run_id: UUID) -> stranded.Retried:
    """Begin a dead run over and write down who did; see `stranded_runs.retry`."""
    retried = stranded.retry(connection, request.user.tenant_id, run_id)
    if retried.outcome != "missing":
        operator_actions.record(connection, operator_of(request), "retry", retried.outcome, run_id=run_id)
    return retried
