"""What the requests of one gateway process share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from actions.auth.principals import Authenticator
from actions.services import Services
from gateway.callers import Callers
from gateway.conversations.rewritten import RememberedMeanings
from gateway.conversations.seen import SeenHistories
from gateway.conversations.unstored_turns import UnstoredTurns
from gateway.metrics import GatewayMetrics
from gateway.providers.calls import ProviderCalls
from gateway.providers.upstreams import Providers
from gateway.tenant_slots import TenantSlots
from gateway.timeouts import Deadline
from runtime.held_bytes import BytesUnderWay
from runtime.threads import LARGE_BYTES
from store import hot_path
from store.gateway import histories as stored

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from gateway.conversations.turns import PendingExchange
    from runtime.settings import Settings
    from store.hot_pool import HotPool

MOST_REFUSED: Final = 4
"""Smaller contexts in a row that count; after so many, each is tried at a sixteenth of the first one's size."""
REMEMBERED_CONVERSATIONS: Final = 10_000
ENDING_SECONDS: Final = 10.0
"""Seconds that a gateway which ends gives the last turns to be stored."""
APART_CONNECTIONS: Final = 2
"""Connections for keys and for probes: no history is looked up on them, however many wait for the others."""
READINGS: Final = 1
"""Large bodies of a tenant that are read at a time: they hold the interpreter, which others need too."""
LONG_TURNS: Final = 1
"""Histories of several turns of a tenant that are stored at a time."""
_WARM: Final = 2
"""Connections that are open before the first request needs one."""
_NEWEST: Final = 16
"""Beginnings of a history by which a turn that is being stored is known."""
_LOOKED_AT: Final = 128
"""Beginnings of a request's history, the longest, that are looked for among them."""
_NOBODY: Final = UUID(int=0)


class GatewayServices:
    """The service's own parts, and the providers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.core = Services(settings, "gateway")
        self.providers = Providers(settings)
        self.calls = ProviderCalls(settings)
        self.under_way = BytesUnderWay(max(settings.gateway_max_bytes_under_way, settings.gateway_max_body_bytes))
        self.seen = SeenHistories()
        self.meanings = RememberedMeanings()
        self.metrics = GatewayMetrics(self.core.metrics.registry)
        lookups = TenantSlots(max(1, settings.database_pool_size // 2))
        self.deadline = Deadline(settings.gateway_patience_seconds, self._probe, lookups, when_away=self._when_away)
        self.readings = TenantSlots(READINGS)
        self.long_turns = TenantSlots(LONG_TURNS)
        self.refused_shrinks = RefusedShrinks()
        self.learning = Learning()
        self.unstored = UnstoredTurns(self.metrics)
        self._apart: HotPool
        self.callers: Callers

    async def start(self) -> None:
        """Open what has to be open before the first request. The database need not be up yet."""
        await self.core.start()
        self._apart = await hot_path.open_pool(self.settings, size=APART_CONNECTIONS)
        core = self.core
        keys = Authenticator(self._apart, self.settings.policy, core.last_used, core.tokens)
        self.callers = Callers(keys, self.deadline, self.settings.gateway_key_grace_seconds)
        await asyncio.gather(*(self._warm() for _ in range(_WARM)))

    async def stop(self) -> None:
        """Store the last turns and close every connection."""
        await self.learning.stop()
        await self.unstored.stop()
        await self.deadline.close()
        await self.calls.close()
        await self._apart.close()
        await self.core.stop()

    async def _probe(self) -> None:
        await hot_path.probe(self._apart)

    def _when_away(self) -> None:
        for pool in (self._apart, self.core.pool):
            pool.close_idle()

    async def _warm(self) -> None:
        with suppress(Exception):
            await stored.find(self.core.pool, _NOBODY, [b"\x00"])


class RefusedShrinks:
    """How many smaller contexts of a conversation were refused in a row, in this process and of late."""

    def __init__(self) -> None:
        self._counts: OrderedDict[UUID, int] = OrderedDict()

    def of(self, conversation_id: UUID) -> int:
        """Return the count of a conversation."""
        return self._counts.get(conversation_id, 0)

    def add(self, conversation_id: UUID) -> None:
        """Count one more, up to MOST_REFUSED."""
        self._counts[conversation_id] = min(self.of(conversation_id) + 1, MOST_REFUSED)
        self._counts.move_to_end(conversation_id)
        if len(self._counts) > REMEMBERED_CONVERSATIONS:
            self._counts.popitem(last=False)

    def forget(self, conversation_id: UUID) -> None:
        """Begin anew: one was accepted."""
        self._counts.pop(conversation_id, None)


class Storing(NamedTuple):
    """A turn that is being stored."""

    task: asyncio.Task[Any]
    conversation_id: UUID
    rows: int
    """Of the request's history that are stored with it, or were before."""
    is_long: bool
    """Whether a request does not wait for it: a long history takes longer than anybody should."""


class Learning:
    """Turns that are being stored, those of one conversation one after the other."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._by_key: dict[tuple[UUID, bytes], Storing] = {}

    def begin(self, storing: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Store something beside the requests."""
        task = asyncio.create_task(storing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def begin_turn(
        self,
        tenant_id: UUID,
        learned: PendingExchange,
        storing: Coroutine[Any, Any, Any],
        *,
        names: Sequence[bytes] = (),
    ) -> None:
        """Store a turn beside the requests, after the one that it goes on from; `names` stand for its answer."""
        keys = learned.keys
        earlier = self.under_way(tenant_id, keys)
        task = self.begin(_after(earlier.task, storing) if earlier is not None else storing)
        size = sum(map(len, learned.history.rows[learned.place.matched :]))
        is_long = size > LARGE_BYTES or (earlier is not None and earlier.is_long)
        # Who edits or regenerates goes on from a little before the end.
        first = max(0, len(keys) - _NEWEST)
        newest = {
            (tenant_id, key): Storing(task, learned.place.conversation_id, rows, is_long)
            for rows, key in enumerate(keys[first:], start=first + 1)
        }
        here, rows = learned.place.conversation_id, len(keys)
        if learned.scope is not None:
            names = [*names, learned.scope.circle]
        newest |= {(tenant_id, name): Storing(task, here, rows, is_long) for name in names}
        self._by_key.update(newest)

        def forget(_: asyncio.Task[Any]) -> None:
            for each in newest:
                if (known := self._by_key.get(each)) is not None and known.task is task:
                    del self._by_key[each]

        task.add_done_callback(forget)

    def under_way(self, tenant_id: UUID, keys: Sequence[bytes]) -> Storing | None:
        """Return what a history goes on from, while that is being stored."""
        if not self._by_key:
            return None
        newest = reversed(keys[-_LOOKED_AT:])
        return next((known for key in newest if (known := self._by_key.get((tenant_id, key))) is not None), None)

    async def settled(self, tenant_id: UUID, keys: Sequence[bytes]) -> None:
        """Wait until what a history goes on from is stored."""
        if (storing := self.under_way(tenant_id, keys)) is not None:
            await asyncio.wait({storing.task})

    async def stop(self) -> None:
        """Wait for the last turns, for a while."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ENDING_SECONDS)
        for task in self._tasks:
            task.cancel()


async def _after(earlier: asyncio.Task[Any], storing: Coroutine[Any, Any, Any]) -> None:
    """Store a turn once the one that it goes on from is."""
    try:
        await asyncio.wait({earlier})
    except asyncio.CancelledError:
        storing.close()
        raise
    await storing
