"""A small HTTP/1.1 load generator: keep-alive connections, one request under way on each, one thread, no parser.

It is run as a process of its own. The order comes as JSON on stdin (`Order`), the outcome leaves as JSON on stdout
(`Outcome`). Requests are joined from bytes made beforehand; of a response only the status and the length are read.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import resource
import selectors
import socket
import sys
import time
from typing import Any, Final, NamedTuple

_RECEIVE: Final = 1 << 18
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_CHOICES: Final = 50_000
_PATIENCE_SECONDS: Final = 30.0


class Order(NamedTuple):
    """What to send; a conversation's number is put between `before` and `after`."""

    host: str
    port: int
    connections: int
    seconds: float
    before: str
    """The request's start, up to the conversation's number."""
    after: str
    """The rest of its head, without the empty line that ends it."""
    body: str
    unique_key: str
    """Start of an Idempotency-Key that is different in every request; empty for none."""
    groups: list[list[int]]
    """Ranges of conversations as [first, count]; requests go to the groups in turn."""
    expected_status: int


class Outcome(NamedTuple):
    """What came back while the time ran; latencies in milliseconds, one list a group of the order."""

    requests: int
    seconds: float
    cpu_seconds: float
    wrong: dict[str, int]
    """Responses by their status that had another one than expected."""
    latencies: list[list[float]]


class _Connection:
    """One connection and the response that it waits for."""

    def __init__(self, order: Order) -> None:
        self.socket = socket.create_connection((order.host, order.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.sent = 0.0
        self.group = 0
        self.status = 0
        self._head = b""
        self._left = -1

    def send(self, request: bytes) -> None:
        """Send a request; it fits the socket's buffer, for nothing else is in it."""
        if self.socket.send(request) != len(request):
            raise OSError("the request does not fit the socket's buffer")
        self._head, self._left = b"", -1

    def receive(self) -> bool:
        """Take what has arrived; return whether the response is whole."""
        data = self.socket.recv(_RECEIVE)
        if not data:
            raise ConnectionError("the server closed a connection")
        if self._left < 0:
            head = self._head + data
            end = head.find(_HEAD_END)
            if end < 0:
                self._head = head
                return False
            self.status = int(head[9:12])
            lower = head[:end].lower()
            at = lower.find(_LENGTH)
            length = int(lower[at + len(_LENGTH) :].split(b"\r", 1)[0]) if at >= 0 else 0
            # A 304 may tell the length that the full answer would have.
            self._left = end + len(_HEAD_END) + (0 if self.status == 304 else length) - len(head)
        else:
            self._left -= len(data)
        return self._left == 0


class _Requests:
    """Makes the next request of a group."""

    def __init__(self, order: Order) -> None:
        chosen = random.Random(order.unique_key)  # noqa: S311 - picks conversations
        self._groups = [
            itertools.cycle([str(first + chosen.randrange(count)).encode() for _ in range(_CHOICES)])
            for first, count in order.groups
        ]
        self._turns = itertools.cycle(range(len(order.groups)))
        self._before = order.before.encode()
        self._after = order.after.encode()
        self._end = _HEAD_END + order.body.encode()
        self._key = f"\r\nidempotency-key: {order.unique_key}".encode() if order.unique_key else b""
        self._count = itertools.count()

    def next(self) -> tuple[int, bytes]:
        """Return the group and the bytes of a request."""
        group = next(self._turns)
        key = self._key + str(next(self._count)).encode() if self._key else b""
        return group, b"".join((self._before, next(self._groups[group]), self._after, key, self._end))


def run(order: Order) -> Outcome:
    """Send requests for the order's seconds, and until every group has an answer.

    Then wait for the answers that are still to come, without counting them. Raises OSError when a connection breaks,
    TimeoutError when an answer stays away.
    """
    requests = _Requests(order)
    latencies: list[list[float]] = [[] for _ in order.groups]
    wrong: dict[str, int] = {}
    connections = [_Connection(order) for _ in range(order.connections)]
    gc.disable()
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        clock = time.perf_counter
        cpu, started = _cpu_seconds(), clock()
        end = started + order.seconds
        for connection in connections:
            connection.group, request = requests.next()
            connection.sent = clock()
            connection.send(request)
        waiting = len(connections)
        while waiting:
            ready = selector.select(_PATIENCE_SECONDS)
            if not ready:
                raise TimeoutError(f"no answer for {_PATIENCE_SECONDS:g} s")
            for key, _ in ready:
                connection = key.data
                if not connection.receive():
                    continue
                now = clock()
                # On a machine that is busy with something else a short time may pass without an answer.
                if now > end and all(latencies):
                    waiting -= 1
                    continue
                latencies[connection.group].append((now - connection.sent) * 1000)
                if connection.status != order.expected_status:
                    wrong[str(connection.status)] = wrong.get(str(connection.status), 0) + 1
                connection.group, request = requests.next()
                connection.sent = clock()
                connection.send(request)
        used = _cpu_seconds() - cpu
    for connection in connections:
        connection.socket.close()
    return Outcome(sum(map(len, latencies)), order.seconds, used, wrong, latencies)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    order: dict[str, Any] = json.load(sys.stdin)
    json.dump(run(Order(**order))._asdict(), sys.stdout)


if __name__ == "__main__":
    main()
