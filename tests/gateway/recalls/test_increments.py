"""Clients of the Responses API that go on from an answer by its id, also from one within which recall was answered."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

from gateway.conversations.increments import previous_in
from tests.conftest import make_tenant
from tests.gateway.conftest import room_on
from tests.gateway.recalls.test_recalling import (
    SECRET,
    Seen,
    events_in,
    read_stream,
    recall,
    scripted,
    talk_out_of_view,
)
from tests.gateway.test_compacting import SHORT
from tests.support.servers.loopback_providers import Says
from tests.support.shapes import responses_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.gateway.conftest import Room
    from tests.support.servers.loopback_providers import Asked

NUMBERS: Final = count()


@pytest.fixture(scope="module")
def recalling(module_settings: Settings) -> Iterator[Room]:
    tenant = make_tenant(module_settings.database_url.get_secret_value(), "increments")
    with room_on(module_settings, tenant, policy=SHORT | {"gateway_recall": True}) as room:
        yield room


def held_by_the_provider(room: Room, asked: Asked) -> list[Any]:
    """Return the history that a provider goes on from: the inputs and outputs that it has under an id."""
    previous = asked.body.get("previous_response_id")
    before: list[Any] = []
    for each in room.providers.asked:
        whole = events_in(each.answered.decode())[-1]["response"] if each.body["stream"] else json.loads(each.answered)
        if previous is not None and whole["id"] == previous:
            before = [*held_by_the_provider(room, each), *whole["output"]]
    rows = asked.body["input"]
    return [*before, *([{"role": "user", "content": rows}] if isinstance(rows, str) else rows)]


def go_on(chat: Seen, rows: Any, *, stream: bool) -> dict[str, Any]:
    """Send what is new and the id of the last answer, as a client does that has the provider keep the history."""
    body = {"model": "m", "input": rows, "stream": stream, "previous_response_id": chat.whole["id"]}
    answer = chat.room.client.post("/v1/responses", json=body, headers=chat.headers)
    assert answer.status_code == 200, answer.text
    chat.whole = read_stream("responses", answer.text) if stream else answer.json()
    return body


@pytest.mark.parametrize("stream", [False, True])
def test_client_goes_on_from_an_answer_with_recall(recalling: Room, stream: bool) -> None:
    room = recalling
    chat = talk_out_of_view(room, "responses", stream)
    number = f"{next(NUMBERS)}"
    room.providers.model = scripted(
        Says("Look.", (recall(f"r{number}", query="door code"),), "Hm."), Says("It is 4711."), Says("Gladly.")
    )
    chat.ask("What was the door code?", stream=stream)
    shown = chat.whole["id"]
    go_on(chat, "Thanks.", stream=stream)
    asked = room.providers.asked[-1]
    assert asked.body["previous_response_id"] != shown
    history = held_by_the_provider(room, asked)
    assert not responses_api.problems(history)
    assert SECRET in json.dumps(history)
    assert "It is 4711." in json.dumps(history)
    # From there on the ids are the provider's own.
    room.providers.model = scripted(Says("Gladly again."))
    body = go_on(chat, [{"role": "user", "content": "Thanks again."}], stream=stream)
    assert room.providers.asked[-1].body == body


@pytest.mark.parametrize("as_text", [False, True])
def test_result_beside_the_clients_own_is_given(recalling: Room, as_text: bool) -> None:
    room = recalling
    chat = talk_out_of_view(room, "responses", False)
    number = f"{next(NUMBERS)}"
    calls = (recall(f"r{number}", query="door code"), (f"own{number}", "look", {"n": 99}))
    room.providers.model = scripted(Says("Both.", calls), Says("It is 4711."))
    chat.ask("Look both up.", stream=False)
    (called,) = chat.whole_calls()
    own = {"type": "function_call_output", "call_id": called, "output": "own result"}
    go_on(chat, "And?" if as_text else [own], stream=False)
    history = held_by_the_provider(room, room.providers.asked[-1])
    problems = responses_api.problems(history)
    # What the client leaves out it is told of.
    assert bool(problems) == as_text
    assert all(called in problem for problem in problems)
    assert SECRET in json.dumps(history)


def test_ids_are_a_tenants_own(recalling: Room) -> None:
    room = recalling
    chat = talk_out_of_view(room, "responses", False)
    room.providers.model = scripted(
        Says("", (recall(f"r{next(NUMBERS)}", query="door code"),)), Says("It is 4711."), Says("Who?"), Says("Who?")
    )
    chat.ask("What was the door code?", stream=False)
    shown = chat.whole["id"]
    room.eventually_stored(chat.name, len(chat.rows) + 2)
    other = make_tenant(room.settings.database_url.get_secret_value(), "another")
    chat.headers = {"authorization": f"Bearer {other.key}"}
    go_on(chat, "Thanks.", stream=False)
    assert room.providers.asked[-1].body["previous_response_id"] == shown


@pytest.mark.parametrize(
    ("body", "previous"),
    [
        (b'{"previous_response_id":"resp_1"}', "resp_1"),
        (b'{"previous_response_id":null}', None),
        (b'{"previous_response_id":5}', None),
        (b'{"previous_response_id":""}', None),
        (b'{"previous_response_id":"a\\u0000b"}', None),
        (b'{"previous_response_id":"' + b"x" * 201 + b'"}', None),
        (b'{"input":"previous_response_id"}', None),
        (b'["previous_response_id"]', None),
        (b'{"previous_response_id":', None),
    ],
)
def test_ids_in_a_body(body: bytes, previous: str | None) -> None:
    assert previous_in(body) == previous
