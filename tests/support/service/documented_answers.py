"""Answers against the OpenAPI document: an answer that it does not have is a fault of one of them."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from litestar.routes import HTTPRoute

from api.app import create_app
from runtime.http.problem_types import BEFORE_A_ROUTE
from runtime.http.security_headers import SecurityHeaders
from runtime.settings import Settings

if TYPE_CHECKING:
    import httpx2
    from litestar import Litestar

    from runtime import ids

Json = dict[str, Any]
PREFIXES: Final[dict[str, ids.Prefix]] = {
    "conversation_id": "conv",
    "run_id": "run",
    "pin_id": "pin",
    "rule_id": "rule",
    "webhook_id": "hook",
    "delivery_id": "evt",
    "key_id": "key",
}
"""What the ids begin with that parameters of paths name."""
METHODS: Final = ("get", "post", "patch", "delete")
OF_HTTP: Final = {"content-type", "content-length", "date", "server", "connection", "transfer-encoding"}
OF_BROWSERS: Final = {name.decode() for name, _ in SecurityHeaders(1).of(())} - {"cache-control"}
"""What every answer tells browsers, and the document does not repeat."""


class Documented(NamedTuple):
    """An operation of the document, its answers resolved."""

    method: str
    path: str
    pattern: re.Pattern[str]
    answers: Json

    @property
    def name(self) -> str:
        return f"{self.method.upper()} {self.path}"


@cache
def _application() -> Litestar:
    """Return that of an installation as it comes: to make one takes a quarter of a second in each test process."""
    return create_app(Settings())


@cache
def document() -> Json:
    """Return its document."""
    schema: Json = _application().openapi_schema.to_schema()
    return schema


@cache
def routes() -> tuple[tuple[str, str], ...]:
    """Return method and path of every route that it has, methods in order."""
    return tuple(
        (method, route.path_format)
        for route in _application().routes
        if isinstance(route, HTTPRoute)
        for method in sorted(route.methods - {"OPTIONS"})
    )


def resolve(part: Json) -> Json:
    """Return what a part of the document refers to, or itself."""
    while "$ref" in part:
        target: Any = document()
        for step in part["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        part = target
    return part


@cache
def operations() -> tuple[Documented, ...]:
    """Return every operation, those with fewer parameters in their path first, as a router would."""
    documented = [
        Documented(
            method,
            path,
            re.compile(re.sub(r"\{\w+\}", "[^/]+", path)),
            {status: resolve(answer) for status, answer in item[method]["responses"].items()},
        )
        for path, item in document()["paths"].items()
        for method in METHODS
        if method in item
    ]
    return tuple(sorted(documented, key=lambda each: each.path.count("{")))


def operation_of(method: str, path: str) -> Documented | None:
    """Return the operation that a request is one of; None for pages, and for what has no route."""
    asked = "get" if method == "HEAD" else method.lower()
    return next((each for each in operations() if each.method == asked and each.pattern.fullmatch(path)), None)


def check(response: httpx2.Response) -> None:
    """Assert that an answer is documented: its status, its headers, its media type, and a problem's code."""
    operation = operation_of(response.request.method, response.url.raw_path.decode().partition("?")[0])
    if operation is None:
        return
    code = None
    media = response.headers.get("content-type", "").removesuffix("; charset=utf-8")
    if media == "application/problem+json" and response.request.method != "HEAD":
        response.read()
        code = response.json()["code"]
        if code in BEFORE_A_ROUTE:
            return
    where = f"{operation.name} {response.status_code} {code or ''}"
    answer = operation.answers.get(str(response.status_code))
    assert answer is not None, f"{where} is not documented"
    headers = {name.lower(): resolve(header) for name, header in answer["headers"].items()}
    names = {name.lower() for name in response.headers} - OF_HTTP - OF_BROWSERS
    assert names <= set(headers), f"{where}: {names - set(headers)} not documented"
    required = {name for name, header in headers.items() if header["required"]}
    assert required <= names, f"{where}: {required - names} missing"
    content = answer.get("content") or {}
    if content or media:
        assert media in {each.removesuffix("; charset=utf-8") for each in content}, f"{where}: {media}"
    assert code is None or code in content[media]["examples"], f"{where} is not documented"
