"""Embedded servers: real ones, from the system and from wheels, as root and as an ordinary user."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest
import redis

from cli.local import embedded, embedded_server, processes
from cli.local.embedded import EmbeddedError, EmbeddedPostgres, EmbeddedRedis, EmbeddedStack
from cli.local.installations import PostgresInstallation, redis_server
from cli.local.processes import Restarts
from tests.cli.test_installations import installed
from tests.cli.test_processes import SECONDS, Log, still_running
from tests.support.eventually import eventually
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.server
IS_ROOT = os.geteuid() == 0
ORDINARY_USER = pwd.getpwnam("daemon").pw_uid  # an account that every Linux has; initdb insists on one
# What a process says about its stack: process numbers, directories, and what a query answers.
TELL = """
import json, os, sys, psycopg
from pathlib import Path
from cli.local import processes
from cli.local.embedded import EmbeddedStack
stack = EmbeddedStack(Path(sys.argv[1]) if len(sys.argv) > 1 else None, durable=False)
stack.start()
with psycopg.connect(stack.database_url) as connection:
    answer = connection.execute("select current_user").fetchone()[0]
print(json.dumps({
    "uid": os.geteuid(),
    "answer": answer,
    "pids": [stack.postgres.pid, stack.redis.pid],
    "guard": processes._guard._process.pid,
    "directories": [str(stack.postgres.directory), str(stack.redis.directory)],
}), flush=True)
sys.stdin.read()
stack.stop()
"""


@pytest.fixture(params=["system", "wheel"])
def postgres_source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PostgresInstallation:
    """Both places Postgres comes from, whichever would be taken by itself."""
    found = installed(wheel=request.param == "wheel")
    if found is None:
        pytest.skip(f"no Postgres {request.param} here")
    monkeypatch.setenv("PALIMPSEST_POSTGRES_BIN", str(found.directory))
    return found


@pytest.fixture(scope="module")
def stack_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def shared_stack(stack_dir: Path) -> Iterator[EmbeddedStack]:
    """A stack for tests that only look, started by a thread that has ended."""
    stack = EmbeddedStack(stack_dir, durable=False)
    thread = threading.Thread(target=stack.start)
    thread.start()
    thread.join()
    yield stack
    stack.stop()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a server that was shut down, with one row in it."""
    path = tmp_path_factory.mktemp("kept") / "data"
    with EmbeddedPostgres(path, durable=False) as server:
        query(server.url, "create table kept as select 42 as answer")
    return path


@pytest.fixture
def data_dir(kept: Path, tmp_path: Path) -> Path:
    """A copy of that directory, owners included."""
    path = tmp_path / "data"
    subprocess.run(["cp", "-a", kept, path], check=True)
    return path


def query(url: str, statement: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return str(row[0]) if row else ""


def effective_uid(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[1])


def stack_pids(stack: EmbeddedStack) -> tuple[int, int]:
    assert stack.postgres.pid is not None
    assert stack.redis.pid is not None
    return stack.postgres.pid, stack.redis.pid


def started_servers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the number of every process that an embedded server starts from here on."""
    pids: list[int] = []

    def start(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = processes.start_program(*args, **kwargs)  # type: ignore[arg-type]
        pids.append(process.pid)
        return process

    monkeypatch.setattr(embedded_server, "start_program", start)
    return pids


def assert_ended(*pids: int) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_stack_serves_and_leaves_nothing(postgres_source: PostgresInstallation) -> None:
    with EmbeddedStack(None, durable=False) as stack:
        pids = stack_pids(stack)
        directories = [stack.postgres.directory, stack.redis.directory]
        assert query(stack.database_url, "show server_version").startswith(f"{postgres_source.major}.")
        assert query(stack.database_url, "select rolsuper from pg_roles where rolname = current_user") == "True"
        assert query(stack.database_url, "show fsync") == "off"

        async def over_asyncpg() -> str:
            connection = await asyncpg.connect(stack.database_url)
            try:
                return str(await connection.fetchval("show server_encoding"))
            finally:
                await connection.close()

        assert asyncio.run(over_asyncpg()) == "UTF8"
        with redis.Redis.from_url(stack.broker_url) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("appendonly") == {"appendonly": "no"}
        assert [effective_uid(pid) == 0 for pid in pids] == [False, False]
        for directory in directories:
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        password = directories[0] / "password"
        assert stat.S_IMODE(password.stat().st_mode) == 0o600
        secrets = [password.read_text(), stack.broker_url.split(":")[2].split("@")[0]]
        for pid in pids:
            assert not any(secret in Path(f"/proc/{pid}/cmdline").read_text() for secret in secrets)
    assert_ended(*pids)
    assert not any(directory.exists() for directory in directories)


def test_nobody_enters_without_the_password(shared_stack: EmbeddedStack) -> None:
    secret = shared_stack.database_url.split(":")[2].split("@")[0]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(shared_stack.database_url.replace(secret, "guess"))
    broker = shared_stack.broker_url
    with (
        redis.Redis.from_url(broker.replace(broker.split("@")[0], "redis://:guess")) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_a_directory_is_opened_by_the_version_that_wrote_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = installed(wheel=True)
    preferred = installed(wheel=False)
    if other is None or preferred is None or other.major == preferred.major:
        pytest.skip("one version of Postgres here: nothing to choose between")
    with monkeypatch.context() as forced:
        forced.setenv("PALIMPSEST_POSTGRES_BIN", str(other.directory))
        with EmbeddedPostgres(tmp_path, durable=False) as server:
            assert query(server.url, "show server_version").startswith(f"{other.major}.")
    with EmbeddedPostgres(tmp_path, durable=False) as server:
        assert query(server.url, "show server_version").startswith(f"{other.major}.")
    (tmp_path / "pgdata" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedError, match=r"was written by PostgreSQL 12; found here: \d+"):
        EmbeddedPostgres(tmp_path).start()


def test_a_second_start_on_the_same_directory_is_refused(stack_dir: Path, shared_stack: EmbeddedStack) -> None:
    with pytest.raises(EmbeddedError, match="in use by another palimpsest process"):
        EmbeddedStack(stack_dir, durable=False).start()
    assert query(shared_stack.database_url, "select 1") == "1"


def test_a_killed_server_does_not_prevent_the_next(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    server.start()
    assert query(server.url, "show fsync") == "on"
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert still_running(server.pid) == []
    assert "Postgres ended with signal SIGKILL" in str(server.ended())
    server.stop()
    pid_file = data_dir / "pgdata" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    with subprocess.Popen(["sleep", "60"], user=pid_file.stat().st_uid if IS_ROOT else None) as stranger:
        # The number in the file belongs to somebody else of the same user by now.
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        try:
            with EmbeddedPostgres(data_dir) as again:
                assert query(again.url, "select answer from kept") == "42"
        finally:
            stranger.kill()


def test_servers_that_are_killed_are_started_again_where_they_were(tmp_path: Path) -> None:
    log = Log()
    with EmbeddedStack(tmp_path / "data") as stack, redis.Redis.from_url(stack.broker_url) as client:
        stack.keep_running(lambda line: print(line, file=log))
        query(stack.database_url, "create table kept as select 42 as answer")
        for name, pid in zip(("Postgres", "Redis"), stack_pids(stack), strict=True):
            os.kill(pid, signal.SIGKILL)
            log.wait_for(f"{name} ended with signal SIGKILL")
        eventually(lambda: answers(stack, client), SECONDS)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert stack.ended() is None
        pids = stack_pids(stack)
    assert_ended(*pids)
    assert log.getvalue().count("\n") == 2


def answers(stack: EmbeddedStack, client: redis.Redis) -> bool:
    try:
        return query(stack.database_url, "select answer from kept") == "42" and bool(client.ping())
    except (psycopg.OperationalError, redis.ConnectionError):
        return False


def test_a_server_that_cannot_be_kept_up_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_server, "Restarts", lambda: Restarts(most=1, backoff=0))
    with EmbeddedRedis() as server:
        log = Log()
        server.keep_running(lambda line: print(line, file=log))
        monkeypatch.setenv("PALIMPSEST_REDIS_BIN", "/nowhere")
        monkeypatch.setattr(embedded_server.EmbeddedServer, "_start_when_possible", refuse)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        log.wait_for("again in 0 s")
        eventually(lambda: server.ended() is not None, SECONDS)
        assert server.ended() == "no room"


def refuse(*_: object) -> None:
    raise EmbeddedError("no room")


def test_a_stop_does_not_wait_for_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis() as server:
        log = Log()
        server.keep_running(lambda line: print(line, file=log))
        monkeypatch.setattr(embedded, "_answers", lambda _: False)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        log.wait_for("again in")
    assert server.pid is None


def test_when_the_parent_is_killed_nothing_is_left() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        document = json.loads(parent.stdout.readline())
        parent.kill()
    assert still_running(*document["pids"], document["guard"]) == []
    assert not any(Path(directory).exists() for directory in document["directories"])


def test_servers_end_with_an_interpreter_that_forgot_them() -> None:
    program = TELL.replace("sys.stdin.read()\nstack.stop()\n", "")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    document = json.loads(run.stdout)
    assert_ended(*document["pids"], document["guard"])
    assert not any(Path(directory).exists() for directory in document["directories"])


def test_servers_outlive_the_thread_that_started_them(shared_stack: EmbeddedStack) -> None:
    assert query(shared_stack.database_url, "select 1") == "1"
    assert shared_stack.ended() is None


def test_a_start_that_fails_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pids = started_servers(monkeypatch)
    monkeypatch.setenv("PALIMPSEST_REDIS_BIN", shutil.which("false") or "")
    stack = EmbeddedStack(None, durable=False)
    with pytest.raises(EmbeddedError, match=r"Redis did not start \(status 1\)"):
        stack.start()
    assert len(pids) >= 2
    assert_ended(*pids)
    assert not stack.postgres.directory.exists()
    assert not stack.redis.directory.exists()
    with pytest.raises(EmbeddedError, match="not running"):
        _ = stack.database_url


def test_a_server_that_refuses_says_why_and_later_has_what_it_had(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = data_dir / "pgdata" / "postgresql.conf"
    before = settings.read_text()
    settings.write_text(before + "nonsense_setting = 1\n")
    pids = started_servers(monkeypatch)
    with pytest.raises(EmbeddedError, match="nonsense_setting"):
        EmbeddedPostgres(data_dir, durable=False).start()
    assert_ended(*pids)
    settings.write_text(before)
    with EmbeddedPostgres(data_dir, durable=False) as server:
        assert query(server.url, "select answer from kept") == "42"
    assert "database system was interrupted" not in (data_dir / "server.log").read_text()


def test_a_taken_port_is_tried_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis() as first:
        taken = int(first.url.split(":")[-1].split("/")[0])
        ports = iter([taken, embedded_server.free_port()])
        monkeypatch.setattr(embedded_server, "free_port", lambda: next(ports))
        with EmbeddedRedis() as second, redis.Redis.from_url(second.url) as client:
            assert client.ping()


@pytest.mark.parametrize("by", ["PATH", "PALIMPSEST_REDIS_BIN"])
@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["open", "closed"])
def test_redis_that_is_a_link_to_its_checker_starts_as_a_server(
    by: str, mode: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As Debian installs it: one program that is a server or a checker by the name that it is started with.
    programs = tmp_path / "programs"
    programs.mkdir(mode=mode)
    shutil.copy(redis_server().resolve(), programs / "redis-check-rdb")
    link = programs / "redis-server"
    link.symlink_to("redis-check-rdb")
    monkeypatch.setenv(by, str(link) if by == "PALIMPSEST_REDIS_BIN" else f"{programs}:{os.environ['PATH']}")
    assert redis_server() == link
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()


@pytest.mark.skipif(not IS_ROOT, reason="only root can make a folder that the server's user may not enter")
def test_as_root_below_a_folder_that_only_root_may_enter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    if wheel := installed(wheel=True):  # programs that are there as well, beside the data; a system's are elsewhere
        # The layout of a venv: the package, and beside it the libraries its programs are linked to.
        package = wheel.directory.parent.parent
        for folder in (wheel.directory.parent, package.with_name(f"{package.name}.libs")):
            shutil.copytree(folder, home / folder.relative_to(package.parent), symlinks=True)
        copied = home / wheel.directory.relative_to(package.parent)
        monkeypatch.setenv("PALIMPSEST_POSTGRES_BIN", str(copied))
        monkeypatch.setenv("PALIMPSEST_REDIS_BIN", shutil.copy(str(redis_server()), str(home)))
    for _ in range(2):
        with EmbeddedStack(home / "data", durable=False) as stack:
            assert query(stack.database_url, "create table if not exists kept (x int)") == ""
            assert effective_uid(stack.postgres.pid) != 0
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def reachable_python(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """This interpreter where any user can run it, copied out of a home that is closed to them; its environment."""
    packages = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
    if can_import(sys.executable, environment):
        return sys.executable, environment
    base, library = Path(sys.base_prefix), Path(sysconfig.get_path("stdlib"))
    copied = tmp_path_factory.mktemp("python")
    for folder in (copied, *copied.parents[:2]):
        folder.chmod(0o755)
    skipped = shutil.ignore_patterns("site-packages", "test", "idlelib", "ensurepip", "lib2to3", "config-*")
    shutil.copytree(library, copied / library.relative_to(base), ignore=skipped)
    for shared in base.glob("lib/libpython*.so.*"):
        shutil.copy(shared, copied / "lib")
    program = Path(shutil.copy(os.path.realpath(sys.executable), copied))
    environment |= {"PYTHONHOME": str(copied), "LD_LIBRARY_PATH": str(copied / "lib")}
    if not can_import(str(program), environment):
        pytest.skip("no Python and packages here that another user can reach")
    return str(program), environment


def can_import(program: str, environment: dict[str, str]) -> bool:
    try:
        run = as_ordinary_user([program, "-c", "import cli.local.embedded"], environment)
    except PermissionError:
        return False
    with run:
        return run.wait() == 0


def as_ordinary_user(argv: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        user=ORDINARY_USER,
        group=pwd.getpwuid(ORDINARY_USER).pw_gid,
        extra_groups=[],
        cwd="/",
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(not IS_ROOT, reason="not root: every other test here already runs as an ordinary user")
def test_as_an_ordinary_user(reachable_python: tuple[str, dict[str, str]]) -> None:
    program, environment = reachable_python
    with as_ordinary_user([program, "-c", TELL], environment) as parent:
        assert parent.stdout is not None
        document = json.loads(parent.stdout.readline())
        assert [effective_uid(pid) for pid in document["pids"]] == [ORDINARY_USER, ORDINARY_USER]
        parent.communicate("")
    assert (parent.returncode, document["uid"], document["answer"]) == (0, ORDINARY_USER, "palimpsest")
    assert still_running(*document["pids"], document["guard"]) == []
    assert not any(Path(directory).exists() for directory in document["directories"])


@pytest.mark.skipif(not IS_ROOT, reason="only root can hand a directory to another user")
def test_as_root_a_directory_is_served_by_its_owner(data_dir: Path) -> None:
    subprocess.run(["chown", "-R", f"{ORDINARY_USER}:{ORDINARY_USER}", data_dir], check=True)
    with EmbeddedPostgres(data_dir, durable=False) as server:
        assert effective_uid(server.pid) == ORDINARY_USER


def test_urls_of_the_environment_are_used_as_they_are() -> None:
    given = {
        "PALIMPSEST_DATABASE_URL": "postgresql://somewhere/else",
        "PALIMPSEST_BROKER_URL": "redis://somewhere/1",
    }
    with EmbeddedStack.from_environment(None, environ=given) as stack:
        assert (stack.database_url, stack.broker_url) == tuple(given.values())
        assert (stack.postgres.pid, stack.redis.pid, stack.ended()) == (None, None, None)
    del given["PALIMPSEST_BROKER_URL"]
    with (
        EmbeddedStack.from_environment(None, environ=given) as stack,
        redis.Redis.from_url(stack.broker_url) as client,
    ):
        assert client.ping()
        assert stack.postgres.pid is None
