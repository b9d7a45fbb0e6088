"""A turn that could not be stored at once counts as lost only if no later request of its client brings it."""

from __future__ import annotations

import asyncio
from threading import Thread
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from sqlalchemy import make_url

from gateway.conversations.unstored_turns import UnstoredTurns
from gateway.metrics import GatewayMetrics
from tests.conftest import make_tenant
from tests.gateway.chatter import Chatter
from tests.gateway.conftest import room_on
from tests.support.eventually import eventually
from tests.support.servers.tcp_gate import gate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runtime.settings import Settings
    from tests.gateway.conftest import Room


def counts(registry: CollectorRegistry) -> dict[str, float]:
    return {
        state: registry.get_sample_value("palimpsest_gateway_turns_total", {"state": state}) or 0
        for state in ("resent", "lost")
    }


def settled(*lookups: Callable[[], Awaitable[bool]], grace: float) -> dict[str, float]:
    registry = CollectorRegistry()

    async def run() -> None:
        turns = UnstoredTurns(GatewayMetrics(registry), grace=grace, pause=0.01)
        for each in lookups:
            turns.add(each)
        while sum(counts(registry).values()) < len(lookups):  # noqa: ASYNC110 - counters have no event
            await asyncio.sleep(0.01)
        await turns.stop()

    asyncio.run(run())
    return counts(registry)


async def is_there() -> bool:
    return True


async def is_absent() -> bool:
    return False


def test_turn_that_is_stored_meanwhile_is_not_lost() -> None:
    assert settled(is_there, is_absent, is_there, grace=0) == {"resent": 2, "lost": 1}


def test_turn_is_not_lost_before_its_time() -> None:
    looks = iter([False, False, True])

    async def comes_later() -> bool:
        return next(looks)

    assert settled(comes_later, grace=60) == {"resent": 1, "lost": 0}


def test_nothing_is_counted_while_the_database_is_away() -> None:
    answers = iter([OSError(), OSError(), None])

    async def is_back_at_last() -> bool:
        if (error := next(answers)) is not None:
            raise error
        return True

    assert settled(is_back_at_last, grace=0) == {"resent": 1, "lost": 0}


def test_gateway_that_ends_counts_what_is_not_stored() -> None:
    registry = CollectorRegistry()

    async def run() -> None:
        turns = UnstoredTurns(GatewayMetrics(registry), grace=60, pause=60)
        turns.add(is_there)
        turns.add(is_absent)
        await turns.stop()

    asyncio.run(run())
    assert counts(registry) == {"resent": 1, "lost": 1}


def _turns(room: Room, state: str) -> float:
    sample = f'palimpsest_gateway_turns_total{{state="{state}"}} '
    lines = room.client.get("/metrics").text.splitlines()
    return next(float(line.removeprefix(sample)) for line in lines if line.startswith(sample))


def test_turn_that_the_next_request_brings_is_not_lost(module_settings: Settings) -> None:
    url = make_url(module_settings.database_url.get_secret_value())
    tenant = make_tenant(url.render_as_string(hide_password=False), "acme")
    with gate(url.port or 5432) as way:
        behind = SecretStr(url.set(port=way.port).render_as_string(hide_password=False))
        settings = module_settings.model_copy(update={"database_url": behind})
        with room_on(settings, tenant, gateway_patience_seconds=0.5) as own:
            room = own._replace(settings=module_settings)
            chat = Chatter(room, "messages", **{"x-session-id": "brought again"})
            chat.ask("before")
            name = chat.name
            room.eventually_stored(name, 2)
            room.providers.held.clear()
            room.providers.go_on.clear()
            room.providers.hold_after = 5
            asking = Thread(target=chat.ask, args=("meanwhile",))
            asking.start()
            eventually(room.providers.held.is_set)
            way.shut()
            room.providers.hold_after = None
            room.providers.go_on.set()
            asking.join()
            eventually(lambda: "palimpsest_gateway_unstored_turns 1.0" in room.client.get("/metrics").text)
            way.open()

            def is_back() -> bool:
                answer = room.client.post(
                    "/v1/messages", json={"model": "m", "messages": [{"role": "user", "content": "?"}]}
                )
                return answer.headers["x-palimpsest-outcome"] == "unchanged"

            eventually(is_back)
            chat.ask("after")
            room.eventually_stored(name, 6)
            eventually(lambda: _turns(room, "resent") == 1)
            assert _turns(room, "lost") == 0
