"""Calls that would wait for a connection go to the database together: one statement, one commit, an outcome each.

A call alone is most of all a transaction of its own: eight in one take less than half of the database's time. Nothing
waits for others to come: as long as few are under way each goes by itself, and those that come while they are go next.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

MOST_TOGETHER: Final = 8
"""Calls that write in one statement. All of them wait for the slowest."""
MOST_READ_TOGETHER: Final = 4
"""Calls that read in one statement: their answers are large, and are in memory together."""
LOCK_MILLISECONDS: Final = 50
"""Milliseconds that calls together wait for a row that somebody else has locked; then each goes alone."""
_PLACE: Final = re.compile(r"\$(\d+)")


class Connections(Protocol):
    """Where the calls are made: `HotPool`."""

    async def read(self, query: str, *arguments: Any) -> Any:
        """Make one call; return the first row of its answer."""

    async def read_many(self, query: str, *arguments: Any) -> Sequence[Any]:
        """Make calls together; return the rows of their answers."""

    async def write(self, query: str, *arguments: Any) -> Any:
        """Make one call that writes; return the first row of its answer."""

    async def write_many(self, query: str, *arguments: Any) -> Sequence[Any]:
        """Make calls that write together; return the rows of their answers."""


class _Waiting(NamedTuple):
    row: UUID
    arguments: Sequence[Any]
    answer: asyncio.Future[Any]
    expiry: asyncio.TimerHandle


class CallGroups:
    """Calls of one query, which returns a row; where it writes, one of a text, three integers and a boolean."""

    def __init__(
        self, connections: Connections, query: str, *, writes: bool, most_under_way: int, patience: float
    ) -> None:
        """Have at most so many statements under way; a call waits `patience` seconds for its turn."""
        self._alone = connections.write if writes else connections.read
        self._together = connections.write_many if writes else connections.read_many
        self._writes = writes
        self._most = MOST_TOGETHER if writes else MOST_READ_TOGETHER
        self._query = query
        self._most_under_way = most_under_way
        self._patience = patience
        self._under_way = 0
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, row: UUID, *arguments: Any) -> Any:
        """Make a call; return its row, and raise what it raises. `row` is the id of the one that it reads or locks.

        Raises TimeoutError for one whose turn does not come in time.
        """
        if self._under_way < self._most_under_way:
            self._under_way += 1
            try:
                return await self._alone(self._query, *arguments)
            finally:
                self._end()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        expiry = loop.call_later(self._patience, _give_up, answer)
        self._waiting.append(_Waiting(row, arguments, answer, expiry))
        try:
            return await answer
        finally:
            expiry.cancel()

    def _end(self) -> None:
        """Let those go next that wait."""
        self._under_way -= 1
        group: list[_Waiting] = []
        while self._waiting and len(group) < self._most:
            waiting = self._waiting.popleft()
            if not waiting.answer.done():
                waiting.expiry.cancel()
                group.append(waiting)
        if group:
            self._under_way += 1
            task = asyncio.create_task(self._go(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _go(self, group: list[_Waiting]) -> None:
        # Two groups that lock the same rows in one order never wait for each other.
        group.sort(key=lambda waiting: waiting.row)
        try:
            if len(group) == 1:
                await self._go_alone(group[0])
            else:
                await self._go_together(group)
        finally:
            self._end()

    async def _go_together(self, group: list[_Waiting]) -> None:
        arguments = [argument for waiting in group for argument in waiting.arguments]
        try:
            rows = await self._together(_together(self._query, len(group), locks=self._writes), *arguments)
            answered = list(zip(group, rows[self._writes :], strict=True))
        except BaseException as error:
            if _is_rolled_back(error):
                await asyncio.gather(*map(self._go_alone, group))
                return
            for waiting in group:
                _fail(waiting.answer, error)
            if not isinstance(error, Exception):
                raise
        else:
            for waiting, row in answered:
                if not waiting.answer.done():
                    waiting.answer.set_result(row)

    async def _go_alone(self, waiting: _Waiting) -> None:
        try:
            row = await self._alone(self._query, *waiting.arguments)
        except BaseException as error:
            _fail(waiting.answer, error)
            if not isinstance(error, Exception):
                raise
        else:
            if not waiting.answer.done():
                waiting.answer.set_result(row)


@cache
def _together(query: str, count: int, *, locks: bool) -> str:
    """Return a statement of so many calls, each with its own arguments; where they lock, its first row is nobody's."""
    places = max(int(number) for number in _PLACE.findall(query))
    calls = (_PLACE.sub(lambda place: f"${int(place[1]) + call * places}", query) for call in range(count))  # noqa: B023
    bound = [f"select set_config('lock_timeout', '{LOCK_MILLISECONDS}ms', true), 0, 0, 0, false"] if locks else []
    return " union all ".join((*bound, *calls))


def _is_rolled_back(error: BaseException) -> bool:
    """Tell whether nothing was stored, for certain: with a lost connection, or a farewell, it may have been."""
    # What is refused before it is sent, or told of a standby, is no word of the server's.
    is_ours = isinstance(error, (asyncpg.DataError, asyncpg.ReadOnlySQLTransactionError))
    return is_ours or getattr(error, "severity_en", None) == "ERROR"


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError("no connection came free"))


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error if isinstance(error, Exception) else TimeoutError("given up"))
