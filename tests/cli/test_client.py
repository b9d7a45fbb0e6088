"""The client's own conduct: what it posts, what it repeats, and what an error looks like."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import msgspec
import pytest

from cli.client import client as client_module
from cli.client.client import ATTEMPTS, ServiceClient, ServiceError
from cli.client.types import Message
from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

APPENDED = {"first_seq": 0, "last_seq": 1, "context_tokens": 7, "check": "queued"}
BUSY = {"title": "Busy", "status": 503, "code": "busy", "detail": "try later", "request_id": "req_1"}


class Call(NamedTuple):
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Scripted(ThreadedServer):
    """Answers with the scripted (status, body, headers) in turn; None drops the connection."""

    def __init__(self) -> None:
        super().__init__(Answering)
        self.answers: list[tuple[int, Any, dict[str, str]] | None] = []
        self.calls: list[Call] = []


class Answering(QuietHandler):
    server: Scripted

    def handle_one(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.calls.append(Call(self.command, self.path, headers, self.read_body()))
        answer = self.server.answers.pop(0)
        if answer is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, body, extra = answer
        self.answer(status, body if isinstance(body, bytes) else json.dumps(body).encode(), extra)

    do_GET = do_POST = handle_one  # noqa: N815  names that http.server calls


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


@pytest.fixture
def client(server: Scripted) -> Iterator[ServiceClient]:
    with ServiceClient(server.url, "key-1") as client:
        yield client


def message(raw: str) -> Message:
    return Message(role="user", content=msgspec.Raw(raw.encode()))


def test_content_is_posted_byte_for_byte(server: Scripted, client: ServiceClient) -> None:
    raw = '[ {"type":"text",  "text":"\\u00e9 \\/ 1.0"} ]'
    server.answers = [(201, APPENDED, {})]
    appended = client.append_turn("conv_1", [message(raw)], usage=msgspec.Raw(b'{"input_tokens": 3}'))
    (call,) = server.calls
    assert (appended.last_seq, appended.check) == (1, "queued")
    assert (call.method, call.path) == ("POST", "/v1/conversations/conv_1/turns")
    assert call.headers["authorization"] == "Bearer key-1"
    assert raw.encode() in call.body
    assert json.loads(call.body)["usage"] == {"input_tokens": 3}


def test_an_append_is_repeated_under_one_idempotency_key(server: Scripted, client: ServiceClient) -> None:
    limited = BUSY | {"status": 429, "code": "rate_limited"}
    waits = [(503, BUSY, {"retry-after": "0"}), (429, limited, {"retry-after": "0"})]
    server.answers = [None, *waits, (201, APPENDED, {})]
    client.append_turn("conv_1", [message('"hi"')])
    assert len(server.calls) == 4
    assert len({call.headers["idempotency-key"] for call in server.calls}) == 1
    assert len({call.body for call in server.calls}) == 1


def test_repeats_are_bounded(server: Scripted, client: ServiceClient) -> None:
    server.answers = [(503, BUSY, {"retry-after": "0"})] * (ATTEMPTS + 1)
    with pytest.raises(ServiceError, match="try later") as caught:
        client.conversation("conv_1")
    assert (caught.value.status, caught.value.request_id) == (503, "req_1")
    assert len(server.calls) == ATTEMPTS


@pytest.mark.parametrize("headers", [{}, {"retry-after": "3600"}], ids=["no time", "too long"])
def test_a_503_without_a_time_that_can_be_waited_is_an_error(
    server: Scripted, client: ServiceClient, headers: dict[str, str]
) -> None:
    server.answers = [(503, BUSY, headers)]
    with pytest.raises(ServiceError):
        client.conversation("conv_1")


def test_creating_is_repeated_only_where_that_is_safe(server: Scripted, client: ServiceClient) -> None:
    server.answers = [None]
    with pytest.raises(httpx2.TransportError):
        client.create_conversation()
    assert len(server.calls) == 1
    server.answers = [None, (200, {"id": "conv_1"}, {})]
    assert client.create_conversation(external_id="e1").id == "conv_1"


def test_a_problem_document_becomes_an_error(server: Scripted, client: ServiceClient) -> None:
    problem = {"title": "Invalid", "status": 422, "code": "bad_role", "detail": "no such role", "request_id": "req_9"}
    server.answers = [(422, problem | {"pointer": "/messages/0/role"}, {})]
    with pytest.raises(ServiceError) as caught:
        client.append_turn("conv_1", [message('"hi"')])
    error = caught.value
    assert (error.status, error.code, error.pointer, error.request_id) == (422, "bad_role", "/messages/0/role", "req_9")
    assert str(error) == "no such role (messages.0.role) (request req_9)"
    server.answers = [(502, b"<html>bad gateway</html>", {"request-id": "req_2"})]
    with pytest.raises(ServiceError, match=r"what answers at http://\S+ is not the API: 502 Bad Gateway"):
        client.conversation("conv_1")


def test_a_context_that_did_not_change(server: Scripted, client: ServiceClient) -> None:
    body: dict[str, Any] = {"messages": [], "snapshot": None, "last_seq": -1, "tokens": {"context": 0}, "warnings": []}
    server.answers = [(200, body, {"etag": '"v1"'}), (304, b"", {"etag": '"v1"'})]
    context = client.context("conv_1")
    assert context is not None
    assert context.etag == '"v1"'
    assert client.context("conv_1", etag=context.etag) is None
    assert server.calls[1].headers["if-none-match"] == '"v1"'


class Slow(QuietHandler):
    """Answers what erases once it may, and nothing else."""

    server: SlowServer

    def do_DELETE(self) -> None:
        self.server.asked.append(self.path)
        self.server.is_asked.set()
        self.server.may_answer.wait()
        self.answer(200, b'{"conversations": 50000}')

    def do_GET(self) -> None:
        self.server.may_answer.wait()


class SlowServer(ThreadedServer):
    def __init__(self) -> None:
        super().__init__(Slow)
        self.asked: list[str] = []
        self.is_asked, self.may_answer = threading.Event(), threading.Event()


def test_a_user_of_many_conversations_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that it is asked the service would begin, beside what it is at."""
    monkeypatch.setattr(client_module, "READ_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(client_module, "ATTEMPTS", 1)
    with SlowServer() as server, ServiceClient(server.url, "key-1") as client, ThreadPoolExecutor() as pool:
        try:
            erased = pool.submit(client.erase_user, "anna")
            assert server.is_asked.wait(20)
            # As long as this waits for its first byte, the other one has, and longer.
            with pytest.raises(httpx2.ReadTimeout):
                client.conversation("conv_1")
        finally:
            server.may_answer.set()
        assert erased.result() == {"conversations": 50_000}
    assert server.asked == ["/v1/users?user_ref=anna"]


def test_lists_are_read_to_their_end(server: Scripted, client: ServiceClient) -> None:
    stored = [{"seq": seq, "role": "user", "content": f"m{seq}", "tokens": 1} for seq in range(3)]
    server.answers = [
        (200, {"data": stored[:2], "has_more": True}, {}),
        (200, {"data": stored[2:], "has_more": False}, {}),
        (200, {"data": [{"id": "run_2", "state": "running"}], "has_more": True, "last_id": "run_2"}, {}),
        (200, {"data": [{"id": "run_1", "state": "dead"}], "has_more": False, "last_id": "run_1"}, {}),
    ]
    assert [(each.seq, bytes(each.content)) for each in client.messages("conv_1")] == [
        (0, b'"m0"'),
        (1, b'"m1"'),
        (2, b'"m2"'),
    ]
    assert [(run.id, run.settled) for run in client.runs("conv_1")] == [("run_1", True), ("run_2", False)]
    queries = [call.path.partition("?")[2] for call in server.calls]
    assert queries == ["after=-1&limit=100", "after=1&limit=100", "limit=100", "after_id=run_2&limit=100"]


def test_waiting_ends_when_nothing_is_due_and_no_run_is_active(server: Scripted, client: ServiceClient) -> None:
    due = {"id": "conv_1", "check_due_at": "2026-03-01T00:00:00Z"}
    calm = {"id": "conv_1", "check_due_at": None}
    running, done = ({"id": "run_1", "state": state} for state in ("running", "committed"))
    server.answers = [
        (200, due, {}),
        (200, {"data": []}, {}),
        (200, calm, {}),
        (200, {"data": [running]}, {}),
        (200, done, {}),
        (200, calm, {}),
        (200, {"data": [done]}, {}),
    ]
    assert [run.state for run in client.wait_settled("conv_1")] == ["committed"]
    assert "/v1/runs/run_1?wait=25" in [call.path for call in server.calls]
