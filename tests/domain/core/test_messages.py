"""What is told of a message at append: requests, results, calls, and whether the Messages API takes it as it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from compaction.messages import (
    acceptable,
    has_thinking,
    has_tool_results,
    is_call,
    is_request,
    message_facts,
    result_text_chars,
    tool_result_ids,
    tool_use_ids,
    turn_facts,
)
from compaction.tokens import content_tokens
from tests.support.blocks import document_block, image_block, text_block, unknown_block
from tests.support.messages_api import problems
from tests.support.strategies import any_conversations

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
SERVER_CALL = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}


def call(identifier: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identifier, "name": "search", "input": {}} | fields


def result(identifier: str = "a", content: Any = "found", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identifier, "content": content} | fields


@pytest.mark.requirement("T3")
@pytest.mark.parametrize(
    ("role", "content", "expected"),
    [
        ("user", [result()], True),
        ("user", [result("a"), result("b")], True),
        ("user", [result(), text_block("and another thing")], True),
        ("user", "tool_result", False),
        ("user", [text_block("hello")], False),
        ("user", [], False),
        ("assistant", [call()], False),
        ("assistant", [result()], False),
    ],
)
def test_tool_result_messages_are_the_users_lists_of_results(role: str, content: Any, expected: bool) -> None:
    assert has_tool_results(role, content) is expected


@pytest.mark.parametrize(
    ("role", "content", "expected"),
    [
        ("user", "hello", True),
        ("user", "", True),
        ("user", [], True),
        ("user", [image_block()], True),
        ("user", [result()], False),
        ("user", [result(), text_block("and another thing")], True),
        ("assistant", "hello", False),
        ("assistant", [text_block("hello")], False),
    ],
)
def test_an_exchange_begins_with_a_user_message_that_is_not_only_results(
    role: str, content: Any, expected: bool
) -> None:
    assert is_request(role, content) is expected


def test_ids_are_told_in_order_and_server_tools_are_not_the_clients() -> None:
    assert tool_use_ids([call("b"), SERVER_CALL, call("a")]) == ["b", "a"]
    assert tool_result_ids([result("b"), SERVER_RESULT, result("a")]) == ["b", "a"]
    assert tool_use_ids("tool_use") == tool_result_ids("tool_result") == []


def test_thinking_counts_in_assistant_messages_alone() -> None:
    redacted = {"type": "redacted_thinking", "data": "x"}
    assert has_thinking("assistant", [text_block("a"), THOUGHT])
    assert has_thinking("assistant", [redacted])
    assert not has_thinking("user", [THOUGHT])
    assert not has_thinking("assistant", "thinking")


@pytest.mark.parametrize(
    ("content", "chars"),
    [
        ("found", 5),
        ("", 0),
        ([text_block("one"), image_block(), text_block("three")], 8),
        ([image_block()], 0),
        (None, 0),
        ({"rows": 3}, 0),
    ],
)
def test_the_text_of_a_result_is_its_string_or_its_text_blocks(content: Any, chars: int) -> None:
    assert result_text_chars(result(content=content)) == chars


TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("user", text_block("hello")),
    ("user", image_block()),
    ("user", document_block()),
    ("user", unknown_block()),
    ("user", result()),
    ("user", {"type": "tool_result", "tool_use_id": "a"}),
    ("user", result(content=[text_block("one"), image_block()])),
    ("user", result(content=[text_block("no")], is_error=True)),
    ("assistant", text_block("hello")),
    ("assistant", THOUGHT),
    ("assistant", {"type": "redacted_thinking", "data": "x"}),
    ("assistant", call()),
    ("assistant", SERVER_CALL),
    ("assistant", SERVER_RESULT),
    ("assistant", unknown_block()),
]
REFUSED: list[tuple[str, Any]] = [
    ("user", "loose text"),
    ("user", {"text": "no type"}),
    ("user", {"type": 3}),
    ("user", text_block("")),
    ("user", text_block(" \n\t")),
    ("user", {"type": "text"}),
    ("user", {"type": "text", "text": 3}),
    ("user", {"type": "image"}),
    ("user", {"type": "tool_result", "content": "no id"}),
    ("user", THOUGHT),
    ("user", call()),
    ("user", SERVER_CALL),
    ("user", SERVER_RESULT),
    ("assistant", result()),
    ("assistant", image_block()),
    ("assistant", document_block()),
    ("assistant", {"type": "thinking", "thinking": "unsigned"}),
    ("assistant", {"type": "redacted_thinking"}),
    ("assistant", call("")),
    ("assistant", {"type": "mcp_tool_use", "id": "", "name": "x", "input": {}}),
]
MENDED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (result(content=None), result(content="")),
    (result(content={"rows": 3}), result(content='{"rows":3}')),
    (result(content=[text_block(" "), text_block("one")]), result(content=[text_block("one")])),
    (result(content=["loose", text_block("one")]), result(content=[text_block("one")])),
    (result(content=[call(), result(), text_block("one")]), result(content=[text_block("one")])),
    (
        result(content=[text_block("no"), image_block()], is_error=True),
        result(content=[text_block("no")], is_error=True),
    ),
]


@pytest.mark.parametrize(("role", "block"), TAKEN)
def test_a_block_that_the_api_takes_stays_the_same_object(role: str, block: dict[str, Any]) -> None:
    assert acceptable(role, block) is block


@pytest.mark.parametrize(("role", "block"), REFUSED)
def test_a_block_that_the_api_refuses_is_not_acceptable(role: str, block: Any) -> None:
    assert acceptable(role, block) is None
    assert not message_facts(role, [text_block("hello"), block]).sound


@pytest.mark.parametrize(("block", "mended"), MENDED)
def test_a_result_is_mended_rather_than_lost(block: dict[str, Any], mended: dict[str, Any]) -> None:
    assert acceptable("user", block) == mended
    assert acceptable("user", mended) is mended
    assert not message_facts("user", [block]).sound


@pytest.mark.parametrize(
    ("block", "name"),
    [
        (call("with space"), "search"),
        (call("a\n"), "search"),
        (call(name="not.a.name"), "not_a_name"),
        (call(name=""), "tool"),
        (call(name=" look up "), "look_up"),
        (call(name="n" * 200), "n" * 128),
    ],
)
def test_a_call_that_is_named_as_the_api_refuses_gets_another_name(block: dict[str, Any], name: str) -> None:
    mended = acceptable("assistant", block)
    assert mended is not None
    assert acceptable("assistant", mended) is mended
    assert (mended["name"], mended["input"]) == (name, block["input"])
    answered = acceptable("user", result(block["id"]))
    assert answered is not None
    assert answered["tool_use_id"] == mended["id"]
    assert not message_facts("assistant", [block]).sound


@pytest.mark.parametrize(
    ("role", "content", "sound"),
    [
        ("user", "hello", True),
        ("user", " \n", False),
        ("user", [], False),
        ("user", [result("a"), result("b"), text_block("thanks")], True),
        ("user", [text_block("thanks"), result()], False),
        ("assistant", [THOUGHT, text_block("so"), call("a"), call("b")], True),
        ("assistant", [call(), text_block("so")], False),
        ("assistant", [text_block("so"), THOUGHT], False),
        ("assistant", [SERVER_CALL, SERVER_RESULT, text_block("so")], False),
        ("assistant", [{**SERVER_CALL, "type": "mcp_tool_use"}], False),
    ],
)
def test_a_message_is_sound_when_nothing_in_it_needs_repair(role: str, content: Any, sound: bool) -> None:
    assert message_facts(role, content).sound is sound


def test_facts_hold_what_planning_needs() -> None:
    facts = message_facts("user", [result("b", "found"), result("a", [image_block()]), text_block("thanks")])
    assert facts.role == "user"
    assert facts.tokens == content_tokens([result("b", "found"), result("a", [image_block()]), text_block("thanks")])
    assert facts.result_chars == (5, 0)
    assert facts.results == ("b", "a")
    assert facts.calls == ()
    assert facts.is_request
    assert not facts.has_thinking


@pytest.mark.parametrize(
    ("role", "block"),
    [("assistant", call("")), ("user", call("a"))],
)
def test_a_call_that_repair_drops_waits_for_no_result(role: str, block: dict[str, Any]) -> None:
    # Else the result in the next turn would look answered, and be served without its call once this one is covered.
    assert message_facts(role, [text_block("so"), block]).calls == ()


def facts_of(*messages: tuple[str, Any]) -> Any:
    return turn_facts([message_facts(role, content) for role, content in messages])


def test_a_turn_tells_what_it_answers_and_what_it_leaves_open() -> None:
    turn = facts_of(
        ("user", [result("z"), result("b")]),
        ("assistant", [call("y"), call("c")]),
    )
    assert turn.sound
    assert turn.leading_results == ("b", "z")
    assert turn.trailing_calls == ("c", "y")
    assert turn.ends_in_loop
    assert not turn.has_request
    assert turn.after_answer == 2


@pytest.mark.parametrize(
    "messages",
    [
        [("assistant", [call()]), ("user", "never mind")],
        [("assistant", [call("a"), call("b")]), ("user", [result("a")])],
        [("assistant", [call("a")]), ("user", [result("a"), result("b")])],
        [("assistant", [call("a")]), ("assistant", "so")],
        [("assistant", [call("a"), call("a")]), ("user", [result("a")])],
        [("assistant", [call("a")]), ("user", [result("a"), result("a")])],
        [("user", "hello"), ("user", [result("a")])],
    ],
)
def test_a_turn_with_a_parted_pair_is_not_sound(messages: list[tuple[str, Any]]) -> None:
    assert not facts_of(*messages).sound


def test_a_loop_runs_until_the_answer() -> None:
    assert facts_of(("user", [result()])).ends_in_loop
    assert not facts_of(("user", [result(), text_block("stop")])).ends_in_loop
    assert not facts_of(("assistant", "done")).ends_in_loop
    assert not facts_of(("user", "hello")).ends_in_loop


def test_thinking_is_in_the_loop_after_the_last_request() -> None:
    think = ("assistant", [THOUGHT, call()])
    assert facts_of(("user", "hello"), think).thinking_in_loop
    assert facts_of(think).thinking_in_loop
    assert not facts_of(think, ("user", [result()]), ("assistant", "so"), ("user", "next")).thinking_in_loop
    assert facts_of(think, ("user", "next")).has_thinking


def test_what_usage_cannot_have_seen_comes_after_the_last_answer() -> None:
    assert facts_of(("user", "hello")).after_answer == 0
    assert facts_of(("user", "hello"), ("assistant", "so"), ("user", "next")).after_answer == 2


@given(any_conversations())
def test_what_is_called_sound_stands_on_its_own(conversation: list[dict[str, Any]]) -> None:
    for message in conversation:
        facts = message_facts(message["role"], message["content"])
        # Pairs, repeated ids and the opening are the turn's concern: give the message what it needs of them.
        asked = [call(identifier) for identifier in facts.results]
        known = all(map(is_call, asked)) and all(len(set(ids)) == len(ids) for ids in (facts.results, facts.calls))
        if facts.sound and known:
            answer = {"role": "assistant", "content": asked or "so"}
            before: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
            before += [answer] if message["role"] == "user" else []
            assert problems([*before, message]) == []
