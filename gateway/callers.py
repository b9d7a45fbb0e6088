"""Who sends a request: a Palimpsest key in the place of the provider's, or beside it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from actions.auth.jwt_keys import NoKeysError
from actions.auth.scopes import has_scope, presented_key
from gateway.doors import DoorError
from gateway.headers import KEY, has_palimpsest_key
from gateway.timeouts import AwayError
from store.tenants.api_keys import split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actions.auth.principals import Authenticator, Principal
    from gateway.timeouts import Deadline

NEEDED: Final = ("turns:write", "context:read")
"""What a key has to be allowed: a gateway stores turns and sends what they became."""
KEY_SECONDS: Final = 2.0
"""Seconds that a key which nobody here has seen may take to be looked up, where nothing can go on without it."""


class Known(NamedTuple):
    """Who sends a request. `principal` is None for a client with a provider's key of its own while nobody can say."""

    principal: Principal | None
    is_beside: bool
    """Whether the provider's own key is there too, and goes on."""


class Callers:
    """Authenticates requests. A key that was in force lately is taken while the database is away, and only then."""

    def __init__(self, authenticator: Authenticator, deadline: Deadline, grace_seconds: float) -> None:
        self._authenticator = authenticator
        self._deadline = deadline
        self._grace = grace_seconds

    async def of(self, headers: Mapping[bytes, bytes]) -> Known:
        """Return who sends a request. Raises DoorError for a key that is none, and for one that may not."""
        beside = headers.get(KEY)
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        key = beside.decode("latin-1") if beside is not None else presented_key(named)
        # Sent twice, it stands in the place of the provider's key as well.
        credentials = (presented_key(named) or "").encode("latin-1")
        is_beside = beside is not None and not has_palimpsest_key(credentials, beside)
        if not key or (beside is None and split(key) is None and key.count(".") != 2):  # noqa: PLR2004 - a JWT's dots
            raise _unknown()
        digest = hashlib.sha256(key.encode()).digest()
        try:
            principal = self._authenticator.remembered(digest)
            if principal is None:
                principal = await self._authenticate(key, digest, is_beside=is_beside)
        except AwayError:
            if not is_beside:
                detail = "This key can't be looked up just now."
                raise DoorError(503, detail, retry_after=1) from None
            return Known(None, is_beside=True)
        if principal is None:
            raise _unknown()
        for scope in NEEDED:
            if not has_scope(principal, scope):
                raise DoorError(403, f"This Palimpsest key has not the scope {scope}.")
        return Known(principal, is_beside=is_beside)

    async def _authenticate(self, key: str, digest: bytes, *, is_beside: bool) -> Principal | None:
        """Return the principal of a key, None for none. Raises AwayError where nobody can say."""
        seen = self._authenticator.remembered(digest, within=self._grace)
        seconds = None if is_beside or seen is not None else KEY_SECONDS
        try:
            return await self._deadline.within(self._look_up(key, seen), seconds=seconds)
        except AwayError:
            if seen is None:
                raise
        if await self._deadline.is_away():
            return seen
        return await self._deadline.within(self._look_up(key, seen), seconds=KEY_SECONDS)

    async def _look_up(self, key: str, seen: Principal | None) -> Principal | None:
        """Return the principal of a key; that of a token as it was `seen` while its issuer's keys cannot be had."""
        try:
            return await self._authenticator.authenticate(key)
        except NoKeysError:
            if seen is None:
                raise
            return seen


def _unknown() -> DoorError:
    return DoorError(
        401,
        "A valid Palimpsest key is needed, in the place of the provider's key or as x-palimpsest-key beside it.",
        code="invalid_api_key",
    )
