"""The pool of the hot calls on a real server: its bounds, and what becomes of connections whose calls go wrong."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from cli.local.embedded import free_port
from store import hot_pool, hot_writes
from store.hot_pool import HotPool
from store.hot_writes import Writes
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runtime.settings import Settings

PID = "select pg_backend_pid() as pid"
HOLD = "select pg_temp.hold()"
"""Says at the server that it has begun, and goes on once lock 1 is free; meanwhile it has lock 2."""
_HOLD = """
    create function pg_temp.hold() returns integer language plpgsql as $$ begin
        perform pg_advisory_xact_lock_shared(2);
        raise notice 'begun';
        perform pg_advisory_xact_lock(1);
        return 1;
    end $$
"""


@pytest.fixture(scope="module")
def database_url(module_settings: Settings) -> str:
    """The URL of the module's database: nothing is stored in it."""
    return module_settings.database_url.get_secret_value()


class Signals:
    """What the server tells of a pool's connections."""

    def __init__(self) -> None:
        self._begun = asyncio.Semaphore(0)
        self.ended = asyncio.Event()
        """A connection has ended."""

    async def connect(self, url: str) -> asyncpg.Connection:
        """Open a connection and listen to it."""
        connection = await asyncpg.connect(url, command_timeout=10)
        await connection.execute(_HOLD)
        connection.add_log_listener(lambda *_: self._begun.release())
        connection.add_termination_listener(lambda _: self.ended.set())
        return connection

    async def begun(self, calls: int) -> None:
        """Wait until so many more calls of HOLD have begun."""
        async with asyncio.timeout(20):
            for _ in range(calls):
                await self._begun.acquire()


def pooled(
    url: str, test: Callable[[HotPool, Signals], Awaitable[None]], *, size: int = 2, patience: float = 10.0
) -> None:
    """Run a test with a pool of its own."""

    async def run() -> None:
        signals = Signals()
        pool = HotPool(partial(signals.connect, url), size=size, patience=patience)
        try:
            await test(pool, signals)
        finally:
            async with asyncio.timeout(20):
                await pool.close()
        assert pool.get_size() == 0

    asyncio.run(run())


async def pid(pool: HotPool) -> int:
    row = await pool.fetchrow(PID)
    assert row is not None
    found: int = row["pid"]
    return found


def test_calls_share_few_connections(database_url: str) -> None:
    async def test(pool: HotPool, _: Signals) -> None:
        seen = set(await asyncio.gather(*(pid(pool) for _ in range(50))))
        assert len(seen) == pool.get_size() == pool.get_idle_size() == 2
        assert {await pid(pool) for _ in range(3)} <= seen

    pooled(database_url, test)


def test_whoever_waits_is_served_before_an_answer_is_made_of_a_row(database_url: str) -> None:
    order: list[tuple[str, int]] = []

    class Told(asyncpg.Connection):  # type: ignore[misc] # asyncpg ships no types
        async def fetchrow(self, query: str, number: int, **options: Any) -> Any:
            order.append(("asked", number))
            return await super().fetchrow(query, number, **options)

    async def run() -> None:
        pool = HotPool(partial(asyncpg.connect, database_url, connection_class=Told), size=1, patience=10)

        async def call(number: int) -> None:
            await pool.fetchrow("select $1::int", number)
            order.append(("answered", number))

        await asyncio.gather(*map(call, range(3)))
        await pool.close()

    asyncio.run(run())
    assert order == [("asked", 0), ("asked", 1), ("answered", 0), ("asked", 2), ("answered", 1), ("answered", 2)]


def test_a_call_that_gets_no_connection_gives_up(database_url: str) -> None:
    async def test(pool: HotPool, signals: Signals) -> None:
        with psycopg.connect(database_url, autocommit=True) as holder:
            holder.execute("select pg_advisory_lock(1)")
            calls = [asyncio.create_task(pool.fetchrow(HOLD)) for _ in range(2)]
            await signals.begun(2)
            with pytest.raises(TimeoutError):
                await pool.fetchrow(PID)
            holder.execute("select pg_advisory_unlock(1)")
            await asyncio.gather(*calls)
        assert await pid(pool)

    pooled(database_url, test, patience=0.3)


def test_what_is_read_does_not_wait_for_writes_that_are_not_answered(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have taken every connection: others are opened for it, none for more writes, and closed once it is over."""

    async def test(pool: HotPool, signals: Signals) -> None:
        with psycopg.connect(database_url, autocommit=True) as holder:
            holder.execute("select pg_advisory_lock(1)")
            calls = [asyncio.create_task(pool.write(HOLD)) for _ in range(2)]
            await signals.begun(2)
            monkeypatch.setattr(hot_writes, "SILENT_SECONDS", 0.0)
            with pytest.raises(TimeoutError, match="not answered"):
                await pool.write(PID)
            assert len({await pid(pool) for _ in range(3)}) == 1
            assert pool.get_size() == 3
            holder.execute("select pg_advisory_unlock(1)")
            await asyncio.gather(*calls)
        await asyncio.gather(*(pid(pool) for _ in range(6)))
        assert pool.get_size() == pool.get_idle_size() == 2
        assert await pool.write(PID)

    pooled(database_url, test)


def test_what_is_read_does_not_wait_for_the_end_of_writes_that_were_given_up(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's process cannot end them: it sees nothing but its disk, here not even that."""

    async def test(pool: HotPool, signals: Signals) -> None:
        stopped = await pid(pool)
        with psycopg.connect(database_url, autocommit=True) as holder:
            holder.execute("select pg_advisory_lock(1)")
            call = asyncio.create_task(pool.write(HOLD))
            await signals.begun(1)
            monkeypatch.setattr(hot_writes, "SILENT_SECONDS", 0.0)
            os.kill(stopped, signal.SIGSTOP)
            try:
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert await pid(pool) != stopped
                assert pool.get_size() == 2  # that of the write is still being closed
            finally:
                os.kill(stopped, signal.SIGCONT)

    pooled(database_url, test, size=1)


def test_a_row_that_is_locked_is_no_answer_to_what_is_written(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has locked it may be waiting for a disk that takes nothing."""
    write = "select pg_advisory_xact_lock(1)"

    async def run() -> None:
        pool = HotPool(partial(asyncpg.connect, database_url, command_timeout=0.3), size=8, patience=10)
        with psycopg.connect(database_url, autocommit=True) as holder:
            holder.execute("select pg_advisory_lock(1)")
            monkeypatch.setattr(hot_writes, "SILENT_SECONDS", 0.0)
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await pool.write(write)
            with pytest.raises(asyncpg.LockNotAvailableError):
                await pool.write("select set_config('lock_timeout', '10ms', true), pg_advisory_xact_lock(1)")
            tried = [asyncio.create_task(pool.write(write)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError, match="not answered"):
                await pool.write(write)
            assert [type(each) for each in await asyncio.gather(*tried, return_exceptions=True)] == [TimeoutError] * 2
        await pool.close()

    asyncio.run(run())


def test_few_writes_are_tried_while_none_is_answered() -> None:
    now = 0.0
    writes = Writes(8, lambda: now)
    for _ in range(8):
        writes.begin()
    assert writes.stuck() == 0  # it may be about to answer
    writes.begin()
    now += hot_writes.SILENT_SECONDS + 0.1
    assert writes.stuck() == 8
    for tried in (3, 2, 2):  # fewer with each that is given up, down to two
        writes.unanswered()
        while writes.stuck():
            writes.end()
        for _ in range(tried):
            writes.begin()
        with pytest.raises(TimeoutError):
            writes.begin()
    writes.answered()
    assert writes.stuck() == 0
    for _ in range(20):
        writes.begin()


def test_a_write_that_waits_alone_keeps_no_other_away() -> None:
    """As one for a row that somebody else has locked: the server answers the others."""
    now = 0.0
    writes = Writes(8, lambda: now)
    for _ in range(9):
        writes.begin()
        now += hot_writes.SILENT_SECONDS + 0.1
        writes.unanswered()
        writes.begin()
        writes.answered()
        writes.end()
        writes.end()
    assert writes.stuck() == 0


def test_a_refused_statement_keeps_its_connection(database_url: str) -> None:
    async def test(pool: HotPool, _: Signals) -> None:
        before = await pid(pool)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await pool.fetchrow("select 1 / 0")
        assert await pid(pool) == before

    pooled(database_url, test)


def test_a_call_given_up_ends_at_the_server_too(database_url: str) -> None:
    """Its connection is not lent again, and whoever waits for one gets another."""

    async def test(pool: HotPool, signals: Signals) -> None:
        before = await pid(pool)
        with psycopg.connect(database_url, autocommit=True, options="-c lock_timeout=20s") as holder:
            holder.execute("select pg_advisory_lock(1)")
            call = asyncio.create_task(pool.fetchrow(HOLD))
            await signals.begun(1)
            waiting = asyncio.create_task(pid(pool))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await waiting != before
            # Free once nobody holds on any more.
            await asyncio.to_thread(holder.execute, "select pg_advisory_lock(2)")

    pooled(database_url, test, size=1)


def test_a_waiting_caller_that_goes_away_takes_nothing_along(database_url: str) -> None:
    async def test(pool: HotPool, _: Signals) -> None:
        first = asyncio.create_task(pid(pool))
        waiting = [asyncio.create_task(pid(pool)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert len({await first, await waiting[1], await waiting[2]}) == 1
        assert (pool.get_size(), pool.get_idle_size()) == (1, 1)

    pooled(database_url, test, size=1)


def test_connections_that_the_server_ended_are_replaced(database_url: str) -> None:
    async def test(pool: HotPool, _: Signals) -> None:
        gone = set(await asyncio.gather(*(pid(pool) for _ in range(10))))
        with psycopg.connect(database_url, autocommit=True) as other:
            for each in gone:
                other.execute("select pg_terminate_backend(%s, 10000)", [each])
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await pid(pool) not in gone
                    break
                except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
                    continue
        assert pool.get_size() <= 2

    pooled(database_url, test)


def test_no_server_is_no_reason_to_wait(database_url: str) -> None:
    async def test(_: HotPool, __: Signals) -> None:
        nowhere = HotPool(partial(asyncpg.connect, f"postgresql://x@127.0.0.1:{free_port()}/x"), size=1, patience=10)
        for _round in range(2):
            found = await asyncio.gather(*(nowhere.fetchrow(PID) for _ in range(5)), return_exceptions=True)
            assert all(isinstance(each, OSError) for each in found), found
        assert nowhere.get_size() == 0
        await nowhere.close()

    pooled(database_url, test)


def test_closing_lets_calls_end(database_url: str) -> None:
    """Also of a pool that was without a connection before, as after an outage."""

    async def test(pool: HotPool, signals: Signals) -> None:
        gone = await pid(pool)
        with psycopg.connect(database_url, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 10000)", [gone])
        await signals.ended.wait()
        with psycopg.connect(database_url, autocommit=True) as holder:
            holder.execute("select pg_advisory_lock(1)")
            call, waiting = (asyncio.create_task(pool.fetchrow(HOLD)) for _ in range(2))
            await signals.begun(1)
            closing = asyncio.create_task(pool.close())
            with pytest.raises(asyncpg.InterfaceError):
                await waiting
            assert not closing.done()
            holder.execute("select pg_advisory_unlock(1)")
            assert await call is not None
            await closing
        with pytest.raises(asyncpg.InterfaceError):
            await pool.fetchrow(PID)

    pooled(database_url, test, size=1)


def test_closing_does_not_wait_for_a_connection_that_does_not_come() -> None:
    async def run() -> None:
        opening, fail = asyncio.Event(), asyncio.Event()

        async def connect() -> asyncpg.Connection:
            opening.set()
            await fail.wait()
            raise ConnectionRefusedError

        pool = HotPool(connect, size=1, patience=20)
        call = asyncio.create_task(pool.fetchrow(PID))
        await opening.wait()
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        fail.set()
        with pytest.raises(ConnectionRefusedError):
            await call
        async with asyncio.timeout(20):
            await closing

    asyncio.run(run())


def test_calls_given_up_at_any_moment_leave_nothing_behind(database_url: str) -> None:
    """Whether they wait for a connection, for its opening, for the statement's plan or for its rows."""

    async def test(pool: HotPool, __: Signals) -> None:
        for steps in range(60):
            calls = [asyncio.create_task(pool.fetchrow("select $1::int as n", number)) for number in range(8)]
            for number, call in enumerate(calls):
                if number % 3 == 0:
                    for _ in range(steps):
                        await asyncio.sleep(0)
                    call.cancel()
            for number, row in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
                if isinstance(row, asyncio.CancelledError):
                    assert number % 3 == 0
                else:
                    assert row["n"] == number  # type: ignore[index] # another error fails as well
        # The connections that are being closed: nothing else is under way.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            done, _late = await asyncio.wait(others, timeout=20)
            assert done
        assert pool.get_size() == pool.get_idle_size()
        # A process of the server sees its connection's end when it gets round to it.
        left = [("idle",)] * pool.get_idle_size()
        await asyncio.to_thread(eventually, lambda: states_of(database_url, "given-up") == left)
        assert len(set(await asyncio.gather(*(pid(pool) for _ in range(20))))) <= 3

    pooled(f"{database_url}{'&' if '?' in database_url else '?'}application_name=given-up", test, size=3)


def states_of(database_url: str, name: str) -> list[tuple[str]]:
    """Return the states of the connections that call themselves `name`."""
    with psycopg.connect(database_url, autocommit=True) as other:
        return other.execute(
            "select state from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend' and application_name = %s",
            (name,),
        ).fetchall()


def test_connections_grow_old(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_pool, "MAX_CALLS", 3)

    async def test(pool: HotPool, _: Signals) -> None:
        assert len({await pid(pool) for _ in range(7)}) == 3

    pooled(database_url, test)


def test_connections_that_nobody_uses_are_closed(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_pool, "MAX_IDLE_SECONDS", 0.05)

    async def test(pool: HotPool, signals: Signals) -> None:
        await pid(pool)
        async with asyncio.timeout(20):
            await signals.ended.wait()
        assert pool.get_size() == 0
        assert await pid(pool)

    pooled(database_url, test)
