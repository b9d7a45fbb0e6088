"""Starting our own command by a fork of a process that has loaded it already."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, ClassVar, Final, Self

from cli.local.fork_server import FORK, REHEARSE
from cli.local.processes import end_program, guard, start_killed, start_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cli.local.processes import Program

COMMAND: Final = [sys.executable, "-P", "-m", "cli.main"]  # -P: an `api` or `store` in the caller's folder is not ours
ANSWER_BYTES: Final = 32
"""More than a process id or a status takes."""
CAN_FORK: Final = sys.platform == "linux"
"""Elsewhere system libraries do not bear it."""


class ForkedProgram:
    """A program that a fork server started; it is what subprocess.Popen is, as far as anybody here asks."""

    def __init__(self, pid: int, own: socket.socket) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = None
        self.returncode: int | None = None
        self._own = own
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the status if the program has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its status. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        try:
            if self.returncode is None:
                self.returncode = self._status(timeout)
            return self.returncode
        finally:
            self._lock.release()

    def send_signal(self, number: int, /) -> None:
        """Signal the program unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _status(self, timeout: float | None) -> int:
        self._own.settimeout(timeout)
        try:
            status = _answer(self._own)
        except (BlockingIOError, TimeoutError):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
        self._own.close()
        # Where nobody is left to say how it ended, it was killed with the fork server.
        return int(status) if status else -signal.SIGKILL


def _answer(own: socket.socket) -> bytes:
    """Return what is said, nothing where nobody is left to say it."""
    try:
        return own.recv(ANSWER_BYTES)
    except ConnectionError:
        return b""


class ForkServer:
    """Starts our own command by a fork, and any other as a program; what was forked ends with it.

    A fork server that was ended is started again by the next start. Where there can be none, all are programs.
    """

    program: ClassVar[Sequence[str]] = [sys.executable, "-P", "-m", "cli.local.fork_server"]

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**environment, "PYTHONUNBUFFERED": "1"}
        self._lock = threading.Lock()
        self._process: Program | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Self:
        if CAN_FORK:
            self._launched()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._end()

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: int | IO[bytes] = subprocess.PIPE) -> Program:
        """Start a program in `/`, leading its own process group, killed when this process ends; see `start_program`.

        `output` is a descriptor or a file, subprocess.PIPE by default. Raises OSError where no process, memory or
        descriptor is left.
        """
        forked = None
        if CAN_FORK and list(argv[: len(COMMAND)]) == COMMAND:
            request = json.dumps([argv[len(COMMAND) :], dict(env)]).encode()
            forked = self._piped(request) if output == subprocess.PIPE else self._fork(request, output)
        return forked or start_killed(argv, env, output)

    def rehearse(self, env: Mapping[str, str]) -> None:
        """Have the fork server do once what each part does when it starts in that environment."""
        if CAN_FORK:
            own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with own, its, open(os.devnull, "wb") as nothing, contextlib.suppress(OSError):  # noqa: PTH123
                own.send(json.dumps([[], dict(env)]).encode())
                socket.send_fds(self._launched(), [REHEARSE], [nothing.fileno(), its.fileno()])

    def _piped(self, request: bytes) -> ForkedProgram | None:
        readable, writable = os.pipe()
        try:
            forked = self._fork(request, writable)
        finally:
            os.close(writable)
        if forked is None:
            os.close(readable)
        else:
            forked.stdout = open(readable, "rb")  # noqa: PTH123, SIM115 - a descriptor, closed by who reads it
        return forked

    def _fork(self, request: bytes, output: int | IO[bytes]) -> ForkedProgram | None:
        """Return the process that does what is requested, None where the fork server does not answer."""
        control = self._launched()
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its, contextlib.suppress(OSError):  # it was ended, or this is more than a packet takes
            own.send(request)
            socket.send_fds(control, [FORK], [output if isinstance(output, int) else output.fileno(), its.fileno()])
        if not (pid := _answer(own)):
            own.close()
            return None
        forked = ForkedProgram(int(pid), own)
        guard(forked, signal.SIGKILL)
        return forked

    def _launched(self) -> socket.socket:
        """Return the socket of a fork server that runs; it may be loading still."""
        with self._lock:
            if self._control is None or self._process is None or self._process.poll() is not None:
                self._end()
                self._control, its = socket.socketpair()
                with its:
                    self._process = start_program(
                        self.program,
                        env=self._environment,
                        death_signal=signal.SIGKILL,
                        stdin=its.fileno(),
                        output=subprocess.DEVNULL,  # what keeps it from loading, a part says as a program
                    )
            return self._control

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            end_program(self._process, [])
        self._control = self._process = None
