"""Marks for the prompt cache: the API takes four in tools, system prompt and messages together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.cache_marks import MAX_MARKS, MarkableParts, keep_last
from compaction.messages import count_marks, message_facts
from compaction.steps.snapshot import Snapshot, Working, load_view, settle
from compaction.view import ViewMessage
from tests.api.operations.test_metrics import metrics
from tests.support.messages_api import problems

if TYPE_CHECKING:
    from tests.support.blocks import Message
    from tests.support.service.running_api import Service

MARK = {"cache_control": {"type": "ephemeral"}}
SYSTEM = [{"type": "text", "text": "Be brief."} | MARK]
TOOLS = [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}} | MARK]


def marked(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text} | MARK]}


def turns(count: int) -> list[Message]:
    return [marked(("user", "assistant")[number % 2], f"message {number}") for number in range(count)]


def places(value: Any) -> list[str]:
    """Return the texts of the marked blocks anywhere in `value`, in order."""
    return [block["text"] for block in value if count_marks([block])]


def marks_of(messages: list[Message]) -> list[str]:
    return [text for message in messages for text in places(message["content"]) if isinstance(message["content"], list)]


def blocks() -> st.SearchStrategy[dict[str, Any]]:
    mark = st.sampled_from([{}, MARK, {"cache_control": None}, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}])
    text = st.builds(lambda text, mark: {"type": "text", "text": text} | mark, st.text("ab", min_size=1), mark)
    inner = st.lists(text, max_size=3)
    result = st.builds(
        lambda content, mark: {"type": "tool_result", "tool_use_id": "t", "content": content} | mark,
        inner | st.just("as text"),
        mark,
    )
    document = st.builds(
        lambda content, mark: {"type": "document", "source": {"type": "content", "content": content}} | mark,
        inner,
        mark,
    )
    used = st.builds(
        lambda mark: {"type": "tool_use", "id": "t", "name": "n", "input": {"content": [MARK], **MARK}} | mark, mark
    )
    return st.one_of(text, result, document, used)


def contents() -> st.SearchStrategy[Any]:
    return st.just("as text") | st.lists(blocks(), max_size=4)


def without(value: Any) -> Any:
    """Return JSON without the marks of blocks; inputs of calls are the model's own words."""
    if isinstance(value, list):
        return [without(each) for each in value]
    if isinstance(value, dict):
        return {
            key: inner if key == "input" else without(inner)
            for key, inner in value.items()
            if key != "cache_control" or inner is None
        }
    return value


def flat(value: Any) -> list[bool]:
    """Return for every block, in the API's order, whether it is marked."""
    items: list[bool] = []
    for block in value if isinstance(value, list) else []:
        items += flat(block.get("content")) + flat((block.get("source") or {}).get("content"))
        items.append(block.get("cache_control") is not None)
    return items


@given(st.none() | st.lists(blocks(), max_size=3), contents(), st.lists(contents(), max_size=6), st.integers(-1, 6))
def test_the_last_marks_stay_and_nothing_else_changes(tools: Any, system: Any, talk: list[Any], room: int) -> None:
    before = MarkableParts(tools, system, tuple(ViewMessage("user", content, seq) for seq, content in enumerate(talk)))
    after = keep_last(before, room)
    every = [(before.tools, after.tools), (before.system, after.system)]
    every += [(old.content, new.content) for old, new in zip(before.messages, after.messages, strict=True)]
    was = [mark for old, _ in every for mark in flat(old)]
    now = [mark for _, new in every for mark in flat(new)]
    places = [index for index, mark in enumerate(was) if mark]
    kept = places[max(0, len(places) - max(0, room)) :]
    assert [index for index, mark in enumerate(now) if mark] == kept
    assert sum(count_marks(new) for _, new in every) == len(kept)
    for old, new in every:
        assert without(new) == without(old)
        if flat(new) == flat(old):
            assert new is old
    assert [(message.role, message.seq) for message in after.messages] == [("user", seq) for seq in range(len(talk))]


def test_a_message_with_a_mark_is_looked_at_before_it_is_served() -> None:
    for content in (
        [{"type": "text", "text": "x"} | MARK],
        [{"type": "tool_result", "tool_use_id": "t", "content": SYSTEM}],
    ):
        assert not message_facts("user", content).sound
    for plain in ({}, {"cache_control": None}):
        assert message_facts("user", [{"type": "text", "text": "x"} | plain]).sound
    assert message_facts("assistant", [{"type": "tool_use", "id": "t", "name": "n", "input": MARK}]).sound


def test_the_messages_of_a_context_keep_the_last_four(service: Service) -> None:
    path = service.conversation()
    service.append(path, *turns(MAX_MARKS - 1))
    assert len(marks_of(service.client.get(f"{path}/context").json()["messages"])) == MAX_MARKS - 1
    service.append(path, *turns(8)[3:])
    served = service.client.get(f"{path}/context").json()
    assert marks_of(served["messages"]) == [f"message {number}" for number in range(4, 8)]
    assert (without(served["messages"]), served["warnings"]) == (without(turns(8)), [])
    # What is stored keeps its marks.
    stored = service.client.get(f"{path}/messages", params={"after": -1}).json()["data"]
    assert [message["content"] for message in stored] == [message["content"] for message in turns(8)]


@pytest.mark.parametrize(
    ("system", "tools", "left"), [(SYSTEM, None, 3), (SYSTEM, TOOLS, 2), (SYSTEM * 3, TOOLS * 2, 0)]
)
def test_stored_tools_and_system_prompt_count(service: Service, system: Any, tools: Any, left: int) -> None:
    """They are sent with the messages, and come first: what reads the context cannot take their marks off."""
    path = service.conversation(system=system, tools=tools)
    service.append(path, *turns(7))
    expected = [f"message {number}" for number in range(7 - left, 7)]
    assert marks_of(service.client.get(f"{path}/context").json()["messages"]) == expected
    whole = service.client.post(f"{path}/context", json={}).json()
    total = count_marks(tools) + count_marks(whole["system"]) + len(marks_of(whole["messages"]))
    assert total == MAX_MARKS
    # Of what the payload has itself the first go: tools are not in it.
    assert len(marks_of(whole["messages"])) == MAX_MARKS - count_marks(tools)


def test_the_users_message_and_a_given_system_prompt_count_in_a_payload(service: Service) -> None:
    path = service.conversation()
    service.append(path, *turns(2))
    body = {"system": SYSTEM * 3, "user_message": marked("user", "now")}
    found = service.client.post(f"{path}/context", json=body).json()
    assert (count_marks(found["system"]), marks_of(found["messages"])) == (1, ["message 0", "message 1", "now"])
    assert problems(found["messages"]) == []


def test_a_context_without_marks_is_passed_on_unparsed(service: Service) -> None:
    text = [{"type": "text", "text": 'a mark: {"cache_control": 1}'}]
    for content, path_taken in ((text, "plain"), ([text[0] | MARK], "mended")):
        path = service.conversation()
        service.append(path, {"role": "user", "content": content})
        before = metrics(service)
        assert service.client.get(f"{path}/context").status_code == 200
        after = metrics(service)
        assert after["palimpsest_contexts_total", path_taken] == before["palimpsest_contexts_total", path_taken] + 1


def test_a_snapshot_holds_no_marks() -> None:
    """So a context whose tail has none may be passed on unparsed."""
    view = tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(turns(5)))
    working = Working(view, Snapshot(), (), ())
    new = settle(working, (*view[:2], ViewMessage("user", "summary"), view[4]), run_id="run")
    assert not any(count_marks(message.content) for message in load_view(new.messages_json, new.seqs))
