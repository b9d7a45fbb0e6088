"""The schema's migrations on a real server: by several processes at once, and as logins without privileges."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import CheckConstraint, make_url

from cli.local.embedded import EmbeddedPostgres
from cli.local.installations import POSTGRES_VARIABLE, postgres_installations
from cli.local.processes import COMMAND
from migrations.revisions import HEAD
from migrations.run import current_revision, upgrade
from runtime.settings import Settings
from store import hot_path
from store.engine import owner_engine, service_engine, transaction
from store.tables import metadata
from store.tenants import api_keys
from tests.conftest import create_database, drop_database, make_tenant
from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.processes import environment, started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEFT = """
select c.relname from pg_class as c where c.relnamespace = 'public'::regnamespace
union all select p.proname from pg_proc as p where p.pronamespace = 'public'::regnamespace
"""


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def revision(url: str) -> str | None:
    engine = owner_engine(url)
    with engine.connect() as connection:
        found = current_revision(connection)
    engine.dispose()
    return found


def test_an_upgrade_that_is_run_again_changes_nothing(empty_database_url: str) -> None:
    url = empty_database_url
    assert revision(url) is None
    upgrade(url)
    assert revision(url) == HEAD
    before = sorted(query(url, LEFT))
    make_tenant(url, "somebody")
    upgrade(url)
    assert sorted(query(url, LEFT)) == before
    assert query(url, "select count(*) from tenants") == [(1,)]


def test_function_files_may_be_run_again(database_url: str) -> None:
    """A revision changes a function by running its file: owners and grants stay."""
    held = "select proname, proowner, proacl::text, prosrc from pg_proc where pronamespace = 'public'::regnamespace"
    before = sorted(query(database_url, held), key=str)
    for file in sorted((ROOT / "migrations" / "sql" / "functions").iterdir()):
        with psycopg.connect(database_url) as connection:
            connection.execute(file.read_text().encode())
    assert sorted(query(database_url, held), key=str) == before


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["upgrade", "head"], ""),
        (["current"], f"{HEAD} (head)"),
        (["history"], f"-> {HEAD} (head)"),
        (["check"], "No new upgrade operations detected."),
    ],
)
def test_alembics_own_command_works(database_url: str, command: list[str], told: str) -> None:
    alembic = [sys.executable, "-m", "alembic", *command]
    env = environment(PALIMPSEST_DATABASE_URL=database_url)
    done = subprocess.run(alembic, env=env, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout


def test_migrations_and_tables_agree(database_url: str) -> None:
    engine = owner_engine(database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_groups_of_arguments_agree(database_url: str) -> None:
    stored = query(
        database_url,
        "select c.relname, array_agg(a.attname::text order by a.attnum) from pg_class as c"
        " join pg_attribute as a on a.attrelid = c.oid"
        " where c.relnamespace = 'public'::regnamespace and c.relkind = 'c' group by c.relname",
    )
    assert sorted(stored) == sorted((name, list(group._fields)) for name, group in hot_path.GROUPS.items())


def test_check_constraints_agree(database_url: str) -> None:
    """Alembic does not compare these."""
    stored = query(
        database_url,
        "select conrelid::regclass::text, conname from pg_constraint"
        " where contype = 'c' and connamespace = 'public'::regnamespace",
    )
    declared = {
        (table.name, str(constraint.name))
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    assert set(stored) == declared


def test_processes_that_migrate_at_once(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Several on one database and on two of one server, which share the roles."""
    names = [f"test_{uuid4().hex}" for _ in range(2)]
    urls = [create_database(postgres.url, name) for name in names]
    with (tmp_path / "log").open("wb") as log:
        processes = [
            started([*COMMAND, "migrate"], environment(PALIMPSEST_DATABASE_URL=url), log)
            for url in (urls[0], urls[1], urls[0])
        ]
    assert [process.wait(60) for process in processes] == [0, 0, 0], (tmp_path / "log").read_text()
    assert {revision(url) for url in urls} == {revision(urls[0])} != {None}
    for name in names:
        drop_database(postgres.url, name)


def test_a_migration_waits_its_turn_however_long(empty_database_url: str) -> None:
    """The timeout is for tables; the other process may take all the time it needs."""
    url = empty_database_url
    with psycopg.connect(url, autocommit=True) as first:
        first.execute("select pg_advisory_lock(hashtext('palimpsest.migrations'))")
        second = Thread(target=upgrade, args=(url,))
        second.start()
        eventually(
            lambda: (
                first.execute(
                    "select from pg_stat_activity where application_name = 'palimpsest-admin'"
                    " and datname = current_database() and now() - backend_start > interval '4.5 seconds'"
                ).fetchone()
                is not None
            )
        )
        assert revision(url) is None
        first.execute("select pg_advisory_unlock_all()")
        second.join(30)
    assert revision(url) is not None


@contextmanager
def login(server_url: str) -> Iterator[str]:
    """A login without privileges but the service's roles, and a database of its own: the database's URL."""
    name = f"test_{uuid4().hex}"
    url = create_database(server_url, name)
    with psycopg.connect(url, autocommit=True) as connection:
        create = sql.SQL("create role {} login password 'x' nosuperuser nocreaterole")
        connection.execute(create.format(sql.Identifier(name)))
        connection.execute(sql.SQL("alter database {0} owner to {0}").format(sql.Identifier(name)))
        grant = sql.SQL("grant palimpsest_service, palimpsest_background to {}")
        connection.execute(grant.format(sql.Identifier(name)))
    yield make_url(url).set(username=name, password="x").render_as_string(hide_password=False)
    drop_database(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def test_an_ordinary_login_migrates_and_serves(postgres: EmbeddedPostgres, template: str) -> None:
    """Managed servers give out no superuser, and row-level security binds the owner: keys are made all the same."""
    with login(postgres.url) as url:
        upgrade(url)
        for _ in range(2):
            made = make_tenant(url, "acme")
        service = service_engine(Settings(database_url=SecretStr(url)), "test")
        with transaction(service, made.id) as connection:
            assert len(api_keys.all_of(connection, made.id)) == 2
        service.dispose()


def test_a_login_that_may_make_roles_makes_those_of_the_services(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Postgres 16 on it may grant what it has made, but act in it only once it has done so to itself."""
    newest = max(postgres_installations(), key=lambda each: each.major)
    monkeypatch.setenv(POSTGRES_VARIABLE, str(newest.directory))
    with EmbeddedPostgres(durable=False) as fresh:
        with psycopg.connect(fresh.url, autocommit=True) as connection:
            connection.execute("create role owner login createrole password 'x'")
            connection.execute("create database owned owner owner")
        place = make_url(fresh.url).set(database="owned", username="owner", password="x")
        url = place.render_as_string(hide_password=False)
        upgrade(url)
        made = make_tenant(url, "acme")
        service = service_engine(Settings(database_url=SecretStr(url)), "test")
        with transaction(service, made.id) as connection:
            assert len(api_keys.all_of(connection, made.id)) == 1
        service.dispose()
