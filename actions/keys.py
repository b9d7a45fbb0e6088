"""API keys: made, rotated and revoked, with the problems of what the store refuses, and written into the log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import structlog

from actions.errors import ConflictError, InvalidError, NotFoundError, or_not_found
from runtime import ids
from store.tenants import api_keys
from store.tenants.api_keys import AlreadyReplacedError, ApiKey, TooManyKeysError

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.caller import Caller

P = ParamSpec("P")
R = TypeVar("R")
NewKey = tuple[ApiKey, str]
"""A key, and what a request presents."""

log = structlog.get_logger()


def check_expiry(expires_at: datetime | None) -> None:
    """Raise the problem of a time at which no key can expire."""
    if expires_at is not None and not timedelta(0) < expires_at - datetime.now(UTC) <= api_keys.FURTHEST:
        raise InvalidError("Expected a time to come, within a hundred years.", "/expires_at")


async def create_key(
    caller: Caller, query: Callable[Concatenate[Connection, UUID, P], NewKey], *args: P.args, **kwargs: P.kwargs
) -> NewKey:
    """Make a key by a query of the store."""
    key = await _with_problems(caller, query, *args, **kwargs)
    log.info("key.created", key_id=str(key[0].id), by=str(caller.principal.key_id), scopes=key[0].scopes)
    return key


async def rotate_key(
    caller: Caller,
    query: Callable[Concatenate[Connection, UUID, UUID, P], NewKey | None],
    key_id: UUID,
    *args: P.args,
    **kwargs: P.kwargs,
) -> NewKey:
    """Replace a key by a query of the store; raise the problem that there is no such one."""
    key = or_not_found(await _with_problems(caller, query, key_id, *args, **kwargs))
    caller.services.authenticator.forget(caller.tenant_id)
    log.info("key.rotated", key_id=str(key[0].id), by=str(caller.principal.key_id), replaces=str(key_id))
    return key


async def revoke_key(
    caller: Caller, key_id: UUID, query: Callable[[Connection, UUID, UUID], bool] = api_keys.revoke
) -> None:
    """Revoke a key by a query of the store; raise the problem that there is none to revoke."""
    if not await caller.run(query, key_id):
        raise NotFoundError
    caller.services.authenticator.forget(caller.tenant_id)
    log.info("key.revoked", key_id=str(key_id), by=str(caller.principal.key_id))


async def _with_problems(
    caller: Caller, query: Callable[Concatenate[Connection, UUID, P], R], *args: P.args, **kwargs: P.kwargs
) -> R:
    try:
        return await caller.run(query, *args, **kwargs)
    except TooManyKeysError:
        raise ConflictError(
            "too_many_keys", f"A tenant has at most {api_keys.MAXIMUM:,} keys in force; revoke some."
        ) from None
    except AlreadyReplacedError as error:
        replaced_by = ids.external("key", error.replaced_by)
        raise ConflictError("already_rotated", f"This key was rotated before; {replaced_by} replaces it.") from None
