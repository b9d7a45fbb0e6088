"""Webhooks: who is told of a run's end, and what became of telling them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from litestar import Request, Response, delete, get, post
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta, Struct

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import read_body
from api.http.paging import AfterId, BeforeId, Limit, Window, page_of, window
from api.http.problem_types import EVERY_BODY
from api.http.problems import ProblemError, invalid, not_found
from api.schema import examples
from api.schema.documentation import answers, operation, problems
from api.schema.types import Page, Strict
from runtime import ids
from store.tenants import webhooks
from store.tenants.webhooks import EVENTS

if TYPE_CHECKING:
    from collections.abc import Collection

    from api.services import Services
    from store.tables import AnyRow

EventName = Literal["compaction.completed", "compaction.failed"]
WebhookId = Annotated[str, PathParameter(description="A webhook's id.")]
DeliveryId = Annotated[str, PathParameter(description="A delivery's id, the event's own.")]
DeliveryState = Annotated[
    Literal["pending", "delivered", "dead"] | None,
    QueryParameter(name="state", description="Only deliveries in this state."),
]


class WebhookIn(Strict):
    """Where to send events, and which; none named = all."""

    url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    events: Annotated[list[EventName], Meta(min_length=1)] | None = None


class WebhookOut(Struct, kw_only=True, omit_defaults=True):
    """A webhook; `secret` is shown once, when it is made."""

    id: str
    url: str
    events: list[str]
    created_at: datetime
    secret: str | None = None


class WebhookList(Struct):
    """All webhooks of a tenant."""

    data: list[WebhookOut]


class DeliveryOut(Struct, kw_only=True):
    """An event on its way to a webhook; `status` is the HTTP status of the last attempt's answer."""

    id: str
    webhook_id: str
    run_id: str
    event: str
    state: str
    attempts: int
    status: int | None
    error: str | None
    created_at: datetime
    next_attempt_at: datetime | None
    finished_at: datetime | None


@post(
    "/webhooks",
    status_code=201,
    guards=[requires("admin")],
    summary="Create a webhook",
    operation_class=operation(WebhookIn, example=examples.WEBHOOK_IN),
    responses={
        201: answers(WebhookOut, "The webhook, with the secret that signs its events."),
        **problems(*EVERY_BODY, "too_many_webhooks"),
    },
)
async def create_webhook(request: Request[Principal, Any, Any]) -> Response[WebhookOut]:
    """Have the ends of runs sent to a URL, signed as Standard Webhooks has it."""
    services: Services = request.app.state.services
    wanted = await read_body(request, WebhookIn)
    check_url(wanted.url, insecure=services.settings.webhook_private_addresses)
    tenant = request.user.tenant_id
    made = await services.run(tenant, webhooks.add, tenant, wanted.url, wanted.events or EVENTS)
    if made is None:
        raise ProblemError(409, "too_many_webhooks", f"A tenant has at most {webhooks.MAXIMUM} webhooks.")
    row, secret = made
    return Response(_webhook_out(row, secret), status_code=201)


@get("/webhooks", guards=[requires("admin")], summary="List webhooks", responses=problems())
async def list_webhooks(request: Request[Principal, Any, Any]) -> WebhookList:
    """List the tenant's webhooks, oldest first."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    return WebhookList([_webhook_out(row) for row in await services.run(tenant, webhooks.page, tenant)])


@delete(
    "/webhooks/{webhook_id:str}",
    guards=[requires("admin")],
    summary="Remove a webhook",
    responses=problems("not_found"),
)
async def remove_webhook(request: Request[Principal, Any, Any], webhook_id: WebhookId) -> None:
    """Send no more to it; what was still waiting is given up."""
    services: Services = request.app.state.services
    identifier, tenant = ids.parse("hook", webhook_id), request.user.tenant_id
    if identifier is None or not await services.run(tenant, webhooks.remove, tenant, identifier):
        raise not_found()


@get(
    "/webhook-deliveries",
    guards=[requires("admin")],
    summary="List webhook deliveries",
    responses=problems("bad_cursor"),
)
async def list_deliveries(
    request: Request[Principal, Any, Any],
    delivery_state: DeliveryState = None,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[DeliveryOut]:
    """List events and what became of them, newest first; `state=dead` are those that were given up."""
    services: Services = request.app.state.services
    span: Window[Any] = window(limit, after_id, before_id, lambda text: ids.parse("evt", text))
    tenant = request.user.tenant_id
    rows = await services.run(
        tenant, webhooks.deliveries, tenant, limit=limit + 1, state=delivery_state, after=span.after, before=span.before
    )
    return page_of([_delivery_out(row) for row in rows], span, lambda item: item.id)


@post(
    "/webhook-deliveries/{delivery_id:str}/retry",
    status_code=202,
    guards=[requires("admin")],
    summary="Retry a dead delivery",
    responses={202: answers(DeliveryOut, "It will be tried again."), **problems("not_found")},
)
async def retry_delivery(request: Request[Principal, Any, Any], delivery_id: DeliveryId) -> Response[DeliveryOut]:
    """Begin a delivery over that was given up."""
    services: Services = request.app.state.services
    identifier, tenant = ids.parse("evt", delivery_id), request.user.tenant_id
    row = await services.run(tenant, webhooks.retry, tenant, identifier) if identifier else None
    if row is None:
        raise not_found()
    return Response(_delivery_out(row), status_code=202)


def check_url(url: str, *, insecure: bool) -> None:
    """Raise the problem of an address that nothing can be sent to; with `insecure` it need not be HTTPS."""
    if not _can_be_called(url, {"https", "http"} if insecure else {"https"}):
        raise invalid("Expected an https URL with a host that can be, and without credentials.", "/url")


def _can_be_called(url: str, schemes: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:  # a name that no lookup takes, or a port that is none
        return False
    return bool(host) and port != 0 and parts.scheme in schemes and "@" not in parts.netloc and url.isprintable()


def _webhook_out(row: AnyRow, secret: str | None = None) -> WebhookOut:
    return WebhookOut(
        id=ids.external("hook", row.id), url=row.url, events=row.events, created_at=row.created_at, secret=secret
    )


def _delivery_out(row: AnyRow) -> DeliveryOut:
    return DeliveryOut(
        id=ids.external("evt", row.id),
        webhook_id=ids.external("hook", row.webhook_id),
        run_id=ids.external("run", row.run_id),
        event=row.event,
        state=row.state,
        attempts=row.attempts,
        status=row.status,
        error=row.error,
        created_at=row.created_at,
        next_attempt_at=row.next_attempt_at if row.state == "pending" else None,
        finished_at=row.finished_at,
    )
