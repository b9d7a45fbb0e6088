"""What was spent on models, and what that saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from litestar import Request, Response, get
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from api.console.pages import page
from api.console.sessions import READ, may
from api.console.views.spending import Spent, spent
from store.console import spending
from store.conversations import usages
from store.operations import statistics
from store.tenants import budgets
from store.tenants.budgets import Budget

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services
    from runtime.settings import Settings
    from store.conversations.usages import SavedDay, UnpricedModel
    from store.tables import AnyRow

_Days = Annotated[Literal["7", "30", "90"], QueryParameter()]


class _SpendingPage(NamedTuple):
    today: budgets.Today
    spent: Spent
    steps: Sequence[AnyRow]
    saved: Sequence[AnyRow]
    runs: Sequence[AnyRow]
    calls: Sequence[SavedDay]
    saved_money: Sequence[AnyRow]
    unpriced: Sequence[UnpricedModel]


@get("/spending", include_in_schema=False, guards=[may(READ)])
async def show_spending(request: Request[Principal, Any, Any], days: _Days = "30") -> Response[bytes]:
    """Show model tokens and money by day and model, against the budget, and what they saved."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    content = await services.run(tenant, _load, tenant, int(days), services.settings)
    return page(request, "spending.html", days=int(days), **content._asdict())


def _load(connection: Connection, tenant_id: UUID, days: int, settings: Settings) -> _SpendingPage:
    today = budgets.today(connection, tenant_id, Budget.of(settings))
    return _SpendingPage(
        today,
        spent(
            statistics.daily(connection, tenant_id, days),
            spending.by_model(connection, tenant_id, days),
            today.budget,
        ),
        spending.by_step(connection, tenant_id, days),
        spending.most_saved(connection, tenant_id, days),
        spending.costliest_runs(connection, tenant_id, days),
        usages.saved_daily(connection, tenant_id, days),
        usages.saved_most(connection, tenant_id, days, spending.SHOWN_AT_MOST),
        usages.unpriced_models(connection, tenant_id, days),
    )
