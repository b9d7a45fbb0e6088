"""Answers to errors: every one becomes a problem document (RFC 9457), whatever raised it."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from sqlalchemy.exc import DBAPIError, InterfaceError, NoResultFound, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from actions.auth.rate_limits import RateLimitedError, header_fields
from actions.errors import InvalidError, NotFoundError
from compaction.choices import with_choices
from runtime.database_faults import database_fault
from runtime.errors import RequestError, UnavailableError
from runtime.http.problem_documents import PROBLEM_MEDIA_TYPE, document_of, headers_of, status_of
from runtime.http.problem_types import PROBLEM_TYPES, TRY_AGAIN
from runtime.log import fault
from store.archive.erasures import GONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from litestar.typing import FieldDefinition

    from runtime.database_faults import DatabaseFault

log = structlog.get_logger()

_PARAMETERS: Final = {"run_state": "state", "delivery_state": "state"}
"""Parameters of routes whose names in the URL Litestar keeps for itself."""
CUT_OFF: Final = "client disconnected prematurely"
"""How Litestar words a body that did not come to its end; it has no class of its own for it."""
_CODES: Final = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "body_too_large",
    414: "url_too_long",
    415: "unsupported_media_type",
    422: "invalid",
    429: "rate_limited",
    431: "head_too_large",
    500: "internal",
    503: "unavailable",
}


def named(user_ref: str | None) -> str:
    """Return whose it is; nobody has everybody erased or read by leaving it out."""
    if user_ref is None:
        raise InvalidError("Say whose: user_ref.", "user_ref")
    return user_ref


def respond(
    request: Request[Any, Any, Any],
    error: RequestError,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    """Return the answer to an error; `status` is by default that of its code."""
    limits = header_fields(error.left) if isinstance(error, RateLimitedError) else {}
    return Response(
        document_of(error, request.scope["state"].get("request_id", ""), status=status),
        status_code=status_of(error) if status is None else status,
        media_type=PROBLEM_MEDIA_TYPE,
        headers={**headers_of(error), **limits, **(headers or {})},
    )


def answer_to(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return the answer to a request that ended with an error."""
    return next(EXCEPTION_HANDLERS[kind] for kind in type(error).__mro__ if kind in EXCEPTION_HANDLERS)(request, error)


def _on_request_error(request: Request[Any, Any, Any], error: RequestError) -> Response[bytes]:
    return respond(request, error)


def _on_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    if error.detail == CUT_OFF:
        return respond(request, RequestError("body_incomplete", "The connection ended before the body did."))
    status = error.status_code
    code = _CODES.get(status, "error")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _on_any(request, error)
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        return respond(request, _of_parameters(error.extra, request.route_handler.parsed_fn_signature.parameters))
    detail = "There is no such resource." if status == HTTPStatus.NOT_FOUND else error.detail
    return respond(request, RequestError(code, detail), status=status, headers=error.headers)


def _of_parameters(errors: Sequence[Mapping[str, Any]], declared: Mapping[str, FieldDefinition]) -> RequestError:
    """Return the answer for parameters of path and query; bodies are read by the routes."""
    if any(error.get("source") == "path" for error in errors):
        return NotFoundError()
    keys = [str(error.get("key", "")) for error in errors]
    names = [_PARAMETERS.get(key, key) for key in keys]
    details = [
        with_choices(str(error.get("message")), declared[key].annotation if key in declared else Any, ())
        for key, error in zip(keys, errors, strict=True)
    ]
    return InvalidError("; ".join(f"{name}: {detail}" for name, detail in zip(names, details, strict=True)), names[0])


def _on_store_away(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    log.warning("store.unavailable", error=fault(error))
    known = database_fault(error)
    if known is not None:
        request.app.state.services.operations.note_fault(known)
    # A connection can end between a commit and its answer, so the answer does not tell what was written.
    return respond(request, UnavailableError(unavailable_detail(known)))


def unavailable_detail(known: DatabaseFault | None) -> str:
    """Return the detail of an answer while the database cannot do what a request needs; `known` says why, if it is."""
    if known is None:
        return PROBLEM_TYPES["unavailable"].detail
    return f"{known.words[0].upper()}{known.words[1:]}. {TRY_AGAIN}"


def _on_gone(request: Request[Any, Any, Any], error: NoResultFound) -> Response[bytes]:
    """Answer for a row that was there a statement ago: its conversation was erased in between."""
    log.warning("request.gone", error=type(error).__name__, path=request.scope.get("path_template"))
    return respond(request, NotFoundError())


def _on_database(request: Request[Any, Any, Any], error: DBAPIError) -> Response[bytes]:
    """Tell a database that is away from a statement that is wrong; SQLAlchemy has one class for both."""
    state = getattr(error.orig, "sqlstate", None) or ""
    if state == GONE:
        # Erased between the look and the write.
        return respond(request, NotFoundError())
    if error.connection_invalidated or state.startswith(_AWAY_STATES):
        return _on_store_away(request, error)
    return _on_any(request, error)


def _on_any(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    # No text of the exception: a database error's may hold a row. No path as it came: it may name a user.
    log.error("request.failed", error=fault(error), path=request.scope.get("path_template"))
    return respond(request, RequestError("internal", "Something went wrong here; the log has the request's id."))


_AWAY_STATES: Final = ("08", "25006", "28", "3D000", "40", "53", "55P03", "57", "58")
"""SQLSTATEs that pass by themselves: no connection, a standby, no login, no database, rolled back, no resources, no
lock, shut down, a disk that fails."""

EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[..., Response[bytes]]] = {
    RequestError: _on_request_error,
    HTTPException: _on_http,
    asyncpg.PostgresConnectionError: _on_store_away,
    asyncpg.InvalidCatalogNameError: _on_store_away,
    # While the login's password is another one already, or still.
    asyncpg.InvalidAuthorizationSpecificationError: _on_store_away,
    asyncpg.TransactionRollbackError: _on_store_away,
    asyncpg.InsufficientResourcesError: _on_store_away,
    asyncpg.PostgresSystemError: _on_store_away,
    asyncpg.OperatorInterventionError: _on_store_away,
    asyncpg.LockNotAvailableError: _on_store_away,
    # A standby, or a primary that has become one.
    asyncpg.ReadOnlySQLTransactionError: _on_store_away,
    asyncpg.InterfaceError: _on_store_away,
    # What a connection raises that the server has ended, until its end is seen.
    asyncpg.InternalClientError: _on_store_away,
    OperationalError: _on_store_away,
    InterfaceError: _on_store_away,
    DBAPIError: _on_database,
    NoResultFound: _on_gone,
    PoolTimeoutError: _on_store_away,
    TimeoutError: _on_store_away,
    OSError: _on_store_away,
    Exception: _on_any,
}
