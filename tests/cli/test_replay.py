"""`palimpsest replay` beside the service's own conduct: names of any kind, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.support.service.command_line import heeding_ctrl_c
from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["heeding_ctrl_c"]

pytestmark = pytest.mark.server
SECONDS = 30.0  # a deadline, never a duration
NAME = "a [/eu] \x1b]0;title\x07 [red]b"
SHOWN = "a [/eu] ]0;title [red]b"


class Unsettled(ThreadedServer):
    """Takes every turn, and has a check that is always due."""

    def __init__(self) -> None:
        super().__init__(Answering)
        self.turns = 0
        self.has_turns, self.is_waited_for = threading.Event(), threading.Event()
        self.refusals = 0
        """Calls that are answered with 503 before any other."""
        self.due: str | None = "2026-01-01T00:00:00Z"


class Answering(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: Unsettled

    def do_POST(self) -> None:
        self.read_body()
        if self.path.endswith("/turns"):
            self.server.turns += 1
            self.server.has_turns.set()
            self.tell({"first_seq": 0, "last_seq": 1, "context_tokens": 7, "check": "queued"})
        else:
            self.tell({"id": "conv_1"})

    def do_GET(self) -> None:
        if self.server.refusals:
            self.server.refusals -= 1
            self.tell({}, status=503)
            return
        match urlsplit(self.path).path.rpartition("/")[2]:
            case "conv_1":
                self.server.is_waited_for.set()
                self.tell({"id": "conv_1", "check_due_at": self.server.due})
            case "context":
                self.tell({"messages": [], "snapshot": None, "last_seq": 1, "tokens": {"context": 7}})
            case _:
                self.tell({"data": []})

    def tell(self, value: Any, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), {"retry-after": "0"})


@pytest.fixture
def server() -> Iterator[Unsettled]:
    with Unsettled() as server:
        yield server


def transcript(path: Path, turns: int, name: str = "long") -> Path:
    messages = [
        {"role": role, "content": f"turn {number}"} for number in range(turns) for role in ("user", "assistant")
    ]
    path.write_text(json.dumps({"id": name, "messages": messages}))
    return path


def replay(server: Unsettled, file: Path) -> list[str]:
    return ["replay", str(file), "--url", f"http://127.0.0.1:{server.server_port}", "--key", "key-1"]


@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize("moment", ["between turns", "while checks are due"])
def test_ctrl_c_ends_it(server: Unsettled, tmp_path: Path, moment: str) -> None:
    turns = 50_000 if moment == "between turns" else 1
    arguments = replay(server, transcript(tmp_path / "long.json", turns))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "cli.main", *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            begun = server.has_turns if turns > 1 else server.is_waited_for
            assert begun.wait(SECONDS)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode not in {0, -signal.SIGKILL}
    assert "Traceback" not in stderr
    assert turns == 1 or server.turns < turns


def test_names_are_shown_as_they_are(server: Unsettled, tmp_path: Path) -> None:
    server.due = None
    done = CliRunner().invoke(app, replay(server, transcript(tmp_path / "odd.json", 1, NAME)), env={"COLUMNS": "200"})
    assert isinstance(done.exception, SystemExit), done.exception
    assert f"{SHOWN} is conv_1" in done.stdout
    assert f"{SHOWN}: originals differ at [0, 1]" in done.stdout
    assert "2 differ" in done.stdout
    assert "\x1b" not in done.output


def test_stdout_of_json_is_json_alone_also_where_calls_are_repeated(server: Unsettled, tmp_path: Path) -> None:
    server.due = None
    server.refusals = 2
    arguments = [*replay(server, transcript(tmp_path / "one.json", 1)), "--json"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert server.refusals == 0
    (played,) = json.loads(done.stdout)["conversations"]
    assert played["conversation_id"] == "conv_1"
