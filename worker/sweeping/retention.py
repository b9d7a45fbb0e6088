"""Retention of messages: conversations past their `message_retention_days` are archived, if wanted, and erased."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import DBAPIError

from actions.export_file import write_export
from runtime import ids
from runtime.log import fault
from store.archive import retention
from store.archive.retention import FIRST
from worker.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Connection

    from runtime.settings import Settings
    from store.archive.retention import TenantWithRetention
    from worker.database import Database

log = structlog.get_logger()

PAGE: Final = 1_000
"""Conversations that one transaction looks at."""
PAGES: Final = 20
"""Pages of one round, of all tenants together."""
ERASED_OF_TENANT: Final = 50
"""Conversations of one tenant that a round erases at most: then the next tenant has its turn."""
ROUND_SECONDS: Final = 5.0
"""Seconds after which a round begins no other conversation: the sweep has more to do."""


class _Allowance:
    """What one round may still do, and how many conversations it has erased."""

    def __init__(self, clock: Callable[[], float], until: float) -> None:
        self._clock = clock
        self._until = until
        self.pages = PAGES
        self.erased = 0

    def is_used_up(self) -> bool:
        """Return whether the round is over."""
        return not self.pages or self._clock() >= self._until


class MessageRetention:
    """Erases conversations by age, tenant by tenant. Any number of processes may do so at the same time."""

    def __init__(self, settings: Settings, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._days: int = settings.policy.get("message_retention_days", 0)
        self._archive = settings.retention_archive_dir
        self._database = database
        self._clock = clock
        self._places: dict[UUID, UUID] = {}
        self._last_tenant = FIRST
        self.has_more = False
        """Whether the last round left conversations that it had found past their retention."""

    def round(self) -> int:
        """Erase what is past its retention, as much as one round may; return how many conversations that were.

        The round ends if the archive cannot be written: nothing is erased that was to be archived.
        """
        with self._database.transaction(None) as connection:
            tenants = retention.tenants_with_retention(connection, self._days)
        self._places = {each.id: self._places.get(each.id, FIRST) for each in tenants}
        # Begins behind the tenant that the last round ended with, so that each has its turn.
        ahead = [each for each in tenants if each.id > self._last_tenant]
        allowance = _Allowance(self._clock, self._clock() + ROUND_SECONDS)
        self.has_more = False
        try:
            for tenant in ahead + [each for each in tenants if each.id <= self._last_tenant]:
                if allowance.is_used_up():
                    break
                self._last_tenant = tenant.id
                self._erase_of_tenant(tenant, allowance)
        except OSError as error:
            log.warning("retention.archive_failed", error=f"{error.strerror}: {error.filename or self._archive}")
            METRICS.retention_failed("archive")
            self.has_more = False
        return allowance.erased

    def _erase_of_tenant(self, tenant: TenantWithRetention, allowance: _Allowance) -> None:
        """Go on through a tenant's conversations from where the last round left off; at the end begin anew."""
        most = allowance.erased + ERASED_OF_TENANT
        while not allowance.is_used_up():
            allowance.pages -= 1
            with self._database.transaction(tenant.id) as connection:
                page = retention.expired_page(connection, tenant, self._days, self._places[tenant.id], PAGE)
            for conversation in page.expired:
                if allowance.erased == most or allowance.is_used_up():
                    self.has_more = True
                    return
                allowance.erased += self._erase_one(tenant.id, conversation)
                self._places[tenant.id] = conversation
            self._places[tenant.id] = page.last_seen or FIRST
            if page.last_seen is None:
                return

    def _erase_one(self, tenant_id: UUID, conversation_id: UUID) -> bool:
        """Archive and erase a conversation in one transaction, if it is still past its retention and nobody uses it.

        Raises OSError if the archive cannot be written.
        """
        request_id = ids.new_id()
        try:
            with self._database.transaction(tenant_id) as connection:
                if not retention.lock_expired(connection, tenant_id, conversation_id, self._days):
                    return False
                if self._archive is not None:
                    self._write_archive(connection, self._archive, tenant_id, conversation_id)
                messages = retention.erase_expired(connection, tenant_id, conversation_id, request_id)
        except DBAPIError as error:
            METRICS.retention_failed("database")
            if error.connection_invalidated:
                raise
            # One conversation that fails holds up no others.
            log.warning("retention.failed", conversation_id=str(conversation_id), error=fault(error))
            return False
        log.info(
            "conversation.erased",
            reason="retention",
            conversation_id=str(conversation_id),
            tenant_id=str(tenant_id),
            messages=messages,
            is_archived=self._archive is not None,
            request_id=ids.external("req", request_id),
        )
        return True

    def _write_archive(self, connection: Connection, folder: Path, tenant_id: UUID, conversation_id: UUID) -> None:
        """Write the conversation's export file, which `palimpsest import` reads; it is on disk when this returns."""
        of_tenant = folder / ids.external("ten", tenant_id)
        of_tenant.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{ids.external('conv', conversation_id)}.jsonl"
        with tempfile.NamedTemporaryFile(dir=of_tenant, prefix=f".{name}.", delete=False) as file:
            unfinished = Path(file.name)
            try:
                write_export(connection, tenant_id, conversation_id, file)
                file.flush()
                os.fsync(file.fileno())
                unfinished.replace(of_tenant / name)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
        _sync_folder(of_tenant)


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
