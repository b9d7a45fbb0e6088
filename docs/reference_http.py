#!/usr/bin/env python3
"""Prints docs/reference-http.md from the OpenAPI document; `make docs` writes the file."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import api
from api.app import create_app
from api.problems import _CODES
from store.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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

PROBLEMS_HEADER: Final = """
## Problem codes

Every error is a problem document (RFC 9457, `application/problem+json`). Go by `code`: the words of `detail` are for
people and may change. Where a field is at fault, `pointer` leads to it.

| code | status | what to do |
|---|---|---|
"""

PROBLEMS: Final = {
    "bad_request": "Send a request that HTTP allows.",
    "malformed_json": "Send JSON; `detail` says where it ends being that.",
    "body_incomplete": "The connection ended before the body did: send it again.",
    "bad_cursor": "Use an id from the list itself, and one of `after_id` and `before_id`.",
    "bad_idempotency_key": "Send a key of 1 to 255 characters.",
    "unauthenticated": "Send a key that exists, has not expired and was not revoked.",
    "forbidden": "Use a key with the scope that `detail` names.",
    "cross_site": "The console takes changes from its own pages only.",
    "not_found": "Nothing has this id, or it is another tenant's: both look the same.",
    "method_not_allowed": "The path takes other methods: see `Allow`.",
    "conflict": "The resource has changed meanwhile: read it again.",
    "unexpected_seq": "Somebody else appended: `next_seq` has the place that is free now.",
    "superseded": "What the call names was replaced by an edit: read the conversation again.",
    "external_id_taken": "Another conversation has this `external_id`.",
    "compaction_running": "Wait for the run that `run_id` names, then ask again.",
    "overflow_exhausted": "Three smaller contexts were refused: look for what else the call sends.",
    "not_empty": "The console's demo is for an installation without conversations.",
    "cannot_shrink": "Nothing is left to take away: shorten system prompt, tools or the message itself.",
    "run_not_dead": "Only dead runs are retried.",
    "run_active": "The conversation has another run that has not ended: retry after it.",
    "already_rotated": "`detail` names the key that took this one's place.",
    "too_many_keys": "Revoke a key first.",
    "too_many_pins": "Take a pin off first.",
    "pins_full": "Take a pin off first, or pin a shorter text: all pins together have a limit.",
    "too_many_webhooks": "Remove a webhook first.",
    "body_too_large": "Send less, or raise the limit that `detail` names.",
    "url_too_long": "Send a shorter URL.",
    "head_too_large": "Send fewer or shorter headers.",
    "unsupported_media_type": "Send `application/json`.",
    "invalid": "Mend the field or parameter at `pointer`.",
    "idempotency_key_reused": "The key was used with another body: use a new one for a new turn.",
    "rate_limited": "Wait for as long as `Retry-After` says.",
    "internal": "A fault of the service: report it with the `request_id`.",
    "unavailable": "The database is away or busy: after `Retry-After` send it again, a turn with its Idempotency-Key.",
}
"""What a caller does about each code."""

_GROUPS: Final = (
    ("Conversations", r"/v1/conversations(/\{conversation_id\})?$"),
    ("Turns and contexts", r"/v1/conversations/\{conversation_id\}/(turns|context|overflow|pins.*)$"),
    ("Compaction", r"/v1/(conversations/\{conversation_id\}/(compactions|restore|fork|runs)|runs.*)$"),
    ("Audit", r"/v1/conversations/\{conversation_id\}/.*|/v1/erasures$"),
    ("Users", r"/v1/(users|exports).*"),
    ("Tenant and keys", r"/v1/(tenant|keys|policy-presets).*"),
    ("Webhooks", r"/v1/webhook.*"),
    ("Health", r"/(healthz|readyz|metrics)$"),
    ("Others", r".*"),
)
"""Headings, and the paths under them; the first that fits counts."""
_NOTHING_SAID: Final = "Request fulfilled, document follows"
"""What the framework says of an answer that the route does not describe."""
_METHODS: Final = ("get", "post", "put", "patch", "delete")
_REF: Final = "#/components/schemas/"


def page() -> str:
    """Return the page."""
    document = create_app(Settings()).openapi_schema.to_schema()
    grouped: dict[str, list[str]] = {name: [] for name, _ in _GROUPS}
    for path, item in document["paths"].items():
        group = next(name for name, pattern in _GROUPS if re.match(pattern, path))
        grouped[group] += [_operation(path, method, item[method]) for method in _METHODS if method in item]
    sections = [f"\n## {name}\n" + "".join(parts) for name, parts in grouped.items() if parts]
    return HEADER + "".join(sections) + _problems() + _schemas(document["components"]["schemas"])


def _operation(path: str, method: str, operation: Json) -> str:
    parts = [f"\n### {operation['summary']}\n\n`{method.upper()} {path}`\n"]
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
        if not _is_problem(answer):
            text = "" if answer["description"] == _NOTHING_SAID else _cell(answer["description"])
            parts.append(f"| {status} | {_bodies(answer)} | {text} |\n")
    if problems := [status for status, answer in operation["responses"].items() if _is_problem(answer)]:
        parts.append(f"| {', '.join(problems)} | [problem](#problem-codes) | |\n")
    return "".join(parts)


def _is_problem(answer: Json) -> bool:
    return "application/problem+json" in (answer.get("content") or {})


def _bodies(answer: Json) -> str:
    content = answer.get("content") or {}
    return ", ".join(_type(each.get("schema", {})) for each in content.values()) or "none"


def _fields(schema: Json) -> str:
    rows = "".join(
        f"| `{name}` | {_type(field)} | {'yes' if required else _default(field)} |\n"
        for name, field, required in _flat(schema)
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
    """Return what a schema is when it is not null."""
    either: list[Json] = schema.get("anyOf") or schema.get("oneOf") or []
    choices = [each for each in either if each.get("type") != "null"]
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
    found = re.fullmatch(r"Page_(?:\w+\.)*(\w+)_", name)
    return f"page of [{found[1]}](#{found[1].lower()})" if found else ""


def _default(schema: Json) -> str:
    if schema.get("default") in (None, ""):
        return ""
    return f"`{str(schema['default']).lower() if isinstance(schema['default'], bool) else schema['default']}`"


def _problems() -> str:
    rows = [
        f"| `{code}` | {', '.join(map(str, sorted(statuses)))} | {PROBLEMS[code]} |\n"
        for code, statuses in sorted(problem_codes().items(), key=lambda each: (min(each[1]), each[0]))
    ]
    return PROBLEMS_HEADER + "".join(rows)


def problem_codes() -> dict[str, set[int]]:
    """Return every code that the API's source gives a problem, with its statuses."""
    found: dict[str, set[int]] = {code: {status} for status, code in _CODES.items()}
    for file in Path(api.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id="ProblemError"),
                    args=[ast.Constant(value=int(status)), ast.Constant(value=str(code)), *_],
                ):
                    found.setdefault(code, set()).add(status)
    return found


def _schemas(schemas: Json) -> str:
    parts = ["\n## Objects\n"]
    for name, schema in schemas.items():
        if _page_of(name):
            continue
        parts.append(f"\n### {name}\n\n")
        if text := schema.get("description"):
            parts.append(f"{' '.join(text.split())}\n\n")
        rows = [f"| `{field}` | {_type(of)} |\n" for field, of in schema.get("properties", {}).items()]
        parts.append("| field | type |\n|---|---|\n" + "".join(rows))
    return "".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
