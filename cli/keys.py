"""`palimpsest keys`: made, listed and revoked by whoever may administer the database."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from store import ids, tenants
from store.engine import owner_engine

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from store.settings import Settings


def run_create(settings: Settings, tenant: str, name: str, *, as_json: bool) -> int:
    """Make a key for a tenant, and the tenant if there is none; print the key, which is shown only here."""
    with _administration(settings) as connection:
        owner = tenants.create_tenant(connection, tenant)
        row, key = tenants.create_api_key(connection, owner.id, name)
    if as_json:
        _print_json({"id": ids.external("key", row.id), "tenant": tenant, "name": name, "key": key})
    else:
        print(key)  # noqa: T201 - the command's output
    return 0


def run_list(settings: Settings, tenant: str, *, as_json: bool) -> int:
    """List a tenant's keys, without their secrets."""
    with _administration(settings) as connection:
        owner = tenants.find_tenant(connection, tenant)
        keys = tenants.list_api_keys(connection, owner.id) if owner else []
    if owner is None:
        return _unknown(tenant)
    if as_json:
        _print_json(
            [{**key._asdict(), "id": ids.external("key", key.id), "tenant_id": str(key.tenant_id)} for key in keys]
        )
        return 0
    table = Table("id", "name", "created", "expires", "revoked")
    for key in keys:
        times = (key.created_at, key.expires_at, key.revoked_at)
        table.add_row(
            ids.external("key", key.id), key.name, *(f"{time:%Y-%m-%d %H:%M}" if time else "" for time in times)
        )
    Console().print(table)
    return 0


def run_revoke(settings: Settings, tenant: str, key: str) -> int:
    """Revoke a key, given by its id or whole."""
    identifier = ids.parse("key", key.partition(".")[0])
    with _administration(settings) as connection:
        owner = tenants.find_tenant(connection, tenant)
        done = owner is not None and identifier is not None and tenants.revoke_api_key(connection, owner.id, identifier)
    if owner is None:
        return _unknown(tenant)
    if not done:
        print("palimpsest: this tenant has no such key in force", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _administration(settings: Settings) -> AbstractContextManager[Connection]:
    return owner_engine(settings.database_url.get_secret_value()).begin()


def _unknown(tenant: str) -> int:
    print(f"palimpsest: there is no tenant {tenant!r}", file=sys.stderr)  # noqa: T201
    return 1


def _print_json(value: object) -> None:
    print(msgspec.json.encode(value).decode())  # noqa: T201 - the command's output
