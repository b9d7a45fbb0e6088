"""Rows that every provider refuses: they go on repaired, and are stored as they came."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.gateway.test_compacting import PROBLEMS, SHORT, calls_a_tool, talk

if TYPE_CHECKING:
    from runtime.settings import Settings
    from tests.gateway.conftest import Room

SHAPES = tuple(PATHS)


def call_rows(shape: str, arguments: str) -> list[dict[str, Any]]:
    """Return a history with a call that has these arguments, and its result."""
    asked, thanked = {"role": "user", "content": "Edit the file."}, {"role": "user", "content": "go on"}
    match shape:
        case "messages":
            call = {"type": "tool_use", "id": "c1", "name": "edit", "input": arguments}
            result = {"type": "tool_result", "tool_use_id": "c1", "content": "invalid"}
            return [asked, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        case "chat":
            called = {"id": "c1", "type": "function", "function": {"name": "edit", "arguments": arguments}}
            return [
                asked,
                {"role": "assistant", "content": None, "tool_calls": [called]},
                {"role": "tool", "tool_call_id": "c1", "content": "invalid"},
                thanked,
            ]
    return [
        asked,
        {"type": "function_call", "call_id": "c1", "name": "edit", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c1", "output": "invalid"},
        thanked,
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_malformed_arguments_go_on_repaired_and_are_stored_as_they_came(room: Room, shape: str) -> None:
    chat = Chatter(room, shape, **{"x-session-id": f"malformed {shape}"})
    chat.rows = call_rows(shape, '{"path": "/a", "text": "He said ')
    for _ in range(2):
        sent = len(chat.rows)
        chat.send()
        asked = room.providers.asked[-1]
        assert PROBLEMS[shape](asked.rows) == []
        assert len(asked.rows) == sent
        room.eventually_stored(chat.name, len(chat.rows))
        chat.rows.append({"role": "user", "content": "and now?"})
    stored = json.dumps(room.stored(chat.name))
    assert "He said " in stored


@pytest.mark.parametrize("shape", SHAPES)
def test_the_answer_says_how_many_rows_went_on_repaired(room: Room, shape: str) -> None:
    name = "input" if shape == "responses" else "messages"
    body = {"model": "model-1", "max_tokens": 9, name: call_rows(shape, "[1]")}
    answer = room.client.post(PATHS[shape], json=body)
    assert answer.headers["x-palimpsest-repaired"] == "1"
    whole = {**body, name: [{"role": "user", "content": "Edit it."}]}
    assert "x-palimpsest-repaired" not in room.client.post(PATHS[shape], json=whole).headers


def test_a_name_that_the_request_declares_goes_on_as_it_came(room: Room) -> None:
    rows = json.loads(json.dumps(call_rows("chat", "{}")).replace('"edit"', '"files.edit"'))
    tools = [{"type": "function", "function": {"name": "files.edit", "parameters": {"type": "object"}}}]
    room.client.post(PATHS["chat"], json={"model": "model-1", "messages": rows, "tools": tools})
    assert room.providers.asked[-1].rows == rows
    room.client.post(PATHS["chat"], json={"model": "model-1", "messages": rows})
    assert room.providers.asked[-1].rows[1]["tool_calls"][0]["function"]["name"] == "files_edit"


@pytest.mark.parametrize("shape", SHAPES)
def test_malformed_rows_behind_a_head_go_on_repaired(module_settings: Settings, shape: str) -> None:
    tenant = make_tenant(module_settings.database_url.get_secret_value(), f"malformed-{shape}")
    with room_on(module_settings, tenant, policy=SHORT) as room:
        chat = Chatter(room, shape, **{"x-session-id": f"behind {shape}"})
        room.providers.model = calls_a_tool
        talk(chat, 12, "look")
        room.eventually_stored(chat.name, len(chat.rows))
        chat.rows += call_rows(shape, "{'path': '/a'}")
        chat.send()
        room.eventually_stored(chat.name, len(chat.rows))
        room.compact(chat.name)
        chat.ask("what now?")
        assert chat.outcome == "compacted"
        assert PROBLEMS[shape](room.providers.asked[-1].rows) == []
        assert "/a" in room.providers.asked[-1].raw.decode()
