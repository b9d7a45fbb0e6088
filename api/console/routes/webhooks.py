"""Webhooks of the tenant and what became of telling them; made, removed, and dead deliveries begun over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import urlencode

import msgspec
import structlog
from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from actions.errors import ConflictError, NotFoundError, from_msgspec
from actions.types.webhooks import WebhookIn
from actions.webhooks import add_webhook, check_url
from api.callers import caller_of
from api.console.forms import read_form
from api.console.pages import page, redirect
from api.console.sessions import ACT, HOME, may
from api.schema.documentation import DeliveryId, WebhookId
from runtime import ids
from runtime.errors import RequestError
from store.operations import operator_actions
from store.tenants import webhooks
from store.tenants.webhooks import EVENTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services
    from store.operations.operator_actions import Operator
    from store.tables import AnyRow

ON_A_PAGE: Final = 50
STATES: Final = ("pending", "delivered", "dead")
PATH: Final = f"{HOME}/webhooks"

_State = Annotated[Literal["pending", "delivered", "dead"] | None, QueryParameter(name="state")]
_After = Annotated[str | None, QueryParameter(max_length=64)]
_log: Final = structlog.get_logger()


class _Listed(NamedTuple):
    hooks: Sequence[AnyRow]
    deliveries: Sequence[AnyRow]


@get("/webhooks", include_in_schema=False, guards=[may(ACT)])
async def list_webhooks(
    request: Request[Principal, Any, Any], delivery_state: _State = None, after: _After = None
) -> Response[bytes]:
    """Show webhooks, and what was sent to them, newest first."""
    services: Services = request.app.state.services
    cursor = None if after is None else ids.parse("evt", after)
    if after is not None and cursor is None:
        raise RequestError("bad_cursor", "This is not an id of this list.", pointer="after")
    tenant = request.user.tenant_id
    hooks, listed = await services.run(tenant, _list, tenant, delivery_state, cursor)
    deliveries = listed[:ON_A_PAGE]
    older = None
    if len(listed) > ON_A_PAGE:
        older = urlencode({"state": delivery_state or "", "after": ids.external("evt", deliveries[-1].id)})
    return page(
        request,
        "webhooks.html",
        hooks=hooks,
        urls={hook.id: hook.url for hook in hooks},
        deliveries=deliveries,
        older=older,
        state_asked=delivery_state,
        states=STATES,
        events=EVENTS,
        room=webhooks.MAXIMUM - len(hooks),
    )


@post("/webhooks", include_in_schema=False, guards=[may(ACT)])
async def create_webhook(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """Make a webhook and show its secret, this once; the same form sent again makes no other."""
    services: Services = request.app.state.services
    form = await read_form(request)
    fields = {"url": str(form.get("url", "")).strip(), "events": [str(each) for each in form.getall("events", [])]}
    try:
        wanted = msgspec.convert(fields, WebhookIn)
    except msgspec.ValidationError as error:
        raise from_msgspec(error, WebhookIn) from None
    check_url(wanted.url, insecure=services.settings.webhook_private_addresses)
    tenant = request.user.tenant_id
    row, secret = await services.run(tenant, _create, caller_of(request).operator, wanted, str(form.get("newest", "")))
    _log.info("webhook.created", webhook_id=str(row.id), by=str(request.user.key_id))
    return page(request, "webhook_made.html", status=201, hook=row, secret=secret)


@get("/webhooks/{webhook_id:str}/remove", include_in_schema=False, guards=[may(ACT)])
async def show_removal(request: Request[Principal, Any, Any], webhook_id: WebhookId) -> Response[bytes]:
    """Show what removing a webhook would do, and ask."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("hook", webhook_id)
    hooks = await services.run(tenant, webhooks.page, tenant)
    hook = next((each for each in hooks if each.id == identifier), None)
    if hook is None:
        raise NotFoundError
    return page(request, "webhook_remove.html", hook=hook)


@post("/webhooks/{webhook_id:str}/remove", include_in_schema=False, guards=[may(ACT)])
async def remove_webhook(request: Request[Principal, Any, Any], webhook_id: WebhookId) -> Response[bytes]:
    """Remove a webhook, and write down who did."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("hook", webhook_id)
    if identifier is None or not await services.run(tenant, _remove, caller_of(request).operator, identifier):
        raise NotFoundError
    _log.info("webhook.removed", webhook_id=str(identifier), by=str(request.user.key_id))
    return redirect(PATH)


@post("/deliveries/{delivery_id:str}/retry", include_in_schema=False, guards=[may(ACT)])
async def retry_delivery(request: Request[Principal, Any, Any], delivery_id: DeliveryId) -> Response[bytes]:
    """Begin a dead delivery over, and write down who did."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("evt", delivery_id)
    if identifier is None or not await services.run(tenant, _retry, caller_of(request).operator, identifier):
        raise NotFoundError
    return redirect(PATH)


def newest(hooks: Sequence[AnyRow]) -> str:
    """Return what tells whether a webhook was made since a form was opened."""
    return ids.external("hook", hooks[-1].id) if hooks else ""


def _list(connection: Connection, tenant_id: UUID, state: str | None, after: UUID | None) -> _Listed:
    return _Listed(
        webhooks.page(connection, tenant_id),
        webhooks.deliveries(connection, tenant_id, limit=ON_A_PAGE + 1, state=state, after=after),
    )


def _create(connection: Connection, operator: Operator, wanted: WebhookIn, seen: str) -> tuple[AnyRow, str]:
    if seen != newest(webhooks.page(connection, operator.tenant_id)):
        raise ConflictError("used_form", "Webhooks were made since this form was opened; look at the list first.")
    row, secret = add_webhook(connection, operator.tenant_id, wanted)
    operator_actions.record(connection, operator, "webhook_create", subject_id=row.id)
    return row, secret


def _remove(connection: Connection, operator: Operator, webhook_id: UUID) -> bool:
    done = webhooks.remove(connection, operator.tenant_id, webhook_id)
    if done:
        operator_actions.record(connection, operator, "webhook_remove", subject_id=webhook_id)
    return done


def _retry(connection: Connection, operator: Operator, delivery_id: UUID) -> bool:
    done = webhooks.retry(connection, operator.tenant_id, delivery_id) is not None
    if done:
        operator_actions.record(connection, operator, "delivery_retry", subject_id=delivery_id)
    return done
