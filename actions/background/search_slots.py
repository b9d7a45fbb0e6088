"""Search slots: how many recalls and comparisons of one tenant a process computes at a time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from runtime.errors import RETRY_AFTER_SECONDS, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

SEARCHES_AT_ONCE: Final = 2
"""Searches of one tenant. A search computes in a thread, so eight at once took seconds from the other tenants."""
WAIT_SECONDS: Final = 5.0


class SearchSlots:
    """A semaphore for each tenant that searches now."""

    def __init__(self, at_once: int = SEARCHES_AT_ONCE, wait_seconds: float = WAIT_SECONDS) -> None:
        self._at_once = at_once
        self._wait_seconds = wait_seconds
        self._semaphores: dict[UUID, asyncio.Semaphore] = {}
        self._users: dict[UUID, int] = {}

    @asynccontextmanager
    async def acquire(self, tenant_id: UUID) -> AsyncIterator[None]:
        """Hold one of the tenant's slots. Raises the problem `rate_limited` if none comes free in time."""
        semaphore = self._semaphores.setdefault(tenant_id, asyncio.Semaphore(self._at_once))
        self._users[tenant_id] = self._users.get(tenant_id, 0) + 1
        try:
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await semaphore.acquire()
            except TimeoutError:
                raise RequestError(
                    "rate_limited",
                    f"{self._at_once} recalls or comparisons of a tenant are computed at a time, and none has ended for"
                    f" {self._wait_seconds:g} s.",
                    retry_after=RETRY_AFTER_SECONDS,
                ) from None
            try:
                yield
            finally:
                semaphore.release()
        finally:
            self._users[tenant_id] -= 1
            if not self._users[tenant_id]:
                del self._users[tenant_id], self._semaphores[tenant_id]
