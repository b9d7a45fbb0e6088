"""The login that services have: it may act in their role, and nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url
from typer.testing import CliRunner

from cli.main import app
from migrations.revisions import HEAD
from tests.store.schema.next_release import NEXT, next_release

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.testing import Result

__all__ = ["next_release"]

PASSWORD = "of-the-services"


def migrate(database_url: str, *arguments: str, **environment: str) -> Result:
    environ = {"PALIMPSEST_DATABASE_URL": database_url, "PALIMPSEST_LOG_LEVEL": "error", **environment}
    return CliRunner().invoke(app, ["migrate", *arguments], env=environ)


@contextmanager
def a_name(database_url: str) -> Iterator[str]:
    """A name for a login, which is gone afterwards: roles belong to the server, not to a test's database."""
    name = f"login_{uuid4().hex[:12]}"
    yield name
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))


def as_login(database_url: str, name: str, password: str) -> psycopg.Connection:
    url = make_url(database_url).set(username=name, password=password).render_as_string(hide_password=False)
    return psycopg.connect(url)


def test_a_migration_says_what_it_did(empty_database_url: str, request: pytest.FixtureRequest) -> None:
    done = migrate(empty_database_url)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == f"The schema was empty and is at {HEAD}:"
    assert done.stdout.splitlines()[1:] == [f"  {HEAD}  The whole schema."]
    assert migrate(empty_database_url).stdout == f"The schema is at revision {HEAD}: nothing to do.\n"
    request.getfixturevalue("next_release")
    assert migrate(empty_database_url).stdout.startswith(
        f"The schema was at revision {HEAD} and is at {NEXT}:\n  {NEXT}  "
    )


def test_a_schema_of_before_the_first_release_is_told_in_one_line(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("update alembic_version set version_num = '0016'")
    done = migrate(database_url)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "schema 0016" in done.stderr
    assert "new, empty database" in done.stderr


def test_the_login_of_services_may_act_in_their_role_and_nothing_else(database_url: str) -> None:
    with a_name(database_url) as name:
        for is_new, password in ((True, PASSWORD), (False, "another")):
            done = migrate(database_url, "--service-login", name, PALIMPSEST_SERVICE_PASSWORD=password)
            assert done.exit_code == 0, done.output
            assert f"The login {name} {'is new' if is_new else 'was there'}" in done.stdout
            assert password not in done.output
            with as_login(database_url, name, password) as connection:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("select count(*) from conversations")
                connection.rollback()
                connection.execute("set role palimpsest_service")
                assert connection.execute("select count(*) from conversations").fetchone() == (0,)
                for statement in ("set role palimpsest_background", "create role another", "drop table pins"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(statement.encode())
                    connection.rollback()
        with pytest.raises(psycopg.OperationalError):
            as_login(database_url, name, PASSWORD)


def test_a_login_that_may_more_is_left_as_it_is(database_url: str) -> None:
    owner = make_url(database_url).username
    assert owner is not None
    done = migrate(database_url, "--service-login", owner, PALIMPSEST_SERVICE_PASSWORD=PASSWORD)
    assert (done.exit_code, "name another one" in done.stderr) == (1, True)
    psycopg.connect(database_url).close()


def test_a_login_needs_a_password(database_url: str) -> None:
    done = migrate(database_url, "--service-login", "anybody")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "PALIMPSEST_SERVICE_PASSWORD" in done.stderr
