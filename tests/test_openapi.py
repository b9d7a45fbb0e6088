"""The OpenAPI document: whole, and about the routes there are."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from litestar.routes import HTTPRoute

from api.app import create_app
from store.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.running_api import Service

Document = dict[str, Any]
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
UNDOCUMENTED = ("/openapi.json", "/docs", "/console")
PROBLEM_STATUSES = {"400", "401", "403", "404", "409", "413", "422", "503"}


@pytest.fixture(scope="module")
def document(service: Service) -> Document:
    with service.api.client() as client:
        answer = client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    found: Document = answer.json()
    return found


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
        assert all(answer["description"] for answer in operation["responses"].values())
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
    found = list(schemas(document))
    assert len(found) > 100
    for schema in found:
        kinds = schema.get("type", [])
        assert set([kinds] if isinstance(kinds, str) else kinds) <= TYPES, schema
        assert set(schema.get("required", [])) <= set(schema.get("properties", {})), schema


def test_every_route_is_documented(document: Document) -> None:
    served = {
        (route.path_format, method.lower())
        for route in create_app(Settings()).routes
        if isinstance(route, HTTPRoute) and not route.path_format.startswith(UNDOCUMENTED)
        for method in route.methods - {"OPTIONS"}
    }
    documented = {(path, method) for path, method, _ in operations(document)}
    assert documented == served
    assert ("/v1/conversations/{conversation_id}/turns", "post") in documented


def test_every_call_of_the_product_documents_its_problems_and_its_key(document: Document) -> None:
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, _, operation in operations(document):
        if not path.startswith("/v1"):
            assert not operation.get("security")
            continue
        assert operation["security"] == [{"key": []}]
        assert set(operation["responses"]) >= PROBLEM_STATUSES
        for status in PROBLEM_STATUSES:
            ((media, answer),) = operation["responses"][status]["content"].items()
            assert media == "application/problem+json"
            assert answer["schema"]["$ref"].endswith("/Problem") or "Problem" in answer["schema"]["$ref"]


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
    schema = body["content"]["application/json"]["schema"]
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
