"""Parts that are forked are processes of their own, end as others do, and never outlive what started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gateway.app
import worker.app
from api.app import create_ahead, create_app, route_ahead
from cli.local.embedded_server import free_port
from cli.local.forking import COMMAND, ForkedProgram, ForkServer
from runtime.broker import CHECK_TASK
from runtime.release import VERSION
from runtime.settings import Settings, read_once
from tests.cli.test_processes import SECONDS, still_running
from tests.support.eventually import eventually
from tests.support.processes import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.local.processes import Program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="parts are forked on Linux alone")


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with ForkServer(environment()) as server:
        yield server


def output(program: Program) -> str:
    assert program.stdout is not None
    with program.stdout:
        return program.stdout.read().decode()


@contextmanager
def running(forks: ForkServer) -> Iterator[ForkedProgram]:
    """Run a part that stays: an API that finds no database."""
    arguments = ["api", "--port", str(free_port())]
    with Path(os.devnull).open("wb") as nowhere:
        part = forks.start([*COMMAND, *arguments], environment(), nowhere)
    assert isinstance(part, ForkedProgram)
    title = "\0".join(["palimpsest", *arguments])
    eventually(lambda: Path(f"/proc/{part.pid}/cmdline").read_text().rstrip("\0") == title)
    yield part
    part.send_signal(signal.SIGKILL)
    part.wait(SECONDS)


def test_a_part_is_the_command_in_its_own_environment(forks: ForkServer) -> None:
    said = forks.start([*COMMAND, "--version"], environment())
    assert isinstance(said, ForkedProgram)
    assert (output(said), said.wait(SECONDS), said.poll()) == (f"{VERSION}\n", 0, 0)
    refused = forks.start([*COMMAND, "sweeper"], environment(PALIMPSEST_SWEEP_INTERVAL_SECONDS="often"))
    assert "palimpsest: sweep_interval_seconds: " in output(refused)
    assert refused.wait(SECONDS) == 2


def test_a_part_ends_by_signals_as_any_program_does(forks: ForkServer) -> None:
    with running(forks) as part:
        assert part.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            part.wait(0.01)
        assert os.getpgid(part.pid) == os.getsid(part.pid) == part.pid
        assert Path(f"/proc/{part.pid}/cwd").readlink() == Path("/")
        part.send_signal(signal.SIGKILL)
        assert part.wait(SECONDS) == part.poll() == -signal.SIGKILL
        part.send_signal(signal.SIGKILL)  # is for nobody
    with running(forks) as part:
        eventually(lambda: listens(part.pid))
        part.send_signal(signal.SIGTERM)
        assert part.wait(SECONDS) == -signal.SIGTERM  # the API's server raises it again when it has finished


def test_routes_made_ahead_are_those_of_one_application_that_takes_as_large_a_body() -> None:
    settings = Settings(max_body_bytes=3 << 20)
    ahead = route_ahead(settings.max_body_bytes)
    assert create_app(Settings(max_body_bytes=2 << 20)) is not ahead
    assert create_app(settings) is ahead
    assert create_app(settings) is not ahead


def test_what_is_made_ahead_is_taken_once_and_with_its_own_settings_alone() -> None:
    settings = Settings()
    create_ahead(settings)
    gateway.app.create_ahead(settings)
    others = create_app(Settings()), gateway.app.create_gateway(Settings())
    ahead = create_app(settings), gateway.app.create_gateway(settings)
    assert others[0].state.services.settings is not settings
    assert ahead[0].state.services.settings is settings
    assert not {*others} & {*ahead}
    # A pool of processes has one id in all, which is found before it is forked, and no other worker has it.
    worker.app.create_ahead(settings)
    services = worker.app.create_app(settings).tasks[CHECK_TASK].services
    assert services.settings is settings
    assert "process_id" not in vars(services)
    assert create_app(settings) is not ahead[0]
    assert gateway.app.create_gateway(settings) is not ahead[1]


def test_settings_are_read_again_once_the_environment_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_once()
    assert read_once() is first
    monkeypatch.setenv("PALIMPSEST_PORT", "1234")
    assert read_once().port == 1234


def test_nothing_is_open_where_parts_are_forked_and_nothing_of_each_other_in_them(forks: ForkServer) -> None:
    with running(forks) as one, running(forks) as other:
        (server,) = {parent(each.pid) for each in (one, other)}
        assert server != os.getpid()
        assert len(list(Path(f"/proc/{server}/task").iterdir())) == 1
        # What asks for parts, what tells of their ends, and a socket for each of them; of parts before, none for long.
        eventually(lambda: len(ends(server)) == 4)
        its, *theirs = (ends(pid) for pid in (server, one.pid, other.pid))
        assert not its & theirs[0]
        assert not its & theirs[1]
        assert not theirs[0] & theirs[1]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ends(pid: int) -> set[str]:
    """The sockets and pipes that a process has open."""
    links: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.add(str(descriptor.readlink()))
    return {link for link in links if link.startswith(("socket:", "pipe:"))}


def listens(pid: int) -> bool:
    """Whether a socket of the process listens (state 0A of proc_pid_net(5))."""
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return any(line[3] == "0A" and f"socket:[{line[9]}]" in ends(pid) for line in lines)


def test_parts_end_with_a_fork_server_that_is_killed_and_another_takes_its_place(forks: ForkServer) -> None:
    with running(forks) as part:
        first = parent(part.pid)
        os.kill(first, signal.SIGKILL)
        assert part.wait(SECONDS) == -signal.SIGKILL
        assert still_running(part.pid) == []
    with running(forks) as part:
        assert parent(part.pid) != first


@pytest.mark.parametrize("command", [["-c", "print('another')"], ["-m", "cli.main", "--version"]])
def test_another_command_is_a_program(forks: ForkServer, command: list[str]) -> None:
    program = forks.start([sys.executable, *command], environment())
    assert isinstance(program, subprocess.Popen)
    assert output(program).strip() in {"another", VERSION}
    assert program.wait(SECONDS) == 0


def test_a_part_that_cannot_be_forked_is_a_program(forks: ForkServer) -> None:
    larger = {f"FILLING_{number}": "x" * 100_000 for number in range(5)}
    program = forks.start([*COMMAND, "--version"], environment(**larger))
    assert isinstance(program, subprocess.Popen)
    assert (output(program), program.wait(SECONDS)) == (f"{VERSION}\n", 0)
