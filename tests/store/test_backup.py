"""Backup and restore as docs/operations.md has them: everything is there again, guarded as before, and work goes on."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.errors import RestrictViolation
from pydantic import SecretStr
from sqlalchemy import make_url

from cli.local.installations import postgres_installations
from migrations.run import upgrade
from store.conversations import conversations
from tests.conftest import create_database, drop_database
from tests.support.places import ROOT
from tests.support.service.in_process import Chat, Workers, head
from tests.support.service.in_process import chat_alone as chat
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges, request, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli.local.embedded import EmbeddedPostgres

__all__ = ["chat"]

SUMS = """
select c.relname, (xpath('/row/sum/text()', query_to_xml(
    format('select md5(string_agg(t::text, chr(10) order by t::text)) as sum from public.%%I as t', c.relname),
    false, true, '')))[1]::text
from pg_class as c where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace order by 1
"""


@pytest.fixture(scope="module")
def tools(postgres: EmbeddedPostgres) -> Path:
    """The directory of pg_dump and pg_restore that fit the server."""
    with psycopg.connect(postgres.url) as connection:
        major = connection.info.server_version // 10_000
    for installation in postgres_installations():
        if installation.major == major and (installation.directory / "pg_dump").exists():
            return installation.directory
    pytest.skip(f"no pg_dump beside the server's programs, PostgreSQL {major}")


@pytest.fixture
def restored(postgres: EmbeddedPostgres) -> Iterator[str]:
    """An empty database on the same server."""
    name = f"test_{uuid4().hex}"
    yield create_database(postgres.url, name)
    drop_database(postgres.url, name)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True, timeout=120)


def sums(url: str) -> list[tuple[Any, ...]]:
    """Return a checksum of every table's rows."""
    with psycopg.connect(url) as connection:
        return connection.execute(SUMS.replace("%%", "%")).fetchall()


def test_everything_is_there_again(chat: Chat, database_url: str, restored: str, tools: Path, tmp_path: Path) -> None:
    workers = Workers(chat, StubSummarizer())
    compacted, queued, due = (chat.begin({"input_token_budget": 0}) for _ in range(3))
    for conversation in (compacted, queued):
        chat.append(conversation, exchanges(12, 200))
    workers.settle(compacted)
    workers.check(queued)
    chat.append(due, [request("häppchen ✓ \\u0041"), *rounds(6, 600)])
    before = sums(database_url)
    contexts = {each: chat.context(each) for each in (compacted, queued, due)}

    dump = tmp_path / "palimpsest.dump"
    done = run(tools / "pg_dump", "--format=custom", f"--file={dump}", database_url)
    assert done.returncode == 0, done.stderr
    done = run(tools / "pg_restore", "--exit-on-error", f"--dbname={restored}", dump)
    assert done.returncode == 0, done.stderr
    upgrade(restored)
    assert sums(restored) == before

    with psycopg.connect(restored) as connection, pytest.raises(RestrictViolation):
        connection.execute("delete from messages")
    settings = chat.settings.model_copy(update={"database_url": SecretStr(restored)})
    with Chat(settings, chat.tenant_id) as again:
        assert {each: again.context(each) for each in contexts} == contexts
        with again.database.transaction(None) as connection:  # nobody's rows without a tenant
            assert connection.exec_driver_sql("select count(*) from messages").scalar() == 0
            found = conversations.overdue_checks(connection, 0, 10)
        assert {check.conversation_id for check in found} == {due}
        workers = Workers(again, StubSummarizer())
        workers.settle(due)
        workers.woken.extend(row.id for row in again.runs(queued))
        workers.summarize()
        assert (head(again, queued).version, again.run(queued).state) == (1, "committed")
        again.append(compacted, [request("and on")])


@pytest.mark.usefixtures("database_url")
def test_the_owner_may_migrate_what_was_restored(postgres: EmbeddedPostgres, tools: Path, tmp_path: Path) -> None:
    """As the page has it: dumped and restored by a superuser, and migrated by the owner, which is none.

    The roles are there, from another database of the server.
    """
    owner, before, after = (f"test_{uuid4().hex}" for _ in range(3))
    server = postgres.url
    with psycopg.connect(server, autocommit=True) as superuser:
        superuser.execute(f"create role {owner} login createrole password 'x'".encode())
        superuser.execute(f"grant palimpsest_service, palimpsest_background, palimpsest_auditor to {owner}".encode())
        superuser.execute(f"create database {before} owner {owner}".encode())

    def url(database: str, login: str | None = None) -> str:
        password = login and "x"
        return make_url(server).set(database=database, username=login, password=password).render_as_string(False)

    upgrade(url(before, owner))
    dump = tmp_path / "palimpsest.dump"
    for command in (
        (tools / "pg_dump", "--format=custom", f"--file={dump}", url(before)),
        (tools / "createdb", f"--owner={owner}", f"--maintenance-db={server}", after),
        (tools / "pg_restore", "--exit-on-error", f"--dbname={url(after)}", dump),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    with psycopg.connect(url(after, owner)) as connection:
        connection.execute("create table of_the_next_release (id bigint); drop table of_the_next_release")
    with psycopg.connect(server, autocommit=True) as superuser:
        for name in (before, after):
            superuser.execute(f"drop database {name} with (force)".encode())
        superuser.execute(f"drop owned by {owner}; drop role {owner}".encode())
    assert "createdb --owner=" in (ROOT / "docs" / "operations.md").read_text()


def test_an_owner_without_privileges_gets_an_error_and_no_empty_dump(
    chat: Chat, database_url: str, tools: Path, tmp_path: Path
) -> None:
    chat.append(chat.begin(), [request("hello")])
    with psycopg.connect(database_url) as connection:
        name = f"test_{uuid4().hex}"
        connection.execute(f"create role {name} login password 'x'".encode())
        connection.execute(f"grant palimpsest_service to {name}".encode())
        connection.execute(f"grant select on all tables in schema public to {name}".encode())
    url = psycopg.conninfo.make_conninfo(database_url, user=name, password="x")
    done = run(tools / "pg_dump", "--format=custom", f"--file={tmp_path / 'd'}", f"--dbname={url}")
    assert done.returncode != 0
    assert "row-level security" in done.stderr
    with psycopg.connect(database_url) as connection:
        connection.execute(f"drop owned by {name}".encode())
        connection.execute(f"drop role {name}".encode())
