"""Problem documents (RFC 9457): how an error is answered over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from runtime.http.problem_types import PROBLEM_TYPES, problem_type

if TYPE_CHECKING:
    from runtime.errors import RequestError

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
_HEADERS: Final = {
    "unauthenticated": {"www-authenticate": "Bearer"},
    "body_too_slow": {"connection": "close"},
}


def status_of(error: RequestError) -> int:
    """Return the HTTP status of an error; 500 for a code that the table does not have."""
    known = PROBLEM_TYPES.get(error.code)
    return known.status if known is not None else HTTPStatus.INTERNAL_SERVER_ERROR


def headers_of(error: RequestError) -> dict[str, str]:
    """Return the header fields of the answer to an error, beside those of its document."""
    after = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return {**_HEADERS.get(error.code, {}), **after}


def document_of(error: RequestError, request_id: str, *, status: int | None = None) -> bytes:
    """Return the problem document of an error as JSON; `status` is by default that of its code."""
    status = status_of(error) if status is None else status
    return msgspec.json.encode(
        {
            "type": problem_type(error.code),
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": error.detail,
            "code": error.code,
            "request_id": request_id,
            **({} if error.pointer is None else {"pointer": error.pointer}),
            **error.members,
        }
    )
