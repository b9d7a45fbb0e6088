"""Semaphores by tenant: what one tenant has under way at a time of a kind of work that others want to have done too."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID


class NoSlotError(Exception):
    """None of a tenant's slots came free in time."""


class Slot:
    """A slot that is taken, until it is released."""

    def __init__(self, slots: TenantSlots, tenant_id: UUID) -> None:
        self._slots = slots
        self._tenant_id = tenant_id

    def release(self) -> None:
        """Let the next of the tenant's have it."""
        self._slots.release(self._tenant_id)


class TenantSlots:
    """Gives each tenant `most` slots, in the order in which they are asked for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._semaphores: dict[UUID, asyncio.Semaphore] = {}
        self._users: dict[UUID, int] = {}

    async def acquire(self, tenant_id: UUID, seconds: float | None = None) -> Slot:
        """Take a slot. Raises NoSlotError if none comes free within `seconds`."""
        semaphore = self._semaphores.setdefault(tenant_id, asyncio.Semaphore(self._most))
        self._users[tenant_id] = self._users.get(tenant_id, 0) + 1
        try:
            async with asyncio.timeout(seconds):
                await semaphore.acquire()
        except BaseException as error:
            self._leave(tenant_id)
            if isinstance(error, TimeoutError):
                raise NoSlotError from None
            raise
        return Slot(self, tenant_id)

    @asynccontextmanager
    async def turn(self, tenant_id: UUID, seconds: float | None = None) -> AsyncIterator[None]:
        """Run the block in a slot; see `acquire`."""
        slot = await self.acquire(tenant_id, seconds)
        try:
            yield
        finally:
            slot.release()

    def release(self, tenant_id: UUID) -> None:
        """Give a slot back."""
        self._semaphores[tenant_id].release()
        self._leave(tenant_id)

    def _leave(self, tenant_id: UUID) -> None:
        self._users[tenant_id] -= 1
        if not self._users[tenant_id]:
            del self._users[tenant_id], self._semaphores[tenant_id]
