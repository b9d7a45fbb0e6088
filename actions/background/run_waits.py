"""Waiting for runs to end: one query a tenant and tick, however many requests wait."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from actions.background.ending import end
from runtime.errors import RETRY_AFTER_SECONDS, RequestError
from store.runs.ended import active_among

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    Run = Callable[..., Awaitable[Any]]
    Waiting = defaultdict[UUID, set[asyncio.Future[None]]]

TICK_SECONDS: Final = 0.1
"""Seconds between two looks."""
MOST: Final = 100
"""Requests of one tenant that may wait in one process; each keeps a connection."""


class RunWaits:
    """Tells requests of one process when the runs that they wait for have ended.

    `run` carries out a query of the store on behalf of a tenant. It is asked for one tenant after the other, so that
    waiting takes one connection to the database at most.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: defaultdict[UUID, Waiting] = defaultdict(lambda: defaultdict(set))
        """By tenant and run."""
        self._polling: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Look no more."""
        await end(self._polling)

    async def wait(self, tenant_id: UUID, run_id: UUID, seconds: float) -> None:
        """Return once a run of a tenant is over or gone, or after so many seconds.

        Raises the problem of too many requests that wait, and what looking raises.
        """
        if sum(map(len, self._waiting[tenant_id].values())) >= MOST:
            raise RequestError(
                "rate_limited",
                f"At most {MOST} requests of a tenant wait for runs here at a time.",
                retry_after=RETRY_AFTER_SECONDS,
            )
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[tenant_id][run_id].add(ended)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            await asyncio.wait((ended,), timeout=seconds)
        finally:
            self._leave(tenant_id, run_id, ended)
        if ended.done():
            ended.result()

    def _leave(self, tenant_id: UUID, run_id: UUID, ended: asyncio.Future[None]) -> None:
        of_tenant = self._waiting[tenant_id]
        of_tenant[run_id].discard(ended)
        if not of_tenant[run_id]:
            del of_tenant[run_id]
        if not of_tenant:
            del self._waiting[tenant_id]

    async def _poll(self) -> None:
        while self._waiting:
            for tenant_id in list(self._waiting):
                await self._poll_tenant(tenant_id)
            await asyncio.sleep(TICK_SECONDS)

    async def _poll_tenant(self, tenant_id: UUID) -> None:
        asked = {run_id: set(waiting) for run_id, waiting in self._waiting.get(tenant_id, {}).items()}
        failure: Exception | None = None
        active: set[UUID] = set()
        try:
            active = await self._run(tenant_id, active_among, tenant_id, list(asked)) if asked else set()
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait are answered with it
            failure = error
        over = (ended for run_id, waiting in asked.items() if run_id not in active for ended in waiting)
        for ended in over:
            if ended.done():
                continue
            if failure is None:
                ended.set_result(None)
            else:
                ended.set_exception(failure)
