"""The checker accepts what the API accepts and names what it refuses; the strategies give both kinds."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from compaction.policy import merge
from tests.support.blocks import Message, document_block, image_block, text_block, unknown_block
from tests.support.client_faults import Fault
from tests.support.messages_api import ThinkingLedger, alternates, problems
from tests.support.places import TRANSCRIPTS
from tests.support.strategies import any_conversations, policies, split_into_turns, valid_conversations

if TYPE_CHECKING:
    from collections.abc import Iterator


def user(*content: Any) -> Message:
    return {"role": "user", "content": _content(content)}


def assistant(*content: Any) -> Message:
    return {"role": "assistant", "content": _content(content)}


def _content(content: tuple[Any, ...]) -> Any:
    return content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)


def call(call_id: str = "t1", **changes: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "bash", "input": {"a": 1}} | changes


def result(call_id: str = "t1", **changes: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "done"} | changes


def thought(**changes: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "hm", "signature": "sig"} | changes


def server_call(call_id: str = "s1") -> dict[str, Any]:
    return {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {}}


def server_result(call_id: str = "s1") -> dict[str, Any]:
    return {"type": "web_search_tool_result", "tool_use_id": call_id, "content": []}


TEXT = text_block("hello")
BLANK = text_block("  \n")

ACCEPTED: dict[str, list[Message]] = {
    "one request": [user("hi")],
    "ends with assistant": [user("hi"), assistant("hello")],
    "same role twice": [user("hi"), user("there"), assistant("a"), assistant("b"), user("c")],
    "round": [user("hi"), assistant(call()), user(result()), assistant("ok")],
    "parallel calls, any order": [
        user("hi"),
        assistant(TEXT, call("a"), call("b")),
        user(result("b"), result("a"), TEXT),
    ],
    "results spread over neighbours": [
        user("hi"),
        assistant(call("a")),
        assistant(call("b")),
        user(result("a")),
        user(result("b")),
        user("and now?"),
    ],
    "ids repeated across rounds": [user("hi"), *([assistant(call()), user(result())] * 3)],
    "open call at the end": [user("hi"), assistant(TEXT, call("a"), call("b"))],
    "results of every shape": [
        user("hi"),
        assistant(*(call(str(n)) for n in range(6))),
        user(
            result("0", content=""),
            result("1", content=[]),
            result("2", content=[TEXT, image_block(), document_block()]),
            result("3", content="no", is_error=True),
            {"type": "tool_result", "tool_use_id": "4"},
            result("5", content=[unknown_block()]),
        ),
    ],
    "thinking": [
        user("hi"),
        assistant(thought(), {"type": "redacted_thinking", "data": "x"}, TEXT, call()),
        user(result()),
        assistant(thought(thinking=""), TEXT),
    ],
    "server tool": [user("hi"), assistant(TEXT, server_call(), server_result(), TEXT), user("thanks")],
    "server tool over neighbours": [user("hi"), assistant(server_call()), assistant(server_result(), TEXT)],
    "server tool beside a call": [
        user("hi"),
        assistant(server_call(), server_result(), call()),
        user(result()),
    ],
    "server tool paused at the end": [user("hi"), assistant(server_call())],
    "media from the user": [user(image_block(), document_block(), TEXT)],
    "unknown blocks": [user(unknown_block()), assistant(unknown_block())],
}

REFUSED: dict[str, tuple[list[Message], str]] = {
    "empty list": ([], "at least one"),
    "starts with assistant": ([assistant("hi"), user("hello")], "first message"),
    "system role": ([user("hi"), {"role": "system", "content": "x"}], "role"),
    "no role": ([user("hi"), {"content": "x"}], "role"),
    "extra key": ([user("hi") | {"id": "m1"}], "extra inputs"),
    "no content": ([{"role": "user"}], "string or a list"),
    "null content": ([{"role": "user", "content": None}], "string or a list"),
    "empty string": ([user("")], "must not be empty"),
    "empty list of blocks": ([user("hi"), {"role": "assistant", "content": []}], "must not be empty"),
    "blank string": ([user(" \n\t")], "non-whitespace"),
    "empty text block": ([user(TEXT, text_block(""))], "non-whitespace"),
    "blank text block": ([user("hi"), assistant(BLANK, call()), user(result())], "non-whitespace"),
    "blank text in a result": (
        [user("hi"), assistant(call()), user(result(content=[BLANK]))],
        "non-whitespace",
    ),
    "text not a string": ([user({"type": "text", "text": 3})], "text: must be a string"),
    "block not an object": ([user("a", "b")], "object with a type"),
    "block without type": ([user({"text": "a"})], "object with a type"),
    "missing result": ([user("hi"), assistant(call()), user("next")], "has no tool_result"),
    "one of two results": (
        [user("hi"), assistant(call("a"), call("b")), user(result("a"))],
        "tool_use b has no tool_result",
    ),
    "result too late": (
        [user("hi"), assistant(call()), user("wait"), assistant("ok"), user(result())],
        "has no tool_use in the previous",
    ),
    "orphan result": ([user("hi"), assistant("ok"), user(result())], "has no tool_use in the previous"),
    "orphan result first": ([user(result())], "has no tool_use in the previous"),
    "result of an older round": (
        [user("hi"), assistant(call("a")), user(result("a")), assistant(call("b")), user(result("a"))],
        "tool_result a has no tool_use",
    ),
    "result twice": (
        [user("hi"), assistant(call()), user(result(), result())],
        "more than one tool_result",
    ),
    "result twice over neighbours": (
        [user("hi"), assistant(call()), user(result()), user(result())],
        "more than one tool_result",
    ),
    "text before the result": ([user("hi"), assistant(call()), user(TEXT, result())], "must come first"),
    "neighbour before the result": (
        [user("hi"), assistant(call()), user("so?"), user(result())],
        "must come first",
    ),
    "id twice in a message": (
        [user("hi"), assistant(call(), call()), user(result())],
        "tool_use ids must be unique",
    ),
    "id twice over neighbours": (
        [user("hi"), assistant(call()), assistant(call()), user(result())],
        "tool_use ids must be unique",
    ),
    "id charset": ([user("hi"), assistant(call("a:0")), user(result("a:0"))], ".id: must match"),
    "id with newline": ([user("hi"), assistant(call("a\n"))], ".id: must match"),
    "empty id": ([user("hi"), assistant(call("")), user(result(""))], ".id: must match"),
    "empty name": ([user("hi"), assistant(call(name=""))], ".name: must match"),
    "long name": ([user("hi"), assistant(call(name="n" * 129))], ".name: must match"),
    "name charset": ([user("hi"), assistant(call(name="a.b"))], ".name: must match"),
    "input a string": ([user("hi"), assistant(call(input="{}"))], "input: must be an object"),
    "result content a number": (
        [user("hi"), assistant(call()), user(result(content=3))],
        "string or a list",
    ),
    "result content null": (
        [user("hi"), assistant(call()), user(result(content=None))],
        "string or a list",
    ),
    "call inside a result": (
        [user("hi"), assistant(call()), user(result(content=[call("x")]))],
        "not allowed in a tool_result",
    ),
    "call from the user": ([user(TEXT, call())], "only allowed in assistant"),
    "thinking from the user": ([user(TEXT, thought())], "only allowed in assistant"),
    "server result from the user": (
        [user("hi"), assistant(server_call()), user(server_result())],
        "only allowed in assistant",
    ),
    "image from the assistant": ([user("hi"), assistant(image_block())], "only allowed in user"),
    "document from the assistant": ([user("hi"), assistant(document_block())], "only allowed in user"),
    "result from the assistant": ([user("hi"), assistant(call(), result())], "only allowed in user"),
    "image without source": ([user({"type": "image"})], "source: must be an object"),
    "thinking without signature": (
        [user("hi"), assistant({"type": "thinking", "thinking": "hm"}, TEXT)],
        "signature: must be a string",
    ),
    "redacted thinking without data": (
        [user("hi"), assistant({"type": "redacted_thinking"}, TEXT)],
        "data: must be a string",
    ),
    "server call without result": (
        [user("hi"), assistant(server_call(), TEXT), user("so?")],
        "has no result where the conversation goes on",
    ),
    "server result without call": (
        [user("hi"), assistant(server_result(), TEXT)],
        "has no server_tool_use before it",
    ),
    "server result before its call": (
        [user("hi"), assistant(server_result(), server_call(), TEXT)],
        "has no server_tool_use before it",
    ),
    "server id twice": (
        [user("hi"), assistant(server_call(), server_result(), server_call(), server_result())],
        "ids must be unique",
    ),
}

REPORTED: dict[str, tuple[list[Message], str]] = {
    "text after a call": ([user("hi"), assistant(call(), TEXT), user(result())], "after a tool_use"),
    "text after a call over neighbours": (
        [user("hi"), assistant(call()), assistant("checking"), user(result())],
        "after a tool_use",
    ),
    "thinking last": ([user("hi"), assistant(TEXT, thought()), user("go on")], "cannot be thinking"),
    "thinking alone": ([user("hi"), assistant(thought()), user("go on")], "cannot be thinking"),
    "error with an image": (
        [user("hi"), assistant(call()), user(result(is_error=True, content=[TEXT, image_block()]))],
        "must be text if is_error",
    ),
}


@pytest.mark.parametrize("messages", ACCEPTED.values(), ids=ACCEPTED)
def test_accepts(messages: list[Message]) -> None:
    assert problems(messages) == []


@pytest.mark.parametrize(("messages", "reason"), REFUSED.values(), ids=REFUSED)
def test_refuses(messages: list[Message], reason: str) -> None:
    assert any(reason in line for line in problems(messages, reported=False)), problems(messages)


@pytest.mark.parametrize(("messages", "reason"), REPORTED.values(), ids=REPORTED)
def test_refuses_what_was_only_reported(messages: list[Message], reason: str) -> None:
    assert any(reason in line for line in problems(messages))
    assert problems(messages, reported=False) == []


def test_a_problem_names_the_place() -> None:
    (line,) = problems([user("hi"), assistant("ok"), user(TEXT, BLANK)])
    assert line.startswith("messages.2.content.1: ")


def test_an_open_tail_can_be_refused() -> None:
    client = [user("hi"), assistant(call())]
    server = [user("hi"), assistant(server_call())]
    assert problems(client, allow_open_tail=False)
    assert problems(server, allow_open_tail=False)


def test_tools_must_be_defined_uniquely_and_well_named() -> None:
    round_ = [user("hi"), assistant(call()), user(result())]
    assert problems(round_, tools=[{"name": "bash"}]) == []
    assert problems([user("hi")], tools=[]) == []
    assert "must define tools" in problems(round_, tools=[])[0]
    assert "unique" in problems(round_, tools=[{"name": "bash"}, {"name": "bash"}])[0]
    assert "tools.0.name" in problems(round_, tools=[{"name": "a b"}])[0]


def test_alternates() -> None:
    assert alternates([])
    assert alternates([user("a"), assistant("b"), user("c")])
    assert not alternates([user("a"), user("b")])


class TestThinkingLedger:
    @pytest.fixture
    def ledger(self) -> ThinkingLedger:
        return ThinkingLedger(system="be brief")

    @pytest.fixture
    def signed(self, ledger: ThinkingLedger) -> list[Message]:
        return ledger.signed(
            [
                user("first"),
                assistant(thought(), TEXT),
                user("second"),
                assistant({"type": "redacted_thinking", "data": ""}, call()),
                user(result()),
            ]
        )

    def test_unchanged_prefixes_pass(self, ledger: ThinkingLedger, signed: list[Message]) -> None:
        assert problems(signed, ledger=ledger) == []
        assert signed[1]["content"][0]["signature"] == ledger.sign(signed[:1])

    def test_what_the_model_does_not_see_may_change(self, ledger: ThinkingLedger, signed: list[Message]) -> None:
        signed[0] = user(TEXT | {"text": "first", "cache_control": {"type": "ephemeral"}})
        signed[3:4] = [assistant(block) for block in signed[3]["content"]]
        assert problems(signed, ledger=ledger) == []

    def test_any_change_before_a_block_is_seen(self, ledger: ThinkingLedger, signed: list[Message]) -> None:
        changed = copy.deepcopy(signed)
        changed[2]["content"] = "second, edited"
        assert [line.split(":")[0] for line in ledger.problems(changed)] == ["messages.3.content.0"]
        assert len(ledger.problems([user("summary"), *signed[1:]])) == 2
        assert len(ThinkingLedger(system="be long").problems(signed)) == 2
        assert len(ThinkingLedger("be brief", tools=[{"name": "bash"}]).problems(signed)) == 2

    def test_stripped_thinking_passes_after_a_change(self, ledger: ThinkingLedger, signed: list[Message]) -> None:
        stripped = [user("summary"), assistant(TEXT), user("second"), assistant(call()), user(result())]
        assert problems(stripped, ledger=ledger) == []
        assert ledger.problems([*stripped[:3], *signed[3:]])

    @given(valid_conversations())
    @settings(max_examples=30, deadline=None)
    def test_signed_conversations_pass(self, messages: list[Message]) -> None:
        ledger = ThinkingLedger()
        before = json.dumps(messages)
        assert problems(ledger.signed(messages), ledger=ledger) == []
        assert json.dumps(messages) == before


@given(valid_conversations())
def test_valid_conversations_are_valid(messages: list[Message]) -> None:
    assert problems(messages) == []


@given(any_conversations())
def test_any_conversation_is_sendable_json_and_can_be_judged(messages: list[Message]) -> None:
    assert messages
    assert {message["role"] for message in messages} <= {"user", "assistant"}
    assert json.loads(json.dumps(messages)) == messages
    problems(messages)


@given(valid_conversations(thinking=False))
@settings(max_examples=30)
def test_thinking_can_be_left_out(messages: list[Message]) -> None:
    assert '"thinking"' not in json.dumps(messages)


@given(st.data())
@settings(max_examples=50)
def test_turns_are_the_conversation_in_order(data: st.DataObject) -> None:
    messages = data.draw(any_conversations(max_chars=500))
    turns = data.draw(split_into_turns(messages))
    assert all(turns)
    assert [message for turn in turns for message in turn] == messages


@given(policies())
def test_policies_are_possible(overrides: dict[str, Any]) -> None:
    policy = merge(overrides)
    assert all(getattr(policy, key) == value for key, value in overrides.items())


FIND = settings(max_examples=2_000, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
SHRINK = settings(FIND, max_examples=300, phases=[Phase.generate, Phase.shrink])


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize("fault", Fault)
def test_each_fault_makes_conversations_that_the_api_refuses(fault: Fault) -> None:
    one = any_conversations(faults=[fault], max_faults=1, max_chars=40, max_exchanges=2)
    assert problems(find(one, lambda messages: bool(problems(messages)), settings=FIND))


def _kinds(messages: list[Message]) -> Iterator[str]:
    for message in messages:
        for block in message["content"] if isinstance(message["content"], list) else []:
            yield block["type"]
            inner = block.get("content")
            yield from (f"result/{each['type']}" for each in inner or [] if isinstance(inner, list))


@pytest.mark.parametrize(
    "kind",
    [
        "thinking",
        "redacted_thinking",
        "image",
        "document",
        "hologram",
        "server_tool_use",
        "result/text",
        "result/image",
    ],
)
def test_valid_conversations_reach(kind: str) -> None:
    reached = find(valid_conversations(max_chars=40), lambda messages: kind in set(_kinds(messages)), settings=FIND)
    assert problems(reached) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_valid_conversations_reach_the_huge_and_the_same_role_twice() -> None:
    huge = find(valid_conversations(max_rounds=0), lambda messages: len(messages[0]["content"]) > 50_000, settings=FIND)
    twice = find(valid_conversations(max_chars=40), lambda messages: not alternates(messages), settings=FIND)
    assert problems(huge) == problems(twice) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_conversations_shrink_to_the_tiny() -> None:
    assert find(valid_conversations(), lambda _: True, settings=SHRINK) == [user("#0 lorem")]
    broken = find(
        any_conversations(),
        lambda messages: any("unique" in line for line in problems(messages)),
        settings=SHRINK,
    )
    assert len(broken) <= 8


@pytest.mark.recorded
@pytest.mark.parametrize("name", ["airline.jsonl", "swe-agent.jsonl"])
def test_real_transcripts_are_accepted(name: str) -> None:
    path = TRANSCRIPTS / name
    if not path.exists():
        pytest.skip(f"no transcripts at {TRANSCRIPTS}: set PALIMPSEST_TRANSCRIPTS")
    for line in path.read_text(encoding="utf-8").splitlines():
        conversation = json.loads(line)
        assert problems(conversation["messages"]) == [], conversation["id"]
