"""The OpenAPI document: whole, and about the routes there are."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import actions
import api
import runtime
from api.app import create_app
from api.http import problems
from runtime.http.problem_types import BEFORE_A_ROUTE, PROBLEM_TYPES
from runtime.settings import Settings
from tests.support.service.documented_answers import routes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.service.running_api import Service

Document = dict[str, Any]
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
UNDOCUMENTED = ("/openapi.json", "/docs", "/console", "/mcp")
OF_THE_CONSOLE = {"cross_site", "not_empty", "used_form"}
GENERIC = {"conflict"}
"""What the framework may raise, and no route does."""
EVERY_CALL = {"401", "403", "422", "429", "500", "503"}


@pytest.fixture(scope="module")
def document(service: Service) -> Document:
    with service.api.client() as client:
        answer = client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body: Document = answer.json()
    return body


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, item in document["paths"].items():
        for method in METHODS & set(item):
            yield path, method, item[method]


def schemas(value: Any) -> Iterator[Document]:
    """Return every schema in a part of the document, nested ones included."""
    if isinstance(value, list):
        for inner in value:
            yield from schemas(inner)
    elif isinstance(value, dict):
        if isinstance(value.get("schema"), dict):
            yield value["schema"]
        for name, inner in value.items():
            if name in {"properties", "schemas", "$defs"} and isinstance(inner, dict):
                yield from inner.values()
            elif name in {"items", "additionalProperties"} and isinstance(inner, dict):
                yield inner
            elif name in {"anyOf", "oneOf", "allOf"}:
                yield from inner
            yield from schemas(inner)


def resolve(document: Document, part: Document) -> Document:
    while "$ref" in part:
        target: Any = document
        for step in part["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        part = target
    return part


def test_the_application_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert create_app(Settings()).openapi_schema.to_schema()


def test_the_document_is_whole(document: Document) -> None:
    assert re.fullmatch(r"3\.1\.\d+", document["openapi"])
    assert document["info"]["title"] == "Palimpsest"
    assert document["info"]["version"]
    assert set(document) <= {"openapi", "info", "servers", "paths", "components", "security", "tags"}
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    for path, _, operation in operations(document):
        assert operation["summary"]
        assert operation["responses"]
        assert all(re.fullmatch(r"[1-5]\d\d", status) for status in operation["responses"])
        assert all(resolve(document, answer)["description"] for answer in operation["responses"].values())
        parameters = {(each["in"], each["name"]): each for each in operation.get("parameters", ())}
        assert len(parameters) == len(operation.get("parameters", ()))
        in_path = set(re.findall(r"\{(\w+)\}", path))
        assert {name for place, name in parameters if place == "path"} == in_path
        for (place, _), each in parameters.items():
            assert each["schema"]
            assert place in {"path", "query", "header"}
            assert each.get("required") is (place == "path")


def test_every_reference_leads_somewhere(document: Document) -> None:
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    found = set(references(document))
    assert found
    for reference in found:
        target: Any = document
        assert reference.startswith("#/")
        for step in reference[2:].split("/"):
            target = target[step]
        assert target


def test_every_schema_is_one(document: Document) -> None:
    items = list(schemas(document))
    assert len(items) > 100
    for schema in items:
        kinds = schema.get("type", [])
        assert set([kinds] if isinstance(kinds, str) else kinds) <= TYPES, schema
        assert set(schema.get("required", [])) <= set(schema.get("properties", {})), schema


def test_every_route_is_documented(document: Document) -> None:
    served = {(path, method.lower()) for method, path in routes() if path != "/" and not path.startswith(UNDOCUMENTED)}
    documented = {(path, method) for path, method, _ in operations(document)}
    assert documented == served
    assert ("/v1/conversations/{conversation_id}/turns", "post") in documented


def test_every_call_of_the_product_documents_its_problems_and_its_key(document: Document) -> None:
    schemes = document["components"]["securitySchemes"]
    assert (schemes["key"]["scheme"], schemes["keyHeader"]["name"]) == ("bearer", "x-api-key")
    assert schemes["token"]["bearerFormat"] == "JWT"
    for path, _, operation in operations(document):
        if not path.startswith("/v1"):
            assert not operation.get("security")
            continue
        assert operation["security"] == [{name: []} for name in schemes]
        assert set(operation["responses"]) >= EVERY_CALL
        for status in (status for status in operation["responses"] if status >= "400"):
            answer = resolve(document, operation["responses"][status])
            ((media, content),) = answer["content"].items()
            assert media == "application/problem+json"
            assert content["schema"]["$ref"].endswith("/Problem")
            for code in content["examples"]:
                example = resolve(document, content["examples"][code])["value"]
                assert (example["code"], str(example["status"])) == (code, status)
                assert f"`{code}`" in answer["description"]


def test_every_problem_type_is_documented_and_no_other(document: Document) -> None:
    assert set(PROBLEM_TYPES) == problem_codes()
    assert document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] == list(PROBLEM_TYPES)
    used = set(re.findall(r"#/components/examples/(\w+)", str(document["components"]["responses"])))
    assert used == set(PROBLEM_TYPES) - set(BEFORE_A_ROUTE) - OF_THE_CONSOLE - GENERIC
    assert all(f"| `{code}` |" in document["info"]["description"] for code in PROBLEM_TYPES)


def problem_codes() -> set[str]:
    """Return every code that the source gives an error of a request."""
    found = set(problems._CODES.values())
    for package in (api, actions, runtime):
        for file in Path(str(package.__file__)).parent.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Name(id="RequestError" | "ConflictError") | ast.Attribute(attr="__init__"),
                        args=[ast.Constant(value=str(code)), *_],
                    ) if re.fullmatch("[a-z_]+", code):
                        found.add(code)
    return found


def test_headers_are_documented(document: Document) -> None:
    shared = document["components"]["headers"]
    for path, _, operation in operations(document):
        for status, answer in operation["responses"].items():
            names = {name.lower() for name in resolve(document, answer)["headers"]}
            assert {"request-id", "cache-control"} <= names
            assert ("ratelimit" in names) == (path.startswith("/v1") and status != "401")
            assert ("www-authenticate" in names) == (status == "401")
            assert status not in {"429", "503"} or path == "/readyz" or "retry-after" in names
    assert shared["Retry-After"]["required"]
    path = "/v1/conversations/{conversation_id}"
    context = document["paths"][f"{path}/context"]["get"]
    assert "ETag" in context["responses"]["200"]["headers"]
    assert "content" not in context["responses"]["304"]
    assert [each["name"] for each in context["parameters"] if each["in"] == "header"] == ["If-None-Match"]
    turn = document["paths"][f"{path}/turns"]["post"]
    assert "Idempotency-Replayed" in turn["responses"]["201"]["headers"]
    assert [each["name"] for each in turn["parameters"] if each["in"] == "header"] == ["Idempotency-Key"]


@pytest.mark.parametrize(
    ("path", "method", "field"),
    [
        ("/v1/conversations", "post", "external_id"),
        ("/v1/conversations/{conversation_id}", "patch", "policy"),
        ("/v1/conversations/{conversation_id}/turns", "post", "messages"),
    ],
)
def test_bodies_are_documented(document: Document, path: str, method: str, field: str) -> None:
    body = document["paths"][path][method]["requestBody"]
    assert body["required"]
    whole = body["content"]["application/json"]["schema"]
    for schema in whole.get("anyOf", [whole]):
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert field in schema["properties"]
    takes_bodies = {(path, method) for path, method, operation in operations(document) if "requestBody" in operation}
    needs_none = {(path, "post") for path in document["paths"] if path.endswith("}/retry")}
    writes = {(path, method) for path, method, _ in operations(document) if method in {"post", "patch"}}
    assert takes_bodies == writes - needs_none


def test_answers_are_documented(document: Document) -> None:
    for path, method, operation in operations(document):
        good = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
        assert good, (path, method)
        assert all(("content" in answer) == (status != "204") for status, answer in good.items())
    created = document["paths"]["/v1/conversations"]["post"]["responses"]
    assert {"200", "201"} <= set(created)


def test_people_get_a_page(service: Service) -> None:
    with service.api.client() as client:
        page = client.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "Palimpsest" in page.text
    assert "/openapi.json" in page.text
