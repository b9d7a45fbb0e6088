"""A slow history is its own tenant's; the database is away when a probe says so, and keys that were revoked stay so."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pytest
from pydantic import SecretStr
from sqlalchemy import make_url

from gateway.tenant_slots import NoSlotError, TenantSlots
from gateway.timeouts import AwayError, Deadline
from runtime import ids
from store.engine import owner_engine, transaction
from store.tenants import api_keys
from tests.conftest import make_tenant, make_tenants
from tests.gateway.chatter import Chatter
from tests.gateway.conftest import room_on
from tests.support.servers.tcp_gate import gate

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from runtime.settings import Settings

HOSTILE, OTHER = ids.new_id(), ids.new_id()
SHORT: Final = 0.02
LONG: Final = 30.0
ROWS: Final = 20_000


class Probe:
    """A probe that succeeds or fails as it is told."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.times = 0

    async def __call__(self) -> None:
        self.times += 1
        if self.error is not None:
            raise self.error


async def never() -> None:
    await asyncio.Event().wait()


async def value() -> int:
    return 5


async def failing() -> None:
    raise ConnectionResetError


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


def test_slow_queries_of_one_tenant_fail_for_it_alone() -> None:
    async def test() -> None:
        probe = Probe()
        deadline = Deadline(SHORT, probe, TenantSlots(2))
        for _ in range(10):
            with pytest.raises(AwayError):
                await deadline.within(never(), tenant_id=HOSTILE)
            assert await deadline.within(value(), tenant_id=OTHER, seconds=LONG) == 5
        assert not await deadline.is_away()
        assert len(deadline._late) == 2, "no more than its slots are under way"
        await deadline.close()

    run(test())


def test_a_slot_comes_back_when_its_query_ends() -> None:
    async def test() -> None:
        slots, ended = TenantSlots(1), asyncio.Event()
        deadline = Deadline(SHORT, Probe(), slots)
        with pytest.raises(AwayError):
            await deadline.within(ended.wait(), tenant_id=HOSTILE)
        with pytest.raises(NoSlotError):
            await slots.acquire(HOSTILE, SHORT)
        ended.set()
        assert await deadline.within(value(), tenant_id=HOSTILE, seconds=LONG) == 5
        assert not slots._semaphores

    run(test())


def test_an_error_counts_as_away_only_if_the_probe_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.timeouts.PAUSE_SECONDS", SHORT)

    async def test() -> None:
        probe, closed = Probe(), Event()
        deadline = Deadline(LONG, probe, TenantSlots(1), when_away=closed.set)
        with pytest.raises(AwayError):
            await deadline.within(failing())
        assert not await deadline.is_away()
        probe.error = ConnectionRefusedError()
        assert await deadline.is_away()
        assert closed.is_set()
        with pytest.raises(AwayError):
            await deadline.within(never())
        probe.error = None
        while deadline._watch is not None:
            await asyncio.wait({deadline._watch})
        assert await deadline.within(value()) == 5

    run(test())


def test_a_probe_that_hangs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.timeouts.PROBE_SECONDS", SHORT)

    async def test() -> None:
        deadline = Deadline(LONG, never, TenantSlots(1))
        assert await deadline.is_away()
        await deadline.close()

    run(test())


def hostile_body(number: int) -> bytes:
    """Return an unknown history of 800 KB."""
    rows = [{"role": "assistant" if at % 2 else "user", "content": f"{number} {at} unknown"} for at in range(ROWS)]
    return json.dumps({"model": "m", "max_tokens": 9, "messages": rows}).encode()


def test_unknown_histories_of_one_tenant_take_nothing_from_others(module_settings: Settings) -> None:
    url = module_settings.database_url.get_secret_value()
    hostile, victim = make_tenants(url, "hostile histories", "victim of histories")
    engine = owner_engine(url)
    with room_on(module_settings, victim, gateway_patience_seconds=LONG) as room:
        chat = Chatter(room, "messages")
        chat.ask("before")
        with transaction(engine, victim.id) as connection:
            row, revoked = api_keys.create(connection, victim.id, "revoked")
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "with another key"}]}
        with room.gateway.client(revoked) as client:
            assert client.post("/v1/messages", json=body).status_code == 200
            with transaction(engine, victim.id) as connection:
                api_keys.revoke(connection, victim.id, row.id)
            app: Any = room.gateway.server.config.app
            services = app._services
            services.callers._authenticator.forget(victim.id)
            # So that no unknown history is looked up in time.
            services.deadline._seconds = 0.001
            over = Event()

            def attack(number: int) -> set[str]:
                outcomes: set[str] = set()
                with room.gateway.client(hostile.key) as own:
                    while not over.is_set():
                        number += 2
                        answer = own.post("/v1/messages", content=hostile_body(number))
                        outcomes.add(answer.headers["x-palimpsest-outcome"])
                return outcomes

            with ThreadPoolExecutor(2) as pool:
                attacks = [pool.submit(attack, number) for number in range(2)]
                try:
                    for number in range(20):
                        chat.ask(f"meanwhile {number}")
                        assert client.post("/v1/messages", json=body).status_code == 401
                        with transaction(engine, victim.id) as connection:
                            _, unseen = api_keys.create(connection, victim.id, f"unseen {number}")
                        with room.gateway.client(unseen) as new:
                            assert new.post("/v1/messages", json=body).status_code == 200
                        assert not services.deadline._is_away
                finally:
                    over.set()
                assert "failed_open" in {outcome for each in attacks for outcome in each.result()}
    engine.dispose()


def test_a_key_counts_for_so_long_while_the_database_is_away(module_settings: Settings) -> None:
    url = module_settings.database_url.get_secret_value()
    tenant = make_tenant(url, "graceful")
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "graceful"}]}
    place = make_url(url)
    for grace, status in ((300.0, 200), (0.0, 503)):
        with gate(place.port or 5432) as way:
            behind = SecretStr(place.set(port=way.port).render_as_string(hide_password=False))
            settings = module_settings.model_copy(update={"database_url": behind})
            with room_on(settings, tenant, gateway_key_grace_seconds=grace) as room:
                assert room.client.post("/v1/messages", json=body).status_code == 200
                app: Any = room.gateway.server.config.app
                known = app._services.callers._authenticator._known
                for digest, looked_up in known.items():
                    known[digest] = looked_up._replace(at=looked_up.at - 10)
                way.shut()
                assert room.client.post("/v1/messages", json=body).status_code == status
