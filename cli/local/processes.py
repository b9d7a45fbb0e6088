"""Processes that never outlive this one: starting, ending and supervising them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self, TextIO

from runtime import launch
from runtime.launch import GUARD_GRACE_SECONDS, STAY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMAND: Final = [sys.executable, "-P", "-m", "cli.main"]  # -P: an `api` or `store` in the caller's folder is not ours
_LAUNCH = [sys.executable, "-I", "-S", str(Path(launch.__file__).absolute())]
_DRAIN_SECONDS = 5.0  # for output still in the pipe after the end; a stray descendant may hold it open
_TAIL_LINES = 40  # of a child's output, kept to tell why it ended


@dataclass(frozen=True, slots=True)
class Identity:
    """The user a program runs as."""

    uid: int
    gid: int


class _Guard:
    """The process that ends and removes what this one leaves behind when it is killed; see runtime/launch.py."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        atexit.register(self._close)

    def watch(self, program: subprocess.Popen[bytes], death_signal: signal.Signals) -> None:
        """Have the program signalled if it is still there when this process ends."""
        self._programs[program.pid] = program
        self.tell("process", program.pid, int(death_signal))

    def forget(self, pid: int) -> None:
        """Stop watching a program that has ended."""
        self._programs.pop(pid, None)
        self.tell("ended", pid)

    def tell(self, *what: str | int) -> None:
        """Send one line; start the guard first where it is not running yet."""
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(  # noqa: S603  our own script
                    [*_LAUNCH, "guard"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,  # Ctrl-C in the terminal is not for it
                )
            with contextlib.suppress(OSError):  # killed by somebody: the kernel's own signal remains
                if self._process.stdin is not None:
                    self._process.stdin.write(json.dumps(what).encode() + b"\n")
                    self._process.stdin.flush()

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            for program in list(self._programs.values()):  # signalled by now; until we know its status it is not gone
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.wait(GUARD_GRACE_SECONDS)
            self._process.wait()


_guard = _Guard()
# The kernel's "parent" is the thread that forked: every program is started from one thread that lasts as long
# as the process, so that a caller's short-lived thread does not take its programs along.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")


def start_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    death_signal: signal.Signals,
    stdin: int = subprocess.DEVNULL,
    output: int | IO[bytes] = subprocess.PIPE,
    identity: Identity | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `argv` in `/`, leading its own process group, stdout and stderr together in `output`.

    It is sent `death_signal` when this process ends in whatever way. `identity` needs root. A program that
    cannot be run ends with status 127 and says why in its output.
    """
    uid, gid = (identity.uid, identity.gid) if identity else (STAY, STAY)
    before = [*_LAUNCH, "exec", str(os.getpid()), str(int(death_signal)), str(uid), str(gid)]

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # noqa: S603  argv is a list of the callers' own making
            [*before, *argv],
            env=dict(env),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
        _guard.watch(process, death_signal)
        return process

    started = _starter.submit(start)
    try:
        return started.result()
    except BaseException:  # an interrupt while waiting: nobody will own what is being started
        started.add_done_callback(_abandon)
        raise


def start_killed(
    argv: Sequence[str], env: Mapping[str, str], output: int | IO[bytes] = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Start a part of the service: killed rather than asked to end, as leases cover its work."""
    return start_program(argv, env=env, death_signal=signal.SIGKILL, output=output)


def _abandon(started: Future[subprocess.Popen[bytes]]) -> None:
    if started.exception() is None:
        end_program(started.result(), [(signal.SIGKILL, 5.0)])


def end_program(process: subprocess.Popen[bytes], steps: Sequence[tuple[signal.Signals, float]]) -> int:
    """Send each signal in turn and wait its seconds; then kill the whole group. Answers the exit status.

    A status below zero is the signal that ended it.
    """
    for number, seconds in steps:
        if process.poll() is not None:
            break
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    return reap(process, kill=True)


def reap(process: subprocess.Popen[bytes], *, kill: bool = False) -> int:
    """Wait for the program, then kill what is left of its group: a pool must not survive its parent."""
    if kill and process.poll() is None:
        _kill_group(process.pid)
    status = process.wait()
    _kill_group(process.pid)
    _guard.forget(process.pid)
    return status


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def keep_directory(path: Path) -> None:
    """Have `path` removed when this process ends without having done so; undone by `forget_directory`."""
    _guard.tell("directory", str(path))


def forget_directory(path: Path) -> None:
    """Undo `keep_directory`."""
    _guard.tell("removed", str(path))


def describe_status(status: int) -> str:
    """Say how a program ended: `status 1`, `signal SIGKILL`."""
    return f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


@dataclass(slots=True)
class _Child:
    name: str
    argv: list[str]
    env: dict[str, str]
    process: subprocess.Popen[bytes]
    tail: deque[str] = field(default_factory=lambda: deque[str](maxlen=_TAIL_LINES))
    watcher: threading.Thread | None = None


class Restarts:
    """How often something that crashes is started again: at most `most` times within `window` seconds.

    `backoff` seconds after the first crash of a window, and twice as long after each further one.
    """

    def __init__(self, most: int = 5, window: float = 60.0, backoff: float = 0.25) -> None:
        self._window, self._backoff = window, backoff
        self._crashes: deque[float] = deque(maxlen=most)

    def after_crash(self) -> float | None:
        """Return the seconds until the next start, None where there were too many crashes."""
        now, crashes = time.monotonic(), self._crashes
        if len(crashes) == crashes.maxlen and (not crashes or now - crashes[0] < self._window):
            return None
        recent = sum(now - crash < self._window for crash in crashes)
        crashes.append(now)
        delay: float = self._backoff * 2**recent
        return delay


class Supervisor:
    """Runs named child processes, forwards their output line by line under their names, restarts crashed ones.

    Until `keep_running` is called a child's end is a failure; afterwards it is started again, at most
    `restarts` times within `window` seconds, `backoff` seconds after the first crash and twice as long after
    each further one.
    """

    def __init__(
        self,
        *,
        log: TextIO | None = None,
        restarts: int = 5,
        window: float = 60.0,
        backoff: float = 0.25,
    ) -> None:
        self.failed = threading.Event()
        """Set when a child ended for good; `failure` says which and why."""
        self.failure: str | None = None
        self._log = sys.stderr if log is None else log
        self._log_lock = threading.Lock()
        self._restarts, self._window, self._backoff = restarts, window, backoff
        self._children: dict[str, _Child] = {}
        self._restarting = False
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start a child; `env` replaces the environment where given."""
        if name in self._children:
            raise ValueError(f"a child named {name!r} is running already")
        environment = dict(os.environ if env is None else env)
        child = _Child(name, list(argv), environment, start_killed(argv, environment))
        self._children[name] = child
        child.watcher = threading.Thread(target=self._watch, args=(child,), name=f"watch {name}", daemon=True)
        child.watcher.start()

    def keep_running(self) -> None:
        """From now on start a child again that ends by itself."""
        self._restarting = True

    def pid(self, name: str) -> int:
        """Answer the process id of a child."""
        return self._children[name].process.pid

    def note(self, text: str) -> None:
        """Write a line of one's own among those of the children."""
        self._print("serve", text)

    def stop(self, order: Sequence[str] = (), *, grace: float = 10.0) -> None:
        """SIGTERM to every child, those of `order` first and in that order; SIGKILL after `grace` seconds."""
        self._stopping.set()
        names = [*(name for name in order if name in self._children), *self._children]
        children = [self._children[name] for name in dict.fromkeys(names)]
        for child in children:
            child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        for child in children:
            if child.watcher is not None:
                child.watcher.join(max(0.0, deadline - time.monotonic()))
                if child.watcher.is_alive():
                    _kill_group(child.process.pid)
                    child.watcher.join()
        self._children.clear()

    def _watch(self, child: _Child) -> None:
        restarts = Restarts(self._restarts, self._window, self._backoff)
        while True:
            forwarding = threading.Thread(target=self._forward, args=(child, child.process.stdout), daemon=True)
            forwarding.start()
            status = reap(child.process)
            forwarding.join(_DRAIN_SECONDS)
            if self._stopping.is_set():
                return
            delay = restarts.after_crash() if self._restarting else None
            if delay is None:
                self._fail(child, describe_status(status))
                return
            self.note(f"{child.name} ended with {describe_status(status)}; again in {delay:g} s")
            if self._stopping.wait(delay):
                return
            try:
                child.process = start_killed(child.argv, child.env)
            except OSError as error:  # no process, no memory or no descriptor is left
                self._fail(child, f"{describe_status(status)} and cannot be started again ({error.strerror})")
                return
            if self._stopping.is_set():  # stop() may have signalled the process before this one
                child.process.send_signal(signal.SIGTERM)

    def _fail(self, child: _Child, how: str) -> None:
        reason = next((line for line in reversed(child.tail) if line.strip()), "it printed nothing")
        self.failure = self.failure or f"{child.name} ended with {how}: {reason.strip()}"
        self.failed.set()

    def _forward(self, child: _Child, output: IO[bytes] | Any) -> None:
        with output:
            for line in output:
                text = line.decode(errors="replace").rstrip("\r\n")
                child.tail.append(text)
                self._print(child.name, text)

    def _print(self, name: str, text: str) -> None:
        with (
            self._log_lock,
            contextlib.suppress(OSError, ValueError),
        ):  # a closed log must not stop the draining
            self._log.write(f"{name:<9} | {text}\n")
            self._log.flush()
