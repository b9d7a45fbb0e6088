"""What the embedded servers share: a directory, its lock, the user they run as, their log, start and stop."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from cli.local.installations import EmbeddedError, can_run, copy_within_reach
from cli.local.processes import (
    Identity,
    Restarts,
    describe_status,
    end_program,
    forget_directory,
    keep_directory,
    start_program,
)

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence

POLL_SECONDS = 0.02
START_SECONDS = 60.0  # recovery after a crash replays the log since the last checkpoint
_NOBODY = 65534  # where the machine has no such account
_PASSING = ("Address already in use", "pre-existing shared memory block")  # worth another attempt
_RETRY_SECONDS = 10.0
_LOG_TAIL_LINES = 8
_LOG_MAX_BYTES = 16 * 1024 * 1024


def free_port() -> int:
    """Return a TCP port of this machine that nobody listens on.

    From below those that the kernel gives to outgoing connections (ip(7), ip_local_port_range), which would take it
    before it is listened on.
    """
    for port in random.sample(range(20_000, 32_000), 50):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EmbeddedServer(ABC):
    """What both servers share: a directory of their own, its lock, the user they run as, their log."""

    name = ""
    _stop_steps: Sequence[tuple[signal.Signals, float]] = ()

    def __init__(self, directory: Path | None = None) -> None:
        self._given = directory.absolute() if directory is not None else None
        self._undo = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""
        self._log_start = 0
        self._start_again: Callable[[], None] | None = None
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        self._keeper: threading.Thread | None = None
        self._failure: str | None = None
        self.directory = Path()
        """The server's own directory; a temporary one is removed by stop()."""
        self.identity: Identity | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients connect, password included. Raises EmbeddedError before start()."""
        if not self._url:
            raise EmbeddedError(f"{self.name} is not running")
        return self._url

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process is not None else None

    @property
    def _is_kept(self) -> bool:
        """Whether the directory outlives the server."""
        return self._given is not None

    def start(self) -> None:
        """Start and wait until it serves. Raises EmbeddedError, with nothing left behind."""
        if self._process is not None:
            raise EmbeddedError(f"{self.name} is running already")
        self._stopping.clear()
        self._failure = None
        with contextlib.ExitStack() as undo:
            try:
                self._prepare_directory(undo)
                self._url = self._start(undo)
            except OSError as error:
                raise EmbeddedError(f"{self.name} cannot start: {error}") from error
            self._undo = undo.pop_all()

    def stop(self) -> None:
        """Shut down cleanly, wait for it, remove a temporary directory. Does nothing when not running."""
        self._stopping.set()
        self._url = ""
        with self._changing:
            self._undo.close()
        if self._keeper is not None:
            self._keeper.join()
            self._keeper = None

    def ended(self) -> str | None:
        """Answer why a server that was started is not running any more; None while it runs, or is started again."""
        if self._keeper is not None:
            return self._failure
        return self._how_it_ended(self._process)

    def keep_running(self, say: Callable[[str], None]) -> None:
        """From now on start it again where it was, on the same data, when it ends by itself; `say` is told, in a line.

        What is connected sees an outage of seconds. After too many of them it stays down, and `ended` says why.
        """
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, args=(say,), name=f"keep {self.name}", daemon=True)
            self._keeper.start()

    def _keep(self, say: Callable[[str], None]) -> None:
        restarts = Restarts()
        failure: str | None = None
        while (process := self._process) is not None or failure is not None:
            if process is not None:
                process.wait()
                failure = self._how_it_ended(process)
            if self._stopping.is_set():
                return
            delay = restarts.after_crash()
            if delay is None:
                self._failure = failure
                return
            say(f"{failure}; again in {delay:g} s")
            if self._stopping.wait(delay):
                return
            with self._changing:
                failure = self._try_again()

    def _try_again(self) -> str | None:
        """Start the server that has ended once more; answer why it does not run, None where it does."""
        if self._stopping.is_set() or self._start_again is None:
            return None
        self._end()
        try:
            self._start_again()
        except (EmbeddedError, OSError) as error:
            self._end()
            return str(error)
        return None

    def _how_it_ended(self, process: subprocess.Popen[bytes] | None) -> str | None:
        if process is None or process.poll() is None:
            return None
        return f"{self.name} ended with {describe_status(process.returncode)}{self._log_tail()}"

    @abstractmethod
    def _start(self, undo: contextlib.ExitStack) -> str:
        """Start the server's process by `_start_on_free_port` and return where it serves; `undo` takes it back."""

    def _prepare_directory(self, undo: contextlib.ExitStack) -> None:
        if self._given is None:
            self.directory = Path(tempfile.mkdtemp(prefix=f"palimpsest-{self.name.lower()}-"))
            self._remove_afterwards(self.directory, undo)
        else:
            self.directory = self._given
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except FileExistsError:
                raise EmbeddedError(f"{self.directory} is not a directory") from None
        lock = open(self.directory / "lock", "ab", opener=open_no_link)  # noqa: SIM115  held until `undo`
        undo.callback(lock.close)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EmbeddedError(f"{self.directory} is in use by another palimpsest process") from None
        self.identity = self._choose_identity()

    def _choose_identity(self) -> Identity | None:
        """As root: the directory's owner, or else `nobody`, for Postgres refuses to be root."""
        if os.geteuid() != 0:
            return None
        owner = self.directory.stat()
        if owner.st_uid != 0:
            return Identity(owner.st_uid, owner.st_gid)
        try:
            account = pwd.getpwnam("nobody")
            identity = Identity(account.pw_uid, account.pw_gid)
        except KeyError:
            identity = Identity(_NOBODY, _NOBODY)
        self.directory.chmod(0o700)
        self._hand_over(self.directory, identity)
        return identity

    def _hand_over(self, path: Path, identity: Identity | None) -> None:
        if identity is not None:
            os.chown(path, identity.uid, identity.gid)

    def _within_reach(self, program: Path, undo: contextlib.ExitStack) -> Path:
        if self.identity is None or can_run(program, self.identity):
            return program
        return copy_within_reach(program, self.identity, lambda path: self._remove_afterwards(path, undo))

    def _remove_afterwards(self, path: Path, undo: contextlib.ExitStack) -> None:
        def remove() -> None:
            shutil.rmtree(path, ignore_errors=True)
            forget_directory(path)

        keep_directory(path)
        undo.callback(remove)

    def _open_log(self) -> IO[bytes]:
        log = open(self.directory / "server.log", "ab", opener=open_no_link)  # noqa: SIM115  the caller closes it
        if log.tell() > _LOG_MAX_BYTES:
            log.truncate(0)
        self._log_start = log.seek(0, os.SEEK_END)
        return log

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError), (self.directory / "server.log").open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            return "; its log ends with: " + " / ".join(line.strip() for line in lines if line.strip())
        return ""

    def _run(
        self,
        argv: list[str],
        undo: contextlib.ExitStack,
        *,
        stdin: int = subprocess.DEVNULL,
        pass_fds: tuple[int, ...] = (),
    ) -> subprocess.Popen[bytes]:
        """Start the server's process and have `undo` end it."""
        first_signal = self._stop_steps[0][0]
        with self._open_log() as log:
            process = start_program(
                argv,
                env=server_environment(),
                death_signal=first_signal,
                stdin=stdin,
                output=log,
                identity=self.identity,
                pass_fds=pass_fds,
            )
        self._process = process
        undo.callback(self._end)
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_program(process, self._stop_steps)

    def _wait_until(self, serves: Callable[[], bool]) -> None:
        """Wait until `serves`. Raises EmbeddedError when the process ends or the time is up."""
        process = self._process
        if process is None:
            raise EmbeddedError(f"{self.name} is not running")
        deadline = time.monotonic() + START_SECONDS
        while not serves():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
            if process.poll() is not None:
                raise EmbeddedError(
                    f"{self.name} did not start ({describe_status(process.returncode)}){self._log_tail()}"
                )
            if self._stopping.is_set():
                raise EmbeddedError(f"{self.name} was stopped before it served")
            if time.monotonic() > deadline:
                raise EmbeddedError(f"{self.name} did not serve in {START_SECONDS:g} s{self._log_tail()}")

    def _start_on_free_port(self, start: Callable[[int], None]) -> int:
        port = self._start_when_possible(start, free_port)

        def again() -> None:
            self._start_when_possible(start, lambda: port)

        self._start_again = again
        return port

    def _start_when_possible(self, start: Callable[[int], None], choose: Callable[[], int]) -> int:
        """Try again while the port was taken meanwhile, or processes of a killed server are still ending."""
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            port = choose()
            try:
                start(port)
            except EmbeddedError as error:
                self._end()
                is_passing = any(text in str(error) for text in _PASSING)
                if not is_passing or self._stopping.is_set() or time.monotonic() > deadline:
                    raise
            else:
                return port


def open_no_link(path: str, flags: int) -> int:
    """Open, as `open` calls an opener, what lies in another user's directory: a link there must not lead elsewhere."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def server_environment() -> dict[str, str]:
    """Nothing of ours is a server's business: no keys, no PG… variables that would change its settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C"}
