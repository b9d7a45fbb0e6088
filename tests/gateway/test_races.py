"""Requests that cross each other: retries, edits during an answer, two that go on from the same place."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.gateway.chatter import PATHS
from tests.gateway.recalls.test_recalling import Seen
from tests.support.eventually import eventually
from tests.support.servers.loopback_providers import Says

if TYPE_CHECKING:
    from tests.gateway.conftest import Room

SHAPES = tuple(PATHS)
STORED_IN = """
    select count(distinct conversation_id) from messages as m join messages as o using (conversation_id)
    where m.content::text like %s and o.content::text like %s
"""


def answering(asked: Any) -> Says:
    """Return a model that says what it was asked last."""
    row = asked.rows[-1]
    text = row["content"] if isinstance(row["content"], str) else row["content"][-1]["text"]
    return Says(f"said to {text}")


def begun(room: Room, shape: str, **headers: str) -> Seen:
    room.providers.model = answering
    chat = Seen(room, shape, **headers)
    chat.ask(f"hello {shape} {headers}")
    chat.ask("second")
    room.eventually_stored(chat.name, 4)
    return chat


def copy_of(chat: Seen) -> Seen:
    other = Seen(chat.room, chat.shape, **chat.headers)
    other.rows = list(chat.rows)
    return other


@pytest.mark.parametrize("shape", SHAPES)
def test_same_request_twice_at_once_is_one_turn(room: Room, shape: str) -> None:
    """As SDKs retry what seems to hang."""
    chat = begun(room, shape, **{"x-session-id": f"retry {shape}"})
    chats = [copy_of(chat) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda each: each.ask("third", stream=each is not chats[0]), chats))
    assert {each.name for each in chats} == {chat.name}
    room.eventually_stored(chat.name, 6)
    chats[2].ask("fourth")
    assert chats[2].name == chat.name
    stored = room.eventually_stored(chat.name, 8)
    assert json.dumps([row["content"] for row in stored]).count("said to third") == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_history_that_nobody_knows_sent_twice_at_once_is_one_conversation(room: Room, shape: str) -> None:
    """As SDKs retry, and without a session; others that begin as it does are beside it."""
    room.providers.model = answering
    first = Seen(room, shape)
    first.rows = [{"role": "user", "content": f"known to none {shape}"}, *first.answer(Says("well known"))]
    chats, other = [copy_of(first) for _ in range(8)], copy_of(first)
    room.providers.hold_after = 1
    with ThreadPoolExecutor(9) as threads:
        asked = [threads.submit(other.ask, "something else")]
        eventually(lambda: len(room.providers.asked) == 1)
        asked += [threads.submit(each.ask, "the same") for each in chats]
        eventually(lambda: len(room.providers.asked) == 9)
        room.providers.go_on.set()
        for each in asked:
            each.result()
    room.providers.hold_after = None
    chats[5].ask("and on")
    other.ask("and on beside it")
    for chat, said in ((chats[5], "the same"), (other, "something else")):
        room.eventually_stored(chat.name, 6)
        named = f"%said to {said}%", f"%known to none {shape}%"
        (stored,) = room.query(STORED_IN, *named)
        assert stored == {"count": 1}


@pytest.mark.parametrize("shape", SHAPES)
def test_two_that_go_on_from_the_same_place_are_two(room: Room, shape: str) -> None:
    chat = begun(room, shape, **{"x-session-id": f"fork {shape}"})
    chats = [copy_of(chat) for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda each: each[1].ask(f"way {each[0]}"), enumerate(chats)))
    # Whoever goes on before one of them is stored goes on from the same place still, and is stored with its next turn.
    room.eventually_stored(chat.name, len(chat.rows) + 2)
    for round_ in range(2):
        for number, each in enumerate(chats):
            each.ask(f"way {number} again {round_}")
            received = room.providers.asked[-1].raw.decode()
            assert f"said to way {number}" in received
            assert not any(f"way {other}" in received for other in range(3) if other != number)
            room.eventually_stored(each.name, len(each.rows))
    for number, each in enumerate(chats):
        stored = json.dumps([row["content"] for row in room.eventually_stored(each.name, len(each.rows))])
        assert not any(f"way {other}" in stored for other in range(3) if other != number)


@pytest.mark.parametrize("shape", SHAPES)
def test_edit_overtakes_the_answer_that_it_edits(room: Room, shape: str) -> None:
    chat = begun(room, shape, **{"x-session-id": f"edit {shape}"})
    edited = copy_of(chat)
    room.providers.hold_after = 3
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(chat.ask, "slow")
        eventually(room.providers.held.is_set)
        room.providers.hold_after = None
        edited.ask("edited")
        room.eventually_stored(edited.name, 6)
        room.providers.go_on.set()
        asking.result()
    edited.ask("and on")
    stored = json.dumps([row["content"] for row in room.eventually_stored(edited.name, 8)])
    assert "slow" not in stored
    assert "slow" not in room.providers.asked[-1].raw.decode()
    # Who goes on from what was overtaken has it all the same.
    chat.ask("anyway")
    received = room.providers.asked[-1].raw.decode()
    assert "said to slow" in received
    assert "edited" not in received
    room.eventually_stored(chat.name, len(chat.rows))


def test_aborted_and_asked_again(room: Room) -> None:
    chat = begun(room, "messages", **{"x-session-id": "aborted"})
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [*chat.rows, {"role": "user", "content": "cut"}]}
    room.providers.hold_after = 5
    with room.client.stream("POST", "/v1/messages", json=body, headers=chat.headers) as answer:
        pieces = answer.iter_raw()  # kept: without it the connection ends at once
        next(pieces)
        eventually(room.providers.held.is_set)
    room.providers.hold_after = None
    room.providers.go_on.set()
    chat.ask("cut")
    chat.ask("on")
    stored = room.eventually_stored(chat.name, 8)
    assert [row["role"] for row in stored] == ["user", "assistant"] * 4
    assert json.dumps([row["content"] for row in stored]).count("said to cut") == 1


def test_requests_sent_ahead_are_answered_in_turn(room: Room) -> None:
    """Pipelining, and a body in chunks."""
    room.providers.model = answering
    url = urlsplit(room.gateway.url)
    bodies = [
        json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": f"ahead {n}"}]}).encode()
        for n in range(3)
    ]
    start = f"POST /v1/messages HTTP/1.1\r\nhost: gateway\r\nx-api-key: {room.tenant.key}\r\n".encode()
    framed = [start + b"content-length: %d\r\n\r\n%b" % (len(body), body) for body in bodies[:2]]
    chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (9, bodies[2][:9], len(bodies[2]) - 9, bodies[2][9:])
    framed.append(start + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=20) as connection:
        connection.sendall(b"".join(framed))
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    places = [answer.index(f"said to ahead {number}".encode()) for number in range(3)]
    assert places == sorted(places)
    assert [asked.raw for asked in room.providers.asked[-3:]] == bodies
