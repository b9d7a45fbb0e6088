"""What a tenant may spend and has spent: today's budget for models, the days before, and its rate limits."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any

from litestar import Request, get
from litestar.params import QueryParameter
from msgspec import Struct

from api.auth.guards import requires
from api.auth.principals import Principal
from api.schema.documentation import problems
from store.tenants import budgets
from store.tenants.budgets import Budget
from store.tenants.limits import limits_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from runtime.settings import Settings
    from store.tables import AnyRow

Days = Annotated[
    int, QueryParameter(ge=1, le=366, description="Days to list, newest first, of those with any model calls.")
]


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


@get("/tenant/usage", guards=[requires("audit:read")], summary="Read the tenant's usage", responses=problems())
async def get_usage(request: Request[Principal, Any, Any], days: Days = 30) -> UsageOut:
    """Answer with today's budget for models, what was spent of it and is reserved, and the days before.

    `reserved` is what calls under way may cost at most. Once a budget is spent, summaries wait until `resets_at`.
    """
    services: Services = request.app.state.services
    return await services.run(request.user.tenant_id, _usage, request.user.tenant_id, services.settings, days)


def _usage(connection: Connection, tenant_id: UUID, settings: Settings, days: int) -> UsageOut:
    today = budgets.today(connection, tenant_id, Budget.of(settings))
    own = limits_of(connection, tenant_id)
    return UsageOut(
        today=TodayOut(
            day=today.day,
            limits=BudgetOut(
                today.budget.tokens, None if today.budget.cost_usd is None else _money(today.budget.cost_usd)
            ),
            spent=AmountOut(today.spent.tokens, _money(today.spent.cost_usd)),
            reserved=AmountOut(today.reserved.tokens, _money(today.reserved.cost_usd)),
            is_spent=today.budget.is_spent(today.spent),
            waiting_summaries=today.waiting,
            resets_at=today.resets_at,
        ),
        days=_days(budgets.days(connection, tenant_id, days)),
        rate_limits=RateLimitsOut(
            (settings.rate_limit_key if own.rate_limit_key is None else own.rate_limit_key) or None,
            (settings.rate_limit_tenant if own.rate_limit_tenant is None else own.rate_limit_tenant) or None,
        ),
    )


def _days(rows: Sequence[AnyRow]) -> list[DayOut]:
    return [DayOut(row.day, row.model_calls, row.input_tokens, row.output_tokens, _money(row.cost_usd)) for row in rows]


def _money(amount: Decimal) -> str:
    return f"{amount:.6f}"
