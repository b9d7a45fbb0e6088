"""`palimpsest keys`: made, listed, rotated and revoked by whoever may administer the database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from cli.output import failed, print_json
from cli.tables import columns, print_table
from runtime import ids
from store.engine import act_for, owner_engine
from store.tenants import api_keys, tenants
from store.tenants.api_keys import CHAT_BACKEND, FURTHEST, SCOPES, USUAL, AlreadyReplacedError, TooManyKeysError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from uuid import UUID

    from sqlalchemy import Connection

    from runtime.settings import Settings
    from store.tenants.api_keys import ApiKey

_DURATION: Final = re.compile(r"(?P<count>\d{1,6})(?P<unit>[smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Wanted(NamedTuple):
    """What a key is for, what it may do, and until when."""

    name: str
    scopes: frozenset[str]
    expires: datetime | None


def read_scopes(text: str | None, *, is_admin: bool = False) -> frozenset[str]:
    """Return the scopes that the options name; those of a chat backend if they name none."""
    if is_admin and text is not None:
        raise typer.BadParameter("give --scopes or --admin, not both", param_hint="--admin")
    if text is None:
        return frozenset(USUAL if is_admin else CHAT_BACKEND)
    scopes = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not scopes or not scopes <= set(SCOPES):
        raise typer.BadParameter(f"there are {', '.join(SCOPES)}", param_hint="--scopes")
    return scopes


def read_expiry(text: str | None) -> datetime | None:
    """Return the moment that an option names, as a length of time from now or as itself; None for no option."""
    if text is None:
        return None
    expiry = _duration(text) or _time_left(text)
    if not expiry or not timedelta(0) < expiry <= FURTHEST:
        raise typer.BadParameter(
            "expected a time to come, within a hundred years, as 90d, 12h or 2030-01-31T00:00:00Z",
            param_hint="--expires",
        )
    return datetime.now(UTC) + expiry


def read_overlap(text: str) -> timedelta:
    """Return the length of time that an option names."""
    overlap = _duration(text)
    if overlap is None or overlap > FURTHEST:
        raise typer.BadParameter("expected a length of time, as 24h, 30m or 0s", param_hint="--overlap")
    return overlap


def run_create(settings: Settings, tenant: str, wanted: Wanted, *, as_json: bool) -> int:
    """Make a key for a tenant, and the tenant if there is none; print the key, which is shown only here."""
    try:
        with _administration(settings) as connection:
            owner = tenants.create_tenant(connection, tenant)
            new_key = api_keys.create(connection, owner.id, *wanted)
    except TooManyKeysError:
        return failed(f"this tenant has {api_keys.MAXIMUM:,} keys in force; revoke some")
    except ValueError as error:
        return failed(f"{tenant!r}: {error}")
    return _print_once(new_key, tenant, as_json=as_json)


def run_list(settings: Settings, tenant: str | None, *, as_json: bool) -> int:
    """List the keys of a tenant, or of all, without their secrets."""
    with _administration(settings) as connection:
        owners = tenants.named(connection, tenant)
        keys = [(owner.name, key) for owner in owners for key in _keys_of(connection, owner)]
    if tenant is not None and not owners:
        return failed(f"there is no tenant {tenant!r}")
    if as_json:
        print_json([{**_as_json(key), "tenant": owner} for owner, key in keys])
        return 0
    table = columns(("id", "tenant", "name", "created", "expires", "last used", "revoked", "scopes"))
    for owner_name, key in keys:
        times = (key.created_at, key.expires_at, key.last_used_at, key.revoked_at)
        table.add_row(
            ids.external("key", key.id),
            owner_name,
            key.name,
            *(f"{time:%Y-%m-%d %H:%M}" if time else "" for time in times),
            ", ".join(key.scopes),
            style=None if key.in_force(datetime.now(UTC)) else "dim",
        )
    print_table(table)
    return 0


def run_rotate(
    settings: Settings, tenant: str | None, key: str, overlap: timedelta, expires: datetime | None, *, as_json: bool
) -> int:
    """Make a key like another one, given by its id or whole, and print it; the other expires after the overlap."""
    try:
        with _administration(settings) as connection:
            owner, identifier = _find_key(connection, tenant, key)
            new_key = api_keys.rotate(connection, owner.id, identifier, overlap, expires)
    except UnknownKeyError as error:
        return failed(str(error))
    except AlreadyReplacedError as error:
        return failed(f"this key was rotated before: {error}")
    except TooManyKeysError:
        return failed(f"this tenant has {api_keys.MAXIMUM:,} keys in force; revoke some")
    if new_key is None:
        return failed(_not_in_force(key))
    return _print_once(new_key, owner.name, as_json=as_json)


def run_revoke(settings: Settings, tenant: str | None, key: str) -> int:
    """Revoke a key, given by its id or whole."""
    try:
        with _administration(settings) as connection:
            owner, identifier = _find_key(connection, tenant, key)
            is_revoked = api_keys.revoke(connection, owner.id, identifier)
    except UnknownKeyError as error:
        return failed(str(error))
    return 0 if is_revoked else failed(_not_in_force(key))


class UnknownKeyError(Exception):
    """There is no such key or tenant; the message is one line for people."""


def _find_key(connection: Connection, tenant: str | None, key: str) -> tuple[tenants.Tenant, UUID]:
    """Return whose key it is, and its id; the rest of the transaction is on behalf of that tenant.

    Raises UnknownKeyError, whose message has nothing of the key's secret.
    """
    owners = tenants.named(connection, tenant)
    if tenant is not None and not owners:
        raise UnknownKeyError(f"there is no tenant {tenant!r}")
    name = key.partition(".")[0]
    identifier = ids.parse("key", name)
    if identifier is None:
        raise UnknownKeyError("this is no id of a key: palimpsest keys list has them, as key_…")
    for owner in owners:
        act_for(connection, owner.id)
        if api_keys.get(connection, owner.id, identifier) is not None:
            return owner, identifier
    raise UnknownKeyError(f"there is no key {name}" + (f" of the tenant {tenant!r}" if tenant is not None else ""))


def _keys_of(connection: Connection, owner: tenants.Tenant) -> list[ApiKey]:
    act_for(connection, owner.id)
    return api_keys.all_of(connection, owner.id)


def _not_in_force(key: str) -> str:
    return f"the key {key.partition('.')[0]} is not in force any more"


def _duration(text: str) -> timedelta | None:
    match = _DURATION.fullmatch(text.strip())
    return timedelta(**{_UNITS[match["unit"]]: int(match["count"])}) if match else None


def _time_left(text: str) -> timedelta | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment - datetime.now(UTC) if moment.tzinfo else None


def _administration(settings: Settings) -> AbstractContextManager[Connection]:
    return owner_engine(settings.database_url.get_secret_value()).begin()


def _print_once(new_key: tuple[ApiKey, str], tenant: str, *, as_json: bool) -> int:
    row, key = new_key
    if as_json:
        print_json({**_as_json(row), "tenant": tenant, "key": key})
    else:
        print(key)  # noqa: T201 - the command's output
    return 0


def _as_json(key: ApiKey) -> dict[str, Any]:
    return {
        **key._asdict(),
        "id": ids.external("key", key.id),
        "tenant_id": ids.external("ten", key.tenant_id),
        "replaced_by": ids.external("key", key.replaced_by) if key.replaced_by else None,
    }
