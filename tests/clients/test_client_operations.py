"""What the Python client sends and reads, against the OpenAPI document."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints, is_typeddict
from urllib.parse import unquote

import generate_answers
import pytest
from palimpsest_client import ApiError, CompactionRunningError, ServerError, UnexpectedSeqError, answers, results
from palimpsest_client.errors import error_of
from palimpsest_client.operations import Operations
from palimpsest_client.steps import Acquire, Answer, Ask, Pause, Request

from api.app import create_app
from runtime.settings import Settings
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

Schema = dict[str, Any]
LOCAL: Final = {"forget", "call", "answer_recall"}
"""Methods that are no call of the service by themselves."""
SAMPLES: Final[dict[str, Any]] = {
    "messages": [{"role": "user", "content": "hi"}],
    "context": [{"source": "a page", "text": "what it says"}],
    "call": lambda context: context.version,
    "seconds": 1.0,
    "versions": [0, 1],
    "timeout": 1.0,
    "metadata": {},
    "policy": {},
    "usage": {"input_tokens": 1},
    "is_overflow": lambda _: False,
    "fallback": None,
}
METHODS: Final = sorted(
    name
    for name, value in inspect.getmembers(Operations, inspect.isfunction)
    if not name.startswith("_") and name not in LOCAL
)


class Headers(dict[str, str]):
    """Headers of an answer, that tell which of them were looked for."""

    looked_for: set[str]

    def get(self, name: str, default: Any = None) -> Any:
        self.looked_for.add(name)
        return super().get(name, default)


class Held:
    """A lock that nobody else wants."""

    def release(self) -> None:
        pass


@pytest.fixture(scope="module")
def document() -> Schema:
    found: Schema = create_app(Settings()).openapi_schema.to_schema()
    return found


def resolve(document: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def branches(document: Schema, schema: Schema) -> list[Schema]:
    """Return the schema's alternatives, null apart."""
    schema = resolve(document, schema)
    inner = schema.get("oneOf") or schema.get("anyOf")
    if inner:
        return [each for part in inner for each in branches(document, part)]
    kinds = schema.get("type")
    return [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else [schema]


def sample_of(document: Schema, schema: Schema) -> Any:
    """Return a value that has everything that is documented."""
    null: Schema = {"type": "null"}
    first = next((each for each in branches(document, schema) if each.get("type") != "null"), null)
    if "enum" in first:
        return first["enum"][0]
    if first.get("type") == "object":
        return {name: sample_of(document, inner) for name, inner in first.get("properties", {}).items()}
    if first.get("type") == "array":
        return [sample_of(document, first.get("items", {}))]
    return {"integer": 1, "number": 1, "boolean": False, "null": None}.get(first.get("type", ""), "text")


def arguments(method: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: SAMPLES.get(name, 1 if "int" in str(each.annotation) else "text")
        for name, each in inspect.signature(method).parameters.items()
        if name != "self"
    }


def operation_of(document: Schema, request: Request) -> tuple[str, Schema]:
    items = [
        (template, operation[request.method.lower()])
        for template, operation in document["paths"].items()
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), unquote(request.path))
        and request.method.lower() in operation
    ]
    assert items, f"{request.method} {request.path} is no operation"
    # A literal path goes before one with a parameter, as in the router.
    return min(items, key=lambda each: each[0].count("{"))


def good_schema(document: Schema, request: Request, *, listed: bool = False) -> Schema | None:
    """Return what the answer to a request, or an item of the list in it, is documented to be."""
    responses = operation_of(document, request)[1]["responses"]
    statuses = [status for status in responses if status[0] == "2"]
    # Where there are two, the lower one says that nothing was done: a dry run, or a conversation that there was.
    status = min(statuses) if (request.body or {}).get("dry_run") else max(statuses)
    content = responses[status].get("content")
    if content is None:
        return None
    schema = resolve(document, content["application/json"]["schema"])
    if (request.body or {}).get("dry_run"):
        # Where one status stands for both, what would be done is the last of what it is documented to answer.
        schema = branches(document, schema)[-1]
    return resolve(document, schema["properties"]["data"]["items"]) if listed else schema


def good_answer(document: Schema, request: Request) -> Answer:
    schema = good_schema(document, request)
    return Answer(200, {}, b"" if schema is None else json.dumps(sample_of(document, schema)).encode())


def sent(document: Schema, name: str) -> tuple[list[Request], Any]:
    """Return what a method sends, given every argument, and what it returns for the documented answer."""
    method = getattr(Operations(), name)
    flow = method(**arguments(method))
    requests: list[Request] = []
    outcome: Any = None
    try:
        while True:
            match step := flow.send(outcome):
                case Acquire():
                    outcome = Held()
                case Ask():
                    outcome = step.function()
                case _:
                    assert isinstance(step, Request), step
                    requests.append(step)
                    outcome = good_answer(document, step)
    except StopIteration as end:
        return requests, end.value


@pytest.mark.parametrize("name", [name for name in METHODS if name != "flush"])
def test_what_is_sent_is_documented(document: Schema, name: str) -> None:
    requests, _ = sent(document, name)
    assert requests
    for request in requests:
        template, operation = operation_of(document, request)
        parameters = {(each["in"], each["name"].lower()) for each in operation.get("parameters", ())}
        assert {("query", each) for each in request.query} <= parameters, template
        assert {("header", each) for each in request.headers} <= parameters, template
        if request.body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            schema = schema.get("anyOf", [schema])[0]
            assert set(request.body) <= set(schema["properties"]), template
            assert set(schema.get("required", ())) <= set(request.body), template


def test_every_field_of_the_calls_can_be_sent(document: Schema) -> None:
    can_be: dict[tuple[str, str], set[str]] = {}
    for name in METHODS:
        if name == "flush":
            continue
        for request in sent(document, name)[0]:
            template, _ = operation_of(document, request)
            can_be.setdefault((template, request.method.lower()), set()).update(request.body or {}, request.query)
    for (template, method), fields in can_be.items():
        operation = document["paths"][template][method]
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        query = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
        names = {name for kind in body.get("anyOf", [body]) for name in kind.get("properties", ())}
        assert fields >= names | query, (method, template)


def answer(document: Schema, request: Request, status: int, body: bytes = b"") -> Answer:
    """Return an answer with every header that is documented for it."""
    responses = operation_of(document, request)[1]["responses"]
    headers = Headers({name.lower(): "1" for name in component(document, responses[str(status)])["headers"]})
    headers.looked_for = set()
    return Answer(status, headers, body)


def component(document: Schema, part: Schema) -> Schema:
    return document["components"]["responses"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part


def looked_for(answered: Answer) -> set[str]:
    assert isinstance(answered.headers, Headers)
    return answered.headers.looked_for


def test_a_context_that_has_not_changed(document: Schema) -> None:
    operations = Operations()
    first = operations.context("conv_1")
    request = next(first)
    body = good_answer(document, request).body
    with pytest.raises(StopIteration) as read:
        first.send(sent_whole := answer(document, request, 200, body))
    second = operations.context("conv_1")
    request = next(second)
    assert request.headers == {"if-none-match": "1"}
    with pytest.raises(StopIteration) as read_again:
        second.send(unchanged := answer(document, request, 304))
    assert read_again.value.value == read.value.value
    assert looked_for(sent_whole) | looked_for(unchanged) <= set(sent_whole.headers) & set(unchanged.headers)
    assert looked_for(sent_whole) == {"etag", "palimpsest-timeline"}


def test_a_turn_that_was_stored_before(document: Schema) -> None:
    flow = Operations().append("conv_1", SAMPLES["messages"])
    request = next(flow)
    again = answer(
        document, request, 201, json.dumps(sample_of(document, good_schema(document, request) or {})).encode()
    )
    again.headers["idempotency-replayed"] = "true"
    with pytest.raises(StopIteration) as stored:
        flow.send(again)
    assert stored.value.value.replayed
    assert looked_for(again) == {"idempotency-replayed", "palimpsest-timeline"}


@pytest.mark.parametrize("status", [429, 503])
def test_the_service_says_when_to_come_back(document: Schema, status: int) -> None:
    flow = Operations().append("conv_1", SAMPLES["messages"])
    refused = answer(document, request := next(flow), status)
    assert flow.send(refused) == Pause(1.0)
    assert looked_for(refused) <= set(refused.headers)
    again = next(flow)
    assert (again.body, again.headers) == (request.body, request.headers)


def test_every_problem_is_an_error_of_its_own_kind(document: Schema) -> None:
    codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]
    named = {code: document["components"]["examples"][code]["value"] for code in codes}
    found = {code: error_of(each["status"], {}, json.dumps(each).encode()) for code, each in named.items()}
    assert all(type(error) is not ApiError and error.code == code for code, error in found.items())
    assert {error.status for error in found.values() if type(error) is ServerError} == {500}
    assert isinstance(found["unexpected_seq"], UnexpectedSeqError)
    assert found["unexpected_seq"].next_seq == named["unexpected_seq"]["next_seq"]
    assert isinstance(found["compaction_running"], CompactionRunningError)
    assert found["compaction_running"].run_id == named["compaction_running"]["run_id"]


def test_the_types_of_answers_are_the_documents(document: Schema) -> None:
    kept = (ROOT / "clients/python/palimpsest_client/answers.py").read_text()
    assert generate_answers.text(document) == kept, "the API has changed: make docs writes answers.py anew"


@pytest.mark.parametrize("name", [name for name in METHODS if name != "flush"])
def test_what_is_read_is_documented(document: Schema, name: str) -> None:
    requests, result = sent(document, name)
    annotation = str(inspect.signature(getattr(Operations, name)).return_annotation)
    named = next(each for each in re.findall(r"\w+", annotation) if each not in {"Flow", "Page"})
    kind = getattr(answers, named, None) or getattr(results, named, None)
    schema = good_schema(document, requests[-1], listed="Page" in annotation)
    if is_typeddict(kind):
        assert schema is not None
        agree(document, kind, schema, name)
    elif kind is not None:
        assert is_dataclass(kind)
        assert result is not None  # and it has been read to the end
    else:
        assert named == "None"


def agree(document: Schema, hint: Any, schema: Schema, where: str) -> None:
    """Assert that what a type says of an answer is documented: names, presence, and what may be null."""
    if hint is Any:
        return
    parts = branches(document, schema)
    if NoneType in get_args(hint):
        (hint,) = set(get_args(hint)) - {NoneType}
    else:
        assert all(part.get("type") != "null" for part in parts), f"{where} may be null"
    if isinstance(hint, UnionType):
        assert len(get_args(hint)) == len(parts), where
        return
    # Of two objects the larger one is answered to a key with all scopes; the other is a part of it.
    part = max((part for part in parts if part.get("type") != "null"), key=lambda part: len(part.get("properties", ())))
    if is_typeddict(hint):
        assert part["type"] == "object", where
        for name, inner in get_type_hints(hint).items():
            assert name in part["properties"], f"{where}.{name}"
            agree(document, inner, part["properties"][name], f"{where}.{name}")
        return
    kind = part.get("type")
    if get_origin(hint) is Literal:
        assert list(get_args(hint)) == part.get("enum", [part.get("const")]), where
    elif kind == "array":
        agree(document, get_args(hint)[0], part.get("items", {}), f"{where}[]")
    elif kind is not None:
        python = {"string": str, "integer": int, "boolean": bool, "object": dict, "number": float}[kind]
        assert (getattr(hint, "__origin__", hint)) is python, where
