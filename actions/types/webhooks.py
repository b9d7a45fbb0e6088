"""Webhooks and deliveries as requests ask for them and answers show them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from actions.types.core import Strict
from runtime import ids

if TYPE_CHECKING:
    from store.tables import AnyRow

EventName = Literal["compaction.completed", "compaction.degraded", "compaction.failed"]


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


def webhook_out(row: AnyRow, secret: str | None = None) -> WebhookOut:
    """Return a webhook as clients see it, with its secret when it is made."""
    return WebhookOut(
        id=ids.external("hook", row.id), url=row.url, events=row.events, created_at=row.created_at, secret=secret
    )


def delivery_out(row: AnyRow) -> DeliveryOut:
    """Return a delivery as clients see it."""
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
