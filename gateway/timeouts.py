"""How long a request waits for the database, and whether that can be reached at all.

A query that takes long says something of that query. Whether the database is away is decided by a probe, which is one
small query on connections that no tenant's history is looked up on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from gateway.tenant_slots import NoSlotError
from runtime.errors import RequestError
from runtime.log import fault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from uuid import UUID

    from gateway.tenant_slots import TenantSlots

T = TypeVar("T")
log = structlog.get_logger()

PROBE_SECONDS: Final = 1.0
"""Seconds in which the database has to answer a probe."""
PAUSE_SECONDS: Final = 1.0
"""Seconds between two probes of a database that is away; until one is answered nothing else is asked."""


class AwayError(Exception):
    """The database cannot be reached, or does not answer this request in time."""


class Deadline:
    """Bounds the seconds that requests wait for the database.

    A query that misses its deadline goes on, so that its connection is not lost, and keeps its tenant's slot.
    """

    def __init__(
        self,
        seconds: float,
        probe: Callable[[], Awaitable[object]],
        slots: TenantSlots,
        *,
        when_away: Callable[[], None] = lambda: None,
    ) -> None:
        """`probe` raises what keeps the database from answering; `when_away` is called each time that it does."""
        self._seconds = seconds
        self._probe = probe
        self._when_away = when_away
        self._slots = slots
        self._is_away = False
        self._watch: asyncio.Task[None] | None = None
        self._has_probed = asyncio.Event()
        self._late: set[asyncio.Task[object]] = set()

    async def within(
        self, asking: Coroutine[object, object, T], *, tenant_id: UUID | None = None, seconds: float | None = None
    ) -> T:
        """Return what `asking` returns; raise AwayError if it fails, or takes more than `seconds`.

        With a tenant it takes one of the tenant's slots.
        """
        seconds = seconds or self._seconds
        try:
            self.require()
        except AwayError:
            asking.close()
            raise
        try:
            slot = None if tenant_id is None else await self._slots.acquire(tenant_id, seconds)
        except NoSlotError:
            # Its tenant's other queries take that long; nobody else's do.
            asking.close()
            raise AwayError from None
        except BaseException:
            asking.close()
            raise
        task = asyncio.ensure_future(asking)
        if slot is not None:
            task.add_done_callback(lambda _: slot.release())
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            self._leave(task)
            raise
        if not done:
            self._leave(task)
            self._begin_probe()
            raise AwayError
        try:
            return task.result()
        except RequestError:
            raise
        except Exception as error:
            self._begin_probe()
            raise AwayError from error

    def require(self) -> None:
        """Raise AwayError while the database is known to be away."""
        if self._is_away:
            raise AwayError

    async def is_away(self) -> bool:
        """Return whether the database is away, as a probe has it that begins now or is under way."""
        if not self._is_away:
            self._begin_probe()
            await self._has_probed.wait()
        return self._is_away

    async def close(self) -> None:
        """End the probes, and the queries that nobody waits for."""
        tasks = [*self._late, *([self._watch] if self._watch is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_probe(self) -> None:
        if self._watch is None:
            self._has_probed.clear()
            self._watch = asyncio.create_task(self._probe_until_it_is_back())

    async def _probe_until_it_is_back(self) -> None:
        try:
            while True:
                if await self._is_answered():
                    return
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._watch = None
            self._has_probed.set()

    async def _is_answered(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._probe()
        except Exception as error:  # noqa: BLE001 - whatever keeps it from answering
            if not self._is_away:
                log.warning("gateway.database_away", why=fault(error))
            self._is_away = True
            self._when_away()
        else:
            if self._is_away:
                log.info("gateway.database_back")
            self._is_away = False
        self._has_probed.set()
        return not self._is_away

    def _leave(self, task: asyncio.Task[T]) -> None:
        self._late.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[T]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()
