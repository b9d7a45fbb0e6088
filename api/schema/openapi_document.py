"""The OpenAPI document as a whole: what holds for every operation is said here once, whatever its route says."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, OpenAPI, SecurityScheme

from api.schema.docs_page import DocsPage
from api.schema.documentation import HEADER_REFERENCE
from runtime.http.problem_documents import PROBLEM_MEDIA_TYPE
from runtime.http.problem_types import BEFORE_A_ROUTE, PROBLEM_TYPES, example_of
from runtime.release import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from litestar.handlers import HTTPRouteHandler

Json = dict[str, Any]

GROUPS: Final = (
    ("Conversations", r"/v1/conversations(/\{conversation_id\})?$"),
    ("Turns and contexts", r"/v1/conversations/\{conversation_id\}/(turns|context|overflow|pins.*)$"),
    ("Compaction", r"/v1/(conversations/\{conversation_id\}/(compactions|restore|fork|runs)|runs.*)$"),
    ("Recall", r"/v1/((conversations/\{conversation_id\}|users/\{user_ref\})/)?recall(-tool)?$"),
    ("Audit", r"/v1/conversations/\{conversation_id\}/.*|/v1/erasures$"),
    ("Users", r"/v1/(users|exports).*"),
    ("Tenant and keys", r"/v1/(tenant|keys|policy-presets).*"),
    ("Webhooks", r"/v1/webhook.*"),
    ("Health", r"/(healthz|readyz|metrics)$"),
)
"""Tags, and the paths under them; the first that fits counts."""
SECURITY: Final[list[dict[str, list[str]]]] = [{"key": []}, {"keyHeader": []}, {"token": []}]
"""How a call under `/v1` says who it is from: one of these."""

_ABOUT: Final = """\
Asynchronous background compaction for multi-user chat, whatever model answers.

Bodies are JSON; unknown fields and unknown query parameters are refused. Tokens are integers, money is a decimal string
in USD, times are RFC 3339 in UTC. Lists answer `data`, `has_more`, `first_id` and `last_id`; the next page is
`after_id=<last_id>`. `HEAD` is answered as `GET` without the body. A `traceparent` header (W3C Trace Context) makes the
caller's trace the parent of the request's.

Every error is a problem document (RFC 9457). Go by `code`: the words of `detail` are for people and may change.

<details><summary>Codes of problems</summary>

| code | status | what to do |
|---|---|---|
"""
_BEFORE: Final = "\n{codes} come before an operation is found, so that none of them lists these.\n\n</details>\n"


def _header(description: str, *, required: bool = False, **schema: Any) -> Json:
    return {"description": description, "required": required, "schema": {"type": "string", **schema}}


HEADERS: Final[Mapping[str, Json]] = {
    "request-id": _header(
        "The request's id, which the log and the runs that it leads to carry too.",
        required=True,
        pattern="^req_[0-9a-f]{32}$",
    ),
    "Cache-Control": _header("Who may keep the answer: nobody, or the caller alone.", required=True),
    "RateLimit": _header(
        'What is left, where requests are limited: `"key-60";r=598;t=12`, `t` seconds until there is more.'
    ),
    "RateLimit-Policy": _header('The limits in force, where there are any: `"key-60";q=600;w=60`.'),
    "Retry-After": {
        "description": "Seconds after which to ask again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 0},
    },
    "WWW-Authenticate": _header("How to present a key.", required=True),
    "ETag": _header("Stands for this context; send it as `If-None-Match` with the next read.", required=True),
    "Palimpsest-Rules": _header(
        "The hash over the rules that stand in this context, as `rules.sha256`.",
        required=True,
        pattern="^[0-9a-f]{64}$",
    ),
    "Palimpsest-Timeline": _header(
        "That of the database's log; another one after a failover, which may have lost turns that were acknowledged "
        "before. Sent again under their keys, those are stored that are not there.",
        pattern="^[0-9A-F]{8}$",
    ),
    "Idempotency-Replayed": _header("The turn was stored before, and this is the answer it had then.", enum=["true"]),
    "Location": _header("The path of the run.", required=True, pattern="^/v1/runs/"),
    "run-id": _header("The run that made the context smaller; none if it was smaller already.", pattern="^run_"),
}
"""Those of answers; what browsers are told besides (docs/security.md) is the same on all and means nothing here."""
EVERYWHERE: Final = ("request-id", "Cache-Control")
LIMITED: Final = ("RateLimit", "RateLimit-Policy")
OF_STATUS: Final[Mapping[str, tuple[str, ...]]] = {
    "401": ("WWW-Authenticate",),
    "429": ("Retry-After",),
    "503": ("Retry-After",),
}
"""Headers of the problems with a status."""
_PAGE: Final = re.compile(r"\bPage_(?:\w+\.)*(\w+?)(?:Out)?_(?!\w)")
"""What Litestar calls a page of rows: by the module that they are in, which is nobody's business outside."""


class Document(OpenAPI):
    """What Litestar finds in the routes, completed."""

    def to_schema(self) -> Json:
        """Return the document's JSON; made once, for it takes some tenths of a second."""
        if not hasattr(self, "_completed"):
            self._completed = complete(_with_plain_names(super().to_schema()))
        return self._completed


class DocumentConfig(OpenAPIConfig):
    """Makes the document."""

    def to_openapi_schema(self) -> OpenAPI:
        """Return the document without its operations, which Litestar puts in."""
        begun = super().to_openapi_schema()
        return Document(**{field.name: getattr(begun, field.name) for field in fields(begun)})


def openapi_config() -> OpenAPIConfig:
    """Return how the API describes itself."""
    return DocumentConfig(
        title="Palimpsest",
        version=VERSION,
        description=_ABOUT
        + "".join(_problem_rows())
        + _BEFORE.format(codes=", ".join(map("`{}`".format, BEFORE_A_ROUTE))),
        path="/docs",
        render_plugins=[DocsPage()],
        openapi_router=None,
        use_handler_docstrings=True,
        operation_id_creator=_operation_id,
        components=Components(
            security_schemes={
                "key": SecurityScheme(type="http", scheme="bearer", description="An API key."),
                "keyHeader": SecurityScheme(
                    type="apiKey", name="x-api-key", security_scheme_in="header", description="An API key."
                ),
                "token": SecurityScheme(
                    type="http",
                    scheme="bearer",
                    bearer_format="JWT",
                    description="A token of the identity provider that the installation trusts, if it does one.",
                ),
            }
        ),
    )


def _operation_id(handler: HTTPRouteHandler, *_: Any) -> str:
    return handler.handler_name


def _problem_rows() -> Iterator[str]:
    for code, kind in PROBLEM_TYPES.items():
        yield f"| `{code}` | {kind.status} | {kind.remedy} |\n"


def complete(document: Json) -> Json:
    """Put in what holds everywhere: tags, headers, and the problems with their examples."""
    components = document["components"]
    components["responses"] = {}
    for path, item in document["paths"].items():
        headers = (*EVERYWHERE, *LIMITED) if path.startswith("/v1/") else EVERYWHERE
        for operation in (each for each in item.values() if isinstance(each, dict) and "responses" in each):
            operation["tags"] = [next(name for name, pattern in GROUPS if re.match(pattern, path))]
            operation["responses"] = {
                status: _completed(status, answer, headers, components["responses"])
                for status, answer in sorted(operation["responses"].items())
                if not _is_guess(status, answer)
            }
    document["tags"] = [{"name": name} for name, _ in GROUPS]
    components["headers"] = dict(HEADERS)
    components["examples"] = {code: {"value": example_of(code)} for code in PROBLEM_TYPES}
    components["schemas"]["Problem"]["properties"]["code"]["enum"] = list(PROBLEM_TYPES)
    return document


def _with_plain_names(document: Json) -> Json:
    """Return the document with pages named after their rows."""
    renamed: Json = msgspec.json.decode(_PAGE.sub(r"\1Page", msgspec.json.encode(document).decode()))
    renamed["components"]["schemas"] = dict(sorted(renamed["components"]["schemas"].items()))
    return renamed


def _is_guess(status: str, answer: Json) -> bool:
    """Tell whether an answer is the one that Litestar supposes where a parameter is not valid."""
    return status == "400" and PROBLEM_MEDIA_TYPE not in answer["content"]


def _completed(status: str, answer: Json, headers: Sequence[str], shared: Json) -> Json:
    """Return an answer with all its headers; problems are the same for many calls, and become `shared`."""
    content = answer.get("content") or {}
    if problem := content.get(PROBLEM_MEDIA_TYPE):
        headers = EVERYWHERE if status == "401" else headers
        headers = (*headers, *OF_STATUS.get(status, ()))
        codes = list(problem["examples"])
        problem["examples"] = {code: {"$ref": f"#/components/examples/{code}"} for code in codes}
    named = {name: {"$ref": HEADER_REFERENCE + name} for name in headers}
    answer["headers"] = {**answer.get("headers", {}), **named}
    if problem:
        name = "-or-".join(codes)
        shared[name] = answer
        return {"$ref": f"#/components/responses/{name}"}
    for media in content.values():
        if "oneOf" in media.get("schema", {}):
            # The larger of two objects is the smaller one as well: fields may be added to any answer.
            media["schema"]["anyOf"] = media["schema"].pop("oneOf")
        for example in media.get("examples", {}).values():
            del example["id"]  # Litestar writes out its own name for it, which is the key already
    return answer
