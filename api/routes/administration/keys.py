"""API keys of the tenant: made, listed, rotated and revoked by one of its own with the scope `admin`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import structlog
from litestar import Request, Response, delete, get, post
from litestar.params import PathParameter

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bodies import read_body
from api.http.paging import AfterId, BeforeId, Limit, Window, page_of, window
from api.http.problem_types import EVERY_BODY
from api.http.problems import ProblemError, invalid, not_found
from api.schema import examples
from api.schema.documentation import answers, operation, problems
from api.schema.keys import KeyIn, KeyMade, KeyOut, RotationIn
from api.schema.types import Page
from runtime import ids
from store.tenants import api_keys
from store.tenants.api_keys import AlreadyReplacedError, ApiKey, TooManyKeysError

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from api.services import Services

log = structlog.get_logger()

KeyId = Annotated[str, PathParameter(description="A key's id, the part before its dot.")]


@get("/keys", guards=[requires("admin")], summary="List keys", responses=problems("bad_cursor"))
async def list_keys(
    request: Request[Principal, Any, Any], limit: Limit = 20, after_id: AfterId = None, before_id: BeforeId = None
) -> Page[KeyOut]:
    """List the tenant's keys, newest first, those that are revoked or expired among them."""
    services: Services = request.app.state.services
    span: Window[UUID] = window(limit, after_id, before_id, lambda text: ids.parse("key", text))
    tenant = request.user.tenant_id
    rows = await services.run(tenant, api_keys.page, tenant, limit=limit + 1, after=span.after, before=span.before)
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
    _check_expiry(wanted.expires_at)
    row, key = await make_key(request, api_keys.create, wanted.name, wanted.scopes, wanted.expires_at)
    log.info("key.created", key_id=str(row.id), by=str(request.user.key_id), scopes=row.scopes)
    return _shown_once(row, key)


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
    services: Services = request.app.state.services
    wanted = await read_body(request, RotationIn)
    _check_expiry(wanted.expires_at)
    identifier, overlap = ids.parse("key", key_id), timedelta(seconds=wanted.overlap_seconds)
    made = await make_key(request, api_keys.rotate, identifier, overlap, wanted.expires_at) if identifier else None
    if made is None:
        raise not_found()
    services.authenticator.forget(request.user.tenant_id)
    log.info("key.rotated", key_id=str(made[0].id), by=str(request.user.key_id), replaces=str(identifier))
    return _shown_once(*made)


@delete("/keys/{key_id:str}", guards=[requires("admin")], summary="Revoke a key", responses=problems("not_found"))
async def revoke_key(request: Request[Principal, Any, Any], key_id: KeyId) -> None:
    """Revoke a key, this one too. Other processes of the API that have just seen it take it for up to 5 seconds."""
    services: Services = request.app.state.services
    identifier, tenant = ids.parse("key", key_id), request.user.tenant_id
    if identifier is None or not await services.run(tenant, api_keys.revoke, tenant, identifier):
        raise not_found()
    services.authenticator.forget(tenant)
    log.info("key.revoked", key_id=str(identifier), by=str(request.user.key_id))


async def make_key(request: Request[Principal, Any, Any], query: Callable[..., Any], *wanted: Any) -> Any:
    """Run a query of the store that makes a key; its refusals become problems."""
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    try:
        return await services.run(tenant, query, tenant, *wanted)
    except TooManyKeysError:
        raise ProblemError(
            409, "too_many_keys", f"A tenant has at most {api_keys.MAXIMUM:,} keys in force; revoke some."
        ) from None
    except AlreadyReplacedError as error:
        replaced_by = ids.external("key", error.replaced_by)
        raise ProblemError(409, "already_rotated", f"This key was rotated before; {replaced_by} replaces it.") from None


def _check_expiry(expires_at: datetime | None) -> None:
    if expires_at is not None and not timedelta(0) < expires_at - datetime.now(UTC) <= api_keys.FURTHEST:
        raise invalid("Expected a time to come, within a hundred years.", "/expires_at")


def _shown_once(row: ApiKey, key: str) -> Response[KeyMade]:
    """Return the answer with a new key; nobody on the way may keep it."""
    return Response(KeyMade(**_fields(row), key=key), status_code=201, headers={"cache-control": "no-store"})


def key_out(row: ApiKey) -> KeyOut:
    """Return a key as its tenant's clients see it."""
    return KeyOut(**_fields(row))


def _fields(row: ApiKey) -> dict[str, Any]:
    fields = row._asdict()
    del fields["tenant_id"]
    fields["id"] = ids.external("key", row.id)
    fields["replaced_by"] = ids.external("key", row.replaced_by) if row.replaced_by else None
    return fields
