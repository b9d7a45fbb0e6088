"""What a tenant may spend and has spent, as answers show it."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from actions.types.core import money

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.tables import AnyRow
    from store.tenants.budgets import Today


class AmountOut(Struct):
    """Tokens, read and written, and USD."""

    tokens: int
    cost_usd: str


class BudgetOut(Struct):
    """The most of a day; null = as much as it takes."""

    tokens: int | None
    cost_usd: str | None


class RateLimitsOut(Struct):
    """Requests that each key, and all keys together, may make; null = any number."""

    key: str | None
    tenant: str | None


class DayOut(Struct):
    """What the model calls of a day (UTC) came to."""

    day: date
    model_calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: str


class TodayOut(Struct):
    """The budget of this day (UTC), and what has become of it."""

    day: date
    limits: BudgetOut
    spent: AmountOut
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
    today: Today, days: Sequence[AnyRow], *, rate_limit_key: str | None, rate_limit_tenant: str | None
) -> UsageOut:
    """Return what a tenant spends, and what it may, as its clients see it."""
    limits = today.budget
    return UsageOut(
        today=TodayOut(
            day=today.day,
            limits=BudgetOut(limits.tokens, None if limits.cost_usd is None else money(limits.cost_usd)),
            spent=AmountOut(today.spent.tokens, money(today.spent.cost_usd)),
            reserved=AmountOut(today.reserved.tokens, money(today.reserved.cost_usd)),
            is_spent=limits.is_spent(today.spent),
            waiting_summaries=today.waiting,
            resets_at=today.resets_at,
        ),
        days=[
            DayOut(row.day, row.model_calls, row.input_tokens, row.output_tokens, money(row.cost_usd)) for row in days
        ],
        rate_limits=RateLimitsOut(rate_limit_key, rate_limit_tenant),
    )
