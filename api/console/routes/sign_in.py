"""Signing in with an API key, or with a ticket that `palimpsest serve` prints, and out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from api.auth.guards import count_request
from api.callers import caller_of
from api.console.forms import form_of
from api.console.pages import page, redirect
from api.console.sessions import (
    ACT,
    HOME,
    READ,
    SIGN_IN,
    from_our_pages,
    is_secure,
    may,
    own_path,
    principal_of,
    session_cookie,
    token_of,
)
from store.console import sessions
from store.operations import operator_actions
from store.operations.operator_actions import Operator
from store.tenants.api_keys import split

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services

_Text = Annotated[str, QueryParameter(max_length=2_000)]
_Next = Annotated[str, QueryParameter(name="next", max_length=2_000)]

REFUSED = "This key is not known, has expired or was revoked."
NO_SCOPE = "This key is in force, but may not see the console: it has not the scope audit:read."
USED_UP = "This link was used before, or its time is over. Sign in with the key."


@get("/sign-in", include_in_schema=False)
async def show_sign_in(request: Request[Any, Any, Any], next_path: _Next = HOME, ticket: _Text = "") -> Response[bytes]:
    """Show the form; with a ticket it has a button alone, because whatever follows links must not use it up."""
    if not ticket and await principal_of(request) is not None:
        return redirect(own_path(next_path))
    return page(request, "sign_in.html", next_path=own_path(next_path), ticket=ticket, refused=None)


@post("/sign-in", include_in_schema=False, guards=[from_our_pages])
async def sign_in(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Begin a session and lead on to the page that was asked for."""
    services: Services = request.app.state.services
    form = await form_of(request)
    next_path = own_path(form.get("next", HOME))
    refuse = partial(page, request, "sign_in.html", status=401, next_path=next_path, ticket="")
    if ticket := form.get("ticket", ""):
        holder = await services.run_without_tenant(lambda database: sessions.take_ticket(database, ticket))
        if holder is None:
            return refuse(refused=USED_UP)
        tenant_id, key_id = holder
    else:
        key = form.get("key", "").strip()
        # A token is nobody's to revoke here, so that no session could stand for one.
        principal = await services.authenticator.authenticate(key) if split(key) else None
        if principal is None:
            return refuse(refused=REFUSED)
        if not {READ, ACT} & principal.scopes:
            return refuse(refused=NO_SCOPE)
        tenant_id, key_id = principal.tenant_id, principal.key_id
    operator = Operator(tenant_id, key_id, request.scope["state"]["request_uuid"])
    await count_request(request, operator)
    token = await services.run(tenant_id, _begin, operator)
    return _with_cookie(redirect(next_path), session_cookie(token, secure=is_secure(request)))


@post("/sign-out", include_in_schema=False, guards=[may(READ)])
async def sign_out(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """End the session."""
    services: Services = request.app.state.services
    tenant_id: UUID = request.user.tenant_id
    operator = caller_of(request).operator
    await services.run(tenant_id, _end, operator, token_of(request))
    return _with_cookie(redirect(SIGN_IN), session_cookie("", secure=is_secure(request)))


def _begin(connection: Connection, operator: Operator) -> str:
    operator_actions.record(connection, operator, "sign_in")
    return sessions.begin(connection, operator.tenant_id, operator.key_id)


def _end(connection: Connection, operator: Operator, token: str) -> None:
    operator_actions.record(connection, operator, "sign_out")
    sessions.end(connection, operator.tenant_id, token)


def _with_cookie(response: Response[bytes], cookie: str) -> Response[bytes]:
    response.headers["set-cookie"] = cookie
    return response
