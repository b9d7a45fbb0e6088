"""Hot routes answer byte for byte as the framework does: a second API on the same database has no hot routes."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from api.http import hot_routes
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.service.running_api import RunningApi, Service

TURN = json.dumps({"messages": [{"role": "user", "content": "Hello."}]})
VARIES = re.compile(rb'req_[0-9a-f]{32}|(?<=\r\netag: ")\d+|(?<=\r\n)(date|allow): [^\r]*\r\n')
PAYLOAD = json.dumps({"user_message": "And now?"})
Headers = dict[str, str]


@pytest.fixture(scope="module")
def framework(service: Service) -> Iterator[RunningApi]:
    """An API whose every request goes through the framework."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hot_routes, "_HOT", ())
        with running_api(service.settings) as api:
            yield api


def raw(api: RunningApi, method: str, path: str, headers: Headers, body: bytes, *, close: bool = True) -> bytes:
    """Send a request on a connection of its own; return the answer without what differs in each."""
    url = urlsplit(api.url)
    assert url.hostname is not None
    assert url.port is not None
    given = {"host": "test", **({"connection": "close"} if close else {}), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        answer = bytearray()
        # A server that closes while it is still being sent to resets the connection, behind its answer.
        with suppress(ConnectionResetError):
            while part := connection.recv(65_536):
                answer += part
    return VARIES.sub(b"", bytes(answer))


def both(
    service: Service,
    framework: RunningApi,
    method: str,
    end: str,
    headers: Headers | None = None,
    body: bytes = b"",
    query: str = "",
) -> bytes:
    """Ask two conversations that are alike, one on each way; return the answer once it is known to be the same."""
    given = {"authorization": service.client.headers["authorization"], **(headers or {})}
    given = {name: value for name, value in given.items() if value}
    if body and "transfer-encoding" not in given:
        given.setdefault("content-length", str(len(body)))
    paths = [service.conversation() for _ in range(2)]
    for path in paths:
        service.append(path, {"role": "user", "content": "Earlier."})
    hot = raw(service.api, method, f"{paths[0]}/{end}{query}", given, body)
    assert raw(framework, method, f"{paths[1]}/{end}{query}", given, body) == hot
    return hot


CONTEXTS: list[tuple[Headers, str, int]] = [
    ({}, "", 200),
    ({"if-none-match": '"x"'}, "", 200),
    ({"authorization": ""}, "", 401),
    ({"authorization": "Bearer nobody"}, "", 401),
    ({"authorization": "Basic abc"}, "", 401),
    ({"content-length": "99999999999"}, "", 200),
    ({}, "?", 200),
    ({}, "?verbose=1", 422),
    ({}, "?request=1", 422),
    ({}, "?conversation_id=1", 200),
]
TURNS: list[tuple[Headers, bytes, int]] = [
    ({}, TURN.encode(), 201),
    ({"idempotency-key": '"k"'}, TURN.encode(), 201),
    ({"idempotency-key": ""}, TURN.encode(), 201),
    ({"idempotency-key": "k" * 300}, TURN.encode(), 400),
    ({"content-type": "text/plain"}, TURN.encode(), 201),
    ({"transfer-encoding": "chunked"}, b"%x\r\n%b\r\n0\r\n\r\n" % (len(TURN), TURN.encode()), 201),
    ({"expect": "100-continue"}, TURN.encode(), 100),
    ({"authorization": ""}, TURN.encode(), 401),
    ({"content-length": "99999999999"}, b"", 413),
    ({}, b"", 400),
    ({}, b"{", 400),
    ({}, b"\xff", 400),
    ({}, b'{"messages": []}', 422),
    ({}, b'{"messages": [{"role": "user", "content": "NaN"}], "usage": {"input_tokens": NaN}}', 422),
    ({}, b'{"messages": [{"role": "user", "content": " "}]}', 422),
    ({}, b'{"messages": [{"role": "user", "content": "Hello."}], "expected_next_seq": 7}', 409),
    ({}, b'{"messages": [{"role": "user", "content": "Hello."}], "replace_from": 7}', 422),
]


PAYLOADS: list[tuple[Headers, str, bytes, int]] = [
    ({}, "", PAYLOAD.encode(), 200),
    ({}, "", b"{}", 200),
    ({"content-type": "text/plain"}, "", PAYLOAD.encode(), 200),
    ({"transfer-encoding": "chunked"}, "", b"%x\r\n%b\r\n0\r\n\r\n" % (len(PAYLOAD), PAYLOAD.encode()), 200),
    ({"expect": "100-continue"}, "", PAYLOAD.encode(), 100),
    ({"authorization": ""}, "", PAYLOAD.encode(), 401),
    ({"content-length": "99999999999"}, "", b"", 413),
    ({}, "?verbose=1", PAYLOAD.encode(), 422),
    ({}, "?request=1", PAYLOAD.encode(), 422),
    ({}, "?conversation_id=1", PAYLOAD.encode(), 200),
    ({}, "", b"", 400),
    ({}, "", b"{", 400),
    ({}, "", b"\xff", 400),
    ({}, "", b'{"nothing": 1}', 422),
    ({}, "", b'{"user_message": " "}', 422),
    ({}, "", b'{"user_message": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]}', 422),
    ({}, "", b'{"max_output_tokens": -1}', 422),
    ({}, "", b'{"shape": "other"}', 422),
]


@pytest.mark.parametrize(("headers", "query", "status"), CONTEXTS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_contexts_are_answered_alike(
    service: Service, framework: RunningApi, method: str, headers: Headers, query: str, status: int
) -> None:
    answer = both(service, framework, method, "context", headers, query=query)
    assert int(answer[9:12]) == status
    assert answer.endswith(b"\r\n\r\n") == (method == "HEAD")


@pytest.mark.parametrize(("headers", "body", "status"), TURNS)
def test_turns_are_answered_alike(
    service: Service, framework: RunningApi, headers: Headers, body: bytes, status: int
) -> None:
    assert int(both(service, framework, "POST", "turns", headers, body)[9:12]) == status


@pytest.mark.parametrize(("headers", "query", "body", "status"), PAYLOADS)
def test_payloads_are_answered_alike(
    service: Service, framework: RunningApi, headers: Headers, query: str, body: bytes, status: int
) -> None:
    assert int(both(service, framework, "POST", "context", headers, body, query)[9:12]) == status


@pytest.mark.parametrize(("method", "end"), [("PUT", "turns"), ("OPTIONS", "turns"), ("OPTIONS", "context")])
def test_other_methods_are_the_frameworks(service: Service, framework: RunningApi, method: str, end: str) -> None:
    assert int(both(service, framework, method, end)[9:12]) in {204, 405}


def test_an_unchanged_context_is_not_sent_again(service: Service, framework: RunningApi) -> None:
    key = {"authorization": service.client.headers["authorization"]}
    path = service.conversation()
    etag = service.client.get(f"{path}/context").headers["etag"]
    for value in (etag, f"W/{etag}"):
        answers = [
            raw(api, "GET", f"{path}/context", {**key, "if-none-match": value}, b"") for api in (service.api, framework)
        ]
        assert answers[0] == answers[1]
        assert answers[0].startswith(b"HTTP/1.1 304 ")
        assert b"content-length" not in answers[0]


def test_a_replay_is_answered_alike(service: Service, framework: RunningApi) -> None:
    path = service.conversation()
    key = {"authorization": service.client.headers["authorization"], "idempotency-key": "once"}
    given = {**key, "content-length": str(len(TURN))}
    first = raw(service.api, "POST", f"{path}/turns", given, TURN.encode())
    again = [raw(api, "POST", f"{path}/turns", given, TURN.encode()) for api in (service.api, framework)]
    assert again[0] == again[1] != first
    assert b"idempotency-replayed: true" in again[0]


@pytest.mark.parametrize("identifier", ["conv_", "conv_zz", "run_" + "0" * 32, "conv_" + "0" * 32, "%00", "a%2Fb"])
def test_what_does_not_exist_is_answered_alike(service: Service, framework: RunningApi, identifier: str) -> None:
    key = {"authorization": service.client.headers["authorization"], "content-length": str(len(TURN))}
    sent = PAYLOAD.ljust(len(TURN))
    for method, end, body in (("GET", "context", TURN), ("POST", "context", sent), ("POST", "turns", TURN)):
        path = f"/v1/conversations/{identifier}/{end}"
        hot = raw(service.api, method, path, key, body.encode())
        assert hot == raw(framework, method, path, key, body.encode())
        assert int(hot[9:12]) == 404


def test_a_strangers_conversation_is_answered_alike(service: Service, framework: RunningApi) -> None:
    path = service.conversation()
    key = {"authorization": service.stranger.headers["authorization"]}
    for method, body in (("GET", b""), ("POST", b"{}")):
        given = {**key, "content-length": str(len(body))}
        hot = raw(service.api, method, f"{path}/context", given, body)
        assert hot == raw(framework, method, f"{path}/context", given, body)
        assert int(hot[9:12]) == 404


def test_both_ways_are_counted_as_one_route(service: Service, framework: RunningApi) -> None:
    path = f"{service.conversation()}/context"
    key = {"authorization": service.client.headers["authorization"]}
    counted = re.compile(rb'palimpsest_http_requests_total\{[^}]*route="([^"]*context)"')
    for api in (service.api, framework):
        raw(api, "GET", path, key, b"")
        assert set(counted.findall(raw(api, "GET", "/metrics", {}, b""))) == {
            b"/v1/conversations/{conversation_id}/context"
        }
