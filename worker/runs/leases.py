"""Leases of the attempts under way: kept alive from the claim to the end, whatever the attempt is at."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

import structlog

from runtime.log import fault
from store.runs import runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from store.runs.runs import Lease
    from worker.database import Database

log = structlog.get_logger()


class _Kept:
    """A lease, and until when it is kept alive."""

    def __init__(self, lease: Lease, until: float) -> None:
        self.lease = lease
        self.until = until


class LeaseKeeper:
    """Extends the leases of a process every third of their length. One object a process; safe to use from many threads.

    The attempts do not do it themselves: where conversations are long and many, or CPU is short, one of them computes
    for longer than a lease lasts, and would lose what a model has written by then. Nor are leases kept without an end,
    or no other worker would ever take a run over: `limit_seconds` from the claim, and from a wait's beginning and end.
    """

    def __init__(self, database: Database, lease_seconds: float, limit_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.limit_seconds = limit_seconds
        self._database = database
        self._lock = Lock()
        self._kept: dict[UUID, _Kept] = {}
        self._is_running = False

    @property
    def beat_seconds(self) -> float:
        """Seconds from one extension to the next."""
        return self.lease_seconds / 3

    @contextmanager
    def keeping(self, lease: Lease) -> Iterator[None]:
        """Keep a lease alive in the block."""
        kept = _Kept(lease, time.monotonic() + self.limit_seconds)
        with self._lock:
            self._kept[lease.token] = kept
            if not self._is_running:
                self._is_running = True
                Thread(target=self._run, name="leases", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._kept.pop(lease.token, None)

    def keep_for(self, lease: Lease, seconds: float) -> None:
        """Keep a lease for so many seconds from now, where it is kept."""
        with self._lock:
            if kept := self._kept.get(lease.token):
                kept.until = time.monotonic() + seconds

    def _run(self) -> None:
        while True:
            Event().wait(self.beat_seconds)  # time.sleep fails in a process whose clock libfaketime has moved
            with self._lock:
                if not self._kept:
                    self._is_running = False
                    return
                now = time.monotonic()
                due = [kept for kept in self._kept.values() if kept.until > now]
            by_tenant: defaultdict[UUID, list[_Kept]] = defaultdict(list)
            for kept in due:
                by_tenant[kept.lease.tenant_id].append(kept)
            for tenant_id, theirs in by_tenant.items():
                self._extend(tenant_id, theirs)

    def _extend(self, tenant_id: UUID, due: list[_Kept]) -> None:
        """Extend leases, if the database can be reached. A lost one is found out at the commit."""
        try:
            with self._database.transaction(tenant_id) as connection:
                runs.heartbeat(connection, [kept.lease for kept in due], self.lease_seconds)
        except Exception as error:  # noqa: BLE001 - nothing may end the thread that all leases of the process need
            # The database may be back before they run out; the next time it is tried again.
            log.warning("heartbeat.failed", error=fault(error), leases=len(due))
