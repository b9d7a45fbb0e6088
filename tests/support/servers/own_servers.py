"""Postgres and Redis of a test's own, on ports that they keep: to be stopped, killed, filled up, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from cli.local.embedded import LOGIN, EmbeddedPostgres
from migrations.run import upgrade
from tests.conftest import create_database
from tests.worker.checks.test_wakeups import Broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TEMPLATE = "template_palimpsest"
STANDBY = "standby"
"""What a standby calls itself, for `synchronous_standby_names`."""
STOP_SECONDS = 30


class OwnPostgres(EmbeddedPostgres):
    """A Postgres whose commits outlive its processes, and that comes back where it was."""

    _port: int | None = None

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, durable=True)

    def crash(self) -> None:
        """End every process of the server at once, as `pg_ctl stop --mode immediate` does: nothing is written."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(STOP_SECONDS)
        self.stop()

    def _start_on_free_port(self, start: Callable[[int], None]) -> int:
        if self._port is None:
            self._port = super()._start_on_free_port(start)
        else:
            start(self._port)
        return self._port


class Standby(OwnPostgres):
    """A Postgres in a copy of another one's directory, which follows that one through `port` until it is promoted."""

    _ready = ("standby", "ready")

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__(directory)
        password = (directory / "password").read_text()
        data = directory / "pgdata"
        with (data / "postgresql.auto.conf").open("a") as file:
            file.write(
                f"primary_conninfo = 'host=127.0.0.1 port={port} user={LOGIN} password={password}"
                f" application_name={STANDBY}'\n"
            )
        (data / "standby.signal").touch()

    def promote(self) -> None:
        """Become a primary; return once it takes writes."""
        query(self.url, "select pg_promote()")


class OwnRedis(Broker):
    """A Redis that keeps nothing on disk."""

    def fill_up(self) -> None:
        """Take nothing more: what is there now is already more than the memory it may use."""
        with self.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 1)

    def make_room(self) -> None:
        """Take what comes."""
        with self.client() as client:
            client.config_set("maxmemory", 0)


@contextmanager
def own_postgres(directory: Path) -> Iterator[OwnPostgres]:
    """Run a Postgres with a migrated database to clone."""
    with OwnPostgres(directory) as server:
        upgrade(create_database(server.url, TEMPLATE))
        yield server


def copy_of(stopped: Path, directory: Path) -> Path:
    """Copy the directory of a Postgres that does not run, owners and all; return where."""
    subprocess.run(["cp", "-a", "--reflink=auto", str(stopped), str(directory)], check=True)
    return directory


@contextmanager
def own_redis() -> Iterator[OwnRedis]:
    """Run a Redis."""
    server = OwnRedis()
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system of that size on a new directory; only root may. Skips the test elsewhere."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "palimpsest-test", str(directory)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def query(url: str, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Run a statement in the database's own login, as an operator would."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []
