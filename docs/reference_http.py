#!/usr/bin/env python3
"""Prints docs/reference-http.md from the OpenAPI document; `make docs` writes the file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from litestar.routes import HTTPRoute

from api.app import create_app
from api.auth.guards import scopes_of
from api.schema.openapi_document import EVERYWHERE, HEADERS, LIMITED
from runtime.http.problem_types import EVERY_CALL, PROBLEM_TYPES
from runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Json = dict[str, Any]

HEADER: Final = """\
# HTTP API

Every operation, its parameters, bodies and answers, as the service itself describes them: `GET /openapi.json` has the
same for programs, and `/docs` lets you try them. `make docs` writes this page.

All paths but the last section's take a key, `Authorization: Bearer <key>` or `x-api-key: <key>`
([scopes](deployment.md#keys-and-tokens)). Bodies are JSON; unknown fields are refused. Tokens are integers, money is a
decimal string in USD, times are RFC 3339 in UTC. Every answer carries `request-id`, which logs and runs carry too.
Lists answer `data`, `has_more`, `first_id` and `last_id`; the next page is `after_id=<last_id>`.
"""

HEADERS_HEADER: Final = """
## Headers of answers

Every answer has the first two, every one under `/v1` but a 401 those of the rate limits, where there are any. 429 and
503 have `Retry-After`, 401 has `WWW-Authenticate`; the rest stands with the answers that have it.

| header | type | |
|---|---|---|
"""

PROBLEMS_HEADER: Final = """
## Problem codes

Every error is a problem document (RFC 9457, `application/problem+json`). Go by `code`: the words of `detail` are for
people and may change. Where a field is at fault, `pointer` leads to it. The operations above name what is their own;
any call with a key may be answered with {every_call} besides.

| code | status | what to do |
|---|---|---|
"""

_NOTHING_SAID: Final = "Request fulfilled, document follows"
"""What the framework says of an answer that the route does not describe."""
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_REF: Final = "#/components/schemas/"


def page() -> str:
    """Return the page."""
    app = create_app(Settings())
    document = app.openapi_schema.to_schema()
    scopes = {
        (method.lower(), route.path_format): scopes_of(handler)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _) in route.route_handler_map.items()
    }
    grouped: dict[str, list[str]] = {tag["name"]: [] for tag in document["tags"]}
    for path, item in document["paths"].items():
        for method in (method for method in _METHODS if method in item):
            (tag,) = item[method]["tags"]
            grouped[tag].append(_operation(path, method, item[method], scopes[method, path]))
    sections = [f"\n## {name}\n" + "".join(parts) for name, parts in grouped.items() if parts]
    return HEADER + "".join(sections) + _answer_headers() + _problems() + _schemas(document["components"]["schemas"])


def _operation(path: str, method: str, operation: Json, scopes: Sequence[str]) -> str:
    needs = " with the scope " + " and ".join(f"`{scope}`" for scope in scopes) if scopes else ""
    parts = [f"\n### {operation['summary']}\n\n`{method.upper()} {path}`{needs}\n"]
    if text := operation.get("description"):
        parts.append(f"\n{' '.join(text.split())}\n")
    if parameters := operation.get("parameters"):
        parts.append("\n| parameter | in | type | |\n|---|---|---|---|\n")
        for each in parameters:
            required = "required. " if each.get("required") and each["in"] != "path" else ""
            parts.append(
                f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} "
                f"| {_cell(required + each.get('description', ''))} |\n"
            )
    if body := operation.get("requestBody"):
        (content,) = body["content"].values()
        required = "" if body.get("required") else ", optional"
        parts.append(f"\nBody{required}:\n\n" + _fields(content["schema"]))
    parts.append("\n| status | body | |\n|---|---|---|\n")
    for status, answer in operation["responses"].items():
        if "$ref" not in answer:
            text = "" if answer["description"] == _NOTHING_SAID else _cell(answer["description"])
            parts.append(f"| {status} | {_bodies(answer)} | {' '.join(filter(None, (text, _headers(answer))))} |\n")
    for status, answer in operation["responses"].items():
        if codes := [code for code in _codes(answer) if code not in EVERY_CALL]:
            parts.append(f"| {status} | [problem](#problem-codes) | {', '.join(f'`{code}`' for code in codes)} |\n")
    return "".join(parts)


def _codes(answer: Json) -> list[str]:
    """Return the problems that an answer may have; problems are components, named for them."""
    return str(answer["$ref"]).rpartition("/")[2].split("-or-") if "$ref" in answer else []


def _headers(answer: Json) -> str:
    """Name the headers that not every answer has."""
    named = [f"`{name}`" for name in answer["headers"] if name not in {*EVERYWHERE, *LIMITED}]
    return f"With {' and '.join(named)}." if named else ""


def _bodies(answer: Json) -> str:
    content = answer.get("content") or {}
    return ", ".join(_type(each.get("schema", {})) for each in content.values()) or "none"


def _fields(schema: Json) -> str:
    # A field that several kinds of a body have alike is one row.
    rows = "".join(
        dict.fromkeys(
            f"| `{name}` | {_type(field)} | {'yes' if required else _default(field)} |\n"
            for kind in schema.get("anyOf", [schema])
            for name, field, required in _flat(kind)
        )
    )
    if not rows:
        return f"{_type(schema)}\n"
    return "| field | type | required, or the default |\n|---|---|---|\n" + rows


def _flat(schema: Json, before: str = "") -> Iterator[tuple[str, Json, bool]]:
    """Yield each field, nested ones too, with its path from the body."""
    schema = _inner(schema)
    for name, field in schema.get("properties", {}).items():
        yield before + name, field, name in schema.get("required", ())
        inner = _inner(field)
        if inner.get("type") == "array":
            yield from _flat(inner["items"], f"{before}{name}[].")
        else:
            yield from _flat(inner, f"{before}{name}.")


def _inner(schema: Json) -> Json:
    """Return what a schema is when it is not null; of one or a list of the same kind, the one."""
    either: list[Json] = schema.get("anyOf") or schema.get("oneOf") or []
    choices = [each for each in either if each.get("type") != "null"]
    if len(choices) > 1:
        choices = [each for each in choices if each.get("type") != "array" or each.get("items") not in choices]
    return choices[0] if len(choices) == 1 else schema


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return _page_of(name) or f"[{name}](#{name.lower()})"
    choices: list[Json] = schema.get("anyOf") or schema.get("oneOf") or []
    if choices:
        return " or ".join(dict.fromkeys(map(_type, choices)))
    if values := schema.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}" + _bounds(schema, "Items")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    return (kind or "any JSON") + _bounds(schema, "Length") + (f", {schema['format']}" if "format" in schema else "")


def _bounds(schema: Mapping[str, Any], of: str) -> str:
    low = schema.get("minimum", schema.get(f"min{of}"))
    high = schema.get("maximum", schema.get(f"max{of}"))
    match low, high:
        case None, None:
            return ""
        case None, _:
            return f", up to {high:,.12g}"
        case _, None:
            return f", from {low:,.12g}"
        case _:
            return f", {low:,.12g} to {high:,.12g}"


def _page_of(name: str) -> str:
    """Return the type of a page of a list; its items' name stands in the component's."""
    row = f"{name.removesuffix('Page')}Out"
    return f"page of [{row}](#{row.lower()})" if name.endswith("Page") else ""


def _default(schema: Json) -> str:
    if schema.get("default") in (None, ""):
        return ""
    return f"`{str(schema['default']).lower() if isinstance(schema['default'], bool) else schema['default']}`"


def _problems() -> str:
    every_call = ", ".join(f"`{code}`" for code in EVERY_CALL)
    rows = [f"| `{code}` | {kind.status} | {kind.remedy} |\n" for code, kind in PROBLEM_TYPES.items()]
    return PROBLEMS_HEADER.format(every_call=every_call) + "".join(rows)


def _answer_headers() -> str:
    rows = [f"| `{name}` | {_type(header['schema'])} | {header['description']} |\n" for name, header in HEADERS.items()]
    return HEADERS_HEADER + "".join(rows)


def _schemas(schemas: Json) -> str:
    parts = ["\n## Objects\n"]
    for name, schema in schemas.items():
        if _page_of(name):
            continue
        parts.append(f"\n### {name}\n\n")
        if text := schema.get("description"):
            parts.append(f"{' '.join(text.split())}\n\n")
        if "enum" in schema:
            parts.append(f"One of {_type(schema)}.\n")
            continue
        rows = [f"| `{field}` | {_type(of)} |\n" for field, of in schema.get("properties", {}).items()]
        parts.append("| field | type |\n|---|---|\n" + "".join(rows))
    return "".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
