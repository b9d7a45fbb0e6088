"""`palimpsest serve`: everything up with one command, one JSON line, and nothing left when it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cli import serve
from cli.serve import ServiceError, ServiceStoppedError, running_service
from tests.test_processes import SECONDS, await_end

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PALIMPSEST_", "ANTHROPIC_")) or name in {"PALIMPSEST_POSTGRES_BIN", "PALIMPSEST_REDIS_BIN"}
}


@contextlib.contextmanager
def serving(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    with (
        (cwd / "stderr").open("a+") as log,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "cli.main", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=cwd,
            env=ENVIRONMENT,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str], cwd: Path) -> dict[str, str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, (cwd / "stderr").read_text()
    answer: dict[str, str] = json.loads(line)
    return answer


def call(method: str, url: str, key: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310  http, always
    with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310
        return json.load(response)


def descendants(pid: int) -> set[int]:
    """Every process below `pid`, those in sessions of their own included."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def test_serve_tells_works_ends_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    arguments = ["--port", "0", "--data-dir", "data"]
    with serving(*arguments, cwd=tmp_path) as process:
        first = told(process, tmp_path)
        assert list(first) == ["url", "api_key", "database_url", "broker_url"]
        made = call("POST", f"{first['url']}/v1/conversations", first["api_key"], {"external_id": "c"})
        processes = descendants(process.pid)
        assert len(processes) > 6
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, rest) == (0, "")
    await_end(*processes)
    stderr = (tmp_path / "stderr").read_text()
    assert "Traceback" not in stderr
    people = [line for line in stderr.splitlines() if line and line[9:12] != " | "]
    assert [line.split()[0] for line in people] == ["API", "Console", "Docs", "Metrics", "Store", "Model", "Key", "Try"]
    assert len({len(line) - len(line[7:].lstrip()) for line in people}) == 1  # aligned
    assert "extractive, no model is called" in stderr
    assert (tmp_path / "data" / "api-key").stat().st_mode & 0o777 == 0o600

    with serving(*arguments, cwd=tmp_path) as process:
        second = told(process, tmp_path)
        assert second["api_key"] == first["api_key"]
        kept = call("GET", f"{second['url']}/v1/conversations/{made['id']}", second["api_key"])
        assert kept["external_id"] == "c"
        processes = descendants(process.pid)
        process.kill()
    await_end(*processes)


def test_a_port_that_is_taken_is_an_error_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with serving("--port", port, cwd=tmp_path) as process:
            output, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (1, "")
    assert f"cannot listen on port {port} of 127.0.0.1" in (tmp_path / "stderr").read_text()


def test_a_part_that_cannot_start_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    part = "import sys, signal; 'sweeper' in sys.argv and sys.exit('no time to sweep'); signal.pause()"
    monkeypatch.setattr(serve, "_COMMAND", [sys.executable, "-c", part])
    before = descendants(os.getpid())
    with (
        pytest.raises(ServiceError, match=r"^sweeper ended with status 1: no time to sweep$"),
        running_service(durable=False, environ=ENVIRONMENT, log=io.StringIO()),
    ):
        pytest.fail("it cannot be ready")
    assert len(descendants(os.getpid()) - before) <= 1  # the guard stays as long as this process


def test_a_start_can_be_stopped() -> None:
    stopping = threading.Event()
    stopping.set()
    with (
        pytest.raises(ServiceStoppedError),
        running_service(durable=False, environ=ENVIRONMENT, log=io.StringIO(), stopping=stopping),
    ):
        pytest.fail("it was stopped")


def test_a_key_that_the_database_does_not_know_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Stands in for the parts: answers 200 to everything.
    part = (
        "import http.server, os\n"
        "class Ready(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.send_header('content-length', '0'); self.end_headers()\n"
        "    def log_message(self, *_): pass\n"
        "port = int(os.environ['PALIMPSEST_PORT'])\n"
        "import sys, signal\n"
        "http.server.HTTPServer(('127.0.0.1', port), Ready).serve_forever() if 'api' in sys.argv else signal.pause()\n"
    )
    monkeypatch.setattr(serve, "_COMMAND", [sys.executable, "-c", part])

    def key() -> str:
        with running_service(data_dir=tmp_path, durable=False, environ=ENVIRONMENT, log=io.StringIO()) as service:
            with psycopg.connect(service.database_url) as connection:
                row = connection.execute("select count(*) from tenants").fetchone()
            assert row == (1,)
            return service.api_key

    first = key()
    assert key() == first
    (tmp_path / "api-key").write_text("key_of_another.database")
    second = key()
    assert second != first
    assert key() == second
