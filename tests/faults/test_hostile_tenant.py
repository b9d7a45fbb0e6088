"""One tenant uses every limit that it has; none of another's requests is refused, and all are answered in time."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.conftest import make_tenant
from tests.faults.test_gateway import counted, is_back, room_behind
from tests.gateway.chatter import Chatter
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.installation import Installation

REQUESTS: Final = 100
MOST_TIMES: Final = 3
"""Most times as long as without an attack that the slowest of a hundred requests takes under it."""
LEAST_SECONDS: Final = 0.1
"""Seconds that it may take without an attack on two cores that the attack, the database and the providers share."""
MOST_OPEN: Final = 2
"""Requests that may fail open."""
CONNECTIONS: Final = 150
HELD_BYTES: Final = 257_000
ROWS: Final = 20_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.fault("F46")
def test_a_hostile_tenant_slows_nobody_else(installation: Installation, measured: Callable[[str, float], None]) -> None:
    hostile = make_tenant(installation.database_url, "hostile").key
    with room_behind(installation) as (room, process):
        eventually(lambda: is_back(room))
        chat = Chatter(room, "messages", **{"x-session-id": "victim"})
        before = latencies(chat)
        # In a process of its own: what it computes is not the victim's time.
        attack = get_context("spawn").Process(target=attack_with_everything, args=(process.url, hostile), daemon=True)
        attack.start()
        try:
            eventually(lambda: counted(room, 'palimpsest_gateway_requests_total{door="litellm"') > 0)
            under_attack = latencies(chat)
            assert attack.is_alive()
        finally:
            attack.terminate()
            attack.join(30)
        # The machine may be another one than before: the slower of two counts.
        quiet = max(before, latencies(chat), LEAST_SECONDS)
        measured("F46 p99 of a request without an attack", quiet)
        measured("F46 p99 of a request under attack", under_attack)
        assert under_attack <= MOST_TIMES * quiet


def latencies(chat: Chatter) -> float:
    """Return the 99th percentile of the seconds of a client's requests, none of which may be refused."""
    taken, outcomes = [], []
    for number in range(REQUESTS):
        if number % 10 == 0:
            chat.rows = []
        began = time.perf_counter()
        chat.ask(f"victim {number}")
        taken.append(time.perf_counter() - began)
        outcomes.append(chat.outcome)
    assert outcomes.count("failed_open") <= MOST_OPEN
    return sorted(taken)[int(len(taken) * 0.99) - 1]


def attack_with_everything(url: str, key: str) -> None:
    """Send unknown histories, crowded bodies and bodies that trickle, until the process is ended."""
    over = Event()
    with ExitStack() as stack:
        threads = [
            Thread(target=unknown_histories, args=(url, key, over)),
            Thread(target=unknown_histories, args=(url, key, over)),
            Thread(target=crowded_bodies, args=(url, key, over)),
            Thread(target=trickles, args=(url, key, over, stack)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def unknown_histories(url: str, key: str, over: Event) -> None:
    number = 0
    with httpx2.Client(base_url=url, headers={"x-api-key": key}, timeout=60) as client:
        while not over.is_set():
            number += 1
            row = {"content": f"unknown {id(client)} {number}"}
            rows = [{"role": "assistant" if at % 2 else "user", **row} for at in range(ROWS)]
            with suppress(httpx2.HTTPError):
                client.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": rows})


def crowded_bodies(url: str, key: str, over: Event) -> None:
    body = json.dumps({"input_type": "request", "structured_messages": [{}] * 500_000}).encode()
    with httpx2.Client(base_url=url, headers={"x-api-key": key}, timeout=60) as client:
        while not over.is_set():
            with suppress(httpx2.HTTPError):
                client.post("/beta/litellm_basic_guardrail_api", content=body)


def trickles(url: str, key: str, over: Event, stack: ExitStack) -> None:
    place = urlsplit(url)
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {HELD_BYTES * 2}\r\n\r\n"
    held: list[Any] = []
    while len(held) < CONNECTIONS and not over.is_set():
        with suppress(OSError):
            held.append(stack.enter_context(socket.create_connection((place.hostname or "", place.port or 0))))
            held[-1].sendall(head.encode() + b" " * HELD_BYTES)
    while not over.wait(1):
        for connection in held:
            with suppress(OSError):
                connection.sendall(b" ")
