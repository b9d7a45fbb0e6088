"""The schema's migrations on a real server: up, down, up again, together, and in nobody's way."""

from __future__ import annotations

import re
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import CheckConstraint, make_url
from sqlalchemy.exc import OperationalError

from cli.local.embedded import EmbeddedPostgres
from cli.local.forking import COMMAND
from cli.local.installations import POSTGRES_VARIABLE, postgres_installations
from migrations.describe import schema_text
from migrations.run import current_revision, downgrade, upgrade
from runtime.settings import Settings
from store import hot_path
from store.engine import owner_engine, service_engine, transaction
from store.tables import metadata
from store.tenants import api_keys, tenants
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


def test_upgrade_downgrade_and_upgrade_again(empty_database_url: str) -> None:
    url = empty_database_url
    assert revision(url) is None
    upgrade(url)
    assert revision(url) is not None
    before = sorted(query(url, LEFT))
    engine = owner_engine(url)
    with engine.begin() as connection:
        tenants.create_tenant(connection, "somebody")
    engine.dispose()
    downgrade(url, "base")
    assert {name for (name,) in query(url, LEFT)} <= {"alembic_version", "alembic_version_pkc"}
    upgrade(url)
    assert sorted(query(url, LEFT)) == before
    upgrade(url)
    assert query(url, "select count(*) from tenants") == [(0,)]


def test_migrations_and_tables_agree(database_url: str) -> None:
    engine = owner_engine(database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def schema(url: str) -> str:
    engine = owner_engine(url)
    with engine.connect() as connection:
        told = schema_text(connection)
    engine.dispose()
    return told


def unqualified(told: str) -> str:
    """Leave out the aliases in views, which Postgres 15 writes where later versions do without."""
    return re.sub(
        r"^create view .*?;$", lambda view: re.sub(r"\b\w+\.(?=\w)", "", view[0]), told, flags=re.DOTALL | re.MULTILINE
    )


def test_the_schema_is_written_down(database_url: str) -> None:
    written = (ROOT / "migrations" / "schema.sql").read_text()
    assert unqualified(written) == unqualified(schema(database_url)), "run `make docs`"


CHANGES: Final = (
    "alter table messages alter column tokens set default 0",
    "alter table messages no force row level security",
    "drop index ix_runs_dead",
    "alter policy tenant on pins using (true)",
    "grant delete on messages to palimpsest_service",
    "grant select (content) on messages to palimpsest_background",
    "alter table runs disable row level security",
    "alter function backlog() security invoker",
    "alter function backlog() reset search_path",
    "grant execute on function backlog() to public",
    "alter function backlog() owner to current_user",
    "alter table messages drop constraint ck_messages_role",
    "drop trigger runs_not_erased on runs",
    "alter table conversations reset (fillfactor)",
    "alter table pins alter column text set statistics -1",
    "alter view snapshots set (security_invoker = false)",
    "create type more as (one integer)",
)


def test_what_is_written_down_is_all_there_is(database_url: str) -> None:
    engine = owner_engine(database_url)
    with engine.connect() as connection:
        before = schema_text(connection)
        for change in CHANGES:
            with connection.begin_nested() as made:
                connection.exec_driver_sql(change)
                assert schema_text(connection) != before, change
                made.rollback()
        assert schema_text(connection) == before
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


def test_a_migration_gives_up_on_a_table_in_use(database_url: str) -> None:
    with psycopg.connect(database_url) as reader:
        reader.execute("select count(*) from tenants")
        with pytest.raises(OperationalError, match="lock timeout"):
            downgrade(database_url, "base")
    assert revision(database_url) is not None
    assert query(database_url, "select count(*) from conversations") == [(0,)]


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
        downgrade(url, "base")
        assert revision(url) is None


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
