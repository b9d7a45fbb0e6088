"""What is too much is refused at the door, with the limit in the problem: sizes of bodies, and of what comes before."""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from pydantic import ValidationError

from runtime.settings import Settings
from tests.conftest import make_tenants
from tests.support.eventually import eventually
from tests.support.service.problem_documents import REQUEST_ID, problem
from tests.support.service.running_api import Service, running_api

if TYPE_CHECKING:
    from collections.abc import Iterator

HELLO = {"role": "user", "content": "Hello."}
SMALL = {
    "max_body_bytes": 65_536,
    "max_head_bytes": 8_192,
    "max_turn_messages": 3,
    "max_message_blocks": 4,
    "max_context_blocks": 2,
    "max_json_depth": 12,
    "max_body_values": 22_000,
    "max_object_keys": 100,
    "max_text_bytes": 2_000,
    "max_metadata_bytes": 300,
}


@pytest.fixture(scope="module")
def service(module_settings: Settings) -> Iterator[Service]:
    """An API with small limits."""
    settings = module_settings.model_copy(update=SMALL)
    url = settings.database_url.get_secret_value()
    tenant, other = make_tenants(url, "acme", "rival")
    with running_api(settings) as api, api.client(tenant.key) as client, api.client(other.key) as stranger:
        yield Service(api, settings, url, tenant.id, client, stranger)


@pytest.fixture(scope="module")
def path(service: Service) -> str:
    """A conversation with one message, which no refusal may change."""
    made = service.conversation()
    service.append(made, HELLO)
    return made


def text(length: int) -> dict[str, Any]:
    return {"type": "text", "text": "a" * length}


def file(length: int, **fields: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "data": "a" * length, **fields}}


def called(value: Any) -> dict[str, Any]:
    """Return a turn in which a tool is called; its input is on the sixth level."""
    block = {"type": "tool_use", "id": "a", "name": "b", "input": value}
    return {"messages": [{"role": "assistant", "content": [block]}]}


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def said(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


CONTEXT = {"source": "wiki", "text": "What is so."}
KEYS = {str(number): number for number in range(100)}

LIMITS: dict[str, tuple[Any, Any, str]] = {
    "messages of a turn": ({"messages": [HELLO] * 3}, {"messages": [HELLO] * 4}, "/messages"),
    "blocks of a message": (said(*[text(1)] * 4), said(*[text(1)] * 5), "/messages/0/content"),
    "context blocks": (
        {"messages": [HELLO], "context": [CONTEXT] * 2},
        {"messages": [HELLO], "context": [CONTEXT] * 3},
        "/context",
    ),
    "levels": (called(nested(7)), called(nested(8)), "/messages/0/content/0/input" + "/a" * 7),
    "keys of an object": (called(KEYS), called({**KEYS, "more": 1}), "/messages/0/content/0/input"),
    "values of a body": (called({"a": [0] * 21_990}), called({"a": [0] * 21_991}), ""),
    "values, not punctuation": (
        said(*[{"type": "text", "text": ',[{\\",' * 300}] * 2),
        said({"type": "text", "text": ',[{\\",' * 300}, {"type": "x", "a": [[]] * 11_000}),
        "",
    ),
    "bytes of a text": (said(text(2_000)), said(text(2_001)), "/messages/0/content/0/text"),
    "bytes, not characters": (said({"type": "x", "é": "é" * 1_000}), said(text(1), {"type": "x", "é": "é" * 1_001}),
                              "/messages/0/content/1/é"),
    "bytes of a key": (called({"k" * 2_000: 1}), called({"k" * 2_001: 1}), "/messages/0/content/0/input"),
    "bytes of base64": (
        said(file(20_000, media_type="image/png")),
        said(file(2_001)),
        "/messages/0/content/0/source/data",
    ),
    "source of a context block": (
        {"messages": [HELLO], "context": [{**CONTEXT, "source": "s" * 512}]},
        {"messages": [HELLO], "context": [{**CONTEXT, "source": "s" * 513}]},
        "/context/0/source",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_a_turn_over_a_limit_is_refused_and_one_at_it_is_stored(service: Service, path: str, name: str) -> None:
    fits, exceeds, pointer = LIMITS[name]
    assert service.client.post(f"{service.conversation()}/turns", json=fits).status_code == 201
    problem(service.client.post(f"{path}/turns", json=exceeds), 422, "invalid", pointer)
    assert service.client.get(path).json()["last_seq"] == 0


@pytest.mark.parametrize("kind", ["prior_context", "turn_context"])
def test_a_payload_has_so_many_context_blocks_of_each_kind(service: Service, path: str, kind: str) -> None:
    assert service.client.post(f"{path}/context", json={kind: [CONTEXT] * 2}).status_code == 200
    problem(service.client.post(f"{path}/context", json={kind: [CONTEXT] * 3}), 422, "invalid", f"/{kind}")


CONVERSATIONS: dict[str, tuple[Any, Any, str]] = {
    "metadata": ({"metadata": {"a": "x" * 292}}, {"metadata": {"a": "x" * 293}}, "/metadata"),
    "external_id": ({"external_id": "e" * 512}, {"external_id": "e" * 513}, "/external_id"),
    "user_ref": ({"user_ref": "u" * 512}, {"user_ref": "u" * 513}, "/user_ref"),
    "model": ({"model": "claude-" + "m" * 505}, {"model": "claude-" + "m" * 506}, "/model"),
    "text of the system prompt": ({"system": "s" * 2_000}, {"system": "s" * 2_001}, "/system"),
    "blocks of the system prompt": ({"system": [{}] * 1_000}, {"system": [{}] * 1_001}, "/system"),
    "tools": ({"tools": [{}] * 10_000}, {"tools": [{}] * 10_001}, "/tools"),
    "keys of the policy": ({"policy": {}}, {"policy": {**KEYS, "more": 1}}, "/policy"),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_over_a_limit_is_not_made(service: Service, name: str) -> None:
    fits, exceeds, pointer = CONVERSATIONS[name]
    assert service.client.post("/v1/conversations", json=fits).status_code == 201
    before = service.client.get("/v1/conversations?limit=100").json()
    problem(service.client.post("/v1/conversations", json=exceeds), 422, "invalid", pointer)
    assert service.client.get("/v1/conversations?limit=100").json() == before


@pytest.mark.parametrize("field", ["metadata", "system", "tools"])
def test_a_change_over_a_limit_changes_nothing(service: Service, field: str) -> None:
    path = service.conversation()
    before = service.client.get(path).json()
    _, exceeds, pointer = CONVERSATIONS[{"system": "text of the system prompt"}.get(field, field)]
    problem(service.client.patch(path, json=exceeds), 422, "invalid", pointer)
    assert service.client.get(path).json() == before


def test_an_idempotency_key_has_255_characters(service: Service, path: str) -> None:
    for key in ("k" * 256, ""):
        refused = service.client.post(f"{path}/turns", json={"messages": [HELLO]}, headers={"idempotency-key": key})
        problem(refused, 400, "bad_idempotency_key")
    assert service.client.get(path).json()["last_seq"] == 0


def exchange(service: Service, *parts: bytes, finish: bool = False) -> httpx2.Response:
    """Send bytes on a connection of their own; return the first answer to them."""
    port = int(service.api.url.rpartition(":")[2])
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of it was sent
        while not _is_whole(received) and (piece := connection.recv(65_536)):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    pairs = [tuple(line.split(b": ", 1)) for line in headers]
    return httpx2.Response(int(status.split()[1]), headers=pairs, content=body)  # type: ignore[arg-type] # pairs


def _is_whole(received: bytes) -> bool:
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(lengths) and len(body) >= int(lengths[0])


def request(service: Service, path: str, *headers: str, query: str = "") -> bytes:
    """Return the head of a turn's request, without the empty line that ends it."""
    lines = [f"POST {path}/turns{query} HTTP/1.1", "host: localhost"]
    lines += [f"authorization: {service.client.headers['authorization']}", *headers]
    return "\r\n".join(lines).encode()


TURN = json.dumps({"messages": [HELLO]}).encode()


def chunked(body: bytes, size: int = 4_096) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces)


def test_a_body_is_counted_however_it_comes(service: Service, path: str) -> None:
    most = service.settings.max_body_bytes
    over = TURN + b" " * (most + 1 - len(TURN))
    for length in (most + 1, 10**12):
        head = request(service, path, f"content-length: {length}")
        problem(exchange(service, head + b"\r\n\r\n", over), 413, "body_too_large")
    head = request(service, path, "transfer-encoding: chunked") + b"\r\n\r\n"
    problem(exchange(service, head, chunked(over) + b"0\r\n\r\n"), 413, "body_too_large")
    # Without an end: it is refused as soon as there is too much of it.
    problem(exchange(service, head, chunked(over)), 413, "body_too_large")
    assert service.client.get(path).json()["last_seq"] == 0
    fitting = service.conversation()
    head = request(service, fitting, "transfer-encoding: chunked") + b"\r\n\r\n"
    assert exchange(service, head, chunked(over[:-1]) + b"0\r\n\r\n").status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        ["content-length: 10"],
        ["content-length: -1"],
        ["content-length: 5x"],
        ["content-length: 18446744073709551617"],
        ["content-length: 45", "content-length: 46"],
        ["content-length: 45", "transfer-encoding: chunked"],
        ["transfer-encoding: gzip"],
    ],
)
def test_a_length_that_is_not_true_writes_nothing(service: Service, path: str, headers: list[str]) -> None:
    answer = exchange(service, request(service, path, *headers) + b"\r\n\r\n" + TURN, finish=True)
    problem(answer, 400, answer.json()["code"])
    assert service.client.get(path).json()["last_seq"] == 0


def answered(service: Service, status: int) -> int:
    """Return how many turns were answered like this."""
    text = service.client.get("/metrics").text
    matches = re.findall(rf'^palimpsest_http_requests_total{{.*/turns.*status="{status}"}} (\S+)', text, re.MULTILINE)
    return sum(int(float(count)) for count in matches)


def test_a_body_that_ends_early_writes_nothing_and_is_no_fault_of_ours(service: Service, path: str) -> None:
    head = request(service, path, f"content-length: {len(TURN) + 1}") + b"\r\n\r\n"
    port = int(service.api.url.rpartition(":")[2])
    refused, faults = answered(service, 400), answered(service, 500)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head + TURN)
    eventually(lambda: answered(service, 400) == refused + 1)
    assert answered(service, 500) == faults == 0
    assert service.client.get(path).json()["last_seq"] == 0


HEADS: dict[str, tuple[list[bytes], int, str]] = {
    "one header": ([b"\r\nx-long: " + b"a" * 9_000 + b"\r\n\r\n"], 431, "head_too_large"),
    "many headers": ([b"\r\nx: y" * 5_000 + b"\r\n\r\n"], 431, "head_too_large"),
    "a header's name": ([b"\r\n" + b"x" * 9_000 + b": a\r\n\r\n"], 431, "head_too_large"),
    "a header without an end": ([b"\r\nx-long: ", *[b"a" * 1_000] * 9], 431, "head_too_large"),
    "headers without an end": ([b"\r\n", *[b"x: y\r\n" * 100] * 30], 431, "head_too_large"),
    "no HTTP": ([b"\r\n\x00\x01\r\n\r\n"], 400, "bad_request"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_over_the_limit_is_refused(service: Service, path: str, name: str) -> None:
    parts, status, code = HEADS[name]
    answer = exchange(service, request(service, path, f"content-length: {len(TURN)}"), *parts)
    problem(answer, status, code)
    assert answer.headers["connection"] == "close"
    assert service.client.get(path).json()["last_seq"] == 0


def test_a_url_over_the_limit_is_refused(module_settings: Settings, service: Service) -> None:
    path = service.conversation()
    problem(service.client.get(f"{path}/messages?x={'a' * 9_000}"), 431, "head_too_large")
    with running_api(module_settings.model_copy(update={"max_head_bytes": 1 << 20})) as api, api.client() as client:
        problem(client.get(f"/{'a' * 17_000}"), 414, "url_too_long")
        assert client.get("/healthz", headers={"x-long": "a" * 1_000_000}).status_code == 200
        for path in ("/healthz", "/v1/conversations", "/console/sign-in"):
            problem(client.get(f"{path}?{'x=1&' * 100}"), 414, "url_too_long")
            assert client.get(f"{path}?{'x=1&' * 99}").status_code in {200, 401}


def test_trailers_count_as_headers(service: Service) -> None:
    path = service.conversation()
    head = request(service, path, "transfer-encoding: chunked") + b"\r\n\r\n"
    for trailers in ([b"x: y\r\n" * 100] * 50, [b"x: ", *[b"y" * 65_536] * 20]):
        answer = exchange(service, head + chunked(TURN) + b"0\r\n", *trailers)
        problem(answer, 431, "head_too_large")
    assert service.client.get(path).json()["last_seq"] == -1


def test_connections_are_kept_after_large_heads_that_fit(service: Service, path: str) -> None:
    """What one request sent does not count against the next."""
    for _ in range(10):
        answer = service.client.get(path, headers={"x-long": "a" * 7_000})
        assert answer.status_code == 200
        assert REQUEST_ID.fullmatch(answer.headers["request-id"])


@pytest.mark.parametrize(
    "limit", [{"max_turn_messages": 1_001}, {"max_json_depth": 201}, {"max_head_bytes": 100}, {"max_text_bytes": 0}]
)
def test_limits_that_would_not_hold_are_no_settings(limit: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        Settings(**limit)  # type: ignore[arg-type] # pydantic reads them


def test_the_document_states_the_limits_that_no_setting_changes(service: Service) -> None:
    document = service.client.get("/openapi.json").json()

    def body(path: str) -> Any:
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return schema.get("anyOf", [schema])[0]["properties"]

    turn, conversation = body("/v1/conversations/{conversation_id}/turns"), body("/v1/conversations")
    assert (turn["messages"]["minItems"], turn["messages"]["maxItems"]) == (1, 1_000)
    assert turn["context"]["maxItems"] == 100
    assert turn["context"]["items"]["properties"]["source"]["maxLength"] == 512
    parameters = document["paths"]["/v1/conversations/{conversation_id}/turns"]["post"]["parameters"]
    (key_schema,) = [each["schema"] for each in parameters if each["name"] == "Idempotency-Key"]
    assert (key_schema["minLength"], key_schema["maxLength"]) == (1, 255)
    for field, key, most in (("tools", "maxItems", 10_000), ("external_id", "maxLength", 512)):
        assert next(form[key] for form in conversation[field]["anyOf"] if key in form) == most
