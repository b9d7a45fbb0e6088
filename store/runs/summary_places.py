"""Places for runs that ask a model: how many may do so at a time, and whose turn it is when one becomes free.

Postgres counts, over all workers. A run's model calls are its own affair: a staged summary and a context block ask for
up to four parts at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import text

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection


class Places(NamedTuple):
    """Runs that may ask a model at a time, of one tenant and of all; 0 = any number."""

    per_tenant: int = 0
    overall: int = 0

    @property
    def are_bounded(self) -> bool:
        """Whether there is anything to count."""
        return self.per_tenant > 0 or self.overall > 0


def is_free(connection: Connection, run_id: UUID, places: Places) -> bool:
    """Tell whether a run may begin; until the transaction ends, no other gets the same place."""
    statement = text("select may_summarize(:run, :per_tenant, :overall)")
    free: bool = connection.execute(statement, {"run": run_id, **places._asdict()}).scalar_one()
    return free


def offer(connection: Connection, places: Places) -> tuple[UUID, UUID] | None:
    """Return (run, tenant) of the queued run whose turn it is; None if there is none that may begin."""
    row = connection.execute(
        text("select * from offer_summary(:per_tenant)"), {"per_tenant": places.per_tenant}
    ).one_or_none()
    return (row.run_id, row.tenant_id) if row else None
