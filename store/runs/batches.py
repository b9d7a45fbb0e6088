"""Message batches: summaries that are asked for at half price, from the wish for one to its end.

Every claim counts an attempt before it is made. All times are the database's. See `store.tables` for the states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, case, func, select, text, update

from compaction.steps.runs import RunTrigger
from runtime import ids
from store.conversations import conversations
from store.operations.housekeeping import expire_rows
from store.tables import OPEN, model_batches, runs
from store.tables import conversations as conversation_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime
    from decimal import Decimal
    from uuid import UUID

    from store.tables import AnyRow

State = Literal["wanted", "sending", "submitted", "canceling", "ended"]
End = Literal["committed", "discarded", "superseded", "failed"]

FIRST_WAIT_SECONDS: Final = 30.0
"""Seconds until the provider is asked for the first time how a batch is; each further time doubles them."""
LONGEST_WAIT_SECONDS: Final = 600.0

_b = model_batches.c


class Outline(NamedTuple):
    """What a batch contains: enough to know its answers and what they cover, however much later."""

    base_version: int
    first_seq: int
    last_seq: int
    zone_messages: int
    part_ends: tuple[int, ...]
    """Where each part ends in the zone, exclusive."""
    fingerprint: str
    """Of which messages are summarized, and of the earlier summary; see `worker.batches.ahead.fingerprint`."""
    canary: str
    model: str
    prompt_version: str
    answer_tokens: int


class Costs(NamedTuple):
    """What a batch has cost; None is not known."""

    model_calls: int = 0
    model_input_tokens: int | None = None
    model_output_tokens: int | None = None
    cost_usd: Decimal | None = None


class Batch(NamedTuple):
    """A batch that is not over."""

    id: UUID
    tenant_id: UUID
    conversation_id: UUID
    state: State
    request_id: UUID | None
    provider_batch_id: str | None
    attempts: int
    """Claims since the state changed, this one included."""
    failures: int
    """Claims in a row that nothing good came of, this one included."""
    age_seconds: float
    sent_at: datetime | None
    outline: Outline | None
    """None before it was sent."""
    answers: tuple[str, ...] | None
    costs: Costs

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next attempt, if this one changes nothing."""
        return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(10, self.attempts))


def want(connection: Connection, conversation_ids: Sequence[UUID]) -> list[tuple[UUID, UUID]]:
    """Wish for a batch for each conversation that has none under way; return (batch, tenant) of the new ones."""
    # In the order of their ids, whoever asks: two who wish for the same batches do not wait in a circle.
    ordered = sorted(conversation_ids)
    rows = connection.execute(
        text("select * from want_batches(:ids, :conversations)"),
        {"ids": [ids.new_id() for _ in ordered], "conversations": ordered},
    )
    return [(row.batch_id, row.tenant_id) for row in rows]


def due(connection: Connection, limit: int) -> list[tuple[UUID, UUID, datetime]]:
    """Return (batch, tenant, since when) of what something is to be done about, of any tenant."""
    rows = connection.execute(text("select * from due_batches(:limit)"), {"limit": limit})
    return [(row[0], row[1], row[2]) for row in rows]


def expire(connection: Connection, seconds: float, limit: int) -> int:
    """Remove batches that were over `seconds` ago; return how many. What they cost is on the steps of runs."""
    return expire_rows(connection, "model_batches", seconds, limit)


def known(connection: Connection, provider_ids: Collection[str]) -> set[str]:
    """Return which of the provider's batches belong to a row, of whatever tenant."""
    rows = connection.execute(text("select * from known_batches(:ids)"), {"ids": list(provider_ids)})
    return set(rows.scalars())


def claim(connection: Connection, tenant_id: UUID, batch_id: UUID, *, lease_seconds: float) -> Batch | None:
    """Begin an attempt, counted before it is made; None if none is due or somebody else has it."""
    row = connection.execute(
        update(model_batches)
        .where(_b.id == batch_id, _b.tenant_id == tenant_id, _b.state.in_(OPEN), _b.next_attempt_at <= func.now())
        .values(attempts=_b.attempts + 1, failures=_b.failures + 1, next_attempt_at=_in(lease_seconds))
        .returning(*_READ)
    ).one_or_none()
    return _batch(row) if row else None


def open_of(connection: Connection, tenant_id: UUID, conversation_id: UUID, *, lock: bool = False) -> Batch | None:
    """Return the conversation's batch that is not over; None if there is none."""
    query = select(*_READ).where(_b.tenant_id == tenant_id, _b.conversation_id == conversation_id, _b.state.in_(OPEN))
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return _batch(row) if row else None


def sending(connection: Connection, batch: Batch, outline: Outline) -> bool:
    """Write down what is about to be sent; False if it is not wanted any more."""
    values = outline._asdict() | {"part_ends": list(outline.part_ends)}
    return _change(connection, batch, ("wanted",), state="sending", sent_at=func.now(), **values)


def sent(connection: Connection, batch: Batch, provider_id: str, expires_at: datetime) -> bool:
    """Write down under which id the provider has it; what was superseded meanwhile stays so.

    False if it is closed, or known under another id.
    """
    _change(
        connection,
        batch,
        ("sending", "canceling"),
        _b.provider_batch_id.is_(None),
        state=case((_b.state == "sending", "submitted"), else_=_b.state),
        provider_batch_id=provider_id,
        expires_at=expires_at,
        attempts=0,
        failures=0,
        next_attempt_at=case((_b.state == "sending", _in(FIRST_WAIT_SECONDS)), else_=func.now()),
    )
    # Asked for itself: this may be the second time, after a commit whose answer got lost.
    stored_id = connection.scalar(select(_b.provider_batch_id).where(_b.id == batch.id))
    return stored_id is not None and stored_id == provider_id


def not_sent(connection: Connection, batch: Batch, seconds: float) -> bool:
    """Write down that the provider has not got it; it is sent again in so many seconds."""
    return _change(connection, batch, ("sending",), state="wanted", sent_at=None, next_attempt_at=_in(seconds))


def postpone(connection: Connection, batch: Batch, seconds: float, *, failures: int) -> None:
    """Set when the next attempt is due, and how many in a row have failed."""
    _change(connection, batch, OPEN, next_attempt_at=_in(seconds), failures=failures)


def answered(connection: Connection, batch: Batch, answers: Sequence[str], costs: Costs) -> bool:
    """Keep the answers and what they cost; False if somebody else has, or nobody wants them any more."""
    return _change(
        connection,
        batch,
        ("submitted",),
        state="ended",
        answers=list(answers),
        attempts=0,
        failures=0,
        next_attempt_at=func.now(),
        **costs._asdict(),
    )


def canceling(connection: Connection, batch: Batch) -> bool:
    """Have a batch that was sent canceled at the provider; what it has cost is written down at its end."""
    return _change(
        connection,
        batch,
        ("sending", "submitted"),
        state="canceling",
        attempts=0,
        failures=0,
        next_attempt_at=func.now(),
    )


def finish(
    connection: Connection,
    batch: Batch,
    end: End,
    reason: str | None = None,
    error: str | None = None,
    *,
    run_id: UUID | None = None,
    costs: Costs | None = None,
) -> bool:
    """Close a batch, whose answers nobody needs any more; False if it was closed before."""
    return _change(
        connection,
        batch,
        OPEN,
        state=end,
        reason=reason,
        error=error,
        run_id=run_id,
        answers=None,
        finished_at=func.now(),
        **(costs._asdict() if costs is not None else {}),
    )


def restored_since(connection: Connection, batch: Batch) -> bool:
    """Tell whether somebody restored an earlier version after the batch was wished for."""
    wished_at = select(_b.created_at).where(_b.id == batch.id).scalar_subquery()
    restoring_run = connection.execute(
        select(runs.c.id)
        .where(
            runs.c.conversation_id == batch.conversation_id,
            runs.c.trigger == RunTrigger.RESTORE,
            runs.c.created_at >= wished_at,
        )
        .limit(1)
    )
    return restoring_run.one_or_none() is not None


def hold_back(connection: Connection, batch: Batch, growth: int, most: int) -> None:
    """Wish for no other batch before the conversation has grown, by so many tokens; up to `most` nothing else waits."""
    columns = conversation_rows.c
    growing = func.greatest(0, func.least(growth, most - conversations.INPUT_TOKENS))
    held = conversations.STORED_TOKENS + func.floor(growing / columns.token_ratio)
    connection.execute(
        update(conversation_rows)
        .where(columns.tenant_id == batch.tenant_id, columns.id == batch.conversation_id)
        .values(summary_hold=func.greatest(columns.summary_hold, held))
    )


def _change(connection: Connection, batch: Batch, states: Collection[str], *conditions: Any, **values: Any) -> bool:
    changed = connection.execute(
        update(model_batches)
        .where(_b.id == batch.id, _b.tenant_id == batch.tenant_id, _b.state.in_(states), *conditions)
        .values(values)
    )
    return changed.rowcount > 0


def _in(seconds: float) -> Any:
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)


_READ: Final = (*model_batches.c, func.extract("epoch", func.now() - _b.created_at).label("age_seconds"))


def _batch(row: AnyRow) -> Batch:
    values = row._asdict()
    outline = None
    if row.fingerprint is not None:
        outline = Outline(**{name: values[name] for name in Outline._fields})._replace(part_ends=tuple(row.part_ends))
    return Batch(
        id=row.id,
        tenant_id=row.tenant_id,
        conversation_id=row.conversation_id,
        state=row.state,
        request_id=row.request_id,
        provider_batch_id=row.provider_batch_id,
        attempts=row.attempts,
        failures=row.failures,
        age_seconds=float(row.age_seconds),
        sent_at=row.sent_at,
        outline=outline,
        answers=None if row.answers is None else tuple(row.answers),
        costs=Costs(*(values[name] for name in Costs._fields)),
    )
