"""What a tenant may spend and has spent, as answers show it."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from actions.types.core import money

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from decimal import Decimal

    from store.tables import AnyRow
    from store.tenants.budgets import Today


class AmountOut(Struct):
    """Tokens, read and written, and USD of the calls whose price is known; null if no call has one."""

    tokens: int
    cost_usd: str | None


class BudgetOut(Struct):
    """The most of a day; null = as much as it takes."""

    tokens: int | None
    cost_usd: str | None


class RateLimitsOut(Struct):
    """Requests that each key, and all keys together, may make; null = any number."""

    key: str | None
    tenant: str | None


class DayOut(Struct):
    """What the model calls of a day (UTC) came to; USD of those whose price is known, null if no call has one."""

    day: date
    model_calls: int
    unpriced_calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: str | None


class TodayOut(Struct):
    """The budget of this day (UTC), and what has become of it."""

    day: date
    limits: BudgetOut
    spent: AmountOut
    unpriced_calls: int
    reserved: AmountOut
    is_spent: bool
    waiting_summaries: int
    resets_at: datetime


class UsageOut(Struct):
    """What a tenant spends on models, and what it may."""

    today: TodayOut
    days: list[DayOut]
    rate_limits: RateLimitsOut


def usage_out(
    today: Today,
    days: Sequence[AnyRow],
    unpriced: Mapping[date, int],
    *,
    rate_limit_key: str | None,
    rate_limit_tenant: str | None,
) -> UsageOut:
    """Return what a tenant spends, and what it may, as its clients see it; `unpriced` counts calls by day."""
    limits = today.budget
    return UsageOut(
        today=TodayOut(
            day=today.day,
            limits=BudgetOut(limits.tokens, _usd(limits.cost_usd)),
            spent=AmountOut(today.spent.tokens, _usd(today.known_cost_usd)),
            unpriced_calls=today.unpriced_calls,
            reserved=AmountOut(today.reserved.tokens, money(today.reserved.cost_usd)),
            is_spent=limits.is_spent(today.spent),
            waiting_summaries=today.waiting,
            resets_at=today.resets_at,
        ),
        days=[
            DayOut(
                row.day,
                row.model_calls,
                unpriced.get(row.day, 0),
                row.input_tokens,
                row.output_tokens,
                _usd(None if 0 < row.model_calls <= unpriced.get(row.day, 0) else row.cost_usd),
            )
            for row in days
        ],
        rate_limits=RateLimitsOut(rate_limit_key, rate_limit_tenant),
    )


def _usd(amount: Decimal | None) -> str | None:
    return None if amount is None else money(amount)
