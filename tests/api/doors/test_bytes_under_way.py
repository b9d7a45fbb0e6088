"""How much the requests of a process have in memory: bodies, pages, exports and answers that nobody reads."""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

from actions import context_parts
from runtime import held_bytes
from runtime.http import pace
from store import bytes_held, hot_path
from store.archive import exports
from store.bytes_held import bounded_by
from store.conversations import context_blocks, messages
from store.engine import service_engine, transaction
from tests.support.eventually import eventually
from tests.support.messages_api import problems
from tests.support.service.console_client import query
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import Service, conversation_at, running_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings

MB: Final = 1 << 20
HELLO: Final = {"role": "user", "content": "Hello."}


@pytest.fixture(scope="module")
def crowded(service: Service) -> Iterator[Service]:
    """An API that may have 4 MB under way, on the module's database."""
    settings = service.settings.model_copy(update={"max_body_bytes": 4 * MB, "max_bytes_under_way": 4 * MB})
    key = service.client.headers["authorization"].removeprefix("Bearer ")
    other = service.stranger.headers["authorization"].removeprefix("Bearer ")
    with running_api(settings) as api, api.client(key) as client, api.client(other) as stranger:
        yield service._replace(api=api, settings=settings, client=client, stranger=stranger)


def taken(service: Service) -> int:
    """Return the bytes that the API's requests have under way."""
    app: Any = service.api.server.config.app
    return int(app.state.services.under_way.taken)


def turn(size: int, character: str = "a") -> bytes:
    """Return a turn's body of about so many bytes."""
    text = character * (size // len(character.encode()))
    return json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode()


@contextmanager
def sending(service: Service, path: str, body: bytes, sent: int, call: str = "turns") -> Iterator[socket.socket]:
    """Yield a connection on which a turn, or another call, was begun, of which `sent` bytes have come."""
    url = urlsplit(service.api.url)
    head = f"POST {path}/{call} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\n"
    head += f"authorization: {service.client.headers['authorization']}\r\n\r\n"
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=30) as connection:
        connection.sendall(head.encode() + body[:sent])
        eventually(lambda: taken(service) >= sent)
        yield connection


def test_bodies_under_way_are_bounded_and_ordinary_turns_are_not_held_up(crowded: Service) -> None:
    path, body, other = crowded.conversation(), turn(3 * MB), turn(2 * MB)
    others = f"/v1/conversations/{crowded.stranger.post('/v1/conversations', json={}).json()['id']}"
    with sending(crowded, path, body, len(body) - 1) as connection:
        refused = crowded.stranger.post(f"{others}/turns", content=other)
        problem(refused, 503, "unavailable")
        assert refused.headers["retry-after"] == "1"
        assert crowded.stranger.post(f"{others}/turns", json={"messages": [HELLO]}).status_code == 201
        connection.sendall(body[-1:])
        assert connection.recv(65_536).startswith(b"HTTP/1.1 201 ")
    assert crowded.stranger.post(f"{others}/turns", content=other).status_code == 201
    # A body that ended before it was whole holds nothing either.
    with sending(crowded, path, body, len(body) - 1):
        assert crowded.stranger.post(f"{others}/turns", content=other).status_code == 503
    eventually(lambda: taken(crowded) == 0)
    assert crowded.stranger.post(f"{others}/turns", content=other).status_code == 201


@pytest.mark.parametrize("call", ["turns", "compactions"])
def test_a_body_that_stops_coming_is_not_waited_for(
    crowded: Service, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path, body = crowded.conversation(), turn(3 * MB)
    with sending(crowded, path, body, len(body) - 1, call) as connection:
        assert crowded.client.post(f"{path}/turns", content=turn(2 * MB)).status_code == 503
    monkeypatch.setattr(pace, "GRACE_SECONDS", 0.2)
    with sending(crowded, path, body, len(body) - 1, call) as connection:
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        head, _, document = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(document)["code"] == "body_too_slow"
        eventually(lambda: taken(crowded) == 0)
        assert crowded.client.post(f"{path}/turns", content=turn(2 * MB)).status_code == 201


def three_megabytes(service: Service) -> str:
    """Return a conversation whose context has so many."""
    path = service.conversation(policy={"total_token_budget": 2_000_000, "model_context_tokens": 2_000_000})
    for _ in range(3):
        assert service.client.post(f"{path}/turns", content=turn(MB)).status_code == 201
    return path


@contextmanager
def asking(service: Service, path: str) -> Iterator[socket.socket]:
    """Yield a connection on which a context was asked for that nobody reads yet."""
    url = urlsplit(service.api.url)
    head = f"GET {path}/context HTTP/1.1\r\nhost: test\r\nconnection: close\r\n"
    head += f"authorization: {service.client.headers['authorization']}\r\n\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(30)
        connection.connect((url.hostname or "", url.port or 0))
        connection.sendall(head.encode())
        yield connection


def test_an_answer_that_nobody_reads_is_not_kept_for_good(crowded: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    path = three_megabytes(crowded)
    monkeypatch.setattr(pace, "READER_SECONDS", 1.0)
    with asking(crowded, path):
        eventually(lambda: taken(crowded) > 3 * MB)
        eventually(lambda: taken(crowded) == 0)
        assert crowded.client.get(f"{path}/context").status_code == 200


def test_an_answer_that_nobody_reads_is_under_way(crowded: Service) -> None:
    path = three_megabytes(crowded)
    with asking(crowded, path) as connection:
        eventually(lambda: taken(crowded) > 3 * MB)
        assert crowded.client.get(f"{path}/context").status_code == 503
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert json.loads(received.partition(b"\r\n\r\n")[2])["last_seq"] == 2
    eventually(lambda: taken(crowded) == 0)
    assert crowded.client.get(f"{path}/context").status_code == 200


def long_conversation(service: Service, **fields: Any) -> str:
    """Return a conversation of ten messages: the fifth is longer than a page of these tests, the others a third."""
    path = service.conversation(**fields)
    for number in range(10):
        text = str(number) * (5_000 if number == 4 else 1_000)
        service.append(path, {"role": "user", "content": text})
    return path


def test_a_page_of_messages_ends_with_its_bytes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_held, "PAGE_BYTES", 3_200)
    path = long_conversation(service)
    pages, after, more = [], -1, True
    while more:
        page = service.client.get(f"{path}/messages", params={"after": after, "limit": 1_000}).json()
        pages.append([each["seq"] for each in page["data"]])
        after, more = page["last_id"], page["has_more"]
    assert pages == [[0, 1, 2], [3], [4], [5, 6, 7], [8, 9]]
    last = service.client.get(f"{path}/messages", params={"after": 9}).json()
    assert (last["data"], last["has_more"]) == ([], False)
    two = service.client.get(f"{path}/messages", params={"limit": 2}).json()
    assert ([each["seq"] for each in two["data"]], two["has_more"]) == ([0, 1], True)


def test_what_is_read_is_announced_first(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_held, "PAGE_BYTES", 3_200)
    conversation = conversation_at(long_conversation(service))
    announced: list[int] = []
    engine = service_engine(service.settings, "test")
    with bounded_by(announced.append), transaction(engine, service.tenant_id) as connection:
        messages.page(connection, service.tenant_id, conversation, after=3, limit=10)
        assert 5_000 < announced.pop() < 5_100
        assert announced == []
        messages.get(connection, service.tenant_id, conversation, 4)
        assert 5_000 < announced.pop() < 5_100
        rows, last = [], None
        while True:
            portion = exports.portion(connection, service.tenant_id, conversation, "message", last)
            rows.append([row["seq"] for _, row in portion.rows])
            last = portion.last
            if last is None:
                break
        assert rows == [[0, 1, 2], [3], [4], [5, 6, 7], [8, 9]]
        assert all(size < 3_200 for size in announced if size < 5_000)
        assert len(announced) == len(rows)
    engine.dispose()


def test_a_blocks_text_is_announced_before_a_run_reads_it(service: Service) -> None:
    path = service.conversation()
    block = {"source": "report.md", "title": "Report", "text": "é" * 30_000}
    service.append(path, {"role": "user", "content": "Read this."}, context=[block])
    ((block_id,),) = query(service, "select id from context_blocks where conversation_id = %s", conversation_at(path))
    announced: list[int] = []
    engine = service_engine(service.settings, "test")
    with bounded_by(announced.append), transaction(engine, service.tenant_id) as connection:
        assert context_blocks.material(connection, block_id).text == block["text"]
    engine.dispose()
    assert announced == [60_000]


def test_an_export_waits_for_its_turn_and_is_whole(crowded: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_held, "PAGE_BYTES", MB)
    path = crowded.conversation(user_ref="Ann")
    for number in range(4):
        crowded.append(path, {"role": "user", "content": str(number) * MB})
    body = turn(3 * MB + MB // 2)
    with (
        sending(crowded, crowded.conversation(), body, len(body) - 1) as connection,
        crowded.client.stream("GET", "/v1/users/Ann/export") as answer,
    ):
        lines = answer.iter_lines()
        assert json.loads(next(lines))["type"] == "conversation"
        connection.sendall(body[-1:])
        items = [json.loads(line) for line in lines]
    assert [each["content"][0] for each in items if each["type"] == "message"] == ["0", "1", "2", "3"]
    assert items[-1] == {"type": "end", "conversations": 1}


@pytest.mark.parametrize(("character", "size"), [("a", 1), ("é", 2), ("漢", 3), ("🦜", 4)])
def test_the_size_of_a_message_is_in_bytes(service: Service, character: str, size: int) -> None:
    path = service.conversation()
    service.append(path, {"role": "user", "content": character * 1_000})
    (told,) = query(service, "select bytes from messages where conversation_id = %s", conversation_at(path))
    assert told[0] == 1_000 * size + 2 + 30


def test_what_is_under_way_may_not_be_less_than_a_body(module_settings: Settings) -> None:
    settings = module_settings.model_copy(update={"max_bytes_under_way": 1})
    with running_api(settings) as api, api.client() as client:
        assert client.get("/healthz").status_code == 200


def picture(size: int) -> dict[str, Any]:
    """Return a request with a picture, which is many bytes and few tokens."""
    source = {"type": "base64", "media_type": "image/png", "data": "A" * size}
    return {"role": "user", "content": [{"type": "image", "source": source}]}


@pytest.fixture
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_path, "UNASKED_BYTES", 4_000)
    for module in (hot_path, context_parts):
        monkeypatch.setattr(module, "MOST_READ_BYTES", 20_000)


@pytest.mark.usefixtures("short_reads")
@pytest.mark.parametrize("newest", [100, 30_000])
@pytest.mark.parametrize("answered", [True, False])
def test_a_context_too_large_to_be_read_has_its_newest_messages(service: Service, newest: int, answered: bool) -> None:
    path = service.conversation()
    for size in (*[3_000] * 10, newest):
        service.append(path, picture(size), {"role": "assistant", "content": "A picture."})
    if not answered:
        service.append(path, {"role": "user", "content": "What is in all of these?"})
    last = service.client.get(path).json()["last_seq"]
    stored = service.client.get(f"{path}/messages?limit=100").json()["data"]
    served = service.client.get(f"{path}/context").json()
    payload = service.client.post(f"{path}/context", json={}).json()
    for told in (served, payload):
        messages = told["messages"]
        assert problems(messages) == []
        assert messages == [{"role": each["role"], "content": each["content"]} for each in stored[-len(messages) :]]
        assert len(json.dumps(messages)) < max(20_000, newest + 1_000)
        assert len(messages) >= (2 if newest > 20_000 else 10)
        assert [warning for warning in told["warnings"] if "only the newest messages were read" in warning]
        assert [warning for warning in told["warnings"] if "were left out" in warning]
    assert served["last_seq"] == last


@pytest.mark.usefixtures("short_reads")
def test_a_large_context_is_read_only_where_there_is_room_for_it(
    crowded: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = crowded.conversation()
    crowded.append(path, picture(6_000))
    body = turn(4 * MB - 100_000)
    with sending(crowded, crowded.conversation(), body, len(body) - 1):
        monkeypatch.setattr(held_bytes, "SMALL_BYTES", 1_000)
        app: Any = crowded.api.server.config.app
        monkeypatch.setattr(app.state.services.under_way, "most", 4 * MB - 100_000)
        problem(crowded.client.get(f"{path}/context"), 503, "unavailable")
        problem(crowded.client.post(f"{path}/context", json={}), 503, "unavailable")
    eventually(lambda: taken(crowded) == 0)
    assert crowded.client.get(f"{path}/context").status_code == 200
