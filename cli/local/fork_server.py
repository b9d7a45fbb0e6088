"""The process that the parts of a service are forked from: it has loaded what they use, and tried it once.

Parts share the pages that none of them writes to, and start without loading anything. There is one thread here, and no
connection is open, so that a fork leaves nothing half-done behind. The other end is `cli/local/forking.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtime.launch import CANNOT_START, die_with_parent

if TYPE_CHECKING:
    from collections.abc import Mapping

FORK: Final = b"f"
REHEARSE: Final = b"r"
"""What is asked for."""
CONTROL: Final = 0
"""The descriptor of the socket from which each fork is asked for: stdin, as a program is started with."""
DESCRIPTORS: Final = 2
"""What comes with a request: where the part's output goes, and a socket of its own."""
MOST_BYTES: Final = 1 << 20
"""More than such a socket takes at once, by what Linux allows (net.core.wmem_max, socket(7))."""

_LOADED: Final = (
    "cli.main",
    "api.start",
    "gateway.start",
    "worker.process.start",
    "worker.sweeping.start",
    # What these load only when they run.
    "anyio._backends._asyncio",
    "anyio.streams.tls",
    "billiard.popen_fork",
    "billiard.sharedctypes",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.apps.worker",
    "celery.backends.base",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.events.receiver",
    "celery.fixups.django",
    "celery.loaders.app",
    "celery.worker.autoscale",
    "celery.worker.consumer",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.strategy",
    "httpcore2",
    "litestar.plugins.attrs",
    "litestar.plugins.pydantic",
    "psycopg",
    "runtime.log",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.ext.asyncio",
    "truststore",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.websockets.auto",
)
_REFUSED: Final = (
    ["api", "--host", "::1", "--port", "1", "--workers", "none"],
    ["gateway", "--host", "::1", "--port", "1", "--workers", "none"],
    ["worker", "--queues", "checks", "--metrics-port", "1", "--concurrency", "none"],
    ["sweeper", "--metrics-port", "none"],
)
"""Commands that end where their last option is read: what reads an option is made when it first has a value."""
_ARGUMENTS_START, _ARGUMENTS_END = 45, 46
"""Where /proc/self/stat has the place of the arguments in memory, counted from the state; see proc_pid_stat(5)."""
_SIZES: Final = range(48, 513, 16)
"""Bytes of the places that objects have, without the smallest, which hardly any free ones are of."""
_BYTES_HEAD: Final = sys.getsizeof(b"")
_FOLLOWING: Final = 8
_fillers: list[bytes] = []


def main() -> None:
    """Load, then fork whenever it is asked for, until nobody is there to ask; in a part go on as the command."""
    gc.disable()
    for name in _LOADED:
        importlib.import_module(name)
    _make_ahead()
    _keep_shared()
    with socket.socket(fileno=CONTROL) as control:
        arguments = _Server(control).serve()
    if arguments is None:
        os._exit(0)  # What is loaded need not be taken apart.
    _go_on_as(arguments)


def _make_ahead() -> None:
    """Make what each part makes before it knows of a database: the command, routes, applications, their classes.

    What is wrong with the settings, a part says. Nothing here opens a connection or begins a thread.
    """
    # Loaded in `main`; the other end loads none of it.
    from api.app import route_ahead  # noqa: PLC0415
    from gateway.app import create_gateway  # noqa: PLC0415
    from runtime.settings import Settings  # noqa: PLC0415
    from worker.app import create_app  # noqa: PLC0415

    command = importlib.import_module(_LOADED[0]).command
    for refused in _REFUSED:
        with contextlib.suppress(Exception):
            command()(refused, standalone_mode=False)
    with contextlib.suppress(Exception):
        settings = Settings()
        route_ahead(settings.max_body_bytes)
        create_gateway(settings)
        create_app(settings)


def rehearse(environment: Mapping[str, str]) -> None:
    """Do what every part does when it starts, and make what each has: what is made is in pages that are shared.

    Where something is wrong with it, a part says so.
    """
    import api.app  # noqa: PLC0415 - as above
    import gateway.app  # noqa: PLC0415
    import worker.app  # noqa: PLC0415
    from runtime.broker import CHECKS, QueueDepths  # noqa: PLC0415
    from runtime.settings import read_once  # noqa: PLC0415
    from worker.process.liveness import beat_ahead  # noqa: PLC0415

    os.environ.clear()
    os.environ.update(environment)
    with contextlib.suppress(Exception):
        settings = read_once()
        beat_ahead(settings)
        depths = QueueDepths(settings)
        depths.of(CHECKS)
        depths.close()
        api.app.create_ahead(settings)
        gateway.app.create_ahead(settings)
        worker.app.create_ahead(settings)
    _keep_shared()


def _keep_shared() -> None:
    """Keep the pages that there are from being written to where a part looks for cycles, or makes anything."""
    gc.collect()
    _fill_pages()
    gc.freeze()


def _fill_pages() -> None:
    """Take the places that are free between objects: whatever a part makes is on pages that hold nothing else.

    Of each size (Objects/obmalloc.c), until several follow one another, as on a page that had nothing on it.
    """
    for size in _SIZES:
        latest = following = 0
        while following < _FOLLOWING:
            filler = bytes(size - _BYTES_HEAD)
            _fillers.append(filler)
            following = following + 1 if id(filler) == latest + size else 0
            latest = id(filler)


class _Server:
    """Forks a part for each request, and says on the part's own socket which process it is and how it has ended.

    A request is a byte with two descriptors. The part itself reads there what it is to do, in JSON its arguments and
    its environment, and answers with its process id; the status follows from here once it has ended.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._parts: dict[int, socket.socket] = {}
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)

    def serve(self) -> list[str] | None:
        """Return in each part with its arguments, and here with None when the other end is closed."""
        signal.set_wakeup_fd(self._waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 512)
                self._report_ends()
            if self._control.fileno() in ready:
                asked, descriptors, _, _ = socket.recv_fds(self._control, 1, DESCRIPTORS)
                if not asked:
                    return None
                output, own = descriptors
                part = socket.socket(fileno=own)
                if asked == REHEARSE:
                    with part:
                        rehearse(json.loads(part.recv(MOST_BYTES))[1])
                elif self._fork(part):
                    return self._begin(output, part)
                os.close(output)

    def _fork(self, part: socket.socket) -> bool:
        """Tell whether this is the part now."""
        try:
            pid = os.fork()
        except OSError:
            part.close()  # No answer is the answer: there is no process or no memory left.
            return False
        if pid:
            self._parts[pid] = part
        return not pid

    def _report_ends(self) -> None:
        while self._parts and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            # Said before the process id is free for another process.
            with self._parts.pop(ended.si_pid) as part, contextlib.suppress(OSError):  # nobody waits for it any more
                part.send(str(status).encode())
            os.waitpid(ended.si_pid, 0)

    def _begin(self, output: int, own: socket.socket) -> list[str]:
        """Make a process of its own of what was forked, as `start_program` would have started it."""
        os.setsid()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != self._pid:  # it ended before the request above could count
            os._exit(CANNOT_START)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for part in self._parts.values():
            part.close()
        os.close(self._woken)
        os.close(self._waker)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, CONTROL)
        os.close(nothing)
        self._control.detach()
        with own:
            own.send(str(os.getpid()).encode())
            arguments, environment = json.loads(own.recv(MOST_BYTES))
        os.environ.clear()
        os.environ.update(environment)
        return list(arguments)


def _go_on_as(arguments: list[str]) -> None:
    """Run the command with these arguments."""
    _show(["palimpsest", *arguments])
    sys.argv[1:] = arguments
    gc.enable()
    importlib.import_module(_LOADED[0]).main()


def _show(arguments: list[str]) -> None:
    """Have the process listed under these arguments, as far as there is room for them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
    text = "\0".join(arguments).encode(errors="surrogateescape")[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
