"""What goes wrong during a soak, and when: a plan made from the seed, and the thread that carries it out."""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import signal
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg
import redis

from bench.measure import progress
from bench.soak import model
from bench.soak.installation import LEASE_SECONDS
from bench.soak.processes import family
from cli.local.embedded import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.soak.installation import Installation

PAUSE_SECONDS: Final = LEASE_SECONDS + 3.0
"""Longer than a lease: whoever was stopped finds its runs taken over."""
_TERMINATE: Final = (
    "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend'"
    " and application_name like 'palimpsest-%' and random() < 0.5"
)
_WORKERS: Final = ("checks", "summaries", "summaries-2")
KINDS: Final = (
    "kill a child of the checks pool",
    "kill a worker",
    "kill the sweeper",
    "kill the API",
    "stop a worker past its leases",
    "stop the API",
    "terminate half of the connections",
    "crash Postgres",
    "crash Redis",
    "flush Redis",
    "second sweeper",
    "model",
    "model",
)
PROCESS_FAULTS: Final = frozenset(KINDS) - {"second sweeper", "flush Redis"}
"""Those that can cost a run an attempt."""


class Fault(NamedTuple):
    """A fault of the plan: `choice` is which worker or which way, `seconds` how long, where it has a length."""

    at: float
    kind: str
    choice: int
    seconds: float


class Injected(NamedTuple):
    """A fault as it happened; times are seconds since the load began."""

    planned_at: float
    at: float
    until: float
    kind: str
    what: str


def plan(seed: int, begin: float, end: float, every: float) -> list[Fault]:
    """Return the faults between two times, `every` seconds apart on average; the same for the same arguments.

    Kinds come as from a shuffled deck, so that a short soak sees as many of them as it can.
    """
    rng = random.Random(seed)  # noqa: S311 - a plan, not a secret
    faults: list[Fault] = []
    deck: list[str] = []
    at = begin
    while (at := at + every * rng.uniform(0.5, 1.5)) < end:
        deck = deck or rng.sample(KINDS, len(KINDS))
        faults.append(Fault(round(at, 2), deck.pop(), rng.randrange(1 << 16), round(rng.uniform(1.0, 8.0), 2)))
    return faults


class Injector(threading.Thread):
    """Carries a plan out on an installation."""

    def __init__(self, installation: Installation, faults: Sequence[Fault], clock: Callable[[], float]) -> None:
        super().__init__(name="faults", daemon=True)
        self._installation = installation
        self._clock = clock
        self._faults = deque(faults)
        self._ends: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0
        self._done = threading.Event()
        self.injected: list[Injected] = []
        self.error: str | None = None
        """Why it ended before its time."""

    def run(self) -> None:
        """Inject each fault when it is due, and end it when its time is over."""
        try:
            while not self._done.wait(max(0.0, self._next - self._clock())):
                if self._ends and self._ends[0][0] <= self._clock():
                    heapq.heappop(self._ends)[2]()
                elif self._faults and self._faults[0].at <= self._clock():
                    self._inject(self._faults.popleft())
        except (EmbeddedError, OSError) as error:
            self.error = f"{type(error).__name__}: {error}"

    def finish(self) -> None:
        """Begin nothing more, and end what goes on."""
        self._done.set()
        self.join()
        while self._ends:
            heapq.heappop(self._ends)[2]()

    @property
    def _next(self) -> float:
        """When something is to be done next; without anything left, in an hour."""
        times = [*(end for end, _, _ in self._ends[:1]), *(fault.at for fault in list(self._faults)[:1])]
        return min(times, default=self._clock() + 3_600)

    def _inject(self, fault: Fault) -> None:
        at = self._clock()
        what, seconds = self._do(fault)
        self.injected.append(Injected(fault.at, at, max(self._clock(), at + seconds), fault.kind, what))
        progress(f"{at:6.1f} s: {fault.kind}: {what}")

    def _do(self, fault: Fault) -> tuple[str, float]:
        """Begin a fault; return what it hit and for how many seconds it goes on."""
        worker = _WORKERS[fault.choice % len(_WORKERS)]
        ways: dict[str, Callable[[], tuple[str, float]]] = {
            "kill a child of the checks pool": lambda: (self._kill_child(fault.choice), 0.0),
            "kill a worker": lambda: (self._kill(worker), 0.0),
            "kill the sweeper": lambda: (self._kill("sweeper"), 0.0),
            "kill the API": lambda: (self._kill("api"), 0.0),
            "stop a worker past its leases": lambda: self._pause(worker, PAUSE_SECONDS),
            "stop the API": lambda: self._pause("api", fault.seconds),
            "terminate half of the connections": lambda: (self._terminate(), 0.0),
            "crash Postgres": lambda: (self._crash_postgres(), 0.0),
            "crash Redis": lambda: self._crash_redis(fault.seconds),
            "flush Redis": lambda: (self._flush(), 0.0),
            "second sweeper": lambda: self._second_sweeper(fault.seconds + 5),
            "model": lambda: self._fail_model(fault),
        }
        return ways[fault.kind]()

    def _until(self, seconds: float, end: Callable[[], object], what: str) -> tuple[str, float]:
        self._number += 1
        heapq.heappush(self._ends, (self._clock() + seconds, self._number, end))
        return what, seconds

    def _second_sweeper(self, seconds: float) -> tuple[str, float]:
        self._installation.start_second_sweeper()
        return self._until(seconds, self._installation.stop_second_sweeper, "two sweepers")

    def _fail_model(self, fault: Fault) -> tuple[str, float]:
        name = sorted(model.FAULTS)[fault.choice % len(model.FAULTS)]
        self._installation.model.fail(name)
        return self._until(fault.seconds, self._installation.model.heal, name)

    def _kill(self, part: str) -> str:
        pid = self._installation.pid(part)
        if pid is None:
            return f"{part} was not there"
        _send([pid], signal.SIGKILL)
        return f"{part}, process {pid}"

    def _crash_postgres(self) -> str:
        self._installation.postgres.crash()
        return "immediate shutdown, and recovery"

    def _kill_child(self, choice: int) -> str:
        pid = self._installation.pid("checks")
        children = family(pid)[1:] if pid is not None else []
        if not children:
            return "there was none"
        child = children[choice % len(children)]
        _send([child], signal.SIGKILL)
        return f"process {child} of {len(children)}"

    def _pause(self, part: str, seconds: float) -> tuple[str, float]:
        pid = self._installation.pid(part)
        if pid is None:
            return f"{part} was not there", 0.0
        stopped = family(pid)
        _send(stopped, signal.SIGSTOP)
        return self._until(seconds, lambda: _send(stopped, signal.SIGCONT), f"{part}, {seconds:g} s")

    def _terminate(self) -> str:
        try:
            with self._installation.connect() as connection:
                return f"{len(connection.execute(_TERMINATE).fetchall())} of them"
        except psycopg.Error as error:
            return f"could not: {type(error).__name__}"

    def _crash_redis(self, seconds: float) -> tuple[str, float]:
        if self._installation.redis.pid is None:
            return "it was away", 0.0
        self._installation.redis.crash()
        return self._until(seconds, self._installation.redis.start, f"away for {seconds:g} s")

    def _flush(self) -> str:
        try:
            with self._installation.broker() as broker:
                keys = broker.dbsize()
                broker.flushall()
        except redis.RedisError as error:
            return f"could not: {type(error).__name__}"
        return f"{keys} keys"


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
