"""What routes ask of their callers: a key or token in force, its scopes, and no more requests than it may make."""

from __future__ import annotations

import hmac
import math
from typing import TYPE_CHECKING, Any, Final

from litestar.constants import RESERVED_KWARGS

from actions.auth.jwt_keys import RETRY_SECONDS, NoKeysError
from actions.auth.rate_limits import RateLimits, header_fields
from actions.auth.scopes import presented_key, require_scope
from actions.errors import InvalidError
from runtime.errors import RequestError, UnavailableError
from runtime.held_bytes import HOLD

if TYPE_CHECKING:
    from collections.abc import Callable

    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
    from pydantic import SecretStr

    from actions.auth.principals import Authenticator, Principal
    from store.operations.operator_actions import Operator

LIMIT_HEADERS: Final = "rate_limit_headers"
"""Where a request's state has the header fields of its answer."""
_SCOPES: Final = "scopes"


def unauthenticated() -> RequestError:
    """Return the answer for a request without a valid key, the same whatever is wrong with it."""
    return RequestError("unauthenticated", "A valid API key is needed: Authorization: Bearer <key>, or x-api-key.")


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
        raise InvalidError("There is no such parameter here.", unknown)


async def count_request(connection: ASGIConnection[Any, Any, Any, Any], caller: Principal | Operator) -> None:
    """Count a request of a known caller, where anything is limited. Raises RateLimitedError, UnavailableError."""
    rates: RateLimits = connection.app.state.services.rate_limits
    if rates.is_on and (left := await rates.check(caller)):
        fields = header_fields(left)
        connection.scope["state"][LIMIT_HEADERS] = [(name.encode(), value.encode()) for name, value in fields.items()]


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
        await count_request(connection, principal)
        for scope in scopes:
            require_scope(principal, scope)
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
        raise UnavailableError(
            "The keys that tokens are verified with can't be had just now.", retry_after=math.ceil(RETRY_SECONDS)
        ) from None


def metrics_guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Let in whoever has the token of the metrics, if there is one."""
    token: SecretStr | None = connection.app.state.services.settings.metrics_token
    if token is None:
        return
    presented = presented_key(connection.headers) or ""
    if not hmac.compare_digest(presented.encode(), token.get_secret_value().encode()):
        raise unauthenticated()
