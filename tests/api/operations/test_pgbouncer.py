"""The services behind PgBouncer in transaction mode, set as docs/deployment.md has it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from cli.local.embedded import free_port
from runtime.settings import Settings
from store.engine import service_engine
from tests.conftest import make_tenant
from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.processes import ended, long_talk, product
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Tenant
    from tests.support.processes import Product

__all__ = ["product"]

OLDEST = (1, 21)
"""Older ones know no prepared statements in transaction mode."""
PAGE = ROOT / "docs" / "deployment.md"
PASSWORD = "only-for-this-test"
SERVER_CONNECTIONS = 2
"""Far fewer than the services open, so that every transaction may meet another one's connection."""


SESSIONS = ["pool_mode = session", "ignore_startup_parameters = jit"]
"""In which older ones can be used too, with as many connections to the server as there are to them."""


def program(oldest: tuple[int, int]) -> str:
    """Where PgBouncer is; the test is skipped where it is missing or too old."""
    found = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        pytest.skip("pgbouncer is not installed (package pgbouncer)")
    printed = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"PgBouncer (\d+)\.(\d+)", printed)
    assert version
    if (int(version[1]), int(version[2])) < oldest:
        pytest.skip(f"{version[0]} is too old: 1.21 was the first with prepared statements in transaction mode")
    return found


def documented() -> tuple[list[str], list[str]]:
    """The settings that the page on deployment asks for: of every PgBouncer, and of one beside another."""
    every, beside = re.findall(r"```ini\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return every.splitlines(), beside.splitlines()


class Pooler(NamedTuple):
    """A running PgBouncer: the URL through it, and its log."""

    url: str
    log: Path


@contextmanager
def pooler(
    database_url: str, login: str, folder: Path, *settings: str, oldest: tuple[int, int] = OLDEST
) -> Iterator[Pooler]:
    """Run PgBouncer before the test's database; `folder` has to be readable to an unprivileged user."""
    binary = program(oldest)
    server, port = make_url(database_url), free_port()
    config, log = folder / "pgbouncer.ini", folder / "pgbouncer.log"
    (folder / "users").write_text(f'"{login}" "{PASSWORD}"\n')
    lines = [
        "[databases]",
        f"* = host={server.query.get('host', server.host)} port={server.port or 5432}",
        "[pgbouncer]",
        *("listen_addr = 127.0.0.1", f"listen_port = {port}", "unix_socket_dir =", "auth_type = scram-sha-256"),
        *(f"auth_file = {folder / 'users'}", "server_tls_sslmode = disable"),
        *settings,
    ]
    config.write_text("\n".join(lines) + "\n")
    options = ["--user", "nobody"] if os.geteuid() == 0 else []
    with log.open("wb") as output, subprocess.Popen([binary, *options, str(config)], stderr=output) as process:
        url = make_url(database_url).set(host="127.0.0.1", port=port, username=login, password=PASSWORD, query={})
        found = Pooler(url.render_as_string(hide_password=False), log)
        try:
            eventually(lambda: _answers(found.url, process, log))
            yield found
        finally:
            process.terminate()
            process.wait(20)


def _answers(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        with psycopg.connect(url, connect_timeout=5):
            return True
    except psycopg.OperationalError:
        return False


def make_login(database_url: str) -> str:
    """Make a login that begins in the services' role, as the page has it."""
    login = f"app_{uuid4().hex[:12]}"
    name = sql.Identifier(login)
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(sql.SQL("create role {} login noinherit password {}").format(name, PASSWORD))
        owner.execute(sql.SQL("grant palimpsest_service to {}").format(name))
        owner.execute(sql.SQL("alter role {} set role = 'palimpsest_service'").format(name))
    return login


@pytest.fixture
def pooled(database_url: str) -> Iterator[Pooler]:
    """PgBouncer, with a login that begins in the services' role as the page has it."""
    login = make_login(database_url)
    try:
        with tempfile.TemporaryDirectory(prefix="palimpsest-pgbouncer-") as folder:
            Path(folder).chmod(0o755)
            settings = [f"default_pool_size = {SERVER_CONNECTIONS}", *documented()[0]]
            with pooler(database_url, login, Path(folder), *settings) as running:
                yield running
    finally:
        with psycopg.connect(database_url, autocommit=True) as owner:
            owner.execute(sql.SQL("drop role {}").format(sql.Identifier(login)))


@pytest.fixture
def behind(product: Product, pooled: Pooler) -> Product:
    """The product's processes, told of the pooler."""
    product.env |= {"PALIMPSEST_DATABASE_URL": pooled.url, "PALIMPSEST_DATABASE_ROLE": ""}
    return product


def test_every_session_acts_as_the_service(pooled: Pooler) -> None:
    engine = service_engine(Settings(database_url=pooled.url, database_role=""), "test")  # type: ignore[arg-type] # a secret
    with engine.connect() as connection:
        assert connection.scalar(text("select current_user")) == "palimpsest_service"
    engine.dispose()


def test_a_service_that_asks_for_its_role_is_refused_rather_than_let_in_as_its_login(pooled: Pooler) -> None:
    engine = service_engine(Settings(database_url=pooled.url), "test")  # type: ignore[arg-type] # a secret
    with pytest.raises(OperationalError, match="unsupported startup parameter"), engine.connect():
        pass
    engine.dispose()


def test_turns_of_two_tenants_share_few_connections(behind: Product, tenant: Tenant, database_url: str) -> None:
    """Every transaction sets its tenant anew and leaves nothing behind, prepared statements included."""
    rival = make_tenant(database_url, "rival")

    def talk(number: int) -> None:
        mine, other = (tenant.key, rival.key) if number % 2 else (rival.key, tenant.key)
        with api.client(mine) as client, api.client(other) as stranger:
            response = client.post("/v1/conversations", json={})
            assert response.status_code == 201, response.text
            path = f"/v1/conversations/{response.json()['id']}"
            for turn in range(10):
                messages = exchanges(1, 20, start=turn)
                done = client.post(f"{path}/turns", json={"messages": messages})
                assert done.status_code == 201, done.text
                served = client.get(f"{path}/context")
                assert served.status_code == 200, served.text
                assert served.json()["messages"][-2:] == messages
                assert stranger.get(f"{path}/context").status_code == 404
            assert len(client.get(f"{path}/messages").json()["data"]) == 20

    with behind.api() as api, ThreadPoolExecutor(8) as threads:
        list(threads.map(talk, range(8)))
    with psycopg.connect(database_url) as owner:
        query = "select count(*) from pg_stat_activity where application_name = 'palimpsest-api-hot' and pid <> %s"
        (connections,) = owner.execute(query, [owner.info.backend_pid]).fetchone() or (0,)
    assert connections <= SERVER_CONNECTIONS


def test_a_summary_is_made_through_it(behind: Product) -> None:
    conversation = long_talk(behind)
    with behind.worker("beat") as sweeper, behind.worker("checks,summaries") as worker:
        # Nobody sends the wake-up: the sweep has to find the check, through the pooler as well.
        eventually(ended(behind, conversation), 60)
        assert worker.process.poll() is None
        assert sweeper.process.poll() is None
    assert behind.chat.run(conversation).state == "committed"
