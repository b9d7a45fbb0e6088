"""Writes src/schema.ts: the operations that the client calls, from the OpenAPI document, and the recall tool.

    .venv/bin/python clients/typescript/generate_schema.py > clients/typescript/src/schema.ts

The client's calls are typed by it, so that the compiler finds a path, a field or an answer that is not documented.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from api.app import create_app
from compaction.recall.tool import definition
from runtime.settings import Settings

OPERATIONS: Final = (
    "POST /v1/conversations",
    "GET /v1/conversations",
    "GET /v1/conversations/{conversation_id}",
    "PATCH /v1/conversations/{conversation_id}",
    "DELETE /v1/conversations/{conversation_id}",
    "POST /v1/conversations/{conversation_id}/turns",
    "GET /v1/conversations/{conversation_id}/context",
    "POST /v1/conversations/{conversation_id}/context",
    "POST /v1/conversations/{conversation_id}/overflow",
    "POST /v1/conversations/{conversation_id}/compactions",
    "POST /v1/conversations/{conversation_id}/restore",
    "POST /v1/conversations/{conversation_id}/fork",
    "POST /v1/conversations/{conversation_id}/recall",
    "POST /v1/recall",
    "GET /v1/recall-tool",
    "GET /v1/conversations/{conversation_id}/messages",
    "GET /v1/conversations/{conversation_id}/runs",
    "GET /v1/conversations/{conversation_id}/snapshots",
    "GET /v1/conversations/{conversation_id}/snapshots/{version}",
    "GET /v1/conversations/{conversation_id}/snapshots/{version}/claims",
    "GET /v1/conversations/{conversation_id}/pins",
    "POST /v1/conversations/{conversation_id}/pins",
    "DELETE /v1/conversations/{conversation_id}/pins/{pin_id}",
    "GET /v1/conversations/{conversation_id}/rules",
    "PATCH /v1/conversations/{conversation_id}/rules/{rule_id}",
    "POST /v1/conversations/{conversation_id}/comparisons",
    "POST /v1/conversations/{conversation_id}/bisect",
    "GET /v1/runs/{run_id}",
)
_PRIMITIVES: Final = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}

Schema = dict[str, Any]


class Writer:
    """Writes types, and remembers which components they name."""

    def __init__(self, components: Schema) -> None:
        self._components = components
        self.named: dict[str, str] = {}

    def type_of(self, schema: Schema, indent: str = "") -> str:
        """Return the TypeScript type of a schema."""
        if reference := schema.get("$ref"):
            return self._component(reference.rpartition("/")[2])
        kinds = schema.get("type")
        several = [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else None
        if alternatives := schema.get("oneOf") or schema.get("anyOf") or several:
            return " | ".join(dict.fromkeys(self.type_of(each, indent) for each in alternatives))
        if "enum" in schema:
            return " | ".join(json.dumps(each) for each in schema["enum"])
        if kinds == "array":
            item = self.type_of(schema.get("items", {}), indent)
            return f"({item})[]" if " | " in item and item[0] != "{" else f"{item}[]"
        return self._object(schema, indent) if kinds == "object" else _PRIMITIVES.get(kinds or "", "unknown")

    def _object(self, schema: Schema, indent: str) -> str:
        properties = schema.get("properties")
        if not properties:
            inner = schema.get("additionalProperties")
            return f"Record<string, {self.type_of(inner) if isinstance(inner, dict) and inner else 'unknown'}>"
        required = set(schema.get("required", ()))
        lines = [
            f"{indent}  {name}{'' if name in required else '?'}: {self.type_of(inner, indent + '  ')};"
            for name, inner in sorted(properties.items())
        ]
        return "\n".join(["{", *lines, f"{indent}}}"])

    def _component(self, name: str) -> str:
        spelled = "".join(each for each in name if each.isalnum())
        if spelled not in self.named:
            self.named[spelled] = ""  # a type may name itself
            self.named[spelled] = self.type_of(self._components[name])
        return spelled


def _names(names: set[str]) -> str:
    return " | ".join(map(json.dumps, sorted(names))) or "never"


def main() -> None:
    """Print the file."""
    document: Schema = create_app(Settings()).openapi_schema.to_schema()
    writer = Writer(document["components"]["schemas"])
    writer.type_of({"$ref": "#/components/schemas/Problem"})
    operations = []
    for name in OPERATIONS:
        method, path = name.split(" ")
        operation = document["paths"][path][method.lower()]
        parameters = operation.get("parameters", ())
        query = {
            "type": "object",
            "properties": {each["name"]: each["schema"] for each in parameters if each["in"] == "query"},
        }
        sends = {each["name"].lower() for each in parameters if each["in"] == "header"}
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        good = [answer for status, answer in sorted(operation["responses"].items()) if status[0] == "2"]
        gets = {name.lower() for answer in good for name in answer["headers"]}
        contents = [each.get("content", {}).get("application/json", {}) for each in good]
        answers = [each.get("schema", {"type": "null"}) for each in contents]
        operations += [
            f"  {json.dumps(name)}: {{",
            f"    query: {writer.type_of(query, '    ') if query['properties'] else 'Record<string, never>'};",
            f"    body: {writer.type_of(body, '    ') if body else 'undefined'};",
            f"    answer: {writer.type_of({'oneOf': answers}, '    ')};",
            f"    requestHeaders: {_names(sends)};",
            f"    headers: {_names(gets)};",
            "  };",
        ]
    lines = ["// Written by generate_schema.py from the OpenAPI document; `make clients` writes it anew.", ""]
    for name, written in sorted(writer.named.items()):
        lines += [f"export {'interface ' + name if written[0] == '{' else 'type ' + name + ' ='} {written}", ""]
    lines += ["export interface Operations {", *operations, "}", ""]
    lines += [f"export const RECALL_TOOL = {json.dumps(definition('messages'), indent=2)} as const;"]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
