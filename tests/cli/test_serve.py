"""`palimpsest serve`: everything up with one command, one JSON line, and nothing left when it ends."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import make_url

from cli.consent import agree_to_stores
from cli.local import preparation, preparing, serve
from cli.local.local_tenant import api_key
from cli.local.serve import ServiceError, ServiceStoppedError, running_service
from runtime.ids import external
from store.tenants import api_keys
from tests.cli.test_processes import SECONDS, still_running
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.server
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PALIMPSEST_", "ANTHROPIC_")) or name in {"PALIMPSEST_POSTGRES_BIN", "PALIMPSEST_REDIS_BIN"}
}


@contextlib.contextmanager
def serving(*arguments: str, cwd: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    with (
        (cwd / "stderr").open("a+") as log,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "cli.main", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=cwd,
            env=ENVIRONMENT | environ,
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
    names: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        names |= level
    return names


def test_serve_tells_works_ends_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    arguments = ["--port", "0", "--data-dir", "data"]
    with serving(*arguments, cwd=tmp_path) as process:
        first = told(process, tmp_path)
        assert list(first) == ["url", "api_key", "database_url", "broker_url", "gateway_url"]
        made = call("POST", f"{first['url']}/v1/conversations", first["api_key"], {"external_id": "c"})
        processes = descendants(process.pid)
        assert len(processes) > 6
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, rest) == (0, "")
    assert still_running(*processes) == []
    stderr = (tmp_path / "stderr").read_text()
    assert "Traceback" not in stderr
    people = [line for line in stderr.splitlines() if line and line[9:12] != " | "]
    labels = ["API", "Console", "Gateway", "Docs", "Store", "Model", "Key", "Try", "palimpsest:"]
    assert [line.split()[0] for line in people] == labels
    assert len({len(line) - len(line[7:].lstrip()) for line in people[:-1]}) == 1  # aligned
    assert people[-1] == "palimpsest: stopped: gateway, API, beat, workers, Redis and Postgres"
    assert "extractive, no model is called" in stderr
    assert (tmp_path / "data" / "api-key").stat().st_mode & 0o777 == 0o600

    (tmp_path / "stderr").unlink()
    with serving(*arguments, cwd=tmp_path, PALIMPSEST_LOG_LEVEL="debug") as process:
        second = told(process, tmp_path)
        assert second["api_key"] == first["api_key"]
        kept = call("GET", f"{second['url']}/v1/conversations/{made['id']}", second["api_key"])
        assert kept["external_id"] == "c"
        secrets = use_secrets_while_servers_fail(process, second, tmp_path)
        processes = descendants(process.pid)
        process.kill()
    assert still_running(*processes) == []
    check_what_is_printed((tmp_path / "stderr").read_text().splitlines(), second, *secrets)


@pytest.mark.parametrize("shown", [False, True])
def test_secrets_are_on_a_terminal_only_if_they_were_asked_for(
    ready_parts: None,
    database_url: str,
    broker_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    shown: bool,
) -> None:
    with running_service(environ=elsewhere(database_url, broker_url), log=io.StringIO()) as service:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        serve._announce(service, show_keys=shown)
        output, errors = capsys.readouterr()
        password = make_url(database_url).password
        assert password
        assert {service.api_key in text for text in (output, errors)} == {shown}
        assert (password in output) == shown
        assert json.loads(output)["url"] == service.url


def test_a_stop_while_it_starts_is_quiet_and_says_what_was_stopped(tmp_path: Path) -> None:
    with serving("--port", "0", cwd=tmp_path) as process:
        eventually(lambda: len(descendants(process.pid)) > 1, SECONDS)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (0, "")
    lines = [line for line in (tmp_path / "stderr").read_text().splitlines() if line[9:12] != " | "]
    assert len(lines) == 1, lines
    assert lines[0].startswith("palimpsest: stopped before it was ready: ")


def test_a_port_that_is_taken_is_an_error_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with serving("--port", port, cwd=tmp_path) as process:
            output, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (1, "")
    assert f"cannot listen on port {port} of 127.0.0.1" in (tmp_path / "stderr").read_text()


@pytest.fixture
def ready_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the parts: answer 200 to everything. The database is seen to without a process of its own.

    To load what that takes is a second each time; it is a process wherever the parts are themselves.
    """

    def told(asked: dict[str, object]) -> dict[str, str]:
        with monkeypatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as answer:
            patch.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))
            preparing.main()
        result: dict[str, str] = json.loads(answer.getvalue())
        assert "error" not in result, result
        return result

    monkeypatch.setattr(preparation, "_told", told)
    part = (
        "import os, signal, socket, sys\n"
        "host = os.environ['PALIMPSEST_HOST']\n"
        "if '--port' not in sys.argv: signal.pause()\n"
        "family = socket.AF_INET6 if ':' in host else socket.AF_INET\n"
        "with socket.create_server((host, int(sys.argv[-1])), family=family) as server:\n"
        "    while True:\n"
        "        with server.accept()[0] as connection:\n"
        "            if connection.recv(65_536):\n"
        "                connection.sendall(b'HTTP/1.0 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n')\n"
    )
    # Without what is installed: several of these start for each service, and take as long as all else in its test.
    monkeypatch.setattr(serve, "COMMAND", [sys.executable, "-S", "-c", part])


def test_a_part_that_cannot_start_is_an_error_with_its_reason(
    ready_parts: None, database_url: str, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = "import sys, signal; 'beat' in sys.argv and sys.exit('no time to sweep'); signal.pause()"
    monkeypatch.setattr(serve, "COMMAND", [sys.executable, "-S", "-c", part])
    before = descendants(os.getpid())
    with (
        pytest.raises(ServiceError, match=r"^beat ended with status 1: no time to sweep$"),
        running_service(environ=elsewhere(database_url, broker_url), log=io.StringIO()),
    ):
        pytest.fail("it cannot be ready")
    # The guard stays as long as this process; a backend of the tests' Postgres may last a moment.
    eventually(lambda: len(descendants(os.getpid()) - before) <= 1, SECONDS)


def test_a_start_can_be_stopped(database_url: str, broker_url: str) -> None:
    stopping = threading.Event()
    stopping.set()
    with (
        pytest.raises(ServiceStoppedError),
        running_service(environ=elsewhere(database_url, broker_url), log=io.StringIO(), stopping=stopping),
    ):
        pytest.fail("it was stopped")
    assert untouched(database_url)


@pytest.mark.usefixtures("ready_parts")
def test_a_key_that_the_database_does_not_know_is_replaced(database_url: str, broker_url: str, tmp_path: Path) -> None:
    environ = elsewhere(database_url, broker_url)

    def key() -> str:
        with running_service(data_dir=tmp_path, environ=environ, log=io.StringIO()) as service:
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


def elsewhere(database_url: str, broker_url: str) -> dict[str, str]:
    return ENVIRONMENT | {"PALIMPSEST_DATABASE_URL": database_url, "PALIMPSEST_BROKER_URL": broker_url}


def in_force(database_url: str) -> list[str]:
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("select id from api_keys where revoked_at is null").fetchall()
    return [external("key", identifier) for (identifier,) in rows]


@pytest.mark.usefixtures("ready_parts")
def test_a_key_in_a_database_that_stays_ends_with_the_service(database_url: str, broker_url: str) -> None:
    environ = elsewhere(database_url, broker_url)
    with running_service(environ=environ, log=io.StringIO()) as service:
        assert service.database_url == database_url
        assert in_force(database_url) == [service.api_key.partition(".")[0]]
    assert in_force(database_url) == []
    with pytest.raises(RuntimeError), running_service(environ=environ, log=io.StringIO()):
        raise RuntimeError
    assert in_force(database_url) == []


@pytest.mark.usefixtures("ready_parts")
def test_a_key_that_is_kept_is_made_once(database_url: str, broker_url: str, tmp_path: Path) -> None:
    environ = elsewhere(database_url, broker_url)
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        with running_service(data_dir=folder, environ=environ, log=io.StringIO()) as service:
            assert (folder / "api-key").read_text() == service.api_key
        assert in_force(database_url) == [service.api_key.partition(".")[0]]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_key_is_not_written_through_a_link(database_url: str, broker_url: str, tmp_path: Path) -> None:
    another = tmp_path / "another"
    another.write_text("not yours")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "api-key").symlink_to(another)
    with (
        pytest.raises(ServiceError, match="the key cannot be kept in"),
        running_service(data_dir=folder, environ=elsewhere(database_url, broker_url), log=io.StringIO()),
    ):
        pytest.fail("it cannot be ready")
    assert another.read_text() == "not yours"
    assert in_force(database_url) == []


def test_a_tenant_with_too_many_keys(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "MAXIMUM", 0)
    with pytest.raises(ServiceError, match="the tenant local has 0 keys in force; revoke some"):
        api_key(database_url, None)


@pytest.mark.usefixtures("ready_parts")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_ipv6_host_is_written_in_brackets(database_url: str, broker_url: str, host: str) -> None:
    environ = elsewhere(database_url, broker_url) | {"PALIMPSEST_HOST": host}
    with running_service(environ=environ, log=io.StringIO()) as service:
        assert service.url.startswith("http://[::1]:")
        with urllib.request.urlopen(f"{service.url}/readyz", timeout=SECONDS) as response:  # noqa: S310  http, always
            assert response.status == 200


def untouched(database_url: str) -> bool:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("select count(*) from tenants").fetchone()
    return row == (0,)


@contextlib.contextmanager
def typing(arguments: list[str], environ: dict[str, str], reply: str | None) -> Iterator[subprocess.Popen[str]]:
    """Run a command at a terminal where somebody types, or without one."""
    ours, its = pty.openpty() if reply is not None else (os.open(os.devnull, os.O_RDWR), os.open(os.devnull, os.O_RDWR))
    os.write(ours, (reply or "").encode())
    command = [sys.executable, "-P", "-m", "cli.main", *arguments]
    with subprocess.Popen(
        command, stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        os.close(its)
        try:
            yield process
        finally:
            process.kill()
            os.close(ours)


@pytest.mark.parametrize(("command", "terminal"), [(["serve", "--port", "0"], True), (["replay"], False)])
def test_a_store_of_the_environment_is_not_used_without_a_yes(
    database_url: str, broker_url: str, command: list[str], *, terminal: bool, tmp_path: Path
) -> None:
    if command[0] == "replay":
        file = tmp_path / "transcript.jsonl"
        file.write_text('{"role": "user", "content": "hello"}\n')
        command = ["replay", str(file)]
    environ = elsewhere(database_url, broker_url)
    with typing(command, environ, "n\n" if terminal else None) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (1, "")
    url = make_url(database_url)
    assert f"{url.username}@{url.host}:{url.port}/{url.database}" in errors
    assert url.password is not None
    assert url.password not in errors
    assert "PALIMPSEST_DATABASE_URL" in errors
    assert "PALIMPSEST_BROKER_URL" in errors
    assert ("Go on? [y/N]" in errors) == terminal
    assert ("--yes" in errors) != terminal
    assert untouched(database_url)


def test_a_store_of_the_environment_is_used_with_a_yes_and_a_newer_schema_is_an_error_in_one_line(
    database_url: str, broker_url: str
) -> None:
    environ = elsewhere(database_url, broker_url)
    agree_to_stores(environ, "serve", yes=True)
    with psycopg.connect(database_url) as connection:
        connection.execute("update alembic_version set version_num = '9999_later'")
    with typing(["serve", "--port", "0"], environ, "y\n") as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (1, "")
    *_, told = errors.splitlines()
    assert re.fullmatch(r"(Go on\? \[y/N\]: )?palimpsest: the database cannot be prepared: .*'9999_later'.*", told)


@pytest.mark.slow
def test_the_demo_has_stores_of_its_own_whatever_the_environment_names(database_url: str, broker_url: str) -> None:
    environ = elsewhere(database_url, broker_url) | {"PALIMPSEST_URL": "http://127.0.0.1:1", "PALIMPSEST_KEY": "x"}
    command = [sys.executable, "-P", "-m", "cli.main", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        begun = process.stdout.readline()  # its conversation is stored by now
        process.kill()
        _, errors = process.communicate(timeout=SECONDS)
    assert begun, errors
    assert untouched(database_url)


def server_of(process: subprocess.Popen[str], name: str) -> int:
    """The process id of `serve`'s own server: the oldest of its children that run this program."""
    programs = {}
    for pid in descendants(process.pid):
        with contextlib.suppress(OSError):
            programs[pid] = Path(f"/proc/{pid}/exe").readlink().name
    return min(pid for pid, program in programs.items() if program == name)


def posted(url: str, key: str, path: str, number: int) -> None:
    """Post a turn as a client does: again with the same key until it is acknowledged."""
    question = {"role": "user", "content": f"question {number}"}
    body = json.dumps({"messages": [question, {"role": "assistant", "content": "x" * 400}]}).encode()
    headers = {"x-api-key": key, "content-type": "application/json", "idempotency-key": f"turn-{number}"}
    request = urllib.request.Request(f"{url}{path}/turns", body, headers, method="POST")  # noqa: S310  http, always

    def acknowledged() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310
                return bool(response.status == 201)
        except (OSError, http.client.HTTPException):
            return False

    eventually(acknowledged, 90)


@pytest.mark.slow
def test_servers_that_are_killed_come_back_and_nothing_is_lost(tmp_path: Path) -> None:
    turns = 60
    with serving("--port", "0", cwd=tmp_path) as process:
        answer = told(process, tmp_path)
        url, key = answer["url"], answer["api_key"]
        policy = {"compaction_threshold_tokens": 2_000, "min_savings_tokens": 100}
        made = call("POST", f"{url}/v1/conversations", key, {"policy": policy})
        path = f"/v1/conversations/{made['id']}"
        for number in range(turns):
            if number == turns // 3:
                os.kill(server_of(process, "redis-server"), signal.SIGKILL)
            if number == 2 * turns // 3:
                os.kill(server_of(process, "postgres"), signal.SIGKILL)
            posted(url, key, path, number)
        eventually(lambda: call("GET", f"{url}{path}", key)["check_due_at"] is None, 90)
        eventually(lambda: all(run["finished_at"] for run in call("GET", f"{url}{path}/runs", key)["data"]), 90)
        stored = call("GET", f"{url}{path}/messages?limit=1000", key)["data"]
        assert [message["content"] for message in stored[::2]] == [f"question {number}" for number in range(turns)]
        assert len(stored) == 2 * turns
        assert call("GET", f"{url}{path}/context", key)["snapshot"]["covers_through"] > turns
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0
    stderr = (tmp_path / "stderr").read_text()
    assert "serve     | Redis ended with signal SIGKILL" in stderr
    assert "serve     | Postgres ended with signal SIGKILL" in stderr


def logged_in(database_url: str) -> dict[str, set[tuple[str, bool]]]:
    """Who is connected: login and whether it is a superuser, by the name of the application."""
    query = """select application_name, rolname, rolsuper from pg_stat_activity join pg_roles as r on r.oid = usesysid
               where datname = current_database() and pid <> pg_backend_pid()"""
    with psycopg.connect(database_url) as connection:
        by_name: dict[str, set[tuple[str, bool]]] = {}
        for application, name, is_super in connection.execute(query):
            by_name.setdefault(application, set()).add((name, is_super))
    return by_name


def use_secrets_while_servers_fail(
    process: subprocess.Popen[str], answer: dict[str, str], cwd: Path
) -> tuple[str, str]:
    """Do what could be logged with its secrets, and see who is connected; return a second key and a ticket."""
    url, key = answer["url"], answer["api_key"]
    assert urlsplit(url).hostname == "127.0.0.1"
    made = call("POST", f"{url}/v1/conversations", key, {"policy": {"compaction_threshold_tokens": 2_000}})
    path = f"/v1/conversations/{made['id']}"
    for number in range(20):
        if number == 5:  # what goes wrong is what is logged
            os.kill(server_of(process, "redis-server"), signal.SIGKILL)
        if number == 10:
            os.kill(server_of(process, "postgres"), signal.SIGKILL)
        posted(url, key, path, number)
    second: str = call("POST", f"{url}/v1/keys", key, {"name": "second", "scopes": ["audit:read"]})["key"]
    ticket: str = re.findall(r"ticket=(\S+)", eventually((cwd / "stderr").read_text))[0]
    with urllib.request.urlopen(f"{url}/console/sign-in?ticket={ticket}", timeout=SECONDS):  # noqa: S310
        pass
    for wrong in (f"{key}x", second[:-1]):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            call("GET", f"{url}{path}", wrong)
    eventually(lambda: call("GET", f"{url}{path}/runs", key)["data"], 90)
    connected = {name: who for name, who in logged_in(answer["database_url"]).items() if name != "palimpsest-admin"}
    assert {who for each in connected.values() for who in each} == {("palimpsest_app", False)}  # no superuser
    assert any(name.startswith("palimpsest-") for name in connected)
    return second, ticket


def check_what_is_printed(lines: list[str], answer: dict[str, str], second: str, ticket: str) -> None:
    """Assert that what `serve` prints once to people is all that is secret in its output."""
    key = answer["api_key"]
    people = [line for line in lines if line[9:12] != " | "]
    assert people[0] == f"API     {answer['url']}  (from this machine alone)"
    logs = "\n".join(line for line in lines if line[9:12] == " | ")
    assert "Redis ended" in logs
    assert logs.count('"level": "error"') > 0
    secret = {answer[name].partition("://")[2].rpartition("@")[0].rpartition(":")[2] for name in STORES_TOLD}
    hidden = [key, key.partition(".")[2], second, second.partition(".")[2], ticket, *secret, "question 1"]
    assert len(secret) == 2
    assert all(hidden)
    assert [word for word in hidden if word in logs] == []
    printed = "\n".join(people)
    assert (printed.count(key), printed.count(ticket)) == (0, 1)
    assert [word for word in [second, *secret] if word in printed] == []


STORES_TOLD = ("database_url", "broker_url")
