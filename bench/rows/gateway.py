"""What the gateway adds to the first byte of an answer, and what the streams that it holds take."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.machine import resident_mb
from bench.measure import Row, Sample, progress
from cli.local.embedded import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.plan import Plan
    from bench.servers import Api

_PROVIDER: Final = Path(__file__).parents[1] / "load" / "loopback_provider.py"
_READY_SECONDS: Final = 10.0
_ANSWER: Final = {"role": "assistant", "content": [{"type": "text", "text": "An answer of some words."}]}
_STREAMS: Final = 500
_SIZES: Final = ((50, 500, 40), (2_000, 2_000, 8))
"""Messages of a history, characters of each, and the requests of one round."""


class _Way(NamedTuple):
    """Where requests go."""

    port: int
    key: str


def gateway(plan: Plan) -> list[Row]:
    """Measure the time to the first byte through the gateway, and of the same requests without it, in turn."""
    with _provider(plan) as port:
        url = f"http://127.0.0.1:{port}"
        upstreams = json.dumps({"messages": {"base_url": url, "api_key": "sk"}})
        served = plan.servers.gateway(gateway_upstreams=upstreams)
        rows: list[Row] = []
        for messages, characters, count in _SIZES:
            rows += _first_bytes(plan, served, port, messages, characters, 4 if plan.short else count)
        return [*rows, _held(plan, served)]


def _first_bytes(plan: Plan, served: Api, port: int, messages: int, characters: int, count: int) -> list[Row]:
    samples: dict[str, list[tuple[Sample, Sample]]] = {"p50": [], "p99": []}
    for number in range(plan.rounds + 1):
        through, direct = _round(served, port, messages, characters, count)
        added = [one - other for one, other in zip(through, direct, strict=True)]
        progress(f"  round {number}: {messages} messages, {_at(added, 50):.1f} ms, p99 {_at(added, 99):.1f} ms")
        if number:
            for name, place in (("p50", 50), ("p99", 99)):
                reference = _at(direct, place)
                samples[name].append((Sample(max(_at(through, place) - reference, 0.01)), Sample(reference)))
    return [
        Row(
            name=f"gateway-{messages}-{name}",
            what=f"{name} added to the first byte, {messages:,} messages",
            measured="added by the gateway",
            reference="the provider alone",
            unit=" ms",
            samples=each,
        )
        for name, each in samples.items()
    ]


def _round(served: Api, port: int, messages: int, characters: int, count: int) -> tuple[list[float], list[float]]:
    """Return milliseconds to the first byte through the gateway and directly, of a conversation that goes on."""
    about = os.urandom(8).hex()
    rows: list[dict[str, Any]] = []
    for number in range(0, messages - 1, 2):
        text = f"{about} {number} " + "word " * (characters // 5)
        rows += [{"role": "user", "content": text}, {"role": "assistant", "content": [{"type": "text", "text": text}]}]
    through, direct = [], []
    with _connected(_Way(served.port, served.key)) as ours, _connected(_Way(port, "sk")) as theirs:
        for number in range(count + 1):
            rows.append({"role": "user", "content": f"{about} asks {number}"})
            body = json.dumps({"model": "m", "max_tokens": 9, "stream": True, "messages": rows}).encode()
            one, other = ours.ask(body), theirs.ask(body)
            if number:  # the first one brings the whole history
                through.append(one)
                direct.append(other)
            rows.append(_ANSWER)
            time.sleep(0.05)  # a turn is stored after its answer
    return through, direct


def _held(plan: Plan, served: Api) -> Row:
    """Measure the memory of the gateway with many streams under way."""
    idle, count = resident_mb(served.pid), 20 if plan.short else _STREAMS
    samples = []
    for _ in range(plan.rounds):
        lines: list[_Line] = []
        try:
            for number in range(count):
                line = _Line(_Way(served.port, served.key))
                lines.append(line)
                rows = [{"role": "user", "content": f"{os.urandom(8).hex()} {number} " + "word " * 2_000}]
                line.ask(json.dumps({"model": "m", "stream": True, "messages": rows}).encode(), held=True)
            samples.append((Sample(resident_mb(served.pid), {"streams": len(lines)}), Sample(idle)))
        finally:
            for line in lines:
                line.close()
        time.sleep(1)
    return Row(
        name="gateway-held",
        what=f"resident memory with {count} streams under way",
        measured="streams held",
        reference="idle",
        unit=" MB",
        samples=samples,
    )


class _Line:
    """A connection that is kept."""

    def __init__(self, way: _Way) -> None:
        self._way = way
        self._socket = socket.create_connection(("127.0.0.1", way.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, body: bytes, *, held: bool = False) -> float:
        """Return milliseconds from a request's first byte to its answer's first."""
        head = (
            f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {self._way.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{'x-hold: 1' if held else 'x-go: 1'}\r\n\r\n"
        ).encode()
        began = time.perf_counter()
        self._socket.sendall(head + body)
        answer = self._socket.recv(65_536)
        milliseconds = (time.perf_counter() - began) * 1_000
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer[:200].decode(errors="replace"))
        while b"message_start" not in answer if held else not answer.endswith(b"0\r\n\r\n"):
            answer += self._socket.recv(65_536)
        return milliseconds

    def close(self) -> None:
        self._socket.close()


@contextmanager
def _connected(way: _Way) -> Iterator[_Line]:
    line = _Line(way)
    try:
        yield line
    finally:
        line.close()


@contextmanager
def _provider(plan: Plan) -> Iterator[int]:
    """Run the provider on the core of what is not measured."""
    port = free_port()
    with subprocess.Popen([sys.executable, str(_PROVIDER), str(port)]) as running:
        plan.servers.cores.pin(running.pid, plan.servers.cores.rest)
        try:
            deadline = time.monotonic() + _READY_SECONDS
            while time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.02)
            yield port
        finally:
            running.terminate()


def _at(values: list[float], place: int) -> float:
    return quantiles(values, n=100, method="inclusive")[place - 1]
