"""Who is asking: an API key becomes a principal, remembered for a few seconds."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from api.problems import ProblemError, invalid
from compaction.overrides import InForce, in_force
from store import hot_path
from store.tenants import secret_matches, split_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    import asyncpg
    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler

    from compaction.policy import Policy

REMEMBERED_SECONDS: Final = 5.0
"""How long a revoked key may still work in a process that has just seen it, and an old policy of its tenant count."""
REMEMBERED_KEYS: Final = 10_000
_DIGEST_CHARS: Final = 12
"""Hex digits, 48 bits: enough to tell the policies that one tenant has had from each other."""


class Principal(NamedTuple):
    """The tenant behind a request, what its key may do, and the policy its conversations begin from."""

    tenant_id: UUID
    key_id: UUID
    scopes: frozenset[str]
    overrides: Mapping[str, Any]
    """The installation's and the tenant's, as far as they are in force."""
    policy: Policy
    policy_digest: str
    """Another one whenever `policy` is."""

    def policy_of(self, conversation_policy: str, model: str | None) -> InForce:
        """Return what is in force for a conversation with these overrides (JSON text)."""
        return self.in_force({} if conversation_policy == "{}" else msgspec.json.decode(conversation_policy), model)

    def policy_for(self, overrides: Mapping[str, Any], model: str | None = None) -> Policy:
        """Return the policy in force for a conversation with these overrides."""
        return self.in_force(overrides, model).policy

    def in_force(self, overrides: Mapping[str, Any], model: str | None) -> InForce:
        """Return the policy in force for a conversation with these overrides, and which of them are not."""
        if overrides or model:
            return in_force(self.overrides, overrides, model=model)
        return InForce(self.policy, {})


class Authenticator:
    """Finds the principal of a key."""

    def __init__(self, pool: asyncpg.Pool, defaults: Mapping[str, Any]) -> None:
        self._pool = pool
        self._defaults = defaults
        # By a digest: a key is not kept in memory longer than its request.
        self._known: dict[bytes, tuple[float, Principal]] = {}

    async def authenticate(self, key: str) -> Principal | None:
        """Return the principal of a key in force, or None."""
        digest = hashlib.sha256(key.encode()).digest()
        known = self._known.get(digest)
        if known is not None and known[0] > time.monotonic():
            return known[1]
        parts = split_key(key)
        if parts is None:
            return None
        row = await hot_path.find_api_key(self._pool, parts[0])
        # Compared even where there is no such key, so that the time taken does not tell which ids exist.
        if not secret_matches(parts[1], row.secret_hash if row else bytes(32)) or row is None:
            return None
        policy, overrides, _ = in_force(self._defaults, msgspec.json.decode(row.policy))
        version = hashlib.sha256(msgspec.json.encode(policy)).hexdigest()[:_DIGEST_CHARS]
        principal = Principal(row.tenant_id, parts[0], frozenset(row.scopes), overrides, policy, version)
        if len(self._known) >= REMEMBERED_KEYS:
            self._known.clear()
        self._known[digest] = (time.monotonic() + REMEMBERED_SECONDS, principal)
        return principal

    def forget(self, tenant_id: UUID) -> None:
        """Read a tenant's keys and its policy anew from now on, in this process."""
        for digest in [digest for digest, (_, known) in self._known.items() if known.tenant_id == tenant_id]:
            del self._known[digest]


def presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that a request presents: `Authorization: Bearer` or `x-api-key`."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials:
        return credentials.strip()
    return headers.get("x-api-key")


def refuse_unknown_parameters(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse query parameters that a route does not have: a filter with a typing error would list everything."""
    # `state` is a name of Litestar's own; a parameter that is called so outside has another one inside.
    known = {
        getattr(definition.kwarg_definition, "name", None) or name
        for name, definition in handler.parsed_fn_signature.parameters.items()
    }
    for unknown in (name for name in connection.query_params if name not in known):
        raise invalid("There is no such parameter here.", unknown)


def requires(scope: str) -> Callable[..., Any]:
    """Return a guard that lets in keys with `scope` only, and puts the principal into the request."""

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        key = presented_key(connection.headers)
        principal = await connection.app.state.services.authenticator.authenticate(key) if key else None
        if principal is None:
            raise ProblemError(
                401,
                "unauthenticated",
                "A valid API key is needed: Authorization: Bearer <key>, or x-api-key.",
                headers={"www-authenticate": "Bearer"},
            )
        if scope not in principal.scopes and "admin" not in principal.scopes:
            raise ProblemError(403, "forbidden", f"This key has not the scope {scope}.")
        if connection.scope["query_string"]:
            refuse_unknown_parameters(connection, handler)
        connection.scope["user"] = principal

    return guard
