"""What the console's lists are narrowed to: a time, a user, a cost, a client."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import func, select

from store.tables import conversations, run_steps, runs

if TYPE_CHECKING:
    from decimal import Decimal

    from sqlalchemy import ColumnElement, Select

_c, _r = conversations.c, runs.c
CLIENT: Final = _c.metadata["gateway", "client"].astext
"""What the gateway calls the client whose first request a conversation began with; null for others."""


class Narrowed(NamedTuple):
    """Days (UTC), inclusive, on which a conversation was begun or a run asked for; a user; USD at least; a client."""

    since: date | None = None
    until: date | None = None
    user: str | None = None
    cost_usd: Decimal | None = None
    client: str | None = None

    def conversations(self, query: Select[Any]) -> Select[Any]:
        """Return a query of conversations with what it is narrowed to."""
        query = self._begun(query, _c.id)
        if self.cost_usd is not None:
            spent = (
                select(func.sum(run_steps.c.cost_usd))
                .join(runs, _r.id == run_steps.c.run_id)
                .where(_r.conversation_id == _c.id)
            )
            query = query.where(spent.scalar_subquery() >= self.cost_usd)
        return query if self.client is None else query.where(self.client == CLIENT)

    def runs(self, query: Select[Any], cost: ColumnElement[Any]) -> Select[Any]:
        """Return a query of runs and their conversations with what it is narrowed to; `cost` is a run's."""
        query = self._begun(query, _r.id)
        return query if self.cost_usd is None else query.where(cost >= self.cost_usd)

    def _begun(self, query: Select[Any], column: ColumnElement[Any]) -> Select[Any]:
        # Ids are in the order of time.
        if self.since is not None:
            query = query.where(column >= func.first_id_at(_midnight(self.since)))
        if self.until is not None:
            query = query.where(column < func.first_id_at(_midnight(self.until + timedelta(days=1))))
        return query if self.user is None else query.where(_c.user_ref == self.user)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
