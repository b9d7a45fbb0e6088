"""Children never outlive their parent, crashed ones come back, and their output carries their name."""

from __future__ import annotations

import io
import os
import resource
import select
import signal
import subprocess
import sys
import threading

import pytest

from cli.local.processes import Supervisor, end_program, start_program

SECONDS = 30.0  # a deadline, never a duration: what is awaited arrives in milliseconds
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
SAYS_WHEN_STOPPED = (
    "import signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: (print('stopped'), sys.exit()))\n"
    "print('up')\n"
    "signal.pause()\n"
)
# A parent with a child of its own in its group, as a prefork pool has.
POOL = "import os, signal\nchild = os.fork()\nif child: print('pool', os.getpid(), child)\nwhile True: signal.pause()\n"


class Log(io.StringIO):
    """What a supervisor writes, with a way to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._grown = threading.Condition()

    def write(self, text: str) -> int:
        with self._grown:
            written = super().write(text)
            self._grown.notify_all()
        return written

    def wait_for(self, text: str) -> list[str]:
        with self._grown:
            assert self._grown.wait_for(lambda: text in self.getvalue(), SECONDS), self.getvalue()
        return self.getvalue().splitlines()


def python(program: str) -> list[str]:
    return [sys.executable, "-u", "-c", program]


def still_running(*pids: int) -> list[int]:
    """Return which of these processes, nobody's children here, have not ended after all the time that they may take."""
    return [pid for pid in pids if not _ends(pid)]


def _ends(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], SECONDS)[0])
    finally:
        os.close(descriptor)


def pool_pids(log: Log) -> list[int]:
    lines = log.wait_for("pool ")
    return [int(number) for number in next(line for line in lines if "pool " in line).split()[-2:]]


def test_every_line_carries_the_name_of_its_child() -> None:
    log = Log()
    with Supervisor(log=log) as supervisor:
        supervisor.start("one", python("print('first'); print('second'); import signal; signal.pause()"))
        supervisor.start("two", python("import sys; sys.stderr.write('third'); sys.stderr.close()"))
        log.wait_for("second")
        lines = log.wait_for("third")
    assert {line for line in lines if "ended" not in line} == {
        "one       | first",
        "one       | second",
        "two       | third",
    }


def test_a_child_gets_its_own_environment() -> None:
    log = Log()
    with Supervisor(log=log) as supervisor:
        supervisor.start("one", python("import os; print(os.environ['WORD'])"), {"WORD": "palimpsest"})
        assert "one       | palimpsest" in log.wait_for("| palimpsest")


def test_stop_asks_in_the_given_order_and_waits() -> None:
    log = Log()
    supervisor = Supervisor(log=log)
    for name in ("last", "first"):
        supervisor.start(name, python(SAYS_WHEN_STOPPED))
        log.wait_for(f"{name:<9} | up")
    pids = [supervisor.pid("first"), supervisor.pid("last")]
    supervisor.stop(["first"])
    assert all(f"{name:<9} | stopped" in log.getvalue() for name in ("first", "last"))
    assert supervisor.failure is None
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_stop_kills_a_child_that_does_not_listen() -> None:
    log = Log()
    supervisor = Supervisor(log=log)
    supervisor.start("deaf", python(IGNORES_TERM + "print('up'); [signal.pause() for _ in iter(int, 1)]"))
    log.wait_for("up")
    pid = supervisor.pid("deaf")
    supervisor.stop(grace=0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_cannot_start_is_a_failure_with_its_reason() -> None:
    with Supervisor(log=Log()) as supervisor:
        supervisor.start("api", python("print('warming up'); raise SystemExit('no such database')"))
        assert supervisor.failed.wait(SECONDS)
        assert supervisor.failure == "api ended with status 1: no such database"


def test_a_program_that_does_not_exist_is_a_failure_with_its_reason() -> None:
    with Supervisor(log=Log()) as supervisor:
        supervisor.start("api", ["/nonexistent/program"])
        assert supervisor.failed.wait(SECONDS)
        assert (
            supervisor.failure
            == "api ended with status 127: cannot start /nonexistent/program: No such file or directory"
        )


def test_a_crashed_child_is_started_again() -> None:
    log = Log()
    with Supervisor(log=log, backoff=0.01) as supervisor:
        supervisor.start("worker", python("import os, signal; print('pid', os.getpid()); signal.pause()"))
        log.wait_for("pid ")
        supervisor.keep_running()
        first = supervisor.pid("worker")
        os.kill(first, signal.SIGKILL)
        log.wait_for("worker ended with signal SIGKILL")
        with log._grown:
            assert log._grown.wait_for(lambda: log.getvalue().count("pid ") == 2, SECONDS)
        assert supervisor.pid("worker") != first
        assert not supervisor.failed.is_set()


def test_a_child_that_keeps_crashing_is_given_up() -> None:
    log = Log()
    with Supervisor(log=log, restarts=3, backoff=0.001) as supervisor:
        supervisor.keep_running()
        supervisor.start("worker", python("print('run'); raise SystemExit('broken')"))
        assert supervisor.failed.wait(SECONDS)
        assert supervisor.failure == "worker ended with status 1: broken"
        assert log.getvalue().count("| run") == 4


def test_a_child_that_cannot_be_started_again_is_a_failure() -> None:
    log = Log()
    with Supervisor(log=log, backoff=0.001) as supervisor:
        supervisor.keep_running()
        supervisor.start("worker", python("import signal; print('up'); signal.pause()"))
        log.wait_for("up")
        # From here on the process may have no more descriptors than it has, which starting a program takes.
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            os.kill(supervisor.pid("worker"), signal.SIGKILL)
            assert supervisor.failed.wait(SECONDS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert supervisor.failure is not None
        assert supervisor.failure.startswith(
            "worker ended with signal SIGKILL and cannot be started again (Too many open files): "
        )


def test_a_pool_dies_with_its_parent() -> None:
    log = Log()
    with Supervisor(log=log) as supervisor:
        supervisor.start("worker", python(POOL))
        parent, child = pool_pids(log)
        os.kill(parent, signal.SIGKILL)
        assert still_running(child) == []


def test_stop_ends_a_pool_whose_parent_leaves_it_behind() -> None:
    log = Log()
    with Supervisor(log=log) as supervisor:
        supervisor.start("worker", python(POOL))
        parent, child = pool_pids(log)
    assert still_running(parent, child) == []


def test_when_the_supervising_process_is_killed_children_and_their_pools_die() -> None:
    program = (
        "import sys\n"
        "from cli.local.processes import Supervisor\n"
        "supervisor = Supervisor(log=sys.stdout)\n"
        f"supervisor.start('worker', [sys.executable, '-u', '-c', {IGNORES_TERM + POOL!r}])\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        line = next(line for line in killed.stdout if "pool " in line)
        killed.kill()
    assert still_running(*(int(number) for number in line.split()[-2:])) == []


def test_a_program_outlives_the_thread_that_started_it() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        argv = python("import sys; print('up', flush=True); sys.stdout.write(sys.stdin.readline())")
        process = start_program(argv, env=os.environ, death_signal=signal.SIGKILL, stdin=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # from here on the kernel knows whose end it is to die with

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (process,) = started
    assert process.communicate(b"still here\n", timeout=SECONDS)[0] == b"still here\n"
    assert end_program(process, []) == 0


def test_a_program_starts_with_the_default_signal_handling() -> None:
    process = start_program(
        ["grep", "SigIgn", "/proc/self/status"],
        env=os.environ,
        death_signal=signal.SIGKILL,
    )
    output, _ = process.communicate(timeout=SECONDS)
    assert end_program(process, []) == 0
    ignored = int(output.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))
