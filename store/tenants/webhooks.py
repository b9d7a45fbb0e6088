"""Webhooks: who wants to hear of a run's end, and what became of telling them."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

import msgspec
from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from compaction.steps.runs import RunState
from runtime import ids
from store.operations.housekeeping import expire_rows
from store.tables import conversations, runs, webhook_deliveries, webhooks
from store.tenants import tenants

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from store.tables import AnyRow

Event = Literal["compaction.completed", "compaction.degraded", "compaction.failed"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
_EVENT_OF: Final[dict[str, Event]] = {
    RunState.COMMITTED: "compaction.completed",
    RunState.DEGRADED: "compaction.degraded",
    RunState.FAILED: "compaction.failed",
    RunState.DEAD: "compaction.failed",
}
RETRY_SECONDS: Final = (20, 60, 300, 1_800, 7_200, 21_600, 43_200)
"""Seconds from one attempt's beginning to the next; after the last one the delivery is dead (about a day in all).

Each is more than an attempt may take: nobody else makes the next one while one is under way.
"""
MAXIMUM: Final = 20
"""Webhooks a tenant may have at a time: each costs a row and a call for every run."""

MOST_DUE: Final = 100_000
"""Due deliveries among which tenants take turns."""
_DUE: Final = text("""
    select delivery_id, tenant_id from due_deliveries(:most) with ordinality as due (delivery_id, tenant_id, place)
    order by row_number() over (partition by tenant_id order by place), place limit :limit
""")

_w, _d, _r = webhooks.c, webhook_deliveries.c, runs.c
_SHOWN: Final = (_w.id, _w.url, _w.events, _w.created_at)


class Delivery(NamedTuple):
    """One attempt at a delivery: what to send where, signed with what."""

    id: UUID
    tenant_id: UUID
    attempt: int
    url: str
    secret: str
    body: str


def add(connection: Connection, tenant_id: UUID, url: str, events: Sequence[Event]) -> tuple[AnyRow, str] | None:
    """Make a webhook; return its row and its secret (`whsec_…`), None if the tenant has as many as it may."""
    tenants.lock(connection, tenant_id)
    if len(page(connection, tenant_id)) >= MAXIMUM:
        return None
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    row = connection.execute(
        insert(webhooks)
        .values(id=ids.new_id(), tenant_id=tenant_id, url=url, secret=secret, events=list(events))
        .returning(*_SHOWN)
    ).one()
    return row, secret


def page(connection: Connection, tenant_id: UUID) -> Sequence[AnyRow]:
    """Return a tenant's webhooks, oldest first."""
    return connection.execute(
        select(*_SHOWN).where(_w.tenant_id == tenant_id, _w.removed_at.is_(None)).order_by(_w.id)
    ).all()


def remove(connection: Connection, tenant_id: UUID, webhook_id: UUID) -> bool:
    """Remove a webhook and give up what was still to be sent to it; False if there is none."""
    removed = connection.execute(
        update(webhooks)
        .where(_w.id == webhook_id, _w.tenant_id == tenant_id, _w.removed_at.is_(None))
        .values(removed_at=func.now())
    )
    connection.execute(
        update(webhook_deliveries)
        .where(_d.webhook_id == webhook_id, _d.tenant_id == tenant_id, _d.state == "pending")
        .values(state="dead", error="webhook_removed", finished_at=func.now())
    )
    return removed.rowcount > 0


def announce(connection: Connection, tenant_id: UUID, run_id: UUID) -> None:
    """Write down, in the transaction that ends a run, who is to be notified. The body has ids and counts only."""
    wanting = connection.execute(
        select(_w.id, _w.events).where(_w.tenant_id == tenant_id, _w.removed_at.is_(None))
    ).all()
    if not wanting:
        return
    row = connection.execute(
        select(runs, conversations.c.external_id)
        .join(conversations, conversations.c.id == _r.conversation_id)
        .where(_r.id == run_id)
    ).one_or_none()
    if row is None:
        return  # The conversation is erased.
    event = _EVENT_OF.get(row.state)
    if event is None:
        return
    for webhook in wanting:
        if event in webhook.events:
            identifier = ids.new_id()
            connection.execute(
                upsert(webhook_deliveries)
                .values(
                    id=identifier,
                    tenant_id=tenant_id,
                    webhook_id=webhook.id,
                    run_id=run_id,
                    run_finished_at=row.finished_at,
                    event=event,
                    body=_body(identifier, event, row),
                )
                .on_conflict_do_nothing()
            )


def _body(identifier: UUID, event: Event, run: AnyRow) -> str:
    data = {
        "run_id": ids.external("run", run.id),
        "conversation_id": ids.external("conv", run.conversation_id),
        "external_id": run.external_id,
        "trigger": run.trigger,
        "state": run.state,
        "reason": run.reason,
        "snapshot_version": run.snapshot_version,
        "tokens_before": run.tokens_before,
        "tokens_after": run.tokens_after,
    }
    document = {"id": ids.external("evt", identifier), "type": event, "timestamp": run.finished_at, "data": data}
    return msgspec.json.encode(document).decode()


def due(connection: Connection, limit: int) -> list[tuple[UUID, UUID, None]]:
    """Return (delivery, tenant, None) of what is to be sent now, of any tenant; tenants take turns."""
    rows = connection.execute(_DUE, {"limit": limit, "most": MOST_DUE})
    return [(row.delivery_id, row.tenant_id, None) for row in rows]


def expire(connection: Connection, seconds: float, limit: int) -> int:
    """Remove deliveries that have ended and are older than `seconds`; return how many."""
    return expire_rows(connection, "webhook_deliveries", seconds, limit)


def claim(connection: Connection, tenant_id: UUID, delivery_id: UUID) -> Delivery | None:
    """Begin an attempt, counted before it is made; None if none is due or somebody else has it."""
    row = connection.execute(
        select(_d.attempts, _d.body, _w.url, _w.secret)
        .join(webhooks, _w.id == _d.webhook_id)
        .where(_d.id == delivery_id, _d.state == "pending", _d.next_attempt_at <= func.now())
        .with_for_update(of=webhook_deliveries, skip_locked=True)
    ).one_or_none()
    if row is None:
        return None
    wait = RETRY_SECONDS[min(row.attempts, len(RETRY_SECONDS) - 1)]
    connection.execute(
        update(webhook_deliveries)
        .where(_d.id == delivery_id)
        .values(attempts=_d.attempts + 1, next_attempt_at=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, wait))
    )
    return Delivery(delivery_id, tenant_id, row.attempts + 1, row.url, row.secret, row.body)


def delivered(connection: Connection, delivery: Delivery, status: int) -> None:
    """Note that a delivery was accepted."""
    connection.execute(
        update(webhook_deliveries)
        .where(_d.id == delivery.id, _d.state == "pending")
        .values(state="delivered", status=status, error=None, finished_at=func.now())
    )


def refused(connection: Connection, delivery: Delivery, status: int | None, error: str) -> bool:
    """Note that an attempt failed; return whether it was the last one."""
    dead = delivery.attempt > len(RETRY_SECONDS)
    ended = {"state": "dead", "finished_at": func.now()} if dead else {}
    connection.execute(
        update(webhook_deliveries)
        .where(_d.id == delivery.id, _d.state == "pending")
        .values(status=status, error=error, **ended)
    )
    return dead


def deliveries(
    connection: Connection,
    tenant_id: UUID,
    *,
    limit: int,
    state: str | None = None,
    after: UUID | None = None,
    before: UUID | None = None,
) -> Sequence[AnyRow]:
    """Return up to `limit` deliveries, newest first; `after` continues to older ones, `before` to newer."""
    query = select(webhook_deliveries).where(_d.tenant_id == tenant_id)
    if state is not None:
        query = query.where(_d.state == state)
    if before is not None:
        newer = query.where(_d.id > before).order_by(_d.id).limit(limit)
        return list(reversed(connection.execute(newer).all()))
    if after is not None:
        query = query.where(_d.id < after)
    return connection.execute(query.order_by(_d.id.desc()).limit(limit)).all()


def retry(connection: Connection, tenant_id: UUID, delivery_id: UUID) -> AnyRow | None:
    """Begin a dead delivery over; return it, None if there is no dead one of that id or its webhook is gone."""
    kept = select(_w.id).where(_w.removed_at.is_(None))
    return connection.execute(
        update(webhook_deliveries)
        .where(_d.id == delivery_id, _d.tenant_id == tenant_id, _d.state == "dead", _d.webhook_id.in_(kept))
        .values(state="pending", attempts=0, next_attempt_at=func.now(), finished_at=None)
        .returning(webhook_deliveries)
    ).one_or_none()
