"""Reading the body of a request into a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from actions.input.checks import read
from runtime.threads import run_aside

if TYPE_CHECKING:
    from litestar import Request

T = TypeVar("T")


async def read_body(request: Request[Any, Any, Any], kind: type[T], *, if_empty: bytes = b"") -> T:
    """Return a request's body as `kind`. Raises RequestError for a body that is none."""
    body = await request.body() or if_empty
    return await run_aside(len(body), read, body, kind, request.app.state.services.strict)
