"""Calls that would wait for a connection go to the database together: one statement, one commit, an outcome each.

A call alone is most of all a transaction of its own: eight in one take less than half of the database's time. Nothing
waits for others to come: as long as few are under way each goes by itself, and those that come while they are go next.

A row that somebody else has locked, as for a fork, holds up its own calls and no others: of those that write to one row
one statement is under way, and those that wait for rows leave half of the statements to the others.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from uuid import UUID

MOST_TOGETHER: Final = 8
"""Calls that write in one statement. All of them wait for the slowest."""
MOST_READ_TOGETHER: Final = 4
"""Calls that read in one statement: their answers are large, and are in memory together."""
LOCK_MILLISECONDS: Final = 50
"""Milliseconds that calls together wait for a row that somebody else has locked; then each goes alone."""
ROW_SECONDS: Final = 2.0
"""Seconds that a call waits for another of its row, which may itself wait for somebody else."""
_HELD: Final = -1
_BOUNDED: Final = -2
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
        """Have at most so many statements under way; a call waits `patience` seconds for its turn.

        Those that wait for rows which somebody else has locked count up to half of them: the other half is for calls
        that go on.
        """
        self._alone = connections.write if writes else connections.read
        self._together = connections.write_many if writes else connections.read_many
        self._writes = writes
        self._most = MOST_TOGETHER if writes else MOST_READ_TOGETHER
        self._query = query
        self._most_under_way = most_under_way
        self._most_held = max(1, most_under_way // 2)
        self._patience = patience
        self._under_way = 0
        self._held = 0
        """How many of them wait for a row, as long as that takes."""
        self._waiting: deque[_Waiting] = deque()
        self._rows: dict[UUID, int] = {}
        """What is written, by one statement each: _HELD, _BOUNDED, or the watch before which a call began alone."""
        self._behind: dict[UUID, deque[_Waiting]] = {}
        """Calls that wait for one of these rows."""
        self._places: deque[asyncio.Future[None]] = deque()
        """Calls whose rows are locked, and that wait until fewer wait so."""
        self._watch = 0
        self._watching: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, row: UUID, *arguments: Any) -> Any:
        """Make a call; return its row, and raise what it raises. `row` is the id of the one that it reads or locks.

        Raises TimeoutError for one whose turn does not come in time.
        """
        if self._under_way < self._most_under_way and not self._held and row not in self._rows:
            self._under_way += 1
            if self._writes:
                self._rows[row] = self._watch
            try:
                return await self._alone(self._query, *arguments)
            finally:
                self._leave(row)
                self._end()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        is_behind = row in self._rows
        expiry = loop.call_later(ROW_SECONDS if is_behind else self._patience, _give_up, answer)
        self._wait(_Waiting(row, arguments, answer, expiry))
        if not is_behind:
            self._start()
        try:
            return await answer
        finally:
            expiry.cancel()

    def _wait(self, waiting: _Waiting) -> None:
        """Have a call wait for its turn, or for that of its row."""
        if waiting.row in self._rows:
            self._behind.setdefault(waiting.row, deque()).append(waiting)
        else:
            self._waiting.append(waiting)

    def _leave(self, row: UUID) -> None:
        """Let the next go that wait for a row, and where that was locked the next of those that wait for others."""
        if self._rows.pop(row, None) == _HELD:
            self._held -= 1
            while self._places and self._held < self._most_held:
                place = self._places.popleft()
                if not place.done():
                    place.set_result(None)
                    break
        if (behind := self._behind.get(row)) is not None:
            self._waiting.extendleft(reversed([behind.popleft() for _ in range(min(self._most, len(behind)))]))
            if not behind:
                del self._behind[row]

    def _end(self) -> None:
        """Let those go next that wait."""
        self._under_way -= 1
        self._start()

    def _start(self) -> None:
        """Let those go that wait, as far as there is room."""
        while self._waiting and self._under_way - max(0, self._held - self._most_under_way // 2) < self._most_under_way:
            if group := self._next():
                self._under_way += 1
                self._do(self._go(group))
        if self._waiting and self._writes and self._watching is None:
            self._watch += 1
            self._watching = asyncio.get_running_loop().call_later(LOCK_MILLISECONDS / 1000, self._look)

    def _look(self) -> None:
        """Take those that are alone since before the watch began for held up by their rows: others need not wait."""
        self._watching = None
        if self._waiting:
            for row, began in self._rows.items():
                if 0 <= began < self._watch:
                    self._rows[row] = _HELD
                    self._held += 1
            self._start()

    def _next(self) -> list[_Waiting]:
        """Return calls that go together, of those that wait."""
        group: list[_Waiting] = []
        own: set[UUID] = set()
        while self._waiting and len(group) < self._most:
            waiting = self._waiting.popleft()
            if waiting.answer.done():
                if waiting.row not in self._rows:
                    self._leave(waiting.row)
            elif waiting.row in self._rows and waiting.row not in own:
                self._wait(waiting)
            else:
                waiting.expiry.cancel()
                group.append(waiting)
                if self._writes:
                    self._rows[waiting.row] = _BOUNDED
                    own.add(waiting.row)
        return group

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go(self, group: list[_Waiting]) -> None:
        # Two groups that lock the same rows in one order never wait for each other.
        group.sort(key=lambda waiting: waiting.row)
        locked: dict[UUID, list[_Waiting]] = {}
        try:
            if len(group) > 1:
                locked = await self._go_together(group)
            elif self._held:
                locked = await self._go_bounded(group)
            else:
                if self._writes:
                    self._rows[group[0].row] = self._watch
                await self._go_alone(group[0])
        finally:
            for row in dict.fromkeys(waiting.row for waiting in group):
                if row in locked:
                    self._hold(*locked[row])
                else:
                    self._leave(row)
            self._end()

    def _hold(self, first: _Waiting, *others: _Waiting) -> None:
        """Have calls wait for their row, which is locked, the others behind the first."""
        call_later = asyncio.get_running_loop().call_later
        again = [each._replace(expiry=call_later(ROW_SECONDS, _give_up, each.answer)) for each in others]
        if again:
            self._behind.setdefault(first.row, deque()).extendleft(reversed(again))
        self._do(self._go_locked(first))

    async def _go_together(self, group: list[_Waiting]) -> dict[UUID, list[_Waiting]]:
        """Make calls together, or each by itself; return those whose rows are locked, by these."""
        try:
            rows = await self._at_once(group)
        except BaseException as error:
            if _is_rolled_back(error):
                rows_calls = [list(calls) for _, calls in groupby(group, lambda waiting: waiting.row)]
                each = await asyncio.gather(*map(self._go_bounded, rows_calls))
                return {row: calls for locked in each for row, calls in locked.items()}
            for waiting in group:
                _fail(waiting.answer, error)
            if not isinstance(error, Exception):
                raise
        else:
            for waiting, row in zip(group, rows, strict=True):
                _answer(waiting.answer, row)
        return {}

    async def _go_bounded(self, calls: list[_Waiting]) -> dict[UUID, list[_Waiting]]:
        """Make calls of one row, one after the other; return those that are left if that is locked."""
        for place, waiting in enumerate(calls):
            if not self._writes:
                await self._go_alone(waiting)
                continue
            try:
                (row,) = await self._at_once([waiting])
            except asyncpg.LockNotAvailableError:
                return {waiting.row: calls[place:]}
            except BaseException as error:
                _fail(waiting.answer, error)
                if not isinstance(error, Exception):
                    raise
            else:
                _answer(waiting.answer, row)
        return {}

    async def _at_once(self, group: list[_Waiting]) -> Sequence[Any]:
        """Make calls in one statement, which waits no longer than LOCK_MILLISECONDS for a row; return their rows."""
        arguments = [argument for waiting in group for argument in waiting.arguments]
        rows = await self._together(_together(self._query, len(group), locks=self._writes), *arguments)
        return rows[self._writes :]

    async def _go_locked(self, waiting: _Waiting) -> None:
        """Make a call whose row is locked and wait for that, as one of few."""
        try:
            while self._held >= self._most_held:
                await self._place()
        except TimeoutError as error:
            _fail(waiting.answer, error)
        if waiting.answer.done():
            self._leave(waiting.row)
            self._start()
            return
        self._under_way += 1
        self._held += 1
        self._rows[waiting.row] = _HELD
        try:
            await self._go_alone(waiting)
        finally:
            self._leave(waiting.row)
            self._end()

    async def _place(self) -> None:
        """Return when fewer calls wait for their rows."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        expiry = loop.call_later(self._patience, _give_up, place)
        self._places.append(place)
        try:
            await place
        finally:
            expiry.cancel()

    async def _go_alone(self, waiting: _Waiting) -> None:
        try:
            row = await self._alone(self._query, *waiting.arguments)
        except BaseException as error:
            _fail(waiting.answer, error)
            if not isinstance(error, Exception):
                raise
        else:
            _answer(waiting.answer, row)


@cache
def _together(query: str, count: int, *, locks: bool) -> str:
    """Return a statement of so many calls, each with its own arguments; where they lock, its first row is nobody's."""
    places = max((int(number) for number in _PLACE.findall(query)), default=0)
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


def _answer(answer: asyncio.Future[Any], row: Any) -> None:
    if not answer.done():
        answer.set_result(row)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error if isinstance(error, Exception) else TimeoutError("given up"))
