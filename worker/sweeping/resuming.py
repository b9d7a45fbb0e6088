"""Summaries that waited for another day's budget: queued again when their time has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from compaction.overrides import in_force
from runtime.log import fault
from store.runs import waiting_summaries
from store.tenants import budgets, tenants
from store.tenants.budgets import Budget

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.policy import Policy
    from runtime.settings import Settings
    from store.runs.waiting_summaries import Resumed, Waiting
    from store.tables import AnyRow
    from worker.database import Database

log = structlog.get_logger()

LIMIT: Final = 1_000
"""Waiting summaries that one sweep takes on."""


class Resuming:
    """Looks for summaries whose time has come, of any tenant."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._budget = Budget.of(settings)

    def due(self) -> Iterator[tuple[UUID, UUID]]:
        """Yield (tenant, run) of each run as it is queued; those of tenants whose budget is spent again wait on."""
        with self._database.transaction(None) as connection:
            due = waiting_summaries.due(connection, LIMIT)
        spent = {tenant_id for tenant_id in {each.tenant_id for each in due} if self._is_spent(tenant_id)}
        for waiting in due:
            if waiting.tenant_id in spent:
                continue
            try:
                with self._database.transaction(waiting.tenant_id) as connection:
                    resumed = self._resume(connection, waiting)
            except SQLAlchemyError as error:
                # One that cannot be resumed holds up no others; the next sweep tries it again.
                log.warning("summary.not_resumed", run_id=str(waiting.run_id), error=fault(error))
                continue
            if resumed.outcome != "waits":
                log.info("summary.resumed", run_id=str(waiting.run_id), outcome=resumed.outcome)
            if resumed.run_id is not None:
                yield waiting.tenant_id, resumed.run_id

    def _is_spent(self, tenant_id: UUID) -> bool:
        with self._database.transaction(tenant_id) as connection:
            spent = budgets.is_spent(connection, tenant_id, self._budget)
            if spent:
                count = waiting_summaries.postpone(connection, tenant_id)
                log.info("summary.waits_on", tenant_id=str(tenant_id), count=count)
            return spent

    def _resume(self, connection: Connection, waiting: Waiting) -> Resumed:
        tenant = tenants.settings_of(connection, waiting.tenant_id)

        def policy_of(row: AnyRow) -> Policy:
            return in_force(self._settings.policy, tenant.policy, row.policy, model=row.model).policy

        return waiting_summaries.resume(connection, waiting, policy_of)
