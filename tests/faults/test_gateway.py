"""A gateway with what is ours away, slow or ended: requests go through, and what they said is caught up."""

from __future__ import annotations

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx2
import pytest
from sqlalchemy import make_url

from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import PROVIDER_KEY, Room
from tests.gateway.running_gateway import RunningGateway
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import LoopbackProviders, Says
from tests.support.servers.tcp_gate import gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.faults.installation import Installation
    from tests.support.processes import Api

SHAPES: Final = tuple(PATHS)
REQUESTS: Final = 60
AT_ONCE: Final = 8
PATIENT: Final[dict[str, Any]] = {"PALIMPSEST_GATEWAY_PATIENCE_SECONDS": "5"}
"""For what is not about patience, on a busy machine."""
STREAMS: Final = 16
ANSWER_CHARS: Final = 14_000_000
"""Characters of an answer: more than the buffers of the sockets on its way take, less than is not read any more."""
MOST_BYTES: Final = 48 * 1024 * 1024
"""Bytes for each of them: three times what of an answer is read at most."""


@contextmanager
def room_behind(installation: Installation, port: int | None = None, **env: str) -> Iterator[tuple[Room, Api]]:
    """Run `palimpsest gateway` before loopback providers, its way to the database through `port`."""
    url = make_url(installation.database_url)
    with LoopbackProviders() as providers:
        given = {
            "PALIMPSEST_DATABASE_URL": url.set(port=port or url.port).render_as_string(hide_password=False),
            "ANTHROPIC_BASE_URL": providers.url,
            "OPENAI_BASE_URL": providers.openai_url,
            "ANTHROPIC_API_KEY": PROVIDER_KEY,
            "OPENAI_API_KEY": PROVIDER_KEY,
            **env,
        }
        with installation.gateway(env=given) as process, process.client(installation.tenant.key) as client:
            running: Any = RunningGateway(process.url, None, None)  # type: ignore[arg-type] # of another process
            yield Room(running, installation.chat.settings, providers, installation.tenant, client), process


def counted(room: Room, name: str) -> float:
    """Return the sum of a metric's series that begin so."""
    lines = room.client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def is_back(room: Room) -> bool:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}]}
    return room.client.post("/v1/messages", json=body).headers["x-palimpsest-outcome"] == "unchanged"


@pytest.mark.slow
@pytest.mark.fault("F42")
@pytest.mark.parametrize("how", ["shut", "silence", "slow"])
def test_every_request_is_answered_while_the_database_is_away(
    installation: Installation, how: str, measured: Callable[[str, float], None]
) -> None:
    port = make_url(installation.database_url).port or 5432
    with gate(port) as way, room_behind(installation, way.port, PALIMPSEST_GATEWAY_PATIENCE_SECONDS="0.5") as (room, _):
        chats = [Chatter(room, shape, **{"x-session-id": f"{how} {shape}"}) for shape in SHAPES]
        eventually(lambda: is_back(room))
        for chat in chats:
            chat.ask(f"{how} before")
            room.eventually_stored(chat.name, 2)
        names = [chat.name for chat in chats]
        before = counted(room, "palimpsest_gateway_requests_total")
        if how == "slow":
            way.delay = 1.0
        else:
            getattr(way, how)()

        def ask(number: int) -> tuple[int, str, bytes, float]:
            shape = SHAPES[number % len(SHAPES)]
            name = "input" if shape == "responses" else "messages"
            rows = [{"role": "user", "content": f"{how} {number}"}]
            body = json.dumps({"model": f"m{number}", "max_tokens": 9, name: rows, "x_new": 1.50}).encode()
            answer = room.client.post(PATHS[shape], content=body, headers={"x-session-id": f"{how} {number}"})
            return answer.status_code, answer.headers["x-palimpsest-outcome"], body, answer.elapsed.total_seconds()

        with ThreadPoolExecutor(AT_ONCE) as pool:
            answered = list(pool.map(ask, range(REQUESTS)))
        assert {(status, outcome) for status, outcome, _, _ in answered} == {(200, "failed_open")}
        sent = {asked.raw for asked in room.providers.asked}
        assert all(body in sent for _, _, body, _ in answered)
        for chat in chats:
            chat.ask(f"{how} meanwhile")
            assert chat.outcome == "failed_open"
        assert counted(room, "palimpsest_gateway_requests_total") == before + REQUESTS + len(chats)
        measured(f"F42 {how}: the slowest of {REQUESTS} requests", max(seconds for *_, seconds in answered))
        way.delay = 0.0
        way.open()
        eventually(lambda: is_back(room))
        for chat, name in zip(chats, names, strict=True):
            chat.ask(f"{how} after")
            assert chat.name == name
            stored = json.dumps([row["content"] for row in room.eventually_stored(name, 6)])
            assert f"{how} meanwhile" in stored


@pytest.mark.slow
@pytest.mark.fault("F43")
def test_redis_and_workers_away_are_not_waited_for(installation: Installation) -> None:
    with room_behind(installation, **PATIENT, PALIMPSEST_BROKER_URL="redis://127.0.0.1:1/0") as (room, _):
        eventually(lambda: is_back(room))
        chat = Chatter(room, "chat")
        for number in range(3):
            chat.ask(f"without Redis {number}")
            assert chat.outcome == "unchanged"
        room.eventually_stored(chat.name, 6)
        due = "select check_due_at is not null as due from conversations where external_id is null and next_seq = 6"
        assert {"due": True} in room.query(due)


@pytest.mark.slow
@pytest.mark.fault("F44")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_that_ends_in_the_middle_of_a_stream_loses_no_stored_turn(
    installation: Installation, number: signal.Signals
) -> None:
    with room_behind(installation, **PATIENT) as (room, process):
        eventually(lambda: is_back(room))
        chat = Chatter(room, "messages", **{"x-session-id": f"ended by {number}"})
        chat.ask(f"before {number}")
        name = chat.name
        room.eventually_stored(name, 2)
        room.providers.model = lambda _: Says("one two three four five six")
        room.providers.hold_after = 6
        rows = [*chat.rows, {"role": "user", "content": f"cut off by {number}"}]
        body = {"model": "m", "max_tokens": 9, "messages": rows, "stream": True}
        cut_off(room, body, chat.headers, process, number)
        stored = room.stored(name)
        assert [row["role"] for row in stored][:2] == ["user", "assistant"]
    with room_behind(installation, **PATIENT) as (room, _):
        eventually(lambda: is_back(room))
        chat.room = room
        chat.rows = rows
        chat.send()
        assert chat.name == name
        stored = room.eventually_stored(name, 4)
        assert [row["content"] for row in stored if row["role"] == "user"] == [
            f"before {number}",
            f"cut off by {number}",
        ]


def cut_off(room: Room, body: dict[str, Any], headers: dict[str, str], process: Api, number: signal.Signals) -> None:
    """End the gateway while it answers."""
    try:
        with room.client.stream("POST", PATHS["messages"], json=body, headers=headers) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            assert room.providers.held.wait(20)
            process.process.send_signal(number)
            for _ in pieces:
                pass
    except httpx2.HTTPError:
        return
    raise AssertionError("the answer came to its end")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.fault("F45")
def test_readers_that_are_slow_or_go_away_take_bounded_memory(
    installation: Installation, record_property: Callable[[str, object], None]
) -> None:
    def model(_: object) -> Says:
        return Says("x" * ANSWER_CHARS)

    with room_behind(installation, **PATIENT, PALIMPSEST_GATEWAY_READER_SECONDS="5") as (room, process):
        eventually(lambda: is_back(room))
        room.providers.model = model
        before = resident(process)
        readers = [stopped_reader(process.url, installation.tenant.key, number) for number in range(STREAMS)]
        eventually(lambda: counted(room, "palimpsest_gateway_answers_under_way") >= STREAMS / 2)
        highest = before

        def let_go() -> bool:
            nonlocal highest
            highest = max(highest, resident(process))
            return counted(room, "palimpsest_gateway_answers_under_way") == 0

        # Who takes nothing for five seconds is given up, and what was seen is stored.
        eventually(let_go, 120)
        for reader in readers:
            reader.close()
        added = (highest - before) / STREAMS
        record_property("measured", f"F45 memory of a stream whose reader has stopped: {added / 1e6:.1f} MB")
        assert added < MOST_BYTES
        assert counted(room, "palimpsest_gateway_aborted_total") == STREAMS
        eventually(lambda: is_back(room))


def resident(process: Api) -> int:
    """Return the bytes that a process has in memory."""
    lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("VmRSS:"))


def stopped_reader(url: str, key: str, number: int) -> socket.socket:
    """Ask for an answer, and read none of it."""
    place = urlsplit(url)
    rows = [{"role": "user", "content": f"stopped reader {number}"}]
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": rows, "stream": True}).encode()
    reader = socket.create_connection((place.hostname or "", place.port or 0))
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    reader.sendall(head.encode() + body)
    return reader
