"""Any shape in, any shape out: what is served is what its API accepts, and as it was sent where nothing was cut."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.messages import message_facts
from compaction.policy import Policy
from compaction.shapes import codecs
from compaction.shapes.inner import InnerMessage
from compaction.shorten.fitting import fit_history
from compaction.shorten.tool_results import cut_tool_results
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.summary.zone import find_zone, rebuild
from tests.support.shapes.generated import Message, as_sent, chat_conversations, response_conversations
from tests.support.shapes.served import problems, served

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from compaction.shapes.inner import SentMessage, Shape
    from compaction.view import View

_CONVERSATIONS: Final[Mapping[Shape, st.SearchStrategy[list[Message]]]] = {
    "chat": chat_conversations(),
    "responses": response_conversations(),
}
_SAID: Final = re.compile(r"said\d+x")


def conversations() -> st.SearchStrategy[tuple[Shape, list[Message]]]:
    """Return a shape and a conversation in it."""
    return st.sampled_from(sorted(_CONVERSATIONS)).flatmap(
        lambda shape: st.tuples(st.just(shape), _CONVERSATIONS[shape])
    )


def stored(shape: Shape, messages: Sequence[Message]) -> tuple[list[InnerMessage], dict[int, SentMessage]]:
    """Return a conversation in the inner form, and what was sent by seq."""
    sent = {seq: codecs.read_sent(as_sent(message), shape) for seq, message in enumerate(messages)}
    return [each.decoded for each in sent.values()], sent


def view_of(turn: Sequence[InnerMessage], **policy: Any) -> View:
    """Return the working view of a conversation without a snapshot."""
    rows = [Original(seq, role, msgspec.json.encode(content).decode()) for seq, (role, content) in enumerate(turn)]
    return build(Snapshot(), rows, Policy(**policy)).view


@given(conversations())
def test_generated_conversations_are_what_their_api_accepts(given: tuple[Shape, list[Message]]) -> None:
    shape, messages = given
    assert problems(shape, messages, messages) == []


@given(conversations())
def test_what_is_untouched_is_served_as_it_was_sent_byte_for_byte(given: tuple[Shape, list[Message]]) -> None:
    shape, messages = given
    turn, sent = stored(shape, messages)
    encoded = codecs.encode(shape, view_of(turn), sent)
    assert [bytes(each).decode() for each in encoded.messages] == [as_sent(message) for message in messages]
    assert encoded.left_out == []


@given(conversations())
def test_a_whole_conversation_needs_no_repair(given: tuple[Shape, list[Message]]) -> None:
    shape, messages = given
    turn, _ = stored(shape, messages)
    assert codecs.facts_of(turn).sound
    view = view_of(turn, max_tool_result_chars=1_000_000)
    assert [(each.role, each.content) for each in view] == turn


@given(conversations(), st.sampled_from(["messages", "chat", "responses"]))
def test_every_shape_accepts_what_it_is_served_of_another(given: tuple[Shape, list[Message]], target: Shape) -> None:
    shape, messages = given
    turn, sent = stored(shape, messages)
    served_messages, left_out = served(target, view_of(turn), sent if target == shape else {})
    assert problems(target, served_messages, messages) == []
    # Nothing that anybody said is lost without a word: it is there, or its message is named.
    text = json.dumps(served_messages)
    for seq, message in enumerate(messages):
        if missing := [said for said in _SAID.findall(json.dumps(message)) if said not in text]:
            assert seq in left_out, missing


@given(
    conversations(),
    st.sampled_from(["messages", "chat", "responses"]),
    st.integers(0, 3_000),
    st.integers(1, 200),
    st.booleans(),
)
def test_what_was_cut_dropped_and_summarized_is_accepted_in_every_shape(
    given: tuple[Shape, list[Message]], target: Shape, room: int, retention: int, summarizes: bool
) -> None:
    shape, messages = given
    turn, sent = stored(shape, messages)
    view = cut_tool_results(view_of(turn), retention).view
    zone = find_zone(view, 3) if summarizes else None
    if zone is not None:
        view = rebuild(view, zone, "What was said before.")
    fitted = fit_history(view, room, lambda message: message.tokens, carries_summary=zone is not None).view
    served_messages, _ = served(target, fitted, sent if target == shape else {})
    assert problems(target, served_messages, messages) == []
    assert served_messages
    if zone is not None and messages[0].get("role") in {"system", "developer"} and target == shape:
        assert served_messages[0] == messages[0], "instructions stay where a summary replaces what follows them"


@given(conversations(), st.randoms(use_true_random=True))
def test_what_was_sent_broken_is_mended_for_every_shape(given: tuple[Shape, list[Message]], random: Random) -> None:
    shape, messages = given
    whole = random.choice([0.5, 0.9])
    kept = [message for message in messages if random.random() < whole] or messages[:1]
    turn, sent = stored(shape, kept)
    view = view_of(turn)
    for target in codecs.SHAPES if view else ():
        served_messages, _ = served(target, view, sent if target == shape else {})
        assert problems(target, served_messages, kept) == []


@given(st.data())
def test_conversations_that_mix_shapes_are_accepted_in_every_shape(data: st.DataObject) -> None:
    turn: list[InnerMessage] = []
    sent: dict[Shape, dict[int, SentMessage]] = {"chat": {}, "responses": {}}
    for _ in range(data.draw(st.integers(1, 3))):
        shape, messages = data.draw(conversations())
        for message in messages:
            each = codecs.read_sent(as_sent(message), shape)
            sent[shape][len(turn)] = each
            turn.append(each.decoded)
    view = view_of(turn)
    for target in codecs.SHAPES:
        served_messages, _ = served(target, view, sent.get(target, {}))
        assert problems(target, served_messages) == []


@pytest.mark.parametrize("second", codecs.SHAPES)
@pytest.mark.parametrize("first", ["chat", "responses"])
@pytest.mark.parametrize("identifier", ["functions.search:0", "call with spaces", "a", "é"])
def test_a_call_and_a_result_that_came_in_another_shape_stay_a_pair(
    first: Shape, second: Shape, identifier: str
) -> None:
    """Some providers' ids are none to the Messages API: the next model answers by the id that it is shown."""
    turn, sent = stored(first, [{"role": "user", "content": "Search."}, _called(first, identifier)])
    shown, _ = served(second, view_of(turn), sent if first == second else {})
    answer = _answered(second, _id_of_call(second, shown[-1]))
    results: dict[Shape, dict[int, SentMessage]] = {first: sent}
    if second == "messages":
        turn.append(InnerMessage("user", answer["content"]))
    else:
        turn.append(codecs.decode(second, answer))
        results[second] = results.get(second, {}) | {2: codecs.read_sent(json.dumps(answer), second)}
    assert codecs.facts_of(turn).sound
    for target in codecs.SHAPES:
        messages, left_out = served(target, view_of(turn), results.get(target, {}))
        assert problems(target, messages) == []
        assert left_out == []
        assert "Found it." in json.dumps(messages[-1])


def _called(shape: Shape, identifier: str) -> Message:
    if shape == "responses":
        return {"type": "function_call", "call_id": identifier, "name": "search", "arguments": "{}"}
    function = {"name": "search", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": identifier, "type": "function", "function": function}],
    }


def _id_of_call(shape: Shape, message: Message) -> str:
    call = message if shape == "responses" else message["tool_calls" if shape == "chat" else "content"][0]
    return str(call["call_id" if shape == "responses" else "id"])


def _answered(shape: Shape, identifier: str) -> Message:
    if shape == "chat":
        return {"role": "tool", "tool_call_id": identifier, "content": "Found it."}
    if shape == "responses":
        return {"type": "function_call_output", "call_id": identifier, "output": "Found it."}
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": identifier, "content": "Found it."}],
    }


@pytest.mark.parametrize("content", [{"content": None}, {"content": []}, {}])
def test_reasoning_alone_is_served_with_a_content_that_its_api_takes(content: dict[str, Any]) -> None:
    thinks = {"role": "assistant", "reasoning_content": "Hm.", **content}
    messages: list[Message] = [{"role": "user", "content": "Go."}, thinks, {"role": "user", "content": "And?"}]
    turn, sent = stored("chat", messages)
    shown, left_out = served("chat", view_of(turn), sent)
    assert shown == [messages[0], {**thinks, "content": ""}, messages[2]]
    assert left_out == problems("chat", shown) == []
    assert problems("chat", messages) != []


@given(conversations())
def test_facts_of_each_message_are_those_of_its_inner_form(given: tuple[Shape, list[Message]]) -> None:
    shape, messages = given
    turn, _ = stored(shape, messages)
    facts = codecs.facts_of(turn)
    assert list(facts.messages) == [message_facts(role, content) for role, content in turn]
    assert facts.exchanges == sum(message.get("role") == "user" for message in messages)


@pytest.mark.parametrize(
    ("turn", "shape"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, None),
        ({"messages": [{"role": "tool", "tool_call_id": "a", "content": "b"}]}, "chat"),
        ({"messages": [{"role": "user", "content": "a", "name": "anna"}]}, "chat"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "chat"),
        ({"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]}, "chat"),
        ({"messages": [{"role": "user", "content": "a"}], "usage": {"prompt_tokens": 1}}, "chat"),
        ({"messages": [{"type": "function_call"}]}, "responses"),
        ({"messages": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, "responses"),
        ({"messages": [{"role": "system", "content": "a"}, {"type": "message"}]}, "responses"),
        ({"messages": [{"role": "user", "content": "a"}], "usage": {"input_tokens_details": {}}}, "responses"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, None),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "chat"),
        # No call is lost as a part that Chat Completions does not know.
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}, {"role": "system"}]}, None),
    ],
)
def test_a_turn_is_recognized_where_it_can_only_have_one_shape(turn: dict[str, Any], shape: Shape | None) -> None:
    assert codecs.shape_of(turn) == shape


@pytest.mark.parametrize("target", ["chat", "responses"])
@pytest.mark.parametrize("identifier", [f"toolu_{'long' * 20}", f"{'x' * 50}", "plain"])
@pytest.mark.parametrize("cut", [False, True])
def test_ids_of_calls_are_as_long_as_an_api_takes_them(target: Shape, identifier: str, cut: bool) -> None:
    # The call in one shape, its result in the other, as where the model changes within a tool loop.
    block = {"type": "tool_use", "id": identifier, "name": "search", "input": {}}
    result = (
        {"role": "tool", "tool_call_id": identifier, "content": "said1x " * 200}
        if target == "chat"
        else {"type": "function_call_output", "call_id": identifier, "output": "said1x " * 200}
    )
    read = codecs.read_sent(as_sent(result), target)
    turn = [
        InnerMessage("user", "Search."),
        InnerMessage("assistant", [block]),
        read.decoded,
        InnerMessage("assistant", "Done."),
    ]
    turn += [InnerMessage("assistant", [{**block, "id": f"{identifier}2"}]), InnerMessage("user", [
        {"type": "tool_result", "tool_use_id": f"{identifier}2", "content": "Found."}])]  # fmt: skip
    view = view_of(turn)
    view = cut_tool_results(view, 20).view if cut else view
    served_messages, _ = served(target, view, {2: read})
    assert problems(target, served_messages, []) == []
    named = "tool_call_id" if target == "chat" else "call_id"
    answered = [message[named] for message in served_messages if named in message and "arguments" not in message]
    assert len(set(answered)) == 2
    if identifier == "plain":
        assert answered == ["plain", "plain2"]
    # While a call is open its id is the client's to name.
    still_open, _ = served(target, view_of(turn[:2]), {})
    assert identifier in json.dumps(still_open)
