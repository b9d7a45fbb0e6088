"""POST …/turns over real sockets."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.eventually import eventually
from tests.support.service.problem_documents import REQUEST_ID, problem
from tests.support.service.running_api import conversation_at, running_api

if TYPE_CHECKING:
    import httpx2

    from tests.support.service.running_api import RunningApi, Service

HELLO = {"role": "user", "content": "Hello."}
ANSWER = {"role": "assistant", "content": [{"type": "text", "text": "Good day."}]}


def test_a_turn_is_answered_with_its_place(service: Service) -> None:
    path = service.conversation()
    done = service.client.post(f"{path}/turns", json={"messages": [HELLO, ANSWER]})
    assert done.status_code == 201
    assert done.headers["content-type"] == "application/json"
    assert REQUEST_ID.fullmatch(done.headers["request-id"])
    assert "idempotency-replayed" not in done.headers
    assert done.json() == {"first_seq": 0, "last_seq": 1, "context_tokens": 5, "check": "queued"}
    assert service.append(path, HELLO) == {"first_seq": 2, "last_seq": 2, "context_tokens": 7, "check": "coalesced"}
    stored = service.client.get(path).json()
    assert (stored["last_seq"], stored["context_tokens"], stored["context_messages"]) == (2, 7, 3)


def test_usage_as_the_messages_api_returns_it(service: Service) -> None:
    path = service.conversation()
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 3_000,
        "output_tokens": 7,
        "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 0},
        "server_tool_use": {"web_search_requests": 1},
        "service_tier": "standard",
    }
    done = service.append(path, HELLO, ANSWER, usage=usage, snapshot_version=0)
    assert done["context_tokens"] == 3_217
    tokens = service.client.get(f"{path}/context").json()["tokens"]
    assert (tokens["context"], tokens["measured"]) == (3_217, 3_210)
    assert service.append(path, HELLO, usage=None, snapshot_version=None)["context_tokens"] == 3_219


def test_the_same_key_and_body_answer_the_first_again(service: Service) -> None:
    path, body = service.conversation(), json.dumps({"messages": [HELLO]})
    first = service.client.post(f"{path}/turns", content=body, headers={"idempotency-key": "a b/c-1"})
    service.append(path, ANSWER)
    for key in ("a b/c-1", '"a b/c-1"'):
        again = service.client.post(f"{path}/turns", content=body, headers={"idempotency-key": key})
        assert again.status_code == 201
        assert again.headers["idempotency-replayed"] == "true"
        assert {**again.json(), "check": "queued"} == first.json()
        assert again.headers["request-id"] != first.headers["request-id"]
    other = service.client.post(f"{path}/turns", json={"messages": [ANSWER]}, headers={"idempotency-key": "a b/c-1"})
    problem(other, 422, "idempotency_key_reused")
    assert service.client.get(path).json()["last_seq"] == 1


def test_duplicates_at_once_are_one_turn(service: Service) -> None:
    path, body = service.conversation(), json.dumps({"messages": [HELLO, ANSWER]})

    def send(_: int) -> Any:
        return service.client.post(f"{path}/turns", content=body, headers={"idempotency-key": "once"})

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(send, range(32)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({(answer.json()["first_seq"], answer.json()["last_seq"]) for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert service.client.get(path).json()["last_seq"] == 1


def test_requests_with_one_key_that_wait_for_each_other_store_once(service: Service) -> None:
    """At two processes: one process has a statement at a time for a conversation."""
    path = service.conversation()
    body = {"messages": [HELLO], "expected_next_seq": 0}

    def send(api: RunningApi) -> httpx2.Response:
        return service.client.post(f"{api.url}{path}/turns", json=body, headers={"idempotency-key": "once"})

    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with (
        running_api(service.settings) as second,
        psycopg.connect(service.database_url, autocommit=True) as watch,
        psycopg.connect(service.database_url) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        other.execute("select from conversations where id = %s for update", [conversation_at(path)])
        sent = pool.map(send, (service.api, second))
        # Both have looked for the key by now, and neither has found it.
        eventually(lambda: watch.execute(waiting).fetchone() == (2,))
        other.rollback()
        answers = list(sent)
    assert [answer.status_code for answer in answers] == [201, 201]
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 1


@pytest.mark.parametrize("key", ["", '""', "k" * 256])
def test_a_key_that_is_none(service: Service, key: str) -> None:
    done = service.client.post(
        f"{service.conversation()}/turns", json={"messages": [HELLO]}, headers={"idempotency-key": key}
    )
    assert problem(done, 400, "bad_idempotency_key")


def test_an_expected_seq_that_is_wrong_is_told_the_right_one(service: Service) -> None:
    path = service.conversation()
    service.append(path, HELLO, ANSWER, expected_next_seq=0)
    refused = service.client.post(f"{path}/turns", json={"messages": [HELLO], "expected_next_seq": 1})
    assert problem(refused, 409, "unexpected_seq", "/expected_next_seq")["next_seq"] == 2
    service.append(path, HELLO, expected_next_seq=2)


BAD_TURNS: list[tuple[Any, str]] = [
    ([], ""),
    ("text", ""),
    ({}, "/messages"),
    ({"messages": []}, "/messages"),
    ({"messages": {}}, "/messages"),
    ({"messages": [HELLO, "x"]}, "/messages/1"),
    ({"messages": [HELLO] * 1_001}, "/messages"),
    ({"messages": [HELLO, {"role": "robot", "content": "x"}]}, "/messages/1/role"),
    ({"messages": [HELLO, {"role": "user"}]}, "/messages/1/content"),
    ({"messages": [{**HELLO, "sender": "x"}]}, "/messages/0/sender"),
    ({"messages": [{**HELLO, "a/b~c": "x"}]}, "/messages/0/a~1b~0c"),
    ({"messages": [HELLO], "mesages": []}, "/mesages"),
    ({"messages": [HELLO], "replace_from": -1}, "/replace_from"),
    ({"messages": [{"role": "user", "content": None}]}, "/messages/0/content"),
    ({"messages": [{"role": "user", "content": 7}]}, "/messages/0/content"),
    ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "/messages/0/content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "/messages/0/content/0"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "/messages/0/content/0/type"),
    ({"messages": [{"role": "user", "content": [{"type": 7}]}]}, "/messages/0/content/0/type"),
    ({"messages": [HELLO, {"role": "user", "content": [{"type": "text"}]}]}, "/messages/1/content/0/text"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "/messages/0/content/0/tool_use_id"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": []}]}]},
        "/messages/0/content/0/input",
    ),
    ({"messages": [{"role": "user", "content": "a\x00b"}]}, "/messages/0/content"),
    ({"messages": [{"role": "user", "content": [{"type": "x", "a/b": [1, "\x00"]}]}]}, "/messages/0/content/0/a~1b/1"),
    ({"messages": [{"role": "user", "content": [{"type": "x", "\x00": 1}]}]}, "/messages/0/content/0"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}] * 1_000}] * 30}, "/messages"),
    ({"messages": [HELLO], "usage": {"input_tokens": -1}}, "/usage/input_tokens"),
    ({"messages": [HELLO], "usage": {"output_tokens": 2**31 - 1}}, "/usage/output_tokens"),
    ({"messages": [HELLO], "usage": 5}, "/usage"),
    ({"messages": [HELLO], "snapshot_version": -1}, "/snapshot_version"),
    ({"messages": [HELLO], "expected_next_seq": 2**31}, "/expected_next_seq"),
    ({"messages": [HELLO], "expected_next_seq": "0"}, "/expected_next_seq"),
]


@pytest.mark.parametrize(("body", "pointer"), BAD_TURNS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_that_cannot_be_taken_is_pointed_at(service: Service, body: Any, pointer: str) -> None:
    path = service.conversation()
    problem(service.client.post(f"{path}/turns", json=body), 422, "invalid", pointer)
    assert service.client.get(path).json()["last_seq"] == -1


def nested(levels: int) -> bytes:
    return b'{"messages":[{"role":"user","content":[{"type":"x","a":' + b"[" * levels + b"]" * levels + b"}]}]}"


BAD_BYTES: list[tuple[bytes, int, str, str | None]] = [
    (b"", 400, "malformed_json", None),
    (b"{", 400, "malformed_json", None),
    (b'{"messages":[{"role":"user","content":"a"}]} x', 400, "malformed_json", None),
    (b"\xef\xbb\xbf{}", 400, "malformed_json", None),
    (b'{"messages":[{"role":"user","content":NaN}]}', 422, "invalid", "/messages/0/content"),
    (
        b'{"messages":[{"role":"user","content":[{"type":"x","n":Infinity}]}]}',
        422,
        "invalid",
        "/messages/0/content/0/n",
    ),
    (b'{"messages":[{"role":"user","content":"a\x00b"}]}', 400, "malformed_json", None),
    (b'{"messages":[{"role":"us\xffer","content":"a"}]}', 422, "invalid", "/messages/0/role"),
    (b'{"messages":[{"role":"user","content":"a\xff"}]}', 422, "invalid", "/messages/0/content"),
    (b'{"messages":[{"role":"user","content":[{"type":"x","n":1e999}]}]}', 422, "invalid", "/messages/0/content/0/n"),
    (nested(250), 422, "invalid", "/messages/0/content/0/a" + "/0" * 195),
    (nested(100_000), 400, "malformed_json", None),
]


@pytest.mark.parametrize(("body", "status", "code", "pointer"), BAD_BYTES)
def test_bytes_that_are_no_turn(service: Service, body: bytes, status: int, code: str, pointer: str | None) -> None:
    path = service.conversation()
    problem(service.client.post(f"{path}/turns", content=body), status, code, pointer)
    assert service.client.get(path).json()["last_seq"] == -1


def test_levels_within_the_limit_and_text_that_only_looks_like_nul(service: Service) -> None:
    path = service.conversation()
    assert service.client.post(f"{path}/turns", content=nested(150)).status_code == 201
    service.append(path, {"role": "user", "content": "the escape \\u0000 in the text of a program"})
    assert service.client.get(f"{path}/context").json()["messages"][1]["content"].count("\\u0000") == 1


def test_any_bytes_get_an_answer_that_is_no_fault(service: Service) -> None:
    """A valid body with a piece cut out, doubled or swapped."""
    path = service.conversation()
    body = json.dumps(
        {"messages": [HELLO, {"role": "assistant", "content": [{"type": "tool_use", "id": "ü", "name": "n",
                                                                 "input": {"a": [1.5, None, True, "\u2028"]}}]}],
         "usage": {"input_tokens": 5}, "expected_next_seq": 10**6},
        ensure_ascii=False,
    ).encode()  # fmt: skip
    for place in range(0, len(body), 3):
        for changed in (
            body[:place] + body[place + 3 :],
            body[:place] + body[place : place + 3] * 2 + body[place + 3 :],
            body[:place] + bytes(byte ^ 0x55 for byte in body[place : place + 2]) + body[place + 2 :],
        ):
            assert 400 <= service.client.post(f"{path}/turns", content=changed).status_code < 500, changed
    assert service.client.get(path).json()["last_seq"] == -1


def test_either_header_carries_the_key(service: Service) -> None:
    path = service.conversation()
    key = service.client.headers["authorization"].removeprefix("Bearer ")
    with service.api.client() as client:
        for headers in ({"x-api-key": key}, {"authorization": f"bearer {key}"}, {"authorization": f"Bearer  {key}"}):
            assert client.post(f"{path}/turns", json={"messages": [HELLO]}, headers=headers).status_code == 201


def test_json_is_taken_under_any_content_type(service: Service) -> None:
    path = service.conversation()
    for kind in ("application/json", "application/json; charset=utf-8", "text/plain", "application/octet-stream"):
        done = service.client.post(
            f"{path}/turns", content=json.dumps({"messages": [HELLO]}), headers={"content-type": kind}
        )
        assert done.status_code == 201
