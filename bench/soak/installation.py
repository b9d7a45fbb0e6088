"""A whole installation of a soak's own, as real processes that can be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TextIO

import httpx2
import psycopg
import redis
from psycopg.rows import dict_row

from bench.measure import progress
from bench.soak.model import SoakModel
from bench.soak.processes import family
from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
from cli.local.installations import redis_server
from cli.local.processes import Supervisor
from migrations.run import upgrade
from store.engine import owner_engine
from store.tenants import api_keys, tenants

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from uuid import UUID

_COMMAND: Final = [sys.executable, "-P", "-m", "cli.main"]
LEASE_SECONDS: Final = 4.0
MAX_ATTEMPTS: Final = 5
SETTINGS: Final = {
    "SUMMARIZER": "anthropic",
    "LEASE_SECONDS": f"{LEASE_SECONDS:g}",
    "MAX_ATTEMPTS": f"{MAX_ATTEMPTS}",
    "SWEEP_INTERVAL_SECONDS": "1",
    "CHECK_OVERDUE_SECONDS": "2",
    "RUN_OVERDUE_SECONDS": "4",
    "HEARTBEAT_SECONDS": "1",
    "HOUSEKEEPING_INTERVAL_SECONDS": "10",
    "SUMMARIZER_DEADLINE_SECONDS": "6",
    "BREAKER_COOLDOWN_SECONDS": "1",
    "BREAKER_MAX_COOLDOWN_SECONDS": "4",
    "LOG_LEVEL": "warning",
}
"""Times of seconds where the defaults have minutes, so that every recovery is seen many times."""
PARTS: Final = {
    "api": ["api"],
    "checks": ["worker", "--queues", "checks", "--concurrency", "2"],
    "summaries": ["worker", "--queues", "summaries", "--concurrency", "8"],
    "summaries-2": ["worker", "--queues", "summaries", "--concurrency", "8"],
    "sweeper": ["sweeper"],
}
_READY_SECONDS: Final = 90.0
_STOP_SECONDS: Final = 40.0
_TENANTS: Final = 3


class Tenant(NamedTuple):
    """A tenant and a key of it."""

    id: UUID
    key: str


class SamePortPostgres(EmbeddedPostgres):
    """Postgres that comes back on the port it had, so that its clients find it again."""

    _port: int | None = None

    def crash(self) -> None:
        """End it as `pg_ctl stop -m immediate` does and start it again: it recovers from its log."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGQUIT)
        self.stop()
        self.start()

    def _start_on_free_port(self, start: Callable[[int], None]) -> int:
        self._port = self._port or stable_port()
        start(self._port)
        return self._port


class SamePortRedis(EmbeddedRedis):
    """Redis that comes back on the port it had, without a password: it listens on the loopback interface alone."""

    _port: int | None = None

    def crash(self) -> None:
        """Kill it; `start` brings an empty one back."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def _start(self, undo: ExitStack) -> str:
        self._port = self._port or stable_port()
        program = self._within_reach(redis_server(), undo)
        options = {"port": f"{self._port}", "bind": "127.0.0.1", "save": "", "maxmemory-policy": "noeviction"}
        self._run([str(program), *(word for name, value in options.items() for word in (f"--{name}", value))], undo)
        self._wait_until(lambda: _accepts(self._port))
        return f"redis://127.0.0.1:{self._port}/0"


class Installation:
    """Postgres, Redis, the model, and every process of the service; all of it is gone afterwards."""

    def __init__(self, log: TextIO) -> None:
        self.model = SoakModel()
        self.tenants: list[Tenant] = []
        self.postgres = SamePortPostgres()
        self.redis = SamePortRedis()
        self.database_url = self.broker_url = ""
        self.api_port = stable_port()
        self._log = log
        # Processes come back at once, however often they are killed.
        self._supervisor = Supervisor(log=log, restarts=1, window=0.0, backoff=0.2)
        self._second: Supervisor | None = None
        self._environment: dict[str, str] = {}
        self._running = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"http://127.0.0.1:{self.api_port}"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as running:
            progress("starting Postgres, Redis, the model, API, workers and sweeper")
            data = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-soak-")))
            # A directory of its own keeps the data over a crash.
            self.postgres = SamePortPostgres(data / "postgres")
            for server in (self.postgres, self.redis, self.model):
                running.enter_context(server)
            self.database_url, self.broker_url = self.postgres.url, self.redis.url
            upgrade(self.database_url)
            self._make_tenants()
            self._environment = self._settings()
            running.callback(self.stop_services)
            for name, arguments in PARTS.items():
                own = ["--port", f"{self.api_port}"] if name == "api" else []
                self._supervisor.start(name, [*_COMMAND, *arguments, *own], self._environment)
            self._await_ready()
            self._supervisor.keep_running()
            self._running = running.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def connect(self) -> psycopg.Connection[dict[str, Any]]:
        """Open a connection as the owner, every statement its own transaction."""
        return psycopg.connect(self.database_url, autocommit=True, row_factory=dict_row, connect_timeout=5)

    def broker(self) -> redis.Redis:
        """Open a connection to Redis."""
        return redis.Redis.from_url(self.broker_url, socket_timeout=5)

    def pid(self, part: str) -> int | None:
        """Return the process id of a part of the service; None while it is being started again."""
        pid = self._supervisor.pid(part)
        # The number may be somebody else's by now.
        return pid if b"cli.main" in _command_line(pid) else None

    def parts(self) -> dict[str, list[int]]:
        """Return the processes of each part, their children included, servers too."""
        roots = {name: self.pid(name) for name in PARTS} | {"postgres": self.postgres.pid, "redis": self.redis.pid}
        return {name: family(pid) for name, pid in roots.items() if pid is not None}

    def start_second_sweeper(self) -> None:
        """Run one more sweeper beside the first."""
        if self._second is None:
            self._second = Supervisor(log=self._log, restarts=1, window=0.0, backoff=0.2)
            self._second.start("sweeper-2", [*_COMMAND, *PARTS["sweeper"]], self._environment)
            self._second.keep_running()

    def stop_second_sweeper(self) -> None:
        """End it."""
        if self._second is not None:
            self._second.stop(grace=_STOP_SECONDS)
            self._second = None

    def stop_services(self) -> None:
        """End every process of the service in good order; servers go on."""
        self.stop_second_sweeper()
        self._supervisor.stop(["api", "sweeper"], grace=_STOP_SECONDS)

    def _make_tenants(self) -> None:
        engine = owner_engine(self.database_url)
        with engine.begin() as connection:
            for number in range(_TENANTS):
                tenant = tenants.create_tenant(connection, f"soak-{number}")
                _, key = api_keys.create(connection, tenant.id, "soak")
                self.tenants.append(Tenant(tenant.id, key))
        engine.dispose()

    def _settings(self) -> dict[str, str]:
        # What the user's shell sets for a service of theirs is not for this one.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PALIMPSEST_", "ANTHROPIC"))
        }
        given = SETTINGS | {"DATABASE_URL": self.database_url, "BROKER_URL": self.broker_url}
        return (
            inherited
            | {f"PALIMPSEST_{name}": value for name, value in given.items()}
            | {"ANTHROPIC_API_KEY": "soak", "ANTHROPIC_BASE_URL": self.model.url, "PYTHONUNBUFFERED": "1"}
        )

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not self._is_ready():
            if self._supervisor.failed.wait(0.1):
                raise RuntimeError(f"the service did not start: {self._supervisor.failure}")
            if time.monotonic() > deadline:
                raise RuntimeError("the service was not ready in time")

    def _is_ready(self) -> bool:
        try:
            return bool(httpx2.get(f"{self.url}/readyz", timeout=5).json()["status"] == "ok")
        except (httpx2.TransportError, ValueError, KeyError):
            return False


def stable_port() -> int:
    """Return a port below those that the kernel gives to outgoing connections, so that it is still free next time."""
    for port in random.sample(range(12_000, 32_000), 200):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no free port between 12000 and 32000")


def _accepts(port: int | None) -> bool:
    try:
        with contextlib.closing(redis.Redis(host="127.0.0.1", port=port or 0, socket_timeout=2.0)) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
