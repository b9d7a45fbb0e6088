"""Webhooks: who is notified of a run's end, and the deliveries."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Request, Response, delete, get, post
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from actions.errors import NotFoundError, id_or_not_found, or_not_found
from actions.paging import page_of
from actions.types.core import Page
from actions.types.webhooks import DeliveryOut, WebhookIn, WebhookList, WebhookOut, delivery_out, webhook_out
from actions.webhooks import add_webhook, check_url
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.http.paging import AfterId, BeforeId, Limit, window
from api.schema import examples
from api.schema.documentation import DeliveryId, WebhookId, answers, operation, problems
from runtime import ids
from runtime.http.problem_types import EVERY_BODY
from store.tenants import webhooks

DeliveryState = Annotated[
    Literal["pending", "delivered", "dead"] | None,
    QueryParameter(name="state", description="Only deliveries in this state."),
]


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
    wanted, caller = await read_body(request, WebhookIn), caller_of(request)
    check_url(wanted.url, insecure=caller.services.settings.webhook_private_addresses)
    return Response(webhook_out(*await caller.run(add_webhook, wanted)), status_code=201)


@get("/webhooks", guards=[requires("admin")], summary="List webhooks", responses=problems())
async def list_webhooks(request: Request[Principal, Any, Any]) -> WebhookList:
    """List the tenant's webhooks, oldest first."""
    return WebhookList([webhook_out(row) for row in await caller_of(request).run(webhooks.page)])


@delete(
    "/webhooks/{webhook_id:str}",
    guards=[requires("admin")],
    summary="Remove a webhook",
    responses=problems("not_found"),
)
async def remove_webhook(request: Request[Principal, Any, Any], webhook_id: WebhookId) -> None:
    """Send no more to it; what was still waiting is given up."""
    if not await caller_of(request).run(webhooks.remove, id_or_not_found("hook", webhook_id)):
        raise NotFoundError


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
    span = window(limit, after_id, before_id, lambda text: ids.parse("evt", text))
    rows = await caller_of(request).run(webhooks.deliveries, state=delivery_state, **span.query)
    return page_of([delivery_out(row) for row in rows], span, lambda item: item.id)


@post(
    "/webhook-deliveries/{delivery_id:str}/retry",
    status_code=202,
    guards=[requires("admin")],
    summary="Retry a dead delivery",
    responses={202: answers(DeliveryOut, "It will be tried again."), **problems("not_found")},
)
async def retry_delivery(request: Request[Principal, Any, Any], delivery_id: DeliveryId) -> Response[DeliveryOut]:
    """Begin a delivery over that was given up."""
    row = or_not_found(await caller_of(request).run(webhooks.retry, id_or_not_found("evt", delivery_id)))
    return Response(delivery_out(row), status_code=202)
