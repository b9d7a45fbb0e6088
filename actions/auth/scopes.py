"""Keys as requests present them, and the scopes that use cases ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.errors import RequestError
from store.tenants.api_keys import BY_NAME_ONLY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actions.auth.principals import Principal


def presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the key in a request's headers: `Authorization: Bearer` or `x-api-key`."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials:
        return credentials.strip()
    return headers.get("x-api-key")


def has_scope(principal: Principal, scope: str) -> bool:
    """Tell whether a key has a scope, by itself or with `admin`, which includes all but a few."""
    return scope in principal.scopes or ("admin" in principal.scopes and scope not in BY_NAME_ONLY)


def require_scope(principal: Principal, scope: str) -> None:
    """Raise RequestError for a key without a scope."""
    if not has_scope(principal, scope):
        raise RequestError("forbidden", f"This key has not the scope {scope}.")
