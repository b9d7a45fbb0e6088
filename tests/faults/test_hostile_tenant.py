"""One tenant uses every limit that it has; none of another's requests is refused, and all are answered in time."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing import get_context
from threading import Event, Thread
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.conftest import make_tenant
from tests.faults.test_gateway import counted, is_back, room_behind
from tests.gateway.chatter import Chatter
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.faults.installation import Installation, Talk

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
        with attacked(attack_gateway, process.url, hostile):
            eventually(lambda: counted(room, 'palimpsest_gateway_requests_total{door="litellm"') > 0)
            under_attack = latencies(chat)
        # The machine may be another one than before: the slower of two counts.
        quiet = max(before, latencies(chat), LEAST_SECONDS)
        measured("F46 p99 of a request without an attack", quiet)
        measured("F46 p99 of a request under attack", under_attack)
        assert under_attack <= MOST_TIMES * quiet


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.fault("F46")
def test_a_hostile_tenant_of_the_api_slows_nobody_else(
    installation: Installation, measured: Callable[[str, float], None]
) -> None:
    hostile = make_tenant(installation.database_url, "hostile").key
    with installation.api() as api:
        talk = installation.talk()
        before = turn_latencies(talk)
        with attacked(attack_api, api.url, hostile), api.client(hostile) as client:
            eventually(lambda: '/comparisons",status="200"' in client.get("/metrics").text)
            under_attack = turn_latencies(talk)
        quiet = max(before, turn_latencies(talk), LEAST_SECONDS)
        measured("F46 p99 of a turn and its context without an attack", quiet)
        measured("F46 p99 of a turn and its context under attack", under_attack)
        assert under_attack <= MOST_TIMES * quiet


@contextmanager
def attacked(attack: Callable[[str, str], None], url: str, key: str) -> Iterator[None]:
    """Run an attack on an address for the block, in a process of its own: its computing is not the victim's time."""
    process = get_context("spawn").Process(target=attack, args=(url, key), daemon=True)
    process.start()
    try:
        yield
        assert process.is_alive()
    finally:
        process.terminate()
        process.join(30)


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


def turn_latencies(talk: Talk) -> float:
    """Return the 99th percentile of the seconds of a turn with the context after it, none of which may be refused."""
    taken = []
    for number in range(REQUESTS):
        began = time.perf_counter()
        talk.append({"role": "assistant" if number % 2 else "user", "content": f"victim {number}"})
        assert talk.context()["messages"]
        taken.append(time.perf_counter() - began)
    return sorted(taken)[int(len(taken) * 0.99) - 1]


def attack_gateway(url: str, key: str) -> None:
    """Send unknown histories, crowded bodies and bodies that trickle, until the process is ended."""
    crowd = json.dumps({"input_type": "request", "structured_messages": [{}] * 500_000}).encode()
    attack_with(
        partial(unknown_histories, url, key),
        partial(unknown_histories, url, key),
        partial(repeat, url, key, "/beta/litellm_basic_guardrail_api", crowd),
        partial(trickle, url, key, "/v1/messages"),
    )


def attack_api(url: str, key: str) -> None:
    """Search, compare, send crowded and trickling bodies and read no answer, until the process is ended."""
    with httpx2.Client(base_url=url, headers={"x-api-key": key}, timeout=60) as client:
        path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
        for number in range(40):
            row = {"role": "assistant" if number % 2 else "user", "content": f"quartz {number} " * 2_000}
            client.post(f"{path}/turns", json={"messages": [row]}).raise_for_status()
    search = json.dumps({"query": " ".join(f"word{number}" for number in range(1_500))}).encode()
    comparison = json.dumps({"versions": [0, 0], "seq": 39}).encode()
    attack_with(
        *[partial(repeat, url, key, f"{path}/recall", search)] * 8,
        *[partial(repeat, url, key, f"{path}/comparisons", comparison)] * 8,
        partial(repeat, url, key, f"{path}/turns", json.dumps({"messages": [{}] * 500_000}).encode()),
        partial(trickle, url, key, f"{path}/turns"),
        partial(read_nothing, url, key, f"{path}/messages?limit=1000"),
    )


def attack_with(*parts: Callable[[], None]) -> None:
    threads = [Thread(target=part) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def unknown_histories(url: str, key: str) -> None:
    with httpx2.Client(base_url=url, headers={"x-api-key": key}, timeout=60) as client:
        for number in count():
            row = {"content": f"unknown {id(client)} {number}"}
            rows = [{"role": "assistant" if at % 2 else "user", **row} for at in range(ROWS)]
            with suppress(httpx2.HTTPError):
                client.post("/v1/messages", json={"model": "m", "max_tokens": 9, "messages": rows})


def repeat(url: str, key: str, path: str, body: bytes) -> None:
    """Post a body again and again."""
    with httpx2.Client(base_url=url, headers={"x-api-key": key}, timeout=60) as client:
        while True:
            with suppress(httpx2.HTTPError):
                client.post(path, content=body, headers={"content-type": "application/json"})


def trickle(url: str, key: str, path: str) -> None:
    """Send half of many bodies at once, and a byte of each in a second from then on."""
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {HELD_BYTES * 2}\r\n\r\n"
    with ExitStack() as stack:
        held = [sent for _ in range(CONNECTIONS) if (sent := connected(url, head.encode() + b" " * HELD_BYTES, stack))]
        while True:
            for connection in held:
                with suppress(OSError):
                    connection.sendall(b" ")
            Event().wait(1)


def read_nothing(url: str, key: str, path: str) -> None:
    """Ask for an answer many times on many connections and read none of them."""
    head = f"GET {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\r\n" * 20
    with ExitStack() as stack:
        held = [connected(url, head.encode(), stack) for _ in range(CONNECTIONS)]
        while held:
            Event().wait(60)


def connected(url: str, sent: bytes, stack: ExitStack) -> socket.socket | None:
    """Return a connection on which bytes were sent, or none where it was refused."""
    place = urlsplit(url)
    try:
        connection = stack.enter_context(socket.create_connection((place.hostname or "", place.port or 0), timeout=5))
        connection.sendall(sent)
    except OSError:
        return None
    return connection
