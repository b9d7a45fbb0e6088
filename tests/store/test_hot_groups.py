"""Calls that go to the database together: each has its own outcome, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest

from store import hot_path
from store.hot_groups import MOST_READ_TOGETHER, MOST_TOGETHER
from store.hot_pool import HotPool
from tests.conftest import make_tenant
from tests.support.service.hot_calls import hot_calls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.service.hot_calls import HotCalls

SIXTH: Final = "select $1::text, 6 / $2::integer, 0, 0, true"
HELLO: Final = {"role": "user", "content": "Hello."}


@pytest.fixture
def calls(make_settings: Callable[..., Settings], tenant: Tenant) -> Iterator[HotCalls]:
    with hot_calls(make_settings(), tenant.id) as opened:
        yield opened


def pooled(
    url: str, test: Callable[[HotPool], Awaitable[None]], *, patience: float = 10.0, is_over: bool = False
) -> None:
    """Run a test with a pool of two connections, one of them for calls that write; to a primary no more, where told."""
    says = {"default_transaction_read_only": "on" if is_over else "off"}
    connect = partial(asyncpg.connect, url, command_timeout=10, server_settings=says)

    async def run() -> None:
        pool = HotPool(connect, size=2, patience=patience, of_primary=True)
        try:
            await test(pool)
        finally:
            await pool.close()

    asyncio.run(run())


async def together(pool: HotPool, query: str, *arguments: tuple[Any, ...]) -> list[Any]:
    calls = (pool.write_together(uuid4(), query, *each) for each in arguments)
    return await asyncio.gather(*calls, return_exceptions=True)


def test_turns_that_would_wait_share_transactions(
    calls: HotCalls, database_url: str, make_settings: Callable[..., Settings]
) -> None:
    other = make_tenant(database_url, "other")
    with hot_calls(make_settings(), other.id) as others:
        own = [(each, each.conversation()) for each in [calls, others] * 20]
    turns = [
        each.turn(conversation, {"role": "user", "content": str(conversation)}, tenant_id=each.tenant_id)
        for each, conversation in own
    ]
    answers = calls.at_once(turns)
    assert {(answer.outcome, answer.first_seq, answer.last_seq) for answer in answers} == {("appended", 0, 0)}
    rows = calls.owner("select tenant_id, conversation_id, content::text as said, xmin::text as by from messages")
    assert {(row["tenant_id"], row["conversation_id"]) for row in rows} == {
        (each.tenant_id, conversation) for each, conversation in own
    }
    assert all(row["said"] == f'"{row["conversation_id"]}"' for row in rows)
    by = [row["by"] for row in rows]
    assert len(set(by)) < len(by) / 2
    assert max(map(by.count, by)) == MOST_TOGETHER


def test_contexts_that_would_wait_are_read_together_each_by_its_own_tenant(
    calls: HotCalls, database_url: str, make_settings: Callable[..., Settings]
) -> None:
    other = make_tenant(database_url, "other")
    own = [calls.conversation() for _ in range(20)]
    with hot_calls(make_settings(), other.id) as others:
        theirs = [others.conversation() for _ in range(20)]
        for each, conversations in ((calls, own), (others, theirs)):
            for conversation in conversations:
                each.append(conversation, {"role": "user", "content": str(conversation)})
    mine = [(calls.tenant_id, each) for each in own]
    wanted = [pair for both in zip(mine, [(other.id, each) for each in theirs], strict=True) for pair in both]

    answers = calls.contexts([*wanted, *((calls.tenant_id, each) for each in theirs)])

    tails = [answer and answer.tail for answer in answers]
    assert tails[: len(wanted)] == [f'{{"role":"user","content":"{each}"}}' for _, each in wanted]
    # Which tenant a call is of is set by it alone: what the one before it was allowed to see says nothing.
    assert tails[len(wanted) :] == [None] * len(theirs)


def test_reads_share_statements_only_where_they_would_wait(database_url: str) -> None:
    query = "select $1::integer, statement_timestamp() as at, pg_backend_pid() as by from pg_sleep(0.01)"

    async def test(pool: HotPool) -> None:
        (alone,) = await asyncio.gather(pool.read_together(uuid4(), query, 0))
        rows = await asyncio.gather(*(pool.read_together(uuid4(), query, number) for number in range(9)))
        assert (alone[0], [row[0] for row in rows]) == (0, list(range(9)))
        statements = [(row["by"], row["at"]) for row in rows]
        # One under way, then as many at a time as may be in memory together.
        assert sorted(map(statements.count, set(statements))) == [1, MOST_READ_TOGETHER, MOST_READ_TOGETHER]

    pooled(database_url, test)


def test_a_read_that_fails_fails_alone(database_url: str) -> None:
    async def test(pool: HotPool) -> None:
        reads = (pool.read_together(uuid4(), "select 6 / $1::integer", number) for number in (1, 2, 0, 3, 6))
        answers = await asyncio.gather(*reads, return_exceptions=True)
        assert [answer if isinstance(answer, BaseException) else answer[0] for answer in answers][3:] == [2, 1]
        assert isinstance(answers[2], asyncpg.DivisionByZeroError)

    pooled(database_url, test)


def test_nothing_is_read_from_what_was_the_primary_alone_or_together(database_url: str) -> None:
    async def test(pool: HotPool) -> None:
        reads = (pool.read_together(uuid4(), "select $1::integer", number) for number in range(9))
        answers = await asyncio.gather(*reads, return_exceptions=True)
        assert {type(answer) for answer in answers} == {asyncpg.ReadOnlySQLTransactionError}

    pooled(database_url, test, is_over=True)


def test_a_turn_that_waits_for_its_row_holds_up_no_other(calls: HotCalls, database_url: str) -> None:
    conversations = [calls.conversation() for _ in range(20)]

    async def test(pool: HotPool, _: UUID) -> None:
        with psycopg.connect(database_url) as holder:
            holder.execute("select from conversations where id = %s for update", [conversations[10]])
            tasks = [
                asyncio.create_task(hot_path.append_turn(pool, **calls.turn(each, HELLO))) for each in conversations
            ]
            free = [task for place, task in enumerate(tasks) if place != 10]
            await asyncio.wait_for(asyncio.gather(*free), 4)
            assert not tasks[10].done()
            holder.rollback()
        assert (await tasks[10]).outcome == "appended"

    calls.run(test)
    stored = calls.owner("select conversation_id from messages")
    assert sorted(row["conversation_id"] for row in stored) == sorted(conversations)


@pytest.mark.parametrize(("held", "turns"), [(1, 4), (6, 1)])
def test_turns_that_wait_for_their_rows_hold_up_no_others(
    calls: HotCalls, database_url: str, held: int, turns: int
) -> None:
    """Neither many to one conversation nor those to many, though they came first."""
    conversations = [calls.conversation() for _ in range(20)]

    async def test(pool: HotPool, _: UUID) -> None:
        with psycopg.connect(database_url) as holder:
            holder.execute("select from conversations where id = any (%s) for update", [conversations[:held]])
            sent = [*conversations[:held] * turns, *conversations[held:]]
            tasks = [asyncio.create_task(hot_path.append_turn(pool, **calls.turn(each, HELLO))) for each in sent]
            waiting, free = tasks[: held * turns], tasks[held * turns :]
            await asyncio.wait_for(asyncio.gather(*free), 4)
            assert not any(task.done() and not task.exception() for task in waiting)
            # Reads find a connection as well.
            assert pool.get_idle_size() or pool.get_size() < pool.size
            holder.rollback()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert {str(error) for error in refused} <= {"no connection came free"}
        assert len(refused) <= max(0, held - pool.size // 2)

    calls.run(test)
    stored = [row["conversation_id"] for row in calls.owner("select conversation_id from messages")]
    assert set(stored) >= set(conversations[held:])
    assert stored.count(conversations[0]) == turns


def test_what_fails_fails_alone(database_url: str) -> None:
    async def test(pool: HotPool) -> None:
        answers = await together(pool, SIXTH, *((str(number), number) for number in (1, 2, 0, 3, 0, 6)))
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        assert list(map(type, failed)) == [asyncpg.DivisionByZeroError] * 2
        assert [(row[0], row[1]) for row in answers if row not in failed] == [("1", 6), ("2", 3), ("3", 2), ("6", 1)]

    pooled(database_url, test)


@pytest.mark.parametrize("writes", [True, False])
def test_a_row_that_is_damaged_fails_alone(database_url: str, *, writes: bool) -> None:
    """Whatever the server says of it: none of the others is a part of that."""
    query = "select intact($1)::text, 0, 0, 0, true"

    async def test(pool: HotPool) -> None:
        call = pool.write_together if writes else pool.read_together
        answers = await asyncio.gather(*(call(uuid4(), query, number) for number in range(6)), return_exceptions=True)
        assert isinstance(answers.pop(3), asyncpg.DataCorruptedError)
        assert [row[0] for row in answers if not isinstance(row, BaseException)] == ["0", "1", "2", "4", "5"]

    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("""
            create function intact(number integer) returns integer language plpgsql as $$
            begin
                if number = 3 then
                    raise 'missing chunk' using errcode = 'data_corrupted';
                end if;
                return number;
            end $$
        """)
    pooled(database_url, test)


def test_what_may_be_stored_is_not_tried_again(database_url: str) -> None:
    """With the connection, the answer is lost, and nobody knows of what."""
    ending = "case when $1 then pg_terminate_backend(pg_backend_pid())::text end"
    query = f"select {ending}, nextval('tries')::integer, 0, 0, true"

    async def test(pool: HotPool) -> None:
        answers = await together(pool, query, *((number == 3,) for number in range(6)))
        assert [isinstance(answer, Exception) for answer in answers] == [False, *[True] * 5]

    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("create sequence tries")
        pooled(database_url, test)
        (last,) = owner.execute("select last_value from tries").fetchone() or (0,)
    assert last <= 6


def test_whose_turn_does_not_come_gives_up(database_url: str) -> None:
    async def test(pool: HotPool) -> None:
        hold = "select pg_advisory_xact_lock(1)::text, 0, 0, 0, true"
        with psycopg.connect(database_url) as holder:
            holder.execute("select pg_advisory_lock(1)")
            first = asyncio.create_task(together(pool, hold, ()))
            await asyncio.sleep(0)
            (late,) = await together(pool, hold, ())
            assert isinstance(late, TimeoutError)
            holder.execute("select pg_advisory_unlock(1)")
            assert len(await first) == 1

    pooled(database_url, test, patience=1.0)


def test_who_goes_away_leaves_the_others_their_answers(database_url: str) -> None:
    async def test(pool: HotPool) -> None:
        tasks = [asyncio.create_task(pool.write_together(uuid4(), SIXTH, str(number), 6)) for number in range(6)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        answers: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[2], asyncio.CancelledError)
        assert [answers[place][0] for place in (0, 1, 3, 4, 5)] == ["0", "1", "3", "4", "5"]

    pooled(database_url, test)
