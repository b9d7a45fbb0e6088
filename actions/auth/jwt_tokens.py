"""Bearer tokens (JWT, RFC 7519) of products that have an identity provider of their own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

import jwt
import structlog

from actions.auth.jwt_keys import ASYMMETRIC, JwtKeys
from store.tenants.api_keys import SCOPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actions.auth.jwt_keys import SigningKey
    from runtime.settings import Settings

log = structlog.get_logger()

MAX_CHARS: Final = 16_384
"""Characters of a token; ordinary ones have one or two thousand."""
REQUIRED: Final = ("exp", "iss", "aud")
LATEST: Final = 253_402_300_800
"""Seconds since 1970 at the end of the year 9999, which no clock shows: a time behind it is an overflow or no time."""
_TIMES: Final = ("exp", "nbf", "iat")
_NAMES: Final = ("iss", "sub", "jti")
_REFUSED: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""What a token can raise that is not one, or whose claims are not what they should be."""


class Claims(NamedTuple):
    """What a token says that holds."""

    tenant: str
    """A tenant's name, or its id as clients see it."""
    scopes: frozenset[str]
    subject: UUID
    """Made from issuer and subject: the same for all tokens of one subject."""
    seconds_left: float
    """Until it is not taken any more, the leeway included."""


class JwtTokens:
    """Verifies the tokens of one issuer."""

    def __init__(self, settings: Settings) -> None:
        assert settings.jwt_jwks is not None  # noqa: S101 - whoever calls has asked
        self.keys = JwtKeys(settings.jwt_jwks)
        self._settings = settings

    async def verify(self, token: str) -> Claims | None:
        """Return what a token says, None if it does not hold; raise NoKeysError."""
        try:
            header = jwt.get_unverified_header(token) if len(token) <= MAX_CHARS else {}
        except _REFUSED:
            return None
        # Before any key is looked for: what needs a shared secret, or no key at all, is never taken.
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ASYMMETRIC:
            return None
        key = await self.keys.find(header.get("kid"))
        if key is None or algorithm not in key.algorithms:
            return None
        try:
            return self._claims(token, key, algorithm)
        except _REFUSED as error:
            log.debug("token.refused", error=type(error).__name__)
            return None

    def _claims(self, token: str, key: SigningKey, algorithm: str) -> Claims | None:
        settings = self._settings
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            audience=settings.jwt_audience,
            issuer=settings.jwt_issuer,
            leeway=settings.jwt_leeway_seconds,
            options={"require": list(REQUIRED)},
        )
        if not _are_registered(claims):
            return None
        tenant = claims.get(settings.jwt_tenant_claim)
        # Neither NUL nor a lone surrogate is in any tenant's name, and Postgres takes neither.
        if not isinstance(tenant, str) or "\0" in tenant or not tenant.encode():
            return None
        return Claims(
            tenant,
            _scopes(claims.get(settings.jwt_scope_claim)),
            uuid5(NAMESPACE_URL, f"{settings.jwt_issuer}#{claims.get('sub', '')}"),
            claims["exp"] + settings.jwt_leeway_seconds - time.time(),
        )


def _are_registered(claims: Mapping[str, Any]) -> bool:
    """Tell whether the claims that RFC 7519 registers have its types; the library takes texts for times, and any."""
    times = [claims[name] for name in _TIMES if name in claims]
    names = [claims[name] for name in _NAMES if name in claims]
    audience = claims["aud"]
    return (
        all(type(time) in {int, float} and 0 <= time < LATEST for time in times)
        and all(isinstance(name, str) for name in names)
        and all(isinstance(each, str) for each in (audience if isinstance(audience, list) else [audience]))
    )


def _scopes(claim: object) -> frozenset[str]:
    """Return those of our scopes that a claim names, as a string with spaces between (RFC 8693) or as a list."""
    names = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else ()
    return frozenset(name for name in names if name in SCOPES)
