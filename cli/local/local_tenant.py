"""What a service on one machine has in its database: a tenant with a key, a login for its parts, tickets."""

from __future__ import annotations

import contextlib
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from cli.local.embedded_server import open_no_link
from cli.local.preparation import ServiceError, one_line
from cli.output import noted
from runtime import ids
from runtime.defaults import SERVICE_ROLE
from store.console import sessions
from store.engine import owner_engine
from store.tenants import api_keys, tenants
from store.tenants.logins import SERVICE_LOGIN, keep_login

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from sqlalchemy import Connection

TENANT: Final = "local"
"""The tenant whose key `serve` hands out."""
_KEY_FILE: Final = "api-key"


def service_url(database_url: str) -> str:
    """Return the URL that the parts get: a login of theirs that is no superuser, with a password of this very start."""
    password = secrets.token_urlsafe(24)
    with _administration(database_url) as (connection, _):
        keep_login(connection, SERVICE_LOGIN, password, SERVICE_ROLE)
    return make_url(database_url).set(username=SERVICE_LOGIN, password=password).render_as_string(hide_password=False)


def console_ticket(database_url: str, key: str) -> str:
    """Return what signs a browser in once, with the key that is printed with it."""
    with _administration(database_url) as (connection, tenant):
        return sessions.issue_ticket(connection, tenant.id, _id_of(key))


@contextlib.contextmanager
def _administration(database_url: str) -> Iterator[tuple[Connection, tenants.Tenant]]:
    """Open a transaction of the database's owner on behalf of the tenant."""
    engine = owner_engine(database_url)
    try:
        with engine.begin() as connection:
            yield connection, tenants.create_tenant(connection, TENANT)
    finally:
        engine.dispose()


def api_key(database_url: str, data_dir: Path | None) -> str:
    """Answer the data directory's key while the database knows it, else make one and keep it there."""
    with _administration(database_url) as (connection, tenant):
        kept = _kept_key(data_dir)
        if kept and _is_in_force(connection, tenant, kept):
            return kept
        try:
            _, key = api_keys.create(connection, tenant.id, "serve")
        except api_keys.TooManyKeysError:
            reason = f"the tenant {TENANT} has {api_keys.MAXIMUM:,} keys in force; revoke some"
            raise ServiceError(reason) from None
        # Before the commit: a key that cannot be kept is not made.
        _keep_key(data_dir, key)
        return key


def revoke(database_url: str, key: str) -> None:
    """Take the key back; where that cannot be, say which one is left."""
    identifier = _id_of(key)
    try:
        with _administration(database_url) as (connection, tenant):
            api_keys.revoke(connection, tenant.id, identifier)
    except SQLAlchemyError as error:
        name = ids.external("key", identifier)
        noted(f"the key {name} of the tenant {TENANT} is still in force, revoke it: {one_line(error)}")


def _id_of(key: str) -> UUID:
    parts = api_keys.split(key)
    assert parts is not None  # noqa: S101 - it was made here
    return parts[0]


def _kept_key(data_dir: Path | None) -> str | None:
    try:
        return (data_dir / _KEY_FILE).read_text().strip() if data_dir is not None else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ServiceError(f"the key in {data_dir} cannot be read: {error.strerror}") from None


def _keep_key(data_dir: Path | None, key: str) -> None:
    if data_dir is None:
        return
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(data_dir / _KEY_FILE, "w", opener=open_no_link) as file:
            file.write(key)
    except OSError as error:
        raise ServiceError(f"the key cannot be kept in {data_dir}: {error.strerror}") from None


def _is_in_force(connection: Connection, tenant: tenants.Tenant, key: str) -> bool:
    parts, now = api_keys.split(key), datetime.now(UTC)
    known = api_keys.all_of(connection, tenant.id)
    return parts is not None and any(row.id == parts[0] and row.in_force(now) for row in known)
