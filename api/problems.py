"""Problem documents (RFC 9457): how every error answers, whoever raised it."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = structlog.get_logger()

RETRY_AFTER_SECONDS: Final = 1
_TYPES: Final = "https://palimpsest.example/problems/"
_PATH: Final = re.compile(r" - at `(?:key in )?\$(?P<path>.*?)`$")
_FIELD: Final = re.compile(r"(?:unknown|required) field `(?P<field>.+?)`")
_CODES: Final = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "rate_limited",
    500: "internal",
    503: "unavailable",
}


class ProblemError(Exception):
    """An error to be answered as a problem document."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        pointer: str | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.pointer = pointer
        self.headers = dict(headers or {})
        self.extra = extra


def not_found() -> ProblemError:
    """Return the answer for what does not exist, and for what belongs to somebody else."""
    return ProblemError(404, "not_found", "There is no such resource.")


def invalid(detail: str, pointer: str) -> ProblemError:
    """Return the answer for a field that cannot be taken."""
    return ProblemError(422, "invalid", detail, pointer=pointer)


def unavailable(detail: str) -> ProblemError:
    """Return the answer while something behind the service is away."""
    return ProblemError(503, "unavailable", detail, headers={"retry-after": str(RETRY_AFTER_SECONDS)})


def from_msgspec(error: msgspec.ValidationError) -> ProblemError:
    """Return the answer for a body of the wrong shape, with a JSON pointer (RFC 6901) to the field."""
    text = str(error)
    path = _PATH.search(text)
    pointer = re.sub(r"\[(\d+|\.\.\.)\]", r"/\1", path["path"]).replace(".", "/") if path else ""
    pointer = pointer.replace("/////", "/...")
    if field := _FIELD.search(text):
        pointer += f"/{field['field']}"
    return invalid(_PATH.sub("", text), pointer)


def respond(request: Request[Any, Any, Any], problem: ProblemError) -> Response[bytes]:
    """Return the problem document."""
    document = {
        "type": _TYPES + problem.code.replace("_", "-"),
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        "request_id": request.scope["state"].get("request_id", ""),
        **({} if problem.pointer is None else {"pointer": problem.pointer}),
        **problem.extra,
    }
    return Response(
        msgspec.json.encode(document),
        status_code=problem.status,
        media_type="application/problem+json",
        headers=problem.headers,
    )


def _on_problem(request: Request[Any, Any, Any], error: ProblemError) -> Response[bytes]:
    return respond(request, error)


def _on_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    status = error.status_code
    code = _CODES.get(status, "error")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _on_any(request, error)
    detail = "There is no such resource." if status == HTTPStatus.NOT_FOUND else error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        # Of the parameters in the query; bodies are read by the routes.
        detail = "; ".join(f"{found.get('key')}: {found.get('message')}" for found in error.extra)
    return respond(request, ProblemError(status, code, detail, headers=dict(error.headers or {})))


def _on_store_away(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    log.warning("store.unavailable", error=type(error).__name__)
    return respond(request, unavailable("The database can't be reached just now; nothing was written."))


def _on_any(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    # No text of the exception: a database error's may hold a row.
    log.error("request.failed", error=type(error).__name__, path=request.scope["path"])
    return respond(request, ProblemError(500, "internal", "Something went wrong here; the log has the request's id."))


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[..., Response[bytes]]] = {
    ProblemError: _on_problem,
    HTTPException: _on_http,
    asyncpg.PostgresConnectionError: _on_store_away,
    asyncpg.CannotConnectNowError: _on_store_away,
    asyncpg.InterfaceError: _on_store_away,
    asyncpg.exceptions.AdminShutdownError: _on_store_away,
    asyncpg.exceptions.CrashShutdownError: _on_store_away,
    asyncpg.exceptions.InsufficientResourcesError: _on_store_away,
    OperationalError: _on_store_away,
    InterfaceError: _on_store_away,
    PoolTimeoutError: _on_store_away,
    TimeoutError: _on_store_away,
    OSError: _on_store_away,
    Exception: _on_any,
}

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
