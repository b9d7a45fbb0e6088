"""Who is asking: an API key or a bearer token becomes a principal, remembered for a few seconds."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from compaction.overrides import InForce, in_force
from runtime import ids
from store import hot_path
from store.tenants.api_keys import secret_matches, split

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from actions.auth.jwt_tokens import JwtTokens
    from actions.background.last_used import LastUsed
    from compaction.policy import Policy
    from store.hot_path import Pool

REMEMBERED_SECONDS: Final = 5.0
"""How long a revoked key may still work in a process that has just seen it, and an old policy of its tenant count."""
REMEMBERED_KEYS: Final = 10_000
_FOREVER: Final = float("inf")
_DIGEST_CHARS: Final = 12
"""Hex digits, 48 bits: enough to tell the policies that one tenant has had from each other."""


class Principal(NamedTuple):
    """The tenant behind a request, what its key may do, and the policy its conversations begin from."""

    tenant_id: UUID
    key_id: UUID
    """Of a token: an id made from its issuer and subject, the same for all tokens of one subject."""
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


class _LookUp(NamedTuple):
    """When a principal was looked up, and when its key or token expires, by this process's clock."""

    at: float
    expires_at: float
    principal: Principal


class Authenticator:
    """Finds the principal of a key or, where tokens are taken, of a token."""

    def __init__(
        self, pool: Pool, defaults: Mapping[str, Any], last_used: LastUsed, tokens: JwtTokens | None = None
    ) -> None:
        self._pool = pool
        self._defaults = defaults
        self._last_used = last_used
        self._tokens = tokens
        # By a digest: a key is not kept in memory longer than its request.
        self._known: dict[bytes, _LookUp] = {}
        self._times_forgotten = 0

    async def authenticate(self, key: str) -> Principal | None:
        """Return the principal of a key or token in force, or None."""
        digest = hashlib.sha256(key.encode()).digest()
        if (known := self.remembered(digest)) is not None:
            return known
        # The moment of the look-up, which is before that of the answer: what expires is never remembered too long.
        now = time.monotonic()
        parts, times_forgotten = split(key), self._times_forgotten
        authenticated = await (self._of_key(*parts) if parts else self._of_token(key))
        if authenticated is None:
            self._known.pop(digest, None)
            return None
        principal, seconds_left = authenticated
        if len(self._known) >= REMEMBERED_KEYS:
            self._known.clear()
        # What was read before something changed is not remembered after it.
        if times_forgotten == self._times_forgotten:
            self._known[digest] = _LookUp(now, now + seconds_left, principal)
        return principal

    def remembered(self, digest: bytes, *, within: float | None = None) -> Principal | None:
        """Return the principal of a key or token, by its SHA-256, that was looked up `within` the last seconds.

        None for one that has expired since.
        """
        within = REMEMBERED_SECONDS if within is None else within
        known = self._known.get(digest)
        is_fresh = known is not None and time.monotonic() < min(known.at + within, known.expires_at)
        return known.principal if known is not None and is_fresh else None

    async def _of_key(self, key_id: UUID, secret: str) -> tuple[Principal, float] | None:
        """Return the principal of a key, and for how many seconds it is one."""
        row = await hot_path.find_api_key(self._pool, key_id)
        # Compared even where there is no such key, so that the time taken does not tell which ids exist.
        if not secret_matches(secret, row.secret_hash if row else bytes(32)) or row is None:
            return None
        self._last_used.note(key_id)
        seconds_left = _FOREVER if row.seconds_left is None else row.seconds_left
        return self.principal(row.tenant_id, key_id, row.scopes, row.policy), seconds_left

    async def _of_token(self, token: str) -> tuple[Principal, float] | None:
        """Return the principal of a token, and for how many seconds it is one."""
        claims = await self._tokens.verify(token) if self._tokens else None
        if claims is None:
            return None
        tenant_id = ids.parse("ten", claims.tenant)
        tenant = await hot_path.find_tenant(self._pool, tenant_id=tenant_id, name=claims.tenant)
        if tenant is None:
            return None
        return self.principal(tenant.id, claims.subject, claims.scopes, tenant.policy), claims.seconds_left

    def principal(self, tenant_id: UUID, key_id: UUID, scopes: Iterable[str], tenant_policy: str) -> Principal:
        """Return the principal of a key in force; `tenant_policy` are its tenant's overrides as JSON text."""
        policy, overrides, _ = in_force(self._defaults, msgspec.json.decode(tenant_policy))
        version = hashlib.sha256(msgspec.json.encode(policy)).hexdigest()[:_DIGEST_CHARS]
        return Principal(tenant_id, key_id, frozenset(scopes), overrides, policy, version)

    def forget(self, tenant_id: UUID) -> None:
        """Read a tenant's keys and its policy anew from now on, in this process."""
        self._times_forgotten += 1
        for digest in [digest for digest, known in self._known.items() if known.principal.tenant_id == tenant_id]:
            del self._known[digest]
