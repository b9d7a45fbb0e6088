"""The caller of a request, as use cases know him."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actions.caller import Caller
from runtime.held_bytes import HOLD

if TYPE_CHECKING:
    from litestar import Request

    from actions.auth.principals import Principal


def caller_of(request: Request[Principal, Any, Any]) -> Caller:
    """Return the caller of a request that a guard let in."""
    state = request.scope["state"]
    return Caller(request.app.state.services, request.user, state["request_uuid"], state[HOLD])
