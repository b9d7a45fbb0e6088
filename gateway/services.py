"""What the requests of one gateway process share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import structlog

from api.http.bytes_under_way import BytesUnderWay
from api.services import Services
from gateway.callers import Callers
from gateway.conversations.histories import RowDigests
from gateway.metrics import GatewayMetrics
from gateway.patience import Patience
from gateway.upstreams import ProviderCalls, Providers
from store.gateway import histories as stored

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from runtime.settings import Settings

log = structlog.get_logger()

ENDING_SECONDS: Final = 10.0
"""Seconds that a gateway which ends gives the last turns to be stored."""
_WARM: Final = 2
"""Connections that are open before the first request needs one."""
_NEWEST: Final = 16
"""Beginnings of a history by which a turn that is being stored is known."""
_NOBODY: Final = UUID(int=0)


class GatewayServices:
    """The service's own parts, and the providers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.core = Services(settings)
        self.providers = Providers(settings)
        self.calls = ProviderCalls(settings)
        self.under_way = BytesUnderWay(max(settings.gateway_max_bytes_under_way, settings.gateway_max_body_bytes))
        self.digests = RowDigests()
        self.metrics = GatewayMetrics(self.core.metrics.registry)
        self.patience = Patience(settings.gateway_patience_seconds)
        self.learning = Learning()
        self.callers: Callers

    async def start(self) -> None:
        """Open what has to be open before the first request. The database need not be up yet."""
        await self.core.start()
        self.callers = Callers(self.core.authenticator, self.patience, self.settings.gateway_key_grace_seconds)
        await asyncio.gather(*(self._warm() for _ in range(_WARM)))

    async def stop(self) -> None:
        """Store the last turns and close every connection."""
        await self.learning.stop()
        await self.patience.close()
        await self.calls.close()
        await self.core.stop()

    async def _warm(self) -> None:
        with suppress(Exception):
            await stored.find(self.core.pool, _NOBODY, [b"\x00"])


class Learning:
    """Turns that are being stored. A request of the same conversation waits for the one before it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._by_key: dict[tuple[UUID, bytes], asyncio.Task[Any]] = {}

    def begin(self, tenant_id: UUID, keys: Sequence[bytes], storing: Coroutine[Any, Any, Any]) -> None:
        """Store a turn beside the requests; `keys` are those of its history's beginnings."""
        task = asyncio.create_task(storing)
        self._tasks.add(task)
        # Who edits or regenerates goes on from a little before the end.
        newest = [(tenant_id, key) for key in keys[-_NEWEST:]]
        self._by_key.update(dict.fromkeys(newest, task))

        def ended(_: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            for each in newest:
                if self._by_key.get(each) is task:
                    del self._by_key[each]

        task.add_done_callback(ended)

    async def settled(self, tenant_id: UUID, keys: Sequence[bytes]) -> None:
        """Wait until what a history goes on from is stored."""
        if self._by_key:
            for key in reversed(keys):
                if (task := self._by_key.get((tenant_id, key))) is not None:
                    await asyncio.wait({task})
                    return

    async def stop(self) -> None:
        """Wait for the last turns, for a while."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDING_SECONDS)
        for task in self._tasks:
            task.cancel()
