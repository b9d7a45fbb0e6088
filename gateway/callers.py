"""Who sends a request: a Palimpsest key in the place of the provider's, or beside it."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from api.auth.guards import may, presented_key
from api.auth.jwt_keys import NoKeysError
from gateway.doors import DoorError
from gateway.headers import KEY
from gateway.patience import AwayError
from store.tenants.api_keys import split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from api.auth.principals import Authenticator, Principal
    from gateway.patience import Patience

NEEDED: Final = ("turns:write", "context:read")
"""What a key has to be allowed: a gateway stores turns and sends what they became."""
KEY_SECONDS: Final = 2.0
"""Seconds that a key which nobody here has seen may take to be looked up, where nothing can go on without it."""
REMEMBERED_KEYS: Final = 10_000


class Known(NamedTuple):
    """Who sends a request. `principal` is None for a client with a provider's key of its own while nobody can say."""

    principal: Principal | None
    is_beside: bool
    """Whether the provider's own key is there too, and goes on."""


class Callers:
    """Tells who sends requests. Keys that were in force lately are taken while the database is away."""

    def __init__(self, authenticator: Authenticator, patience: Patience, grace_seconds: float) -> None:
        self._authenticator = authenticator
        self._patience = patience
        self._grace = grace_seconds
        self._seen: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()

    async def of(self, headers: Mapping[bytes, bytes]) -> Known:
        """Return who sends a request. Raises DoorError for a key that is none, and for one that may not."""
        beside = headers.get(KEY)
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        key = beside.decode("latin-1") if beside is not None else presented_key(named)
        if not key or (beside is None and split(key) is None and key.count(".") != 2):  # noqa: PLR2004 - a JWT's dots
            raise _unknown()
        digest = hashlib.sha256(key.encode()).digest()
        try:
            principal = self._authenticator.remembered(digest)
            if principal is None:
                principal = await self._authenticate(key, digest, is_beside=beside is not None)
        except AwayError:
            principal = self._seen_lately(digest)
            if principal is None and beside is None:
                detail = "This key can't be looked up just now."
                raise DoorError(503, detail, retry_after=1) from None
            return Known(principal, is_beside=beside is not None)
        if principal is None:
            self._seen.pop(digest, None)
            raise _unknown()
        for scope in NEEDED:
            if not may(principal, scope):
                raise DoorError(403, f"This Palimpsest key has not the scope {scope}.")
        self._remember(digest, principal)
        return Known(principal, is_beside=beside is not None)

    async def _authenticate(self, key: str, digest: bytes, *, is_beside: bool) -> Principal | None:
        can_wait = not is_beside and self._seen_lately(digest) is None
        try:
            return await self._patience.within(
                self._authenticator.authenticate(key), seconds=KEY_SECONDS if can_wait else None
            )
        except NoKeysError:
            raise AwayError from None

    def _seen_lately(self, digest: bytes) -> Principal | None:
        seen = self._seen.get(digest)
        return seen[1] if seen is not None and seen[0] + self._grace > time.monotonic() else None

    def _remember(self, digest: bytes, principal: Principal) -> None:
        self._seen[digest] = time.monotonic(), principal
        self._seen.move_to_end(digest)
        if len(self._seen) > REMEMBERED_KEYS:
            self._seen.popitem(last=False)


def _unknown() -> DoorError:
    return DoorError(
        401,
        "A valid Palimpsest key is needed, in the place of the provider's key or as x-palimpsest-key beside it.",
        code="invalid_api_key",
    )
