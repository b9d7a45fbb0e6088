"""What nobody who means well sends: compressed, endless, broken off, twice the same key, deeper than anything."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

from gateway.bodies import plain
from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import PROVIDER_KEY, room_on
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import Fails, Says

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.gateway.conftest import Room

MOST: Final = 200_000
SECONDS: Final = 20
ODD: Final = (
    '"\\ud83d"',
    '{"user_id":"\\ud83d"}',
    '[{"name":"recall\\ud83d"}]',
    '[{"name":"recall","strict":1e999}]',
    '[{"name":"recall","function":5}]',
    "1e999",
    "{}",
    "5",
    '[{"name":{"recall":"recall"}},{"name":"recall"}]',
)
ODD_ROWS: Final = (
    {"role": "user", "content": [{"type": {"a": 1}, "text": "x"}]},
    {"role": "user", "content": [{"type": ["text"], "text": "x"}]},
    {"role": {"user": 1}, "content": "x"},
    {"role": ["system"], "content": "x"},
    {"type": "message", "role": {"user": 1}, "content": "x"},
    {"type": {"message": 1}, "role": "user", "content": "x"},
)
DEEP: Final = {
    **dict.fromkeys(("metadata", "user", "model", "safety_identifier", "litellm_session_id"), "%s"),
    "tools": '[{"name":"recall"},%s]',
}
OF_REQUESTS: Final = ("user", "model", "metadata", "safety_identifier", "tools", "n", "litellm_session_id")


@pytest.fixture(scope="module")
def recalling(module_settings: Settings) -> Iterator[Room]:
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "hostile")
    with room_on(module_settings, tenant, policy={"gateway_recall": True}) as room:
        yield room


def body_of(text: str, **fields: Any) -> bytes:
    return json.dumps(
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}], **fields}
    ).encode()


def connected(room: Room) -> socket.socket:
    url = urlsplit(room.gateway.url)
    return socket.create_connection((url.hostname or "", url.port or 0), timeout=SECONDS)


def head(room: Room, *lines: str, path: str = "/v1/messages") -> bytes:
    every = [f"POST {path} HTTP/1.1", "host: gateway", f"x-api-key: {room.tenant.key}", *lines]
    return "\r\n".join([*every, "", ""]).encode()


def answer_of(connection: socket.socket) -> bytes:
    """Return all that comes until the connection ends, or nothing more does."""
    answer = b""
    while piece := connection.recv(65_536):
        answer += piece
    return answer


@pytest.mark.parametrize(("encoding", "code"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_request_is_read_and_goes_on_without_its_encoding(room: Room, encoding: str, code: Any) -> None:
    body = body_of(f"compressed by {encoding}")
    answer = room.client.post("/v1/messages", content=code(body), headers={"content-encoding": encoding})
    asked = room.providers.asked[-1]
    assert (answer.status_code, asked.raw) == (200, body)
    assert "content-encoding" not in asked.headers
    assert asked.headers["content-length"] == str(len(body))
    room.eventually_stored(answer.headers["x-palimpsest-conversation"], 2)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("br", b"\x8b\x03\x80{}\x03"),
        ("zstd", b"\x28\xb5\x2f\xfd\x00"),
        ("gzip", b"no gzip"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-3]),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"and more"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0)),
    ],
)
def test_what_cannot_be_read_of_an_encoding_goes_on_as_it_came(room: Room, encoding: str, body: bytes) -> None:
    sent = len(room.providers.asked)
    # The provider on loopback reads JSON alone.
    assert room.client.post("/v1/messages", content=body, headers={"content-encoding": encoding}).status_code == 400
    assert [each.raw for each in room.providers.asked[sent:]] == [body]
    assert room.providers.asked[-1].headers["content-encoding"] == encoding


def test_encodings_that_are_read() -> None:
    assert plain(gzip.compress(b"x" * 100), b"GZIP ", 100) == b"x" * 100
    assert plain(b"x", b"identity", 100) is None


def test_bypassed_request_keeps_its_encoding(room: Room) -> None:
    sent = len(room.providers.asked)
    body = gzip.compress(body_of("bypassed"))
    headers = {"content-encoding": "gzip", "x-palimpsest-bypass": "true"}
    # The provider on loopback reads JSON alone.
    assert room.client.post("/v1/messages", content=body, headers=headers).status_code == 400
    assert [each.raw for each in room.providers.asked[sent:]] == [body]
    assert room.providers.asked[-1].headers["content-encoding"] == "gzip"


def test_compressed_request_that_is_too_large_is_refused_before_it_is_whole(room: Room) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < MOST
    assert len(plain(bomb, b"gzip", MOST) or b"") == MOST + 1
    with room_on(room.settings, room.tenant, gateway_max_body_bytes=MOST) as other:
        answer = other.client.post("/v1/messages", content=bomb, headers={"content-encoding": "gzip"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
        assert other.providers.asked == []


def test_requests_that_are_broken_off_or_too_large_take_no_memory_for_good(room: Room) -> None:
    with room_on(room.settings, room.tenant, gateway_max_body_bytes=MOST, gateway_max_bytes_under_way=MOST) as other:
        for _ in range(40):
            with connected(other) as connection:
                connection.sendall(head(other, "content-length: 190000") + b"x" * 180_000)
            with connected(other) as connection:
                connection.sendall(head(other, "transfer-encoding: chunked") + b"30d41\r\n" + b"x" * 200_001)
                assert b" 413 " in connection.recv(4_096).splitlines()[0]
        # As much as may be under way at a time fits still.
        large = body_of("x" * 190_000)

        def is_taken() -> bool:
            return other.client.post("/v1/messages", content=large).status_code == 200

        eventually(is_taken, SECONDS)


def test_body_that_does_not_come_is_not_waited_for(room: Room) -> None:
    with room_on(room.settings, room.tenant, gateway_reader_seconds=0.3) as other, connected(other) as connection:
        connection.sendall(head(other, "content-length: 100", "connection: close") + b'{"model":')
        answer = answer_of(connection)
    assert b" 408 " in answer.splitlines()[0]
    assert b"timeout_error" in answer


def test_client_is_told_to_go_on_with_its_body_once_its_key_is_known(room: Room) -> None:
    body = body_of("expected")
    lines = (f"content-length: {len(body)}", "expect: 100-continue", "connection: close")
    with connected(room) as connection:
        connection.sendall(head(room, *lines))
        assert connection.recv(4_096).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert b" 200 " in answer_of(connection).splitlines()[0]
    assert "expect" not in room.providers.asked[-1].headers
    with connected(room) as connection:
        connection.sendall(head(room, *lines).replace(room.tenant.key.encode(), b"plk_wrong"))
        assert b" 401 " in connection.recv(4_096).splitlines()[0]


@pytest.mark.parametrize(
    "lines",
    [
        ("content-length: 3", "content-length: 5"),
        ("content-length: 5", "transfer-encoding: chunked"),
        ("transfer-encoding: xchunked",),
        ("transfer-encoding : chunked",),
        ("content-length: +5",),
        ("content-length: 0x5",),
    ],
)
def test_head_that_two_readers_would_read_differently_is_refused(room: Room, lines: tuple[str, ...]) -> None:
    sent = len(room.providers.asked)
    smuggled = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    with connected(room) as connection:
        connection.sendall(head(room, *lines, "connection: close") + b"0\r\n\r\n" + smuggled)
        connection.shutdown(socket.SHUT_WR)
        answer = answer_of(connection)
    assert b" 200 " not in answer
    assert len(room.providers.asked) == sent


def test_trailers_are_no_headers(room: Room) -> None:
    body = body_of("trailers")
    last = f"0\r\nx-api-key: {'k' * 40}\r\nx-palimpsest-bypass: true\r\n\r\n".encode()
    with connected(room) as connection:
        connection.sendall(
            head(room, "transfer-encoding: chunked", "connection: close") + b"%x\r\n%b\r\n" % (len(body), body) + last
        )
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"x-palimpsest-outcome: unchanged\r\n" in answer
    assert "x-palimpsest-bypass" not in room.providers.asked[-1].headers
    assert room.providers.asked[-1].headers["x-api-key"] == PROVIDER_KEY


def test_headers_cannot_name_another_place_or_another_key(room: Room) -> None:
    headers = {
        "host": "elsewhere.example",
        "x-forwarded-host": "elsewhere.example",
        "connection": "x-api-key, content-length, authorization",
        "x-palimpsest-upstream": "http://elsewhere.example",
        "proxy-authorization": "Basic x",
    }
    answer = room.client.post("/v1/messages", content=body_of("elsewhere"), headers=headers)
    asked = room.providers.asked[-1]
    assert answer.status_code == 200
    assert asked.headers["host"] == urlsplit(room.providers.url).netloc
    assert asked.headers["x-api-key"] == PROVIDER_KEY
    assert not {"x-palimpsest-upstream", "proxy-authorization"} & set(asked.headers)
    assert room.tenant.key not in json.dumps(asked.headers)


@pytest.mark.parametrize("shape", tuple(PATHS))
@pytest.mark.parametrize("where", ["metadata", "row", "tools", "system", "model", "user"])
@pytest.mark.parametrize("depth", [100, 480, 900, 990, 3_000, 100_000])
def test_depth_is_the_providers_to_refuse(room: Room, shape: str, where: str, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    name = "input" if shape == "responses" else "messages"
    content = nested if where == "row" else '"deep"'
    other = "" if where == "row" else f',"{where}":{nested}'
    row = f'{{"role":"user","content":{content},"cache_control":{{"type":"ephemeral"}}}}'
    raw = f'{{"model":"m","{name}":[{row}]{other}}}'.encode()
    answer = room.client.post(PATHS[shape], content=raw)
    # The provider on loopback reads as Python does, and hangs up where it cannot.
    assert answer.status_code in {200, 502}, answer.text
    if answer.status_code == 200:
        assert room.providers.asked[-1].raw == raw


@pytest.mark.parametrize("field", DEEP)
def test_depth_that_is_too_much_here_alone_is_no_reason_to_refuse(recalling: Room, field: str) -> None:
    # How deep a value can be read depends on how deep in calls that is done; a large body is read in a thread.
    rows = json.dumps([{"role": "user", "content": "deep " * 60_000}])
    own = "" if field == "tools" else '"tools":[{"name":"recall"}],'
    for depth in range(970, 992, 2):
        value = DEEP[field] % ("[" * depth + "]" * depth)
        body = f'{{{own}"messages":{rows},"{field}":{value}}}'.encode()
        answer = recalling.client.post("/v1/chat/completions", content=body)
        # The provider on loopback hangs up where it cannot read either.
        assert answer.status_code in {200, 502}, (depth, answer.text)
        if answer.status_code == 200:
            assert recalling.providers.asked[-1].raw == body


@pytest.mark.parametrize("number", ["1e999", "-" + "5" * 5_000])
@pytest.mark.parametrize(
    ("shape", "row"),
    [
        ("messages", '{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"w","input":{"n":%s}}]}'),
        ("messages", '{"role":"assistant","content":[{"type":"thinking","signature":"palimpsest_recall","n":%s}]}'),
        ("chat", '{"role":"system","content":"Be brief.","n":%s}'),
        ("responses", '{"type":"reasoning","id":"rs_palimpsest_recall_1","summary":[],"n":%s}'),
    ],
)
def test_numbers_that_cannot_be_read_here_are_the_providers_to_refuse(
    room: Room, shape: str, row: str, number: str
) -> None:
    name = "input" if shape == "responses" else "messages"
    body = f'{{"model":"m","{name}":[{row % number},{{"role":"user","content":"So."}}]}}'.encode()
    sent = len(room.providers.asked)
    # The provider on loopback reads as Python does, which takes no such digits.
    assert room.client.post(PATHS[shape], content=body).status_code == (200 if number == "1e999" else 400)
    assert [each.raw for each in room.providers.asked[sent:]] == [body]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"one"}],"messages":[{"role":"user","content":"two"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"one","content":"two"}],"model":"n"}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x","n":-Infinity}]}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"top_p":1e999}',
        b'{"model":"m","messages":[{"role":"user","content":"\\u0000"}]}',
        b'{"model":"m","messages":[null,7,[],"x",{"role":"user"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":{"user_id":"{\\"session_id\\":[[]]}"}}',
        b'{"model":"m","messages":[{"role":["user"],"content":{"a":1}}],"user":{"a":"b"}}',
        b'{"model":"m","messages":{"role":"user"}}',
        b'{"model":"m","messages":[]}',
        b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user","content":"x"}]}',
    ],
)
def test_odd_json_goes_on_as_it_came(room: Room, body: bytes) -> None:
    sent = len(room.providers.asked)
    answer = room.client.post("/v1/messages", content=body)
    assert answer.status_code in {200, 400}, answer.text
    if answer.status_code == 200:
        assert [each.raw for each in room.providers.asked[sent:]] == [body]
    # Whatever it was, the next request is answered, and stored.
    chat = Chatter(room, "messages")
    chat.ask("after something odd")
    room.eventually_stored(chat.name, 2)


@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("row", ODD_ROWS)
def test_odd_rows_are_the_providers_to_refuse(room: Room, shape: str, row: dict[str, Any]) -> None:
    rows = [{"role": "user", "content": f"odd {shape} {row}"}, {"role": "assistant", "content": "Yes."}, row]
    body = json.dumps({"model": "m", "input" if shape == "responses" else "messages": rows}).encode()
    for _ in range(2):  # the second time there may be something that it goes on from
        assert room.client.post(PATHS[shape], content=body).status_code == 200
        assert room.providers.asked[-1].raw == body


def test_prefix_of_another_tenant_is_nobodys_whatever_is_named(room: Room) -> None:
    session = {"x-session-id": "shared", "x-litellm-session-id": "shared"}
    chat = Chatter(room, "messages", **session)
    chat.ask("ours alone")
    chat.ask("and on")
    room.eventually_stored(chat.name, 4)
    stranger = make_tenant(room.settings.database_url.get_secret_value(), "prefix stranger")
    with room.gateway.client(stranger.key) as client:
        theirs = room._replace(client=client, tenant=stranger)
        for named in ({}, {"x-palimpsest-conversation": chat.name}):
            copy = Chatter(theirs, "messages", **session, **named)
            copy.rows = list(chat.rows)
            copy.ask("what else was said?")
            assert copy.name != chat.name
            theirs.eventually_stored(copy.name, 6)
            copy.ask("and now?")
            assert copy.name != chat.name
    assert len(room.stored(chat.name)) == 4


@pytest.mark.parametrize("field", OF_REQUESTS)
@pytest.mark.parametrize("value", ODD)
def test_odd_fields_beside_the_history_are_the_providers_to_refuse(recalling: Room, field: str, value: str) -> None:
    rows = json.dumps([{"role": "user", "content": f"odd {field} {value}"}])
    body = f'{{"{field}":{value},"messages":{rows}}}'.encode()
    answer = recalling.client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 200
    asked = recalling.providers.asked[-1].raw
    assert f'"{field}":{value}'.encode().rstrip(b"]") in asked


@pytest.mark.parametrize("tools", ["[ ]", "[\n]", "[]", "null", " [ ] "])
@pytest.mark.parametrize("shape", PATHS)
def test_lists_of_no_tools_take_one(recalling: Room, shape: str, tools: str) -> None:
    name = "input" if shape == "responses" else "messages"
    body = f'{{"model":"m","max_tokens":9,"tools":{tools},"{name}":[{{"role":"user","content":"no tools {tools!r}"}}]}}'
    answer = recalling.client.post(PATHS[shape], content=body.encode())
    assert answer.status_code == 200
    assert len(recalling.providers.asked[-1].body["tools"]) == 1


def test_long_list_of_tools_passes(recalling: Room) -> None:
    tools = [{"name": f"tool_{n}", "description": "x" * 400, "input_schema": {"type": "object"}} for n in range(5_000)]
    chat = Chatter(recalling, "messages")
    chat.fields = {"tools": tools}
    chat.ask("many tools")
    assert recalling.providers.asked[-1].body["tools"][:-1] == tools


@pytest.mark.parametrize("path", ["/v1/messages/", "//v1/messages", "/v1//messages", "/v1/v1/messages", "/messages"])
def test_other_paths_say_that_they_are_none(room: Room, path: str) -> None:
    connection = connected(room)
    body = body_of("elsewhere")
    connection.sendall(head(room, f"content-length: {len(body)}", "connection: close", path=path) + body)
    answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert f"There is no POST {path} here.".encode() in answer
    assert not room.providers.asked


@pytest.mark.parametrize("shape", PATHS)
@pytest.mark.parametrize("where", ["asked", "answered"])
def test_nul_characters_keep_no_conversation_from_being_stored(room: Room, shape: str, where: str) -> None:
    # Tools return them, of lists that end with one and of binary files, and clients send them again and again.
    text = "a\x00b"
    room.providers.model = lambda asked: Says(f"{text} {len(asked.rows)}" if where == "answered" else "Yes.")
    chat = Chatter(room, shape)
    for number in range(3):
        chat.ask(f"nul {shape} {where} {number} {text}")
        assert (
            text
            in json.loads(room.providers.asked[-1].raw)["input" if shape == "responses" else "messages"][0]["content"]
        )
        stored = room.eventually_stored(chat.name, 2 * number + 2)
        assert [each["seq"] for each in stored] == list(range(2 * number + 2))
    assert "a\ufffdb" in json.dumps(stored[0], ensure_ascii=False)


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": 12.5}, {"prompt_tokens": -1}, {"prompt_tokens": 9, "prompt_tokens_details": []}, [1], "9"],
)
def test_counts_that_cannot_be_read_cost_no_turn(room: Room, usage: Any) -> None:
    answered = {
        "id": "1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}}],
        "usage": usage,
    }
    room.providers.model = lambda _: Fails(200, answered)
    rows = [{"role": "user", "content": f"counted as {usage}"}]
    answer = room.client.post("/v1/chat/completions", json={"model": "m", "messages": rows})
    assert answer.json() == answered
    stored = room.eventually_stored(answer.headers["x-palimpsest-conversation"], 2)
    assert stored[1]["content"] == "Yes."
