"""Connections for the hot calls: as asyncpg's own pool, without what that does around every call.

Its timeouts, proxies and shielded releases cost about a fifth of what a call costs in Python; the calls here leave no
state behind that would have to be reset, and each is one statement.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from store.hosts import require_writes_async
from store.hot_groups import CallGroups
from store.hot_writes import Writes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

MAX_IDLE_SECONDS: Final = 300.0
"""Seconds after which a connection that nobody used is closed, as in asyncpg's pool."""
MAX_CALLS: Final = 50_000
"""Calls after which a connection makes room for a new one, as in asyncpg's pool: servers' processes grow."""
_OF_PRIMARY: Final = " where current_setting('transaction_read_only') = 'off'"
"""Has a query answer with nothing where the server takes no writes."""
_TIMELINE: Final = """
select case when pg_is_in_recovery() then '' else left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end"""
"""What distinguishes a promoted standby's commits from those that its primary went on with: 8 hexadecimal digits."""


class _Lane:
    """A connection, how often it was used, and when last."""

    __slots__ = ("calls", "connection", "used")

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.calls = 0
        self.used = 0.0


class HotPool:
    """Connections that are opened as they are needed and lent for one call each, the last used first."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        *,
        size: int,
        patience: float,
        of_primary: bool = False,
    ) -> None:
        """Take at most `size` connections; a call waits `patience` seconds for one, opening included.

        Those on which a write waits that the server does not answer do not count: as many again may be opened.
        of_primary: nothing is read from a server that takes no writes, which may be older than what others were told.
        """
        self._connect = connect
        self._of_primary = of_primary
        self._size = size
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Lane] = []
        self._waiting: deque[asyncio.Future[_Lane | None]] = deque()
        self._open = 0
        self._writes = Writes(size, self._loop.time)
        self._groups: dict[str, CallGroups] = {}
        self._closed = False
        self.waits = 0
        """Calls that found every connection in use."""
        self.timeouts = 0
        """Calls for which none came free in time."""
        self.timeline = ""
        """Postgres's, when the newest connection was opened; "" where it is not known."""
        self._ended = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()
        self._sweep = self._loop.call_later(MAX_IDLE_SECONDS, self._close_idle)

    async def fetchrow(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        """Make a call without a condition of its own; return the first row of its answer, None for none.

        Raises TimeoutError when no connection comes free or the call takes too long, and what asyncpg raises.
        """
        return await self.read(self._reading(query), *arguments)

    def _reading(self, query: str) -> str:
        return query + _OF_PRIMARY if self._of_primary else query

    async def _call(
        self, query: str, arguments: Sequence[Any], *, every_row: bool = False, of_primary: bool = False
    ) -> Any:
        lane = await self._take()
        fetch = lane.connection.fetch if every_row else lane.connection.fetchrow
        began = self._loop.time()
        try:
            answer = await fetch(query, *arguments)
            if of_primary and not answer:
                await require_writes_async(lane.connection)
        except (asyncpg.ReadOnlySQLTransactionError, asyncpg.PostgresConnectionError):
            # What has ended, or what a pooler says whose server has: the others lead to the same one.
            self._leave(lane)
            raise
        except TimeoutError:
            # A host that is gone without a word: whoever has heard of it since then may go on.
            self._retire(lane)
            self._discard_idle(began)
            raise
        except asyncpg.PostgresError:
            # The server has answered: the connection goes on unless that was a farewell.
            self._give_back(lane)
            raise
        except BaseException:
            # Given up halfway, by a timeout or a caller that went away: the next call would get this one's answer.
            self._retire(lane)
            raise
        if self._give_back(lane):
            # Who waited for it asks the database now, and not after this answer has been made and written.
            await asyncio.sleep(0)
        return answer

    async def write(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        """Make a call that writes; see `fetchrow`.

        Raises TimeoutError at once where others wait already that the server does not answer.
        """
        return await self._write(query, arguments)

    async def write_many(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Make calls that write in one statement; return all rows; see `write`."""
        rows: list[asyncpg.Record] = await self._write(query, arguments, every_row=True)
        return rows

    async def read(self, query: str, *arguments: Any) -> asyncpg.Record | None:
        """Make a call that has its condition; see `fetchrow`."""
        row: asyncpg.Record | None = await self._call(query, arguments, of_primary=self._of_primary)
        return row

    async def read_many(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Make calls that have their condition, and a row each, in one statement; return all rows; see `fetchrow`."""
        rows: list[asyncpg.Record] = await self._call(query, arguments, every_row=True, of_primary=self._of_primary)
        return rows

    async def read_together(self, row: UUID, query: str, *arguments: Any) -> Any:
        """Make a call, with others of the same query where all would wait; see `CallGroups`."""
        return await self._group(self._reading(query), writes=False).call(row, *arguments)

    async def write_together(self, locked: UUID, query: str, *arguments: Any) -> Any:
        """Make a call that writes, with others of the same query where all would wait; see `CallGroups`."""
        return await self._group(query, writes=True).call(locked, *arguments)

    def _group(self, query: str, *, writes: bool) -> CallGroups:
        group = self._groups.get(query)
        if group is None:
            half = max(1, self._size // 2)
            group = CallGroups(self, query, writes=writes, most_under_way=half, patience=self._patience)
            self._groups[query] = group
        return group

    async def _write(self, query: str, arguments: Sequence[Any], *, every_row: bool = False) -> Any:
        self._writes.begin()
        try:
            answer = await self._call(query, arguments, every_row=every_row)
        except TimeoutError:
            self._writes.unanswered()
            raise
        except asyncpg.LockNotAvailableError:
            # Somebody else has the row, and may be one whom the server does not answer: of that it says nothing.
            raise
        except asyncpg.PostgresError:
            self._writes.answered()
            raise
        finally:
            self._writes.end()
        self._writes.answered()
        return answer

    @property
    def size(self) -> int:
        """Most connections there may be."""
        return self._size

    def get_size(self) -> int:
        """Return how many connections are open or being opened."""
        return self._open

    def get_idle_size(self) -> int:
        """Return how many of them wait for a call."""
        return len(self._idle)

    def close_idle(self) -> None:
        """Close the connections that wait for a call: they may lead to a server that is gone."""
        self._discard_idle(self._loop.time())

    async def close(self) -> None:
        """Close every connection, once the calls under way have ended."""
        self._closed = True
        self._sweep.cancel()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()
        while self._idle:
            self._discard(self._idle.pop())
        if self._open:
            await self._ended.wait()

    @property
    def _room(self) -> int:
        """How many connections there may be just now."""
        return self._size + self._writes.stuck(len(self._retiring))

    async def _take(self) -> _Lane:
        while self._idle:
            lane = self._idle.pop()
            if not lane.connection.is_closed():
                return lane
            self._count_out()
        deadline = self._loop.time() + self._patience
        while not self._closed:
            if self._open < self._room:
                return await self._new(deadline)
            lent = await self._wait(deadline)
            if lent is not None:
                return lent
        raise asyncpg.InterfaceError("the pool is closed")

    async def _new(self, deadline: float) -> _Lane:
        self._open += 1
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._connect()
                self.timeline = await _timeline(connection)
                return _Lane(connection)
        except BaseException:
            self._count_out()
            self._wake(None)
            raise

    async def _wait(self, deadline: float) -> _Lane | None:
        """Return a connection that came free, or None where there is room for a new one."""
        waiting: asyncio.Future[_Lane | None] = self._loop.create_future()
        self._waiting.append(waiting)
        self.waits += 1
        timer = self._loop.call_at(deadline, _expire, waiting)
        try:
            return await waiting
        except TimeoutError:
            self.timeouts += 1
            raise
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                # It came in the moment in which the caller went away.
                lane = waiting.result()
                self._wake(None) if lane is None else self._give_back(lane)
            raise
        finally:
            timer.cancel()

    def _give_back(self, lane: _Lane) -> bool:
        """Lend a connection to whoever has waited longest, or keep it; return whether anybody waits."""
        lane.calls += 1
        if self._closed or lane.calls >= MAX_CALLS or lane.connection.is_closed():
            self._discard(lane)
            return self._wake(None)
        if self._wake(lane):
            return True
        if self._open > self._room:
            self._discard(lane)
            return False
        lane.used = self._loop.time()
        self._idle.append(lane)
        return False

    def _leave(self, lane: _Lane) -> None:
        """Close a connection to a server that is no primary any more, and the idle ones: the next go where one is."""
        self._discard(lane)
        self._discard_idle(self._loop.time())
        self._wake(None)

    def _wake(self, lane: _Lane | None) -> bool:
        """Give whoever has waited longest a connection, or the room for one; return whether anybody waits."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(lane)
                return True
        return False

    def _retire(self, lane: _Lane) -> None:
        """Close a connection with a call under way; asyncpg has the server end that first."""
        task = self._loop.create_task(self._end(lane))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _end(self, lane: _Lane) -> None:
        with contextlib.suppress(Exception):
            await lane.connection.close(timeout=self._patience)
        self._discard(lane)
        self._wake(None)

    def _discard(self, lane: _Lane) -> None:
        # Between two calls there is nothing to say goodbye for; the server sees the connection's end.
        lane.connection.terminate()
        self._count_out()

    def _discard_idle(self, since: float) -> None:
        """Close the idle connections that no call has ended on since then; the last used are last."""
        kept = next((place for place, lane in enumerate(self._idle) if lane.used >= since), len(self._idle))
        unheard, self._idle = self._idle[:kept], self._idle[kept:]
        for lane in unheard:
            self._discard(lane)

    def _count_out(self) -> None:
        self._open -= 1
        if self._closed and not self._open:
            self._ended.set()

    def _close_idle(self) -> None:
        self._discard_idle(self._loop.time() - MAX_IDLE_SECONDS)
        self._sweep = self._loop.call_later(MAX_IDLE_SECONDS / 5, self._close_idle)


async def _timeline(connection: asyncpg.Connection) -> str:
    """Return the timeline of a connection's server, "" where it keeps that to itself; a failure ends the connection."""
    try:
        timeline: str = await connection.fetchval(_TIMELINE)
    except (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError, asyncpg.UndefinedFunctionError):
        return ""
    except BaseException:
        connection.terminate()
        raise
    return timeline


def _expire(waiting: asyncio.Future[_Lane | None]) -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError("no connection came free"))
