"""Logins of the database that services have: no more than the right to act in the service's role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, text

if TYPE_CHECKING:
    from psycopg import Connection as Psycopg

SERVICE_LOGIN: Final = "palimpsest_app"
"""The login that the manual, Compose and `palimpsest serve` give services."""

_KNOWN: Final = text("""
    select rolsuper or rolbypassrls or rolcreaterole or rolcreatedb
           or exists (select from pg_class where relowner = pg_roles.oid)
           or exists (select from pg_database where datdba = pg_roles.oid) as may_more
    from pg_roles where rolname = :name
""")
_STATEMENTS: Final = text("""
    select format('%s role %I login noinherit password %L', verb, name, verifier), format('grant %I to %I', role, name)
    from (select cast(:verb as text) as verb, cast(:name as text) as name, cast(:verifier as text) as verifier,
                 cast(:role as text) as role) as given
""")


class LoginError(Exception):
    """The name is that of a login with rights that no service should have."""


def keep_login(connection: Connection, name: str, password: str, role: str) -> bool:
    """Make a login that may take on `role` and nothing else, or give it this password; return whether it is new.

    The server is sent a verifier (SCRAM), so that no log of statements has the password. Raises LoginError for a login
    that owns something or may do what an administrator does: that one is for migrations.
    """
    may_more = connection.execute(_KNOWN, {"name": name}).scalar_one_or_none()
    if may_more:
        raise LoginError(f"the login {name!r} is an owner, or may do what an administrator does: name another one")
    driver: Psycopg[Any] = connection.connection.dbapi_connection  # type: ignore[assignment] # psycopg's
    verifier = driver.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
    values = {"verb": "create" if may_more is None else "alter", "name": name, "verifier": verifier, "role": role}
    for statement in connection.execute(_STATEMENTS, values).one():
        connection.exec_driver_sql(statement)
    return may_more is None
