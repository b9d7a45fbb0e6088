"""`palimpsest keys`: made, listed, rotated and revoked by whoever may administer the database."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import typer

from cli.tables import columns, print_table
from runtime import ids
from store.engine import owner_engine
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
        return _failed(f"this tenant has {api_keys.MAXIMUM:,} keys in force; revoke some")
    except ValueError as error:
        return _failed(f"{tenant!r}: {error}")
    return _print_once(new_key, tenant, as_json=as_json)


def run_list(settings: Settings, tenant: str, *, as_json: bool) -> int:
    """List a tenant's keys, without their secrets."""
    with _administration(settings) as connection:
        owner = tenants.find_tenant(connection, tenant)
        keys = api_keys.all_of(connection, owner.id) if owner else []
    if owner is None:
        return _unknown(tenant)
    if as_json:
        _print_json([_as_json(key) for key in keys])
        return 0
    table = columns(("id", "name", "created", "expires", "last used", "revoked", "scopes"))
    for key in keys:
        times = (key.created_at, key.expires_at, key.last_used_at, key.revoked_at)
        table.add_row(
            ids.external("key", key.id),
            key.name,
            *(f"{time:%Y-%m-%d %H:%M}" if time else "" for time in times),
            ", ".join(key.scopes),
            style=None if key.in_force(datetime.now(UTC)) else "dim",
        )
    print_table(table)
    return 0


def run_rotate(
    settings: Settings, tenant: str, key: str, overlap: timedelta, expires: datetime | None, *, as_json: bool
) -> int:
    """Make a key like another one, given by its id or whole, and print it; the other expires after the overlap."""
    identifier = _identifier(key)
    try:
        with _administration(settings) as connection:
            owner = tenants.find_tenant(connection, tenant)
            new_key = (
                api_keys.rotate(connection, owner.id, identifier, overlap, expires) if owner and identifier else None
            )
    except AlreadyReplacedError as error:
        return _failed(f"this key was rotated before: {error}")
    except TooManyKeysError:
        return _failed(f"this tenant has {api_keys.MAXIMUM:,} keys in force; revoke some")
    if new_key is None:
        return _no_key(owner, tenant)
    return _print_once(new_key, tenant, as_json=as_json)


def run_revoke(settings: Settings, tenant: str, key: str) -> int:
    """Revoke a key, given by its id or whole."""
    identifier = _identifier(key)
    with _administration(settings) as connection:
        owner = tenants.find_tenant(connection, tenant)
        done = owner is not None and identifier is not None and api_keys.revoke(connection, owner.id, identifier)
    return 0 if done else _no_key(owner, tenant)


def _duration(text: str) -> timedelta | None:
    match = _DURATION.fullmatch(text.strip())
    return timedelta(**{_UNITS[match["unit"]]: int(match["count"])}) if match else None


def _time_left(text: str) -> timedelta | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment - datetime.now(UTC) if moment.tzinfo else None


def _identifier(key: str) -> UUID | None:
    return ids.parse("key", key.partition(".")[0])


def _administration(settings: Settings) -> AbstractContextManager[Connection]:
    return owner_engine(settings.database_url.get_secret_value()).begin()


def _no_key(owner: tenants.Tenant | None, tenant: str) -> int:
    return _unknown(tenant) if owner is None else _failed("this tenant has no such key in force")


def _unknown(tenant: str) -> int:
    return _failed(f"there is no tenant {tenant!r}")


def _failed(reason: str) -> int:
    print(f"palimpsest: {reason}", file=sys.stderr)  # noqa: T201
    return 1


def _print_once(new_key: tuple[ApiKey, str], tenant: str, *, as_json: bool) -> int:
    row, key = new_key
    if as_json:
        _print_json({**_as_json(row), "tenant": tenant, "key": key})
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


def _print_json(value: object) -> None:
    print(msgspec.json.encode(value).decode())  # noqa: T201 - the command's output
