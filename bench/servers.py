"""What a benchmark runs against: Postgres, Redis, API processes and a worker, each on its core."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import psycopg
import redis
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from bench.measure import progress
from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis, free_port
from cli.local.processes import Supervisor
from migrations.run import upgrade
from runtime.settings import Settings
from store.engine import owner_engine
from store.tenants import api_keys, tenants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from bench.machine import Cores

_COMMAND: Final = [sys.executable, "-P", "-m", "cli.main"]
_READY_SECONDS: Final = 60.0
_CLEAR_SECONDS: Final = 0.2


class Api(NamedTuple):
    """A running API process and a key to it."""

    pid: int
    port: int
    key: str
    host: str = "127.0.0.1"


class Servers:
    """The servers of one run of the benchmark. Everything is started when it is entered or asked for."""

    def __init__(self, cores: Cores) -> None:
        self.cores = cores
        self.tenant_id: UUID
        self._postgres = EmbeddedPostgres(durable=True)
        self._redis = EmbeddedRedis()
        self._key = ""
        self._running = contextlib.ExitStack()
        self._supervisor: Supervisor
        self._log = io.StringIO()  # what the programs print; the supervisor keeps what tells why one ended
        self._apis: dict[str, Api] = {}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as running:
            progress("starting Postgres and Redis")
            running.enter_context(self._postgres)
            running.enter_context(self._redis)
            for pid in (self._postgres.pid, self._redis.pid):
                if pid is not None:
                    self.cores.pin(pid, self.cores.rest)
            upgrade(self.database_url)
            self._make_tenant()
            self._supervisor = running.enter_context(Supervisor(log=self._log))
            self._running = running.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def database_url(self) -> str:
        """Postgres, as the login that owns everything."""
        return self._postgres.url

    @property
    def postgres_pid(self) -> int:
        """The process that all of Postgres descends from."""
        pid = self._postgres.pid
        if pid is None:
            raise RuntimeError("Postgres is not running")
        return pid

    @property
    def settings(self) -> Settings:
        """Settings of a service in this process."""
        return Settings(
            database_url=SecretStr(self.database_url),
            broker_url=SecretStr(self._redis.url),
            summarizer="none",
        )

    def libpq_environment(self, *, role: str | None) -> dict[str, str]:
        """Return the environment that makes a libpq program connect here, in a role."""
        parts = conninfo_to_dict(self.database_url)
        names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}
        options = "-c jit=off" + (f" -c role={role}" if role else "")
        return {**{name: str(parts[part]) for part, name in names.items()}, "PGOPTIONS": options}

    def connect(self) -> psycopg.Connection:
        """Open a connection as the owner, every statement its own transaction."""
        return psycopg.connect(self.database_url, autocommit=True)

    def broker(self) -> redis.Redis:
        """Open a connection to Redis."""
        return redis.Redis.from_url(self._redis.url)

    def api(self, name: str = "api", **settings: str) -> Api:
        """Return the API process of that name, started with these PALIMPSEST_ settings if it does not run yet."""
        if name not in self._apis:
            port = free_port()
            pid = self._start(self._supervisor, name, ["api", "--port", str(port)], settings)
            self._await_ready(port)
            self._apis[name] = Api(pid, port, self._key)
        return self._apis[name]

    def gateway(self, **settings: str) -> Api:
        """Return the gateway process, started with these PALIMPSEST_ settings if it does not run yet."""
        if "gateway" not in self._apis:
            port = free_port()
            pid = self._start(self._supervisor, "gateway", ["gateway", "--port", str(port)], settings)
            self._await_ready(port)
            self._apis["gateway"] = Api(pid, port, self._key)
        return self._apis["gateway"]

    @contextlib.contextmanager
    def worker(self, queue: str, concurrency: int, **settings: str) -> Iterator[int]:
        """Run a worker for the length of the block, with these PALIMPSEST_ and ANTHROPIC_ settings.

        The queue is empty at first. Returns the id of the worker's process.
        """
        with self.broker() as broker:
            broker.flushdb()
        with Supervisor(log=self._log) as supervisor:
            arguments = ["worker", "--queues", queue, "--concurrency", str(concurrency)]
            yield self._start(supervisor, "worker", arguments, settings)

    def analyze(self) -> None:
        """Give the planner statistics; every connection plans anew, for tables that are not empty any more."""
        with self.connect() as connection:
            connection.execute("analyze")

    @contextlib.contextmanager
    def checks_cleared(self) -> Iterator[None]:
        """Take due marks off every 200 ms for the length of the block, as workers would, so that appends set them."""
        stop = threading.Event()
        thread = threading.Thread(target=self._clear, args=(stop,), name="clear-checks")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _clear(self, stop: threading.Event) -> None:
        due = "select id from conversations where check_due_at is not null for no key update skip locked"
        with self.connect() as connection:
            connection.execute("set synchronous_commit = off")
            while not stop.wait(_CLEAR_SECONDS):
                connection.execute(f"update conversations set check_due_at = null where id in ({due})")

    def _make_tenant(self) -> None:
        engine = owner_engine(self.database_url)
        with engine.begin() as connection:
            tenant = tenants.create_tenant(connection, "bench")
            _, self._key = api_keys.create(connection, tenant.id, "bench")
        engine.dispose()
        self.tenant_id = tenant.id

    def _start(self, supervisor: Supervisor, name: str, arguments: list[str], settings: dict[str, str]) -> int:
        progress(f"starting {name}")
        # What the user's shell sets for a service of theirs is not for this one.
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("PALIMPSEST_", "ANTHROPIC"))
        }
        environment = inherited | {
            "PALIMPSEST_DATABASE_URL": self.database_url,
            "PALIMPSEST_BROKER_URL": self._redis.url,
            "PALIMPSEST_SUMMARIZER": "none",
            "PALIMPSEST_LOG_LEVEL": "warning",
            **{
                key if key.startswith("ANTHROPIC_") else f"PALIMPSEST_{key.upper()}": value
                for key, value in settings.items()
            },
        }
        supervisor.start(name, [*_COMMAND, *arguments], environment)
        pid = supervisor.pid(name)
        self.cores.pin(pid, self.cores.measured)
        return pid

    def _await_ready(self, port: int) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not _answers(port):
            if self._supervisor.failed.wait(0.05):
                raise RuntimeError(f"the API did not start: {self._supervisor.failure}")
            if time.monotonic() > deadline:
                raise RuntimeError("the API was not ready in time")


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
