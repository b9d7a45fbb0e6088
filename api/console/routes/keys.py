"""API keys of the tenant: who holds what and for how long; made, rotated and revoked by operators."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from actions import keys
from actions.auth.principals import Principal
from actions.errors import ConflictError, InvalidError, NotFoundError, from_msgspec, id_or_not_found, or_not_found
from actions.types.keys import KeyIn, RotationIn
from api.callers import caller_of
from api.console.forms import read_form
from api.console.pages import page, redirect
from api.console.sessions import ACT, SIGN_IN, may
from api.schema.documentation import KeyId
from runtime import ids
from runtime.errors import RequestError
from store.operations import operator_actions
from store.tenants import api_keys, tenants
from store.tenants.api_keys import SCOPES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services
    from store.operations.operator_actions import Operator
    from store.tables import AnyRow

ON_A_PAGE: Final = 50
LIVES: Final = ((0, "never"), (30, "in 30 days"), (90, "in 90 days"), (365, "in a year"))
"""Days after which a new key may expire, as the form offers them."""
OVERLAPS: Final = ((0, "ends at once"), (3_600, "an hour"), (86_400, "a day"), (7 * 86_400, "a week"))
"""Seconds for which a rotated key may go on working, as the form offers them."""

_After = Annotated[str | None, QueryParameter(max_length=64)]


class _Listed(NamedTuple):
    keys: list[ApiKey]
    done: Sequence[AnyRow]
    """What operators did to them in the console."""


@get("/keys", include_in_schema=False, guards=[may(ACT)])
async def list_keys(request: Request[Principal, Any, Any], after: _After = None) -> Response[bytes]:
    """Show keys, newest first, those that open nothing any more among them."""
    services: Services = request.app.state.services
    cursor = None if after is None else ids.parse("key", after)
    if after is not None and cursor is None:
        raise RequestError("bad_cursor", "This is not an id of this list.", pointer="after")
    listed, done = await services.run(request.user.tenant_id, _list, request.user.tenant_id, cursor)
    keys = listed[:ON_A_PAGE]
    by = {(each.subject_key_id, each.action == "key_revoke"): each.key_name or each.key_id for each in done}
    older = ids.external("key", keys[-1].id) if len(listed) > ON_A_PAGE else None
    return page(request, "keys.html", keys=keys, by=by, older=older)


@get("/keys/new", include_in_schema=False, guards=[may(ACT)])
async def show_new_key(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """Show the form for a new key."""
    services: Services = request.app.state.services
    newest = await services.run(request.user.tenant_id, _newest, request.user.tenant_id)
    return page(request, "key_new.html", scopes=SCOPES, lives=LIVES, newest=newest)


@post("/keys", include_in_schema=False, guards=[may(ACT)])
async def create_key(request: Request[Principal, Any, Any]) -> Response[bytes]:
    """Make a key and show it, this once; the same form sent again makes no other."""
    form = await read_form(request)
    fields = {"name": str(form.get("name", "")).strip(), "scopes": [str(each) for each in form.getall("scopes", [])]}
    wanted = _read(fields, KeyIn)
    days = _choice(form, "days", LIVES)
    expires_at = datetime.now(UTC) + timedelta(days=days) if days else None
    newest = str(form.get("newest", ""))
    key = await keys.create_key(caller_of(request), _create, caller_of(request).operator, newest, wanted, expires_at)
    return _show_once(request, key, None)


@get("/keys/{key_id:str}/rotate", include_in_schema=False, guards=[may(ACT)])
async def show_rotation(request: Request[Principal, Any, Any], key_id: KeyId) -> Response[bytes]:
    """Show what rotating a key would do."""
    return page(request, "key_rotate.html", key=await _in_force(request, key_id), overlaps=OVERLAPS)


@post("/keys/{key_id:str}/rotate", include_in_schema=False, guards=[may(ACT)])
async def rotate_key(request: Request[Principal, Any, Any], key_id: KeyId) -> Response[bytes]:
    """Make a key like another one and show it, this once; the other goes on for as long as was chosen."""
    form = await read_form(request)
    wanted = _read({"overlap_seconds": _choice(form, "overlap", OVERLAPS)}, RotationIn)
    old = await _in_force(request, key_id)
    if wanted.overlap_seconds == 0:
        _agreed(request, old, form)
    overlap = timedelta(seconds=wanted.overlap_seconds)
    return _show_once(
        request, await keys.rotate_key(caller_of(request), _rotate, old.id, caller_of(request).operator, overlap), old
    )


@get("/keys/{key_id:str}/revoke", include_in_schema=False, guards=[may(ACT)])
async def show_revocation(request: Request[Principal, Any, Any], key_id: KeyId) -> Response[bytes]:
    """Show what revoking a key would do."""
    return page(request, "key_revoke.html", key=await _in_force(request, key_id))


@post("/keys/{key_id:str}/revoke", include_in_schema=False, guards=[may(ACT)])
async def revoke_key(request: Request[Principal, Any, Any], key_id: KeyId) -> Response[bytes]:
    """Revoke a key, and lead back to the list, or out where it is the session's own."""
    key, operator = await _in_force(request, key_id), caller_of(request).operator
    _agreed(request, key, await read_form(request))
    await keys.revoke_key(caller_of(request), key.id, partial(_revoke, operator=operator))
    return redirect(SIGN_IN if key.id == request.user.key_id else "/console/keys")


def _show_once(
    request: Request[Principal, Any, Any], new_key: tuple[ApiKey, str], old: ApiKey | None
) -> Response[bytes]:
    return page(request, "key_made.html", status=201, key=new_key[0], secret=new_key[1], old=old)


async def _in_force(request: Request[Principal, Any, Any], key_id: str) -> ApiKey:
    """Return a key of the tenant that opens something; raise the problem of any other."""
    key = or_not_found(await caller_of(request).run(api_keys.get, id_or_not_found("key", key_id)))
    if not key.in_force(datetime.now(UTC)):
        raise NotFoundError
    return key


def _agreed(request: Request[Principal, Any, Any], key: ApiKey, form: Mapping[str, Any]) -> None:
    """Raise the problem of a form that would end the session it came in, unless it says that it knows."""
    if key.id == request.user.key_id and form.get("ends_session") != "yes":
        raise InvalidError(
            "This is the key that you are signed in with: tick that your session may end.", "ends_session"
        )


def _read(fields: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise from_msgspec(error, kind) from None


def _choice(form: Mapping[str, Any], name: str, offered: Sequence[tuple[int, str]]) -> int:
    chosen = str(form.get(name, ""))
    if chosen not in {str(value) for value, _ in offered}:
        raise InvalidError("Choose one of those that the form offers.", name)
    return int(chosen)


def _list(connection: Connection, tenant_id: UUID, after: UUID | None) -> _Listed:
    keys = api_keys.page(connection, tenant_id, limit=ON_A_PAGE + 1, after=after)
    return _Listed(keys, operator_actions.on_keys(connection, tenant_id, [key.id for key in keys]))


def _newest(connection: Connection, tenant_id: UUID) -> str:
    """Return what tells whether a key was made since a form was opened: the newest one's id."""
    return ids.external("key", api_keys.page(connection, tenant_id, limit=1)[0].id)


def _create(
    connection: Connection,
    tenant_id: UUID,
    operator: Operator,
    newest: str,
    wanted: KeyIn,
    expires_at: datetime | None,
) -> tuple[ApiKey, str]:
    # Compared under the lock: of two that come at once the second sees the key of the first.
    tenants.lock(connection, tenant_id)
    if newest != _newest(connection, tenant_id):
        raise ConflictError("used_form", "Keys were made since this form was opened; look at the list first.")
    new_key = api_keys.create(connection, tenant_id, wanted.name, wanted.scopes, expires_at)
    operator_actions.record(connection, operator, "key_create", subject_key_id=new_key[0].id)
    return new_key


def _rotate(
    connection: Connection, tenant_id: UUID, key_id: UUID, operator: Operator, overlap: timedelta
) -> tuple[ApiKey, str] | None:
    new_key = api_keys.rotate(connection, tenant_id, key_id, overlap)
    if new_key is not None:
        operator_actions.record(connection, operator, "key_rotate", subject_key_id=new_key[0].id)
    return new_key


def _revoke(connection: Connection, tenant_id: UUID, key_id: UUID, *, operator: Operator) -> bool:
    done = api_keys.revoke(connection, tenant_id, key_id)
    if done:
        operator_actions.record(connection, operator, "key_revoke", subject_key_id=key_id)
    return done
