"""Postgres and Redis servers on 127.0.0.1 that live no longer than the process that starts them."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cli.local.embedded_server import POLL_SECONDS, START_SECONDS, EmbeddedServer, free_port, server_environment
from cli.local.installations import EmbeddedError, PostgresInstallation, can_enter, postgres_installations, redis_server
from cli.local.processes import describe_status, end_program, start_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["EmbeddedError", "EmbeddedPostgres", "EmbeddedRedis", "EmbeddedStack", "free_port"]

LOGIN = DATABASE = "palimpsest"
_STOP_POSTGRES = [(signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0)]  # fast shutdown, then immediate
_STOP_REDIS = [(signal.SIGTERM, 10.0)]
_POSTGRES_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "ssl": "off",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "wal_buffers": "1MB",  # a thirty-second of shared_buffers by itself, all of it written to before long
    "max_pred_locks_per_transaction": "10",  # the least: no transaction here is serializable
    "jit": "off",  # short statements only: compiling them costs more than it saves
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedPostgres(EmbeddedServer):
    """A Postgres server with the superuser login and the database `palimpsest`, scram over TCP only.

    `directory` keeps the data over restarts; None is a temporary one. Not `durable` is faster, and a crash of
    the machine may lose data. An existing directory is opened with the Postgres version that wrote it.
    """

    name = "Postgres"
    _stop_steps = _STOP_POSTGRES
    _ready: Sequence[str] = ("ready",)
    """What its status line may say once it serves."""

    def __init__(self, directory: Path | None = None, *, durable: bool = True) -> None:
        super().__init__(directory)
        self._durable = durable

    @property
    def _data(self) -> Path:
        return self.directory / "pgdata"

    def _start(self, undo: contextlib.ExitStack) -> str:
        program = self._within_reach(self._installation().directory / "postgres", undo)
        password = self._password()
        if not self._data.exists():
            self._initialise(program)
        settings = _POSTGRES_SETTINGS | ({} if self._durable else _NOT_DURABLE)

        def start(port: int) -> None:
            self._clear_stale_pid()
            with contextlib.ExitStack() as opened:
                data, fds = self._reachable(self._data, opened)
                options = [f"--{name}={value}" for name, value in {**settings, "port": str(port)}.items()]
                self._run([str(program), "-D", data, *options], undo, pass_fds=fds)
            self._wait_until(self._is_ready)

        port = self._start_on_free_port(start)
        return f"postgresql://{LOGIN}:{password}@127.0.0.1:{port}/{DATABASE}"

    def _installation(self) -> PostgresInstallation:
        installations = postgres_installations()
        try:
            written_by = int((self._data / "PG_VERSION").read_text().strip())
        except FileNotFoundError:
            return installations[0]
        for installation in installations:
            if installation.major == written_by:
                return installation
        present = ", ".join(f"{each.major} ({each.directory})" for each in installations)
        raise EmbeddedError(f"{self._data} was written by PostgreSQL {written_by}; found here: {present}")

    def _password(self) -> str:
        path = self.directory / "password"
        if self._data.exists():
            return path.read_text().strip()
        path.unlink(missing_ok=True)
        password = secrets.token_urlsafe(24)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
        self._hand_over(path, self.identity)
        return password

    def _initialise(self, program: Path) -> None:
        """Make the data directory under another name and rename it: one that is there is whole."""
        half_made = self.directory / "pgdata.new"
        shutil.rmtree(half_made, ignore_errors=True)
        half_made.mkdir(mode=0o700)
        self._hand_over(half_made, self.identity)
        with contextlib.ExitStack() as opened:
            data, data_fds = self._reachable(half_made, opened)
            password, password_fds = self._reachable(self.directory / "password", opened)
            initdb = [str(program.with_name("initdb")), "-D", data, "-U", LOGIN, f"--pwfile={password}"]
            initdb += ["--auth=scram-sha-256", "--encoding=UTF8", "--no-locale"]
            initdb += [] if self._is_kept and self._durable else ["--no-sync"]
            self._run_to_its_end(initdb, data_fds + password_fds)
            # Without a server: to connect to one takes a driver, which what waits for its parts would keep loaded.
            alone = [str(program), "--single", "-j", "-D", data, "postgres"]
            self._run_to_its_end(alone, data_fds, f"create database {DATABASE};\n")
        half_made.rename(self._data)

    def _run_to_its_end(self, argv: list[str], fds: tuple[int, ...], given: str = "") -> None:
        """Run a program of the installation with that on its stdin. Raises EmbeddedError where it fails."""
        name = Path(argv[0]).name
        with self._open_log() as log, tempfile.TemporaryFile() as stdin:
            stdin.write(given.encode())
            stdin.seek(0)
            process = start_program(
                argv,
                env=server_environment(),
                death_signal=signal.SIGKILL,
                stdin=stdin.fileno(),
                output=log,
                identity=self.identity,
                pass_fds=fds,
            )
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            raise EmbeddedError(f"{name} did not end{self._log_tail()}") from None
        finally:
            status = end_program(process, [])
        if status:
            raise EmbeddedError(f"{name} ended with {describe_status(status)}{self._log_tail()}")

    def _reachable(self, path: Path, opened: contextlib.ExitStack) -> tuple[str, tuple[int, ...]]:
        """Name `path` so that the server's user can open it, with the descriptors to hand down for that.

        Below a folder that only root may enter the name is that of a descriptor root opened: following it
        passes no folder, and Postgres works inside its data directory from then on.
        """
        if self.identity is None or can_enter(self.directory, self.identity):
            return str(path), ()
        descriptor = os.open(path, os.O_RDONLY)
        opened.callback(os.close, descriptor)
        return f"/proc/self/fd/{descriptor}", (descriptor,)

    def _clear_stale_pid(self) -> None:
        """Remove the pid file of a server that was killed; wait for one that is still shutting down.

        Postgres by itself refuses to start when the number now belongs to any other process of its user.
        """
        pid_file = self._data / "postmaster.pid"
        deadline = time.monotonic() + _STOP_POSTGRES[0][1]
        while pid_file.exists():
            pid = _first_number(pid_file)
            if pid is None or not self._serves_here(pid):
                pid_file.unlink(missing_ok=True)
            elif time.monotonic() > deadline:
                raise EmbeddedError(f"another Postgres (process {pid}) runs on {self._data}")
            else:
                time.sleep(POLL_SECONDS)  # not our child: there is nothing to wait on

    def _serves_here(self, pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/cwd").samefile(self._data)
        except FileNotFoundError:
            return Path("/proc/self").exists() is False and _is_alive(pid)
        except PermissionError:
            return False

    def _is_ready(self) -> bool:
        """Read the status line that the server keeps in its pid file, as pg_ctl does."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        status_line = 7  # LOCK_FILE_LINE_PM_STATUS of miscadmin.h, counted from 0
        return len(lines) > status_line and lines[0] == str(self.pid) and lines[status_line].strip() in self._ready


def _first_number(path: Path) -> int | None:
    try:
        return int(path.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class EmbeddedRedis(EmbeddedServer):
    """A Redis server that keeps nothing on disk: a lost wake-up is found by the sweep."""

    name = "Redis"
    _stop_steps = _STOP_REDIS

    def _start(self, undo: contextlib.ExitStack) -> str:
        program = self._within_reach(redis_server(), undo)
        password = secrets.token_urlsafe(24)

        def start(port: int) -> None:
            process = self._run([str(program), "-"], undo, stdin=subprocess.PIPE)
            lines = [f"port {port}", "bind 127.0.0.1", f"requirepass {password}", "appendonly no", 'save ""']
            lines += ["maxmemory-policy noeviction", "daemonize no"]
            if process.stdin is not None:
                # Not in argv, which every user can read. A broken pipe: it ended, and its log says why.
                with contextlib.suppress(BrokenPipeError), process.stdin:
                    process.stdin.write("\n".join(lines).encode())
            self._wait_until(lambda: _answers(port, password))

        port = self._start_on_free_port(start)
        return f"redis://:{password}@127.0.0.1:{port}/0"


def _answers(port: int, password: str) -> bool:
    """Ask by hand whether Redis is ready: its client is larger than all else that waits for it here."""
    try:
        with socket.create_connection(("127.0.0.1", port), 2.0) as connection, connection.makefile("rb") as answers:
            connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            return [answers.readline(), answers.readline()] == [b"+OK\r\n", b"+PONG\r\n"]
    except OSError:
        return False


class EmbeddedStack:
    """The two servers that the service needs; one whose URL is given is used as it is and not started."""

    def __init__(
        self,
        data_dir: Path | None,
        *,
        durable: bool = True,
        database_url: str | None = None,
        broker_url: str | None = None,
    ) -> None:
        self._given_database, self._given_broker = database_url, broker_url
        self.postgres = EmbeddedPostgres(data_dir / "postgres" if data_dir else None, durable=durable)
        self.redis = EmbeddedRedis(data_dir / "redis" if data_dir else None)
        self._running = contextlib.ExitStack()

    @classmethod
    def from_environment(
        cls, data_dir: Path | None, *, durable: bool = True, environ: Mapping[str, str] = os.environ
    ) -> Self:
        """Use PALIMPSEST_DATABASE_URL and PALIMPSEST_BROKER_URL where they are set."""
        return cls(
            data_dir,
            durable=durable,
            database_url=environ.get("PALIMPSEST_DATABASE_URL") or None,
            broker_url=environ.get("PALIMPSEST_BROKER_URL") or None,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def database_url(self) -> str:
        """The URL of Postgres. Raises EmbeddedError before start()."""
        return self._given_database or self.postgres.url

    @property
    def broker_url(self) -> str:
        """The URL of Redis. Raises EmbeddedError before start()."""
        return self._given_broker or self.redis.url

    def start(self) -> None:
        """Start what no URL was given for. Raises EmbeddedError, with nothing left running."""
        with contextlib.ExitStack() as running:
            if self._given_database is None:
                running.enter_context(self.postgres)
            if self._given_broker is None:
                running.enter_context(self.redis)
            self._running = running.pop_all()

    def stop(self) -> None:
        """Stop Redis, then Postgres."""
        self._running.close()

    def keep_running(self, say: Callable[[str], None]) -> None:
        """From now on start again what was started here and ends by itself."""
        if self._given_database is None:
            self.postgres.keep_running(say)
        if self._given_broker is None:
            self.redis.keep_running(say)

    def ended(self) -> str | None:
        """Answer why a server does not run any more; None while all do."""
        return self.postgres.ended() or self.redis.ended()
