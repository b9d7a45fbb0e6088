"""Messages that are malformed in their own shape: stored as they came, served as every API accepts them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from compaction.shapes import codecs
from compaction.shapes.acceptance import is_accepted, repair_message
from tests.domain.shapes.test_shapes import stored, view_of
from tests.support.shapes.generated import as_sent
from tests.support.shapes.served import problems, served

if TYPE_CHECKING:
    from compaction.shapes.inner import Shape

ARGUMENTS: Final = ('{"a": "cut', "", '"{\\"a\\": 1}"', "[1]", "null", "{'a': 1}", '{"a": 1}{"b": 2}', '{"x": NaN}')
NAMES: Final = ("", " ", "look up", "n" * 80, "näme", "mcp.look")
IMAGES: Final = ("data:image/jpg;base64,AAAA", "data:image/png;base64,", "")


def call(shape: Shape, **function: Any) -> dict[str, Any]:
    given = {"name": "look", "arguments": "{}", **function}
    if shape == "responses":
        return {"type": "function_call", "call_id": "c1", **given}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": given}]}


def result(shape: Shape, content: Any = "found") -> dict[str, Any]:
    if shape == "responses":
        return {"type": "function_call_output", "call_id": "c1", "output": content}
    return {"role": "tool", "tool_call_id": "c1", "content": content}


def image(shape: Shape, url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
    if shape == "responses":
        parts = [{"type": "input_text", "text": "what is it?"}, {"type": "input_image", "image_url": url}]
    return {"role": "user", "content": parts}


def asked(shape: Shape, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Go."}, *messages, {"role": "user", "content": "on"}]


def malformed(shape: Shape) -> list[list[dict[str, Any]]]:
    """Return conversations of which one message is malformed, the second."""
    every = [
        *(asked(shape, call(shape, arguments=text), result(shape)) for text in (*ARGUMENTS, {"a": 1}, None)),
        *(asked(shape, call(shape, name=name), result(shape)) for name in NAMES),
        *(asked(shape, image(shape, url)) for url in IMAGES),
    ]
    if shape == "chat":
        every += [
            asked(shape, {"role": "assistant", "content": "So.", "tool_calls": []}),
            asked(shape, {"role": "assistant", "content": None, "reasoning_content": "Hm."}),
            asked(shape, {"role": "assistant", "content": None, "function_call": {"name": "a b", "arguments": ""}}),
        ]
    return every


CASES: Final = [(shape, messages) for shape in ("chat", "responses") for messages in malformed(shape)]


@pytest.mark.parametrize(("shape", "messages"), CASES)
def test_what_is_malformed_is_flagged_and_repaired_once(shape: Shape, messages: list[dict[str, Any]]) -> None:
    before = json.dumps(messages)
    repaired = [repair_message(shape, message) for message in messages]
    assert [is_accepted(shape, message) for message in messages] == [True, False, *[True] * (len(messages) - 2)]
    assert all(map(is_accepted, [shape] * len(repaired), repaired))
    assert json.dumps(messages) == before


@pytest.mark.parametrize("target", ["messages", "chat", "responses"])
@pytest.mark.parametrize(("shape", "messages"), CASES)
def test_what_is_malformed_is_served_as_any_api_accepts_it(
    shape: Shape, messages: list[dict[str, Any]], target: Shape
) -> None:
    turn, sent = stored_as_sent(shape, messages)
    shown, _ = served(target, view_of(turn), sent if target == shape else {})
    if "function_call" in messages[1] and target == shape:
        shown = [message for message in shown if "function_call" not in message]
    assert problems(target, shown) == []
    assert "on" in json.dumps(shown[-1])


@pytest.mark.parametrize("shape", ["chat", "responses"])
def test_results_without_content_are_served_empty(shape: Shape) -> None:
    turn, sent = stored_as_sent(shape, asked(shape, call(shape), result(shape, None)))
    shown, _ = served(shape, view_of(turn), sent)
    assert problems(shape, shown) == []
    assert shown[2] == result(shape, "")


@pytest.mark.parametrize("shape", ["chat", "responses"])
def test_a_declared_name_is_kept(shape: Shape) -> None:
    message = call(shape, name="mcp.look")
    assert repair_message(shape, message, declared='[{"name":"mcp.look"}]') is message
    assert repair_message(shape, message) != message


def test_blocks_of_the_messages_api_are_repaired_in_place() -> None:
    source = {"type": "base64", "media_type": "image/jpg", "data": "AAAA"}
    content = [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]},
        {"type": "text", "text": "and?"},
    ]
    repaired = repair_message("messages", {"role": "user", "content": content})
    assert repaired["content"][0]["content"][0]["source"] == {**source, "media_type": "image/jpeg"}
    assert repaired["content"][1] is content[1]
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look up", "input": "{}"}]}
    assert repair_message("messages", called)["content"] == [
        {"type": "tool_use", "id": "a", "name": "look_up", "input": {}}
    ]


def stored_as_sent(shape: Shape, messages: list[dict[str, Any]]) -> Any:
    """Return messages in the inner form that is stored, and what is served of them in their own shape."""
    _, sent = stored(shape, messages)
    return [codecs.decode(shape, json.loads(as_sent(message))) for message in messages], sent
