"""What routes ask of their callers: a key or token in force, its scopes, and no more requests than it may make."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, Final

from litestar.constants import RESERVED_KWARGS

from api.auth.jwt_keys import RETRY_SECONDS, NoKeysError
from api.auth.rate_limits import check_rate
from api.http.bytes_under_way import HOLD
from api.http.problems import ProblemError, invalid
from store.tenants.api_keys import BY_NAME_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
    from pydantic import SecretStr

    from api.auth.principals import Authenticator, Principal

_SCOPES: Final = "scopes"


def presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that a request presents: `Authorization: Bearer` or `x-api-key`."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials:
        return credentials.strip()
    return headers.get("x-api-key")


def unauthenticated() -> ProblemError:
    """Return the answer for a request without a valid key, the same whatever is wrong with it."""
    return ProblemError(
        401,
        "unauthenticated",
        "A valid API key is needed: Authorization: Bearer <key>, or x-api-key.",
        headers={"www-authenticate": "Bearer"},
    )


def refuse_unknown_parameters(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuse query parameters that a route does not have: a filter with a typing error would list everything."""
    # `request` is what a handler is given by Litestar, which has the name `state`, too; a parameter that is called so
    # outside has another one inside.
    known = {
        getattr(definition.kwarg_definition, "name", None) or name
        for name, definition in handler.parsed_fn_signature.parameters.items()
        if name not in RESERVED_KWARGS
    }
    for unknown in (name for name in connection.query_params if name not in known):
        raise invalid("There is no such parameter here.", unknown)


def may(principal: Principal, scope: str) -> bool:
    """Tell whether a key has a scope, by itself or with `admin`, which includes all but a few."""
    return scope in principal.scopes or ("admin" in principal.scopes and scope not in BY_NAME_ONLY)


def demand(principal: Principal, scope: str) -> None:
    """Raise the problem of a key without a scope."""
    if not may(principal, scope):
        raise ProblemError(403, "forbidden", f"This key has not the scope {scope}.")


def requires(*scopes: str) -> Callable[..., Any]:
    """Return a guard that lets in keys with all of `scopes` only, and puts the principal into the request.

    A route asks for what its answer shows as well as for what it does.
    """

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        key = presented_key(connection.headers)
        principal = await _authenticate(connection.app.state.services.authenticator, key) if key else None
        if principal is None:
            raise unauthenticated()
        connection.scope["state"][HOLD].belong_to(principal.tenant_id)
        await check_rate(connection, principal)
        for scope in scopes:
            demand(principal, scope)
        if connection.scope["query_string"]:
            refuse_unknown_parameters(connection, handler)
        connection.scope["user"] = principal

    setattr(guard, _SCOPES, scopes)
    return guard


def scopes_of(handler: HTTPRouteHandler) -> tuple[str, ...]:
    """Return the scopes that a route asks for; none of one that is open, or guarded otherwise."""
    return tuple(scope for guard in handler.resolve_guards() for scope in getattr(guard, _SCOPES, ()))


async def _authenticate(authenticator: Authenticator, key: str) -> Principal | None:
    try:
        return await authenticator.authenticate(key)
    except NoKeysError:
        raise ProblemError(
            503,
            "unavailable",
            "The keys that tokens are verified with can't be had just now.",
            headers={"retry-after": f"{RETRY_SECONDS:g}"},
        ) from None


def metrics_guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Let in whoever has the token of the metrics, if there is one."""
    token: SecretStr | None = connection.app.state.services.settings.metrics_token
    if token is None:
        return
    presented = presented_key(connection.headers) or ""
    if not hmac.compare_digest(presented.encode(), token.get_secret_value().encode()):
        raise unauthenticated()
