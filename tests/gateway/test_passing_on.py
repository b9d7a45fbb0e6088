"""What goes through the gateway goes through unchanged: headers, fields, answers, refusals."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS
from tests.gateway.conftest import PROVIDER_KEY
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import Fails, Says

if TYPE_CHECKING:
    from tests.gateway.conftest import Room

SHAPES = tuple(PATHS)


def asking(shape: str, text: str, **fields: Any) -> dict[str, Any]:
    rows = [{"role": "user", "content": text}]
    return {"model": "model-1", "max_tokens": 9, ("input" if shape == "responses" else "messages"): rows, **fields}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_answer_passes_byte_for_byte(room: Room, shape: str, is_stream: bool) -> None:
    room.providers.model = lambda _: Says("Grüße \U0001f600 and more text", (("call_1", "look", {"a": "ü"}),), "Hm.")
    with room.client.stream("POST", PATHS[shape], json=asking(shape, f"pass {shape}", stream=is_stream)) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.status_code == 200
    assert raw == room.providers.asked[-1].answered
    assert answer.headers["x-palimpsest-outcome"] == "unchanged"
    assert answer.headers["x-palimpsest-saved-tokens"] == "0"
    stored = room.eventually_stored(answer.headers["x-palimpsest-conversation"], 2 if shape != "responses" else 4)
    assert "call_1" in json.dumps(stored[-1]["content"])


@pytest.mark.parametrize("shape", SHAPES)
def test_request_goes_on_whole(room: Room, shape: str) -> None:
    body = json.dumps(asking(shape, "odd  fields", future_field={"a": [1.50, "ü"]}, stream=False)).encode()
    headers = {
        "content-type": "application/json",
        "anthropic-beta": "a-1,b-2",
        "openai-organization": "org",
        "x-custom": "kept",
        "connection": "x-hop",
        "x-hop": "dropped",
        "x-palimpsest-anything": "dropped",
    }
    room.client.post(f"{PATHS[shape]}?beta=true", content=body, headers=headers)
    asked = room.providers.asked[-1]
    assert asked.raw == body
    assert asked.query == "beta=true"
    assert asked.headers["anthropic-beta"] == "a-1,b-2"
    assert asked.headers["openai-organization"] == "org"
    assert asked.headers["x-custom"] == "kept"
    assert not [name for name in asked.headers if name.startswith("x-palimpsest") or name == "x-hop"]
    key = asked.headers.get("x-api-key") if shape == "messages" else asked.headers.get("authorization")
    assert key == (PROVIDER_KEY if shape == "messages" else f"Bearer {PROVIDER_KEY}")
    assert room.tenant.key not in str(asked.headers)


def test_own_key_passes_through(room: Room) -> None:
    headers = {"x-api-key": "sk-of-the-client", "authorization": "", "x-palimpsest-key": room.tenant.key}
    answer = room.client.post("/v1/messages", json=asking("messages", "own key"), headers=headers)
    assert answer.status_code == 200
    asked = room.providers.asked[-1]
    assert asked.headers["x-api-key"] == "sk-of-the-client"
    assert "x-palimpsest-key" not in asked.headers
    room.eventually_stored(answer.headers["x-palimpsest-conversation"], 2)
    for table in ("messages", "gateway_conversations", "gateway_prefixes", "conversations"):
        assert "sk-of-the-client" not in str(room.query(f"select * from {table}"))  # noqa: S608 - constants


@pytest.mark.parametrize("shape", ["messages", "chat"])
@pytest.mark.parametrize("where", ["authorization", "x-api-key", "api-key", "cookie"])
def test_a_palimpsest_key_sent_twice_never_goes_on(room: Room, where: str, shape: str) -> None:
    value = f"Bearer {room.tenant.key}" if where == "authorization" else room.tenant.key
    headers = {"authorization": "", "x-palimpsest-key": room.tenant.key, where: value}
    answer = room.client.post(PATHS[shape], json=asking(shape, f"twice {where} {shape}"), headers=headers)
    assert answer.status_code == 200
    asked = room.providers.asked[-1]
    assert room.tenant.key not in str(asked.headers)
    if where in {"authorization", "x-api-key"}:
        assert PROVIDER_KEY in str(asked.headers)


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "sk-ant-of-somebody"}, {"x-palimpsest-key": "key_1.2"}])
def test_nobody_gets_in(room: Room, headers: dict[str, str]) -> None:
    with room.gateway.client() as client:
        answer = client.post("/v1/messages", json=asking("messages", "hello"), headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        answer = client.post("/v1/chat/completions", json=asking("chat", "hello"), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert not room.providers.asked


def test_key_needs_its_scopes(room: Room) -> None:
    url = room.settings.database_url.get_secret_value()
    reader = make_tenant(url, "reader", ["context:read"])
    with room.gateway.client(reader.key) as client:
        answer = client.post("/v1/messages", json=asking("messages", "hello"))
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")


def test_other_doors(room: Room) -> None:
    assert room.client.get("/v1/models").json()["data"][0]["id"] == "model-1"
    assert "authorization" in room.providers.asked[-1].headers
    room.client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
    assert room.providers.asked[-1].headers["x-api-key"] == PROVIDER_KEY
    counted = room.client.post("/v1/messages/count_tokens", json=asking("messages", "count"))
    assert counted.json() == {"input_tokens": len(room.providers.asked[-1].raw) // 4}
    assert room.client.head("/").status_code == 200
    assert room.client.get("/healthz").json() == {"status": "ok"}
    assert room.client.get("/readyz").json()["parts"]["database"] == "ok"
    assert 'palimpsest_gateway_requests_total{door="models",outcome="unchanged"}' in room.client.get("/metrics").text
    missing = room.client.post("/v1/fine_tuning/jobs", json={})
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    assert missing.json()["error"]["message"] == "There is no POST /v1/fine_tuning/jobs here."


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions", "/openai/v1/chat/completions"])
def test_wrong_base_url_is_told(room: Room, path: str) -> None:
    missing = room.client.post(path, json=asking("chat", "hello"))
    assert missing.status_code == 404
    told = f"There is no POST {path} here. With the right base URL the client asks for /v1/chat/completions."
    assert missing.json()["error"]["message"] == told


@pytest.mark.parametrize("path", ["/v1/models/org/model-1.5:free", "/v1/models/..model"])
def test_single_models(room: Room, path: str) -> None:
    room.client.get(path)
    assert room.providers.asked[-1].path == path


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../files",
        "/v1/models/%2e%2e/files",
        "/v1/models/a/%2E%2e/../files",
        "/v1/models/a%3Flimit=1",
        "/v1/models/a%23b",
        "/v1/models/http:%2F%2F127.0.0.1",
        "/v1/models//127.0.0.1/x",
        "/v1/models/.",
        "/v1/modelsx",
    ],
)
def test_nothing_else_of_a_provider_is_to_be_had(room: Room, path: str) -> None:
    """Paths as they are sent: clients would resolve some of them."""
    place = urlsplit(room.gateway.url)
    connection = HTTPConnection(place.hostname or "", place.port)
    connection.request("GET", path, headers={"authorization": f"Bearer {room.tenant.key}"})
    assert connection.getresponse().status == 404
    connection.close()
    assert not room.providers.asked


def test_where_a_request_goes_is_the_settings_alone(room: Room) -> None:
    headers = {"host": "example.com", "x-forwarded-host": "example.com", "x-upstream": "http://example.com"}
    body = asking("chat", "go elsewhere", base_url="http://example.com", api_base="http://example.com")
    answer = room.client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    assert room.providers.asked[-1].headers["host"] == urlsplit(room.providers.url).netloc


@pytest.mark.parametrize("shape", SHAPES)
def test_refusal_passes_unchanged(room: Room, shape: str) -> None:
    body = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
    room.providers.model = lambda _: Fails(529, body)
    answer = room.client.post(PATHS[shape], json=asking(shape, "refused"))
    assert (answer.status_code, answer.json()) == (529, body)
    assert answer.headers["request-id"] == "req_of_the_provider"


@pytest.mark.parametrize("body", [b"{", b"", b"[1]", b'{"messages": 5}', b'{"messages": []}', b'"text"'])
def test_what_a_provider_would_refuse_it_refuses(room: Room, body: bytes) -> None:
    answer = room.client.post("/v1/chat/completions", content=body)
    if body == b"{":
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert not room.providers.asked
    else:
        assert room.providers.asked[-1].raw == body


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("half", [r"\ud83d", r"\ude00", r"\uDE00\uD83D"])
def test_lone_surrogates_go_on_and_are_stored_as_replacement_characters(room: Room, shape: str, half: str) -> None:
    body = json.dumps(asking(shape, "cut HALF, whole \U0001f600 and \\ud83d"))
    answer = room.client.post(PATHS[shape], content=body.replace("HALF", half).encode())
    count = half.count("u")
    assert (answer.status_code, answer.headers["x-palimpsest-repaired"]) == (200, str(count))
    assert json.loads(room.providers.asked[-1].raw) == json.loads(body.replace("HALF", "\ufffd" * count))
    stored = room.eventually_stored(answer.headers["x-palimpsest-conversation"], 2)
    assert "\ufffd" * count in json.dumps(stored[0]["content"], ensure_ascii=False)


@pytest.mark.parametrize(
    "row",
    [
        '{"role":"user","content":"a","content":"said twice"}',
        '{"role":"assistant","content":"a","tool_calls":[{"id":"c","id":"c","function":{"name":"f","arguments":"{}"}}]}',
        '{"role":"user","content":[{"type":"image_url"}]}',
        '{"role":"user","content":[{"type":"text","text":7},{"type":"text","text":"x"}]}',
    ],
)
def test_row_that_cannot_be_stored_keeps_no_other_from_it(room: Room, row: str) -> None:
    others = ['{"role":"user","content":"before it"}', '{"role":"assistant","content":"Yes."}']
    rows = ",".join([*others, row, '{"role":"user","content":"after it"}'])
    answer = room.client.post("/v1/chat/completions", content=f'{{"model":"m","messages":[{rows}]}}'.encode())
    assert answer.status_code == 200
    stored = room.eventually_stored(answer.headers["x-palimpsest-conversation"], 5)
    assert [stored[place]["content"] for place in (0, 1, 3)] == ["before it", "Yes.", "after it"]


def test_history_that_only_others_can_read_is_counted(room: Room) -> None:
    # Python reads and writes this, and so do the servers that are written in it.
    body = b'{"model":"m","messages":[{"role":"user","content":"a","x":NaN}]}'
    with capture_logs() as logs:
        answer = room.client.post("/v1/chat/completions", content=body)
    assert (answer.status_code, answer.headers["x-palimpsest-outcome"]) == (200, "failed_open")
    assert room.providers.asked[-1].raw == body
    assert [entry["event"] for entry in logs].count("gateway.history_opaque") == 1
    assert 'palimpsest_gateway_failed_open_total{why="opaque"} 1.0' in room.client.get("/metrics").text


@pytest.mark.parametrize("body", [b'{"a\xff":1,"messages":[]}', b'{"messages":[{"role":"user","content":"\xff"}]}'])
def test_what_is_no_utf_8_is_no_json(room: Room, body: bytes) -> None:
    answer = room.client.post("/v1/messages", content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert not room.providers.asked


@pytest.mark.parametrize("said", ["true", "1"])
def test_bypass_does_nothing(room: Room, said: str) -> None:
    before = room.query("select count(*) as n from conversations")
    body = json.dumps(asking("messages", "bypassed")).encode()
    answer = room.client.post("/v1/messages", content=body, headers={"x-palimpsest-bypass": said})
    assert answer.headers["x-palimpsest-outcome"] == "bypassed"
    assert "x-palimpsest-conversation" not in answer.headers
    assert room.providers.asked[-1].raw == body
    assert room.query("select count(*) as n from conversations") == before


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"input": [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "and?"}]},
    ],
)
def test_increments_pass_untouched(room: Room, fields: dict[str, Any]) -> None:
    body = json.dumps({**asking("responses", "increment"), **fields}).encode()
    answer = room.client.post("/v1/responses", content=body)
    assert room.providers.asked[-1].raw == body
    assert answer.headers["x-palimpsest-outcome"] == "unchanged"
    assert "x-palimpsest-conversation" not in answer.headers


def test_client_that_goes_away_takes_its_call_with_it(room: Room) -> None:
    room.providers.model = lambda _: Says("one two three four five six")
    room.providers.hold_after = 6
    with room.client.stream("POST", "/v1/messages", json=asking("messages", "leave", stream=True)) as answer:
        name = answer.headers["x-palimpsest-conversation"]
        seen = b""
        for piece in answer.iter_raw():
            seen += piece
            if seen.count(b"\n\n") == room.providers.hold_after:
                break
    asked = room.providers.asked[-1]
    eventually(asked.ended.is_set)
    assert (asked.is_cut, asked.answered) == (True, seen)
    stored = room.eventually_stored(name, 2)
    texts = [json.loads(line[6:])["delta"]["text"] for line in seen.decode().splitlines() if "text_delta" in line]
    assert texts
    assert stored[1]["content"][0]["text"] == "".join(texts)
    noted = room.query("select aborted from gateway_prefixes where outcome is not null and seq = 0")
    assert {"aborted": True} in noted


def test_client_that_goes_away_while_a_beginning_is_looked_at_takes_its_call_with_it(room: Room) -> None:
    # A long one, which may be refused within its stream: nothing of it is passed on before that is known.
    room.providers.model = lambda _: Says("one two three")
    room.providers.held.clear()
    room.providers.hold_after = 1
    body = json.dumps(asking("responses", "leave " * 8_000, stream=True)).encode()
    url = urlsplit(room.gateway.url)
    connection = HTTPConnection(url.hostname or "", url.port or 0)
    headers = {"authorization": f"Bearer {room.tenant.key}", "content-type": "application/json"}
    connection.request("POST", "/v1/responses", body, headers)
    room.providers.held.wait()
    connection.close()
    asked = room.providers.asked[-1]
    eventually(asked.ended.is_set)
    assert asked.is_cut


def test_stream_that_breaks_breaks_and_is_no_fault_of_ours(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.providers.model = lambda _: Says("one two three four five six")
    room.providers.cut_after = 6
    with pytest.raises(Exception, match=r"peer closed|incomplete|disconnected|reset"):
        room.client.post("/v1/messages", json=asking("messages", "breaks", stream=True))
    assert [record.getMessage() for record in caplog.records if record.name == "uvicorn.error"] == []


def test_provider_that_is_away(room: Room) -> None:
    from tests.gateway.conftest import room_on  # noqa: PLC0415 - for this test alone

    with room_on(room.settings, room.tenant) as other:
        other.providers._server.shutdown()
        other.providers._server.server_close()
        with capture_logs([merge_contextvars]) as logs:
            answer = other.client.post("/v1/messages", json=asking("messages", "nobody there"))
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "api_error")
        # The answer, the log and the metrics tell an operator the same.
        (line,) = [line for line in logs if line["event"] == "gateway.refused"]
        assert (line["status"], line["door"]) == (502, "messages")
        assert line["request_id"] == answer.headers["x-palimpsest-request"]
        assert line["why"] in answer.json()["error"]["message"]
        (line,) = [line for line in logs if line["event"] == "request.answered"]
        assert (line["method"], line["route"], line["status"]) == ("POST", "messages", 502)
        assert line["request_id"] == answer.headers["x-palimpsest-request"]
        assert line["tenant_id"] == str(room.tenant.id)
        assert "nobody there" not in str(line)
        counted = other.client.get("/metrics").text
        assert 'palimpsest_gateway_refused_total{door="messages",status="502"} 1.0' in counted
        # A rate needs what was there before the first one.
        assert 'palimpsest_gateway_refused_total{door="chat",status="504"} 0.0' in counted
        assert 'palimpsest_gateway_requests_total{door="chat",outcome="failed_open"} 0.0' in counted


def test_large_body_is_refused(room: Room) -> None:
    from tests.gateway.conftest import room_on  # noqa: PLC0415 - for this test alone

    with room_on(room.settings, room.tenant, gateway_max_body_bytes=10_000) as other:
        answer = other.client.post("/v1/messages", json=asking("messages", "x" * 10_001))
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")
        assert other.client.post("/v1/messages", json=asking("messages", "x" * 100)).status_code == 200
