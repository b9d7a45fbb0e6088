"""The API's engine on a real server: a connection that is closed, or answers no more, is replaced before it is used."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import text

from store import engine

if TYPE_CHECKING:
    import pytest
    from sqlalchemy.ext.asyncio import AsyncEngine

    from runtime.settings import Settings

PID = text("select pg_backend_pid()")


async def pid(of: AsyncEngine) -> int:
    async with of.begin() as connection:
        return int((await connection.execute(PID)).scalar_one())


async def raw(of: AsyncEngine) -> Any:
    """Return the driver's own connection, of a pool that has one."""
    async with of.connect() as connection:
        return (await connection.get_raw_connection()).driver_connection


def end(settings: Settings, gone: int) -> None:
    with psycopg.connect(settings.database_url.get_secret_value(), autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 10000)", [gone])


def test_one_that_the_server_closed_is_replaced(module_settings: Settings) -> None:
    async def test() -> None:
        of = engine.service_async_engine(module_settings)
        gone = await pid(of)
        assert await pid(of) == gone
        ended = asyncio.Event()
        (await raw(of)).add_termination_listener(lambda _: ended.set())
        end(module_settings, gone)
        async with asyncio.timeout(20):
            await ended.wait()
        assert await pid(of) != gone
        await of.dispose()

    asyncio.run(test())


def test_one_that_has_been_idle_is_asked_whether_it_answers(
    module_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        of = engine.service_async_engine(module_settings)
        gone = await pid(of)
        monkeypatch.setattr(engine, "TRUSTED_SECONDS", -1.0)
        assert await pid(of) == gone
        # Nothing of this has reached the driver by the time at which the connection is taken.
        end(module_settings, gone)
        assert await pid(of) != gone
        await of.dispose()

    asyncio.run(test())
