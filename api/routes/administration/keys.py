"""API keys of the tenant: made, listed, rotated and revoked by one of its own with the scope `admin`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from litestar import Request, Response, delete, get, post

from actions import keys
from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.paging import page_of
from actions.types.core import Page
from actions.types.keys import KeyIn, KeyMade, KeyOut, RotationIn, key_made, key_out
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.http.paging import AfterId, BeforeId, Limit, window
from api.schema import examples
from api.schema.documentation import KeyId, answers, operation, problems
from runtime import ids
from runtime.http.problem_types import EVERY_BODY
from store.tenants import api_keys


@get("/keys", guards=[requires("admin")], summary="List keys", responses=problems("bad_cursor"))
async def list_keys(
    request: Request[Principal, Any, Any], limit: Limit = 20, after_id: AfterId = None, before_id: BeforeId = None
) -> Page[KeyOut]:
    """List the tenant's keys, newest first, those that are revoked or expired among them."""
    span = window(limit, after_id, before_id, lambda text: ids.parse("key", text))
    rows = await caller_of(request).run(api_keys.page, **span.query)
    return page_of([key_out(row) for row in rows], span, lambda item: item.id)


@post(
    "/keys",
    status_code=201,
    guards=[requires("admin")],
    summary="Create a key",
    operation_class=operation(KeyIn, example=examples.KEY_IN),
    responses={
        201: answers(KeyMade, "The key, which nobody can show again."),
        **problems(*EVERY_BODY, "too_many_keys"),
    },
)
async def create_key(request: Request[Principal, Any, Any]) -> Response[KeyMade]:
    """Make a key. Whoever may do this has every scope, so no key gives away more than it has."""
    wanted = await read_body(request, KeyIn)
    keys.check_expiry(wanted.expires_at)
    caller = caller_of(request)
    return _shown_once(await keys.create_key(caller, api_keys.create, wanted.name, wanted.scopes, wanted.expires_at))


@post(
    "/keys/{key_id:str}/rotate",
    status_code=201,
    guards=[requires("admin")],
    summary="Rotate a key",
    operation_class=operation(RotationIn, example=examples.ROTATION_IN),
    responses={
        201: answers(KeyMade, "The new key, which nobody can show again."),
        **problems(*EVERY_BODY, "not_found", "too_many_keys", "already_rotated"),
    },
)
async def rotate_key(request: Request[Principal, Any, Any], key_id: KeyId) -> Response[KeyMade]:
    """Make a key with the same name and scopes; the old one expires after the overlap, if not before."""
    wanted = await read_body(request, RotationIn)
    keys.check_expiry(wanted.expires_at)
    caller, identifier = caller_of(request), id_or_not_found("key", key_id)
    overlap = timedelta(seconds=wanted.overlap_seconds)
    return _shown_once(await keys.rotate_key(caller, api_keys.rotate, identifier, overlap, wanted.expires_at))


@delete("/keys/{key_id:str}", guards=[requires("admin")], summary="Revoke a key", responses=problems("not_found"))
async def revoke_key(request: Request[Principal, Any, Any], key_id: KeyId) -> None:
    """Revoke a key, this one too. Other processes of the API that have just seen it take it for up to 5 seconds."""
    await keys.revoke_key(caller_of(request), id_or_not_found("key", key_id))


def _shown_once(key: keys.NewKey) -> Response[KeyMade]:
    """Return the answer with a new key; nobody on the way may keep it."""
    return Response(key_made(*key), status_code=201, headers={"cache-control": "no-store"})
