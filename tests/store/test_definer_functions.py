"""Functions that act for palimpsest_background take nothing from whoever calls them: not a type, not a table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from psycopg.rows import dict_row
from sqlalchemy import make_url

from migrations.run import upgrade
from tests.conftest import make_tenant
from tests.support.service.hot_calls import hot_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from runtime.settings import Settings

DEFINERS = """
select p.proname as name, p.prosrc as source, p.proconfig as config, p.proowner::regrole::text as owner
from pg_proc as p where p.prosecdef and p.pronamespace = 'public'::regnamespace
"""
GUARDS = """
select p.proname as name, p.proconfig as config
from pg_proc as p where p.prorettype = 'trigger'::regtype and p.pronamespace = 'public'::regnamespace
"""
PATH = ["search_path=pg_catalog, public, pg_temp"]
KEYWORDS = {"integer", "bigint", "boolean", "smallint", "interval", "double", "numeric"}
"""Names of types that the parser itself knows: they cannot mean another one."""
DOMAIN = """
create function pg_temp.run_as_owner(value pg_catalog.uuid) returns boolean language plpgsql as $$
begin
    perform set_config('palimpsest.erasure', {victim}, true);
    delete from public.messages where conversation_id = {victim}::pg_catalog.uuid;
    return true;
exception when insufficient_privilege or restrict_violation then
    return true;
end $$;
create domain pg_temp.uuid as pg_catalog.uuid check (pg_temp.run_as_owner(value));
"""


def query(url: str, statement: str, *values: object) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        return connection.execute(statement.encode(), values).fetchall()


@pytest.fixture
def service_login(database_url: str) -> Iterator[str]:
    """The URL of a login as docs/deployment.md makes it for the services."""
    with psycopg.connect(database_url, autocommit=True) as owner:
        name = "app_" + (make_url(database_url).database or "")[-20:]
        role = sql.Identifier(name)
        owner.execute(sql.SQL("create role {} login noinherit password 'x'").format(role))
        owner.execute(sql.SQL("grant palimpsest_service to {}").format(role))
        yield make_url(database_url).set(username=name, password="x").render_as_string(hide_password=False)
        owner.execute(sql.SQL("drop role {}").format(role))


@pytest.fixture
def victim(database_url: str, make_settings: Callable[..., Settings]) -> Iterator[UUID]:
    """A conversation of another tenant, with messages."""
    with hot_calls(make_settings(), make_tenant(database_url, "victim").id) as calls:
        conversation = calls.conversation()
        calls.append(conversation, {"role": "user", "content": "Nobody else's."})
        yield conversation


def as_service(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, options="-c role=palimpsest_service", autocommit=True)


def test_all_look_for_temporary_things_last(database_url: str) -> None:
    rows = query(database_url, DEFINERS)
    assert len(rows) >= 30
    assert {row["name"]: row["config"] for row in rows} == {row["name"]: PATH for row in rows}
    assert {row["owner"] for row in rows} == {"palimpsest_background"}
    guards = query(database_url, GUARDS)
    assert {row["name"]: row["config"] for row in guards} == {row["name"]: PATH for row in guards}


def test_no_type_in_them_is_looked_for(database_url: str) -> None:
    for row in query(database_url, DEFINERS):
        casts = re.findall(r"::\s*([\w.]+)", row["source"])
        declared = re.findall(r"^ +v_\w+ (?:constant )?([\w.]+)", row["source"], re.MULTILINE)
        loose = {name for name in casts + declared if not name.startswith("pg_catalog.")} - KEYWORDS
        assert loose == set(), row["name"]


def test_nobody_else_makes_anything_temporary(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    may = "select rolname from pg_roles where has_database_privilege(oid, current_database(), 'temporary')"
    assert query(empty_database_url, f"{may} and not rolsuper") == []
    with as_service(empty_database_url) as connection:
        for statement in ("create temporary table t (a integer)", "create domain pg_temp.uuid as pg_catalog.uuid"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement.encode())


def test_the_services_cannot_create_large_objects(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    with as_service(empty_database_url) as connection:
        for statement in ("select lo_create(0)", "select lo_creat(-1)", "select lo_from_bytea(0, 'x')"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement.encode())


def test_a_type_of_the_callers_own_is_not_taken(database_url: str, service_login: str, victim: UUID) -> None:
    """Also where somebody has given everybody temporary objects again."""
    name = sql.Identifier(make_url(database_url).database or "")
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(sql.SQL("grant temporary on database {} to public").format(name))
    calls = query(
        database_url,
        "select p.oid::regproc::text as name, p.proargtypes::regtype[]::text[] as types from pg_proc as p"
        " where p.prosecdef and p.prorettype <> 'trigger'::regtype and p.pronamespace = 'public'::regnamespace",
    )
    values = {"uuid": f"'{victim}'::pg_catalog.uuid", "uuid[]": f"array['{victim}'::pg_catalog.uuid]"}
    values |= {"timestamp with time zone": "now()", "boolean": "true", "integer": "3", "double precision": "0"}
    values |= {"bytea": "'x'", "text": "'conversation'", "text[]": "'{x}'"}
    values |= {"integer[]": "'{1}'", "bigint[]": "'{1}'", "double precision[]": "'{1}'"}
    with as_service(service_login) as connection:
        connection.execute(sql.SQL(DOMAIN).format(victim=sql.Literal(str(victim))))
        for call in calls:
            of_call = values | ({"text": "'idempotency_keys'"} if call["name"] == "expire_rows" else {})
            arguments = ", ".join(of_call[kind] for kind in call["types"])
            for tenant in ("", str(victim)):
                connection.execute("select set_config('app.tenant_id', %s, false)", (tenant,))
                connection.execute(f"select * from {call['name']}({arguments})".encode())  # noqa: S608 - as above
    assert query(database_url, "select count(*) as n from messages") == [{"n": 1}]
