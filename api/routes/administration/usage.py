"""What a tenant may spend and has spent: today's budget for models, the days before, and its rate limits."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from actions.tenants import usage
from actions.types.usage import UsageOut
from api.auth.guards import requires
from api.callers import caller_of
from api.schema.documentation import problems

Days = Annotated[
    int, QueryParameter(ge=1, le=366, description="Days to list, newest first, of those with any model calls.")
]


@get("/tenant/usage", guards=[requires("audit:read")], summary="Read the tenant's usage", responses=problems())
async def get_usage(request: Request[Principal, Any, Any], days: Days = 30) -> UsageOut:
    """Answer with today's budget for models, what was spent of it and is reserved, and the days before.

    `reserved` is what calls under way may cost at most. Once a budget is spent, summaries wait until `resets_at`.
    """
    caller = caller_of(request)
    return await caller.run(usage, caller.services.settings, days)
