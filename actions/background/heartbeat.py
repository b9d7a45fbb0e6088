"""Heartbeat of an API or a gateway process: the row by which the installation counts it."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import structlog

from runtime import ids
from runtime.log import fault
from runtime.release import VERSION
from store.operations import processes
from store.operations.processes import Activity, Process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection

    from store.operations.processes import ServerKind

    RunWithoutTenant = Callable[[Callable[[Connection], Any]], Awaitable[Any]]

log = structlog.get_logger()

BEAT_SECONDS: Final = 2.0
"""Most seconds that one heartbeat may take: a database that is away is asked again at the next."""
LEAVE_SECONDS: Final = 2.0
"""Seconds that a process which ends gives the database to remove its row."""


class Heartbeat:
    """Writes every few seconds that the process is alive, off the request path, and removes the row at the end.

    Nothing depends on it but what people are shown: a heartbeat that cannot be written is left out.
    """

    def __init__(self, run_without_tenant: RunWithoutTenant, kind: ServerKind, seconds: float) -> None:
        self._run_without_tenant = run_without_tenant
        self._kind = kind
        self._seconds = seconds
        self._process: Process
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to beat, as the process that calls this: servers with several processes make theirs after the fork."""
        self._process = Process(ids.new_id(), self._kind, socket.gethostname(), os.getpid(), [], VERSION, 0)
        self._task = asyncio.create_task(self._beat_on())

    async def stop(self) -> None:
        """Remove the process's row, if the database answers in time."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        with suppress(Exception):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._run_without_tenant(lambda connection: processes.leave(connection, self._process.id))

    async def _beat_on(self) -> None:
        while True:
            await self._beat()
            await asyncio.sleep(self._seconds)

    async def _beat(self) -> None:
        try:
            async with asyncio.timeout(BEAT_SECONDS):
                await self._run_without_tenant(lambda connection: processes.beat(connection, self._process, Activity()))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next heartbeat tries again
            if not self._is_lost:
                # Once an outage: requests say the same of it.
                log.warning("heartbeat.lost", error=fault(error))
            self._is_lost = True
        else:
            self._is_lost = False
