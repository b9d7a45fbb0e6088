"""Budgets of model tokens and money, by tenant and day (UTC); all days and times are the database's.

What was spent is counted by the database, in the transaction that records a step. What calls under way may cost is
reserved on the row of their run, and counts while that is alive. A call may begin while the two together are
below the budget: it is exceeded by one call at most, however many workers there are, and by those whose run ends while
they are under way, as the reservation ends with the run.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Connection, func, literal_column, select, text, union_all, update

from compaction.steps.runs import RunState
from store.operations.statistics import unpriced_calls
from store.tables import model_usage, runs, waiting_summaries
from store.tenants.limits import limits_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime
    from uuid import UUID

    from runtime.settings import Settings
    from store.runs.runs import Lease
    from store.tables import AnyRow

_u, _r, _w = model_usage.c, runs.c, waiting_summaries.c

_TODAY: Final[Any] = literal_column("(now() at time zone 'utc')::date")
NEXT_DAY: Final[Any] = literal_column("((now() at time zone 'utc')::date + 1)::timestamp at time zone 'utc'")
"""When the next day's budget begins."""


class Amount(NamedTuple):
    """Tokens, read and written, and USD."""

    tokens: int = 0
    cost_usd: Decimal = Decimal(0)

    def plus(self, other: Amount) -> Amount:
        """Return both together."""
        return Amount(self.tokens + other.tokens, self.cost_usd + other.cost_usd)


class Budget(NamedTuple):
    """The most of a day; None = as much as it takes."""

    tokens: int | None = None
    cost_usd: Decimal | None = None

    @classmethod
    def of(cls, settings: Settings) -> Budget:
        """Return the budget of tenants for which none is set."""
        return cls(settings.daily_model_tokens or None, settings.daily_model_cost_usd or None)

    @property
    def is_bounded(self) -> bool:
        """Whether there is anything to hold."""
        return self.tokens is not None or self.cost_usd is not None

    def is_spent(self, amount: Amount) -> bool:
        """Tell whether so much leaves nothing of it."""
        return (self.tokens is not None and amount.tokens >= self.tokens) or (
            self.cost_usd is not None and amount.cost_usd >= self.cost_usd
        )


class Today(NamedTuple):
    """A tenant's budget of today, and what has become of it."""

    day: date
    budget: Budget
    spent: Amount
    """Its USD are those of the calls whose price is known."""
    reserved: Amount
    waiting: int
    """Summaries that wait for another day."""
    resets_at: datetime
    calls: int
    unpriced_calls: int

    @property
    def known_cost_usd(self) -> Decimal | None:
        """USD spent; None if there are calls and none of them has a known price."""
        return None if 0 < self.calls <= self.unpriced_calls else self.spent.cost_usd


def budget_of(connection: Connection, tenant_id: UUID, default: Budget) -> Budget:
    """Return a tenant's budget; `default` is the installation's."""
    own = limits_of(connection, tenant_id)
    tokens = default.tokens if own.daily_model_tokens is None else own.daily_model_tokens or None
    cost = default.cost_usd if own.daily_model_cost_usd is None else own.daily_model_cost_usd or None
    return Budget(tokens, cost)


def reserve_for_run(connection: Connection, lease: Lease, held: Amount, more: Amount, default: Budget) -> bool:
    """Reserve `more` for a call, besides what the same attempt holds; False if the day's budget is spent."""
    budget = budget_of(connection, lease.tenant_id, default)
    if not budget.is_bounded:
        return True
    if not _is_left(connection, lease.tenant_id, budget, held, run_id=lease.run_id):
        return False
    amount = held.plus(more)
    # Without the lease nothing is held: the call's cost is known when its step is recorded.
    connection.execute(
        update(runs)
        .where(_r.id == lease.run_id, _r.lease_token == lease.token, _r.state == RunState.RUNNING)
        .values(reserved_tokens=amount.tokens, reserved_cost_usd=amount.cost_usd)
    )
    return True


def is_spent(connection: Connection, tenant_id: UUID, default: Budget) -> bool:
    """Tell whether a tenant's budget of today is spent."""
    budget = budget_of(connection, tenant_id, default)
    return budget.is_bounded and not _is_left(connection, tenant_id, budget)


def seconds_left(connection: Connection) -> float:
    """Return the seconds until the next day's budget."""
    seconds = connection.scalar(select(func.extract("epoch", NEXT_DAY - func.now())))
    assert seconds is not None  # noqa: S101 - the database knows the time
    return float(seconds)


def today(connection: Connection, tenant_id: UUID, default: Budget) -> Today:
    """Return a tenant's budget of today, and what has become of it."""
    times = connection.execute(select(_TODAY.label("day"), NEXT_DAY.label("resets_at"))).one()
    waiting = connection.scalar(
        select(func.count()).select_from(waiting_summaries).where(_w.tenant_id == tenant_id, _w.done_at.is_(None))
    )
    calls = connection.scalar(select(_u.model_calls).where(_u.tenant_id == tenant_id, _u.day == _TODAY))
    return Today(
        day=times.day,
        budget=budget_of(connection, tenant_id, default),
        spent=_total(connection, _spent(tenant_id)),
        reserved=_total(connection, _reserved_by_runs(tenant_id)),
        waiting=waiting or 0,
        resets_at=times.resets_at,
        calls=calls or 0,
        unpriced_calls=unpriced_calls(connection, tenant_id, 1).get(times.day, 0),
    )


def days(connection: Connection, tenant_id: UUID, limit: int) -> Sequence[AnyRow]:
    """Return a tenant's days on which a model was asked, newest first."""
    return connection.execute(
        select(model_usage).where(_u.tenant_id == tenant_id).order_by(_u.day.desc()).limit(limit)
    ).all()


class Spending(NamedTuple):
    """Today's tokens and USD of all tenants, and how many summaries wait for another day."""

    tokens: int
    cost_usd: Decimal
    waiting: int


def spending(connection: Connection) -> Spending:
    """Return what all tenants have spent today."""
    return Spending(*connection.execute(text("select * from model_spending()")).one())


def _is_left(
    connection: Connection,
    tenant_id: UUID,
    budget: Budget,
    held: Amount = Amount(),  # noqa: B008 - immutable
    *,
    run_id: UUID | None = None,
) -> bool:
    # One after the other within a tenant, or several could all find the last of it. Before the row of a run,
    # as the claim of a run takes its own lock.
    connection.execute(
        text("select pg_advisory_xact_lock(hashtextextended('palimpsest.budget' || cast(:tenant as text), 0))"),
        {"tenant": str(tenant_id)},
    )
    used = _used(connection, tenant_id, run_id)
    return not budget.is_spent(used.plus(held))


def _used(connection: Connection, tenant_id: UUID, run_id: UUID | None) -> Amount:
    """Return what is spent and reserved, but for what one run holds itself, as of one moment."""
    queries = (_spent(tenant_id), _reserved_by_runs(tenant_id, run_id))
    return _total(connection, *queries)


def _total(connection: Connection, *queries: Any) -> Amount:
    """Return what several queries find together, as of one moment."""
    amounts = union_all(*queries).subquery()
    row = connection.execute(select(func.sum(amounts.c.tokens), func.sum(amounts.c.cost_usd))).one()
    return Amount(int(row[0]), row[1])


def _spent(tenant_id: UUID) -> Any:
    return _sum(_u.input_tokens + _u.output_tokens, _u.cost_usd).where(_u.tenant_id == tenant_id, _u.day == _TODAY)


def _reserved_by_runs(tenant_id: UUID, but: UUID | None = None) -> Any:
    return _sum(_r.reserved_tokens, _r.reserved_cost_usd).where(
        _r.tenant_id == tenant_id,
        _r.state == RunState.RUNNING,
        _r.lease_expires_at >= func.now(),
        *([] if but is None else [_r.id != but]),
    )


def _sum(tokens: Any, cost: Any) -> Any:
    return select(
        func.coalesce(func.sum(tokens), 0).label("tokens"), func.coalesce(func.sum(cost), 0).label("cost_usd")
    )
