"""What can go wrong with a call."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest_client.results import KeptTurn


class PalimpsestError(Exception):
    """Anything that this package raises."""


class UnreachableError(PalimpsestError):
    """No answer came in time; what the call asked for may have happened or not. `__cause__` says why, where known."""


class OutboxFullError(PalimpsestError):
    """A turn that could neither be sent nor kept; `turn` is the turn."""

    def __init__(self, turn: KeptTurn, limit: int) -> None:
        super().__init__(f"{limit} turns wait to be sent already")
        self.turn = turn


class ApiError(PalimpsestError):
    """The service refused: its problem document (RFC 9457), or its status where there was none.

    `pointer` is a JSON pointer to the field of the body at fault, or the name of a query parameter; `retry_after` is
    in seconds; `document` is the problem document with everything that it holds.
    """

    def __init__(self, status: int, document: dict[str, Any], *, retry_after: float | None = None) -> None:
        self.status = status
        self.document = document
        self.code = str(document.get("code") or "http_error")
        self.detail = str(document.get("detail") or document.get("title") or "")
        self.pointer: str | None = document.get("pointer")
        self.request_id: str | None = document.get("request_id")
        self.retry_after = retry_after
        at = f" at {self.pointer}" if self.pointer else ""
        under = f" (request {self.request_id})" if self.request_id else ""
        super().__init__(f"{status} {self.code}: {self.detail}{at}{under}")


class BadRequestError(ApiError):
    """400: the body is not JSON, or a cursor is not one; 405, 414, 415, 431: no operation takes such a request.

    408: the body did not come to its end in time.
    """


class AuthenticationError(ApiError):
    """401: no valid key."""


class PermissionDeniedError(ApiError):
    """403: the key may not do this."""


class NotFoundError(ApiError):
    """404: there is no such resource, or it belongs to another tenant."""


class ConflictError(ApiError):
    """409: the conversation has moved on."""


class UnexpectedSeqError(ConflictError):
    """409: `expected_next_seq` was wrong; `next_seq` is the right one."""

    @property
    def next_seq(self) -> int:
        """The seq that the next message gets."""
        return int(self.document["next_seq"])


class CompactionRunningError(ConflictError):
    """409: another run of the conversation has not ended yet; `run_id` is its id, for `wait_for_run`."""

    @property
    def run_id(self) -> str:
        """The run to wait for."""
        return str(self.document["run_id"])


class OverflowExhaustedError(ConflictError):
    """409: the context was made smaller as often as it may be, or can't be made smaller."""


class TooLargeError(ApiError):
    """413: the body is too large."""


class InvalidError(ApiError):
    """422: a field or a parameter is not valid; `pointer` says which."""


class RateLimitedError(ApiError):
    """429: too many requests; come back after `retry_after` seconds."""


class ServerError(ApiError):
    """5xx: the service, or what it depends on, is at fault."""


class UnavailableError(ServerError):
    """503: the database is away or busy; nothing was done, or nobody knows. Come back after `retry_after` seconds."""


_OF_STATUS: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    405: BadRequestError,
    408: BadRequestError,
    409: ConflictError,
    413: TooLargeError,
    414: BadRequestError,
    415: BadRequestError,
    422: InvalidError,
    429: RateLimitedError,
    431: BadRequestError,
    503: UnavailableError,
}
_OF_CODE: dict[str, type[ApiError]] = {
    "unexpected_seq": UnexpectedSeqError,
    "compaction_running": CompactionRunningError,
    "overflow_exhausted": OverflowExhaustedError,
    "cannot_shrink": OverflowExhaustedError,
    "not_the_history": OverflowExhaustedError,
}


def error_of(status: int, headers: dict[str, str], body: bytes) -> ApiError:
    """Return the error that an answer is."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        # Something between here and the service has answered.
        document = {"detail": body[:200].decode(errors="replace"), "request_id": headers.get("request-id")}
    fallback = ServerError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ApiError
    kind = _OF_CODE.get(str(document.get("code")), _OF_STATUS.get(status, fallback))
    after = headers.get("retry-after", "")
    return kind(status, document, retry_after=float(after) if after.isdecimal() else None)
