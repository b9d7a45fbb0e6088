"""Many dead runs begun over at once, after a look at how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from actions.errors import InvalidError
from actions.runs import retry_dead_runs
from api.callers import caller_of
from api.console.forms import read_form
from api.console.pages import page, redirect
from api.console.sessions import ACT, HOME, may
from store.operations import operator_actions
from store.runs import stranded

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Connection

    from store.operations.operator_actions import Operator

AT_ONCE: Final = 100
"""Runs that one form begins over, as `POST /v1/runs/retry` does."""

Reason = Annotated[str | None, QueryParameter(name="reason", max_length=200, pattern=r"^[^\x00]*$")]


@get("/runs/retry", include_in_schema=False, guards=[may(ACT)])
async def show_retries(request: Request[Principal, Any, Any], reason: Reason = None) -> Response[bytes]:
    """Show how many dead runs can be begun over, those that died of one reason or all, and ask."""
    dead = await caller_of(request).run(stranded.retriable, AT_ONCE + 1, reason or None)
    return page(request, "retry.html", reason=reason, count=min(len(dead), AT_ONCE), more=len(dead) > AT_ONCE)


@post("/runs/retry", include_in_schema=False, guards=[may(ACT)])
async def retry_runs(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """Queue dead runs again, oldest first, each in a transaction that writes down who did."""
    reason = str((await read_form(request)).get("reason", ""))
    if len(reason) > 200:  # noqa: PLR2004 - as in the address
        raise InvalidError("This is no reason.", "reason")
    caller = caller_of(request)
    done, _ = await retry_dead_runs(caller, AT_ONCE, reason or None, retry_and_record(caller.operator))
    return redirect(f"{HOME}/runs?{urlencode({'state': 'queued', 'retried': len(done)})}")


def retry_and_record(operator: Operator) -> Callable[[Connection, UUID, UUID], stranded.Retried]:
    """Return what begins a dead run over and writes down who did; see `store.runs.stranded.retry`."""

    def retry(connection: Connection, tenant_id: UUID, run_id: UUID) -> stranded.Retried:
        retried = stranded.retry(connection, tenant_id, run_id)
        if retried.outcome != "missing":
            operator_actions.record(connection, operator, "retry", retried.outcome, run_id=run_id)
        return retried

    return retry
