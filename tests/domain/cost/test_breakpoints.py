"""Breakpoints of the prompt cache: at most four, the same ones with the same bytes before them from call to call."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.cache_marks import MAX_MARKS, markable, with_mark, without_marks
from compaction.cost.breakpoints import (
    Breakpoint,
    SentMessages,
    cache_mark,
    decode_messages,
    message_breakpoints,
    payload_breakpoints,
)
from compaction.cost.calls import FIVE_MINUTES, NO_CACHE, ONE_HOUR
from compaction.messages import count_marks
from compaction.policy import Policy
from compaction.steps.stored_view import dump_messages
from compaction.view import ViewMessage
from tests.domain.core.test_invariants_domain import lived, valid_lives
from tests.support import talk
from tests.support.messages_api import problems
from tests.support.strategies import valid_conversations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.domain.core.test_invariants_domain import Life
    from tests.support.blocks import Message
    from tests.support.domain_conversation import Conversation

TOOLS = [{"name": "look", "input_schema": {"type": "object"}}, {"name": "book", "input_schema": {"type": "object"}}]


def sent(messages: Sequence[Message], head: int = 0, varying: int | None = None) -> SentMessages:
    return SentMessages([each["role"] for each in messages], lambda at: messages[at]["content"], head, varying)


def of_messages(messages: Sequence[Message], head: int = 0, room: int = MAX_MARKS) -> list[Breakpoint]:
    """Return the breakpoints that messages as they are served have, read from their text as an answer is made."""
    return message_breakpoints(decode_messages(json.dumps(messages).encode(), head), room)


def prefix(messages: Sequence[Message], each: Breakpoint) -> str:
    """Return what stands up to a breakpoint."""
    assert each.message is not None
    content = messages[each.message]["content"]
    last = content if each.block is None else content[: each.block + 1]
    return json.dumps([*messages[: each.message], {"role": messages[each.message]["role"], "content": last}])


def marked(messages: Sequence[Message], each: Breakpoint) -> dict[str, Any]:
    """Return the block that a mark belongs on."""
    assert each.message is not None
    content = messages[each.message]["content"]
    if each.block is None:
        assert isinstance(content, str)
        return {"type": "text", "text": content}
    block = content[each.block]
    assert isinstance(block, dict)
    return block


def served(conversation: Conversation) -> tuple[list[Message], int]:
    """Return the messages of a context without the marks that are stored, and how many of them are the head's."""
    view = without_marks(conversation.working().view)
    after = (at for at, message in enumerate(view) if message.seq > conversation.covers_through)
    head = next(after, len(view)) if conversation.head else 0
    return json.loads(dump_messages(view)), head


@given(valid_lives(), st.integers(1, MAX_MARKS))
def test_a_breakpoint_stays_with_the_same_bytes_before_it_while_the_head_does(life: Life, room: int) -> None:
    before: tuple[int, int, list[Message], int] | None = None
    for _, conversation in lived(life):
        messages, head = served(conversation)
        now = of_messages(messages, head, room)
        assert len(now) <= min(room, 3)
        assert now == sorted(set(now), key=lambda each: (each.message, each.block))
        for each in now:
            assert marked(messages, each)["type"] in {"text", "tool_use", "tool_result", "image", "document"}
        state = (conversation.head, conversation.strip_thinking_through)
        # What comes as the API would refuse it is mended where it stands, which may be anywhere.
        is_sound = conversation.broken_through <= conversation.covers_through
        if before is not None and before[:2] == state and is_sound:
            earlier = before[2]
            for each in of_messages(earlier, before[3], room):
                assert prefix(earlier, each) == prefix(messages, each)
            if room > 2 and head and (end := of_messages(messages[:head], head, 1)):
                assert end[0] in now
                assert end[0] in of_messages(earlier, before[3], room)
        before = (*state, messages, head)


@given(valid_conversations(max_chars=200, max_exchanges=3), st.integers(2, MAX_MARKS))
def test_what_a_call_ended_with_is_a_breakpoint_of_the_next(conversation: list[Message], room: int) -> None:
    """Whether contexts are read before the user's message is stored, or after it."""
    for role in ("user", "assistant"):
        ends = [
            at + 1
            for at, each in enumerate(conversation)
            if each["role"] == role and (at + 1 == len(conversation) or conversation[at + 1]["role"] != role)
        ]
        for one, other in pairwise(ends):
            last = of_messages(conversation[:one], 0, room)[-1:]
            assert set(last) <= set(of_messages(conversation[:other], 0, room))


def test_the_newest_message_comes_first_then_the_last_call_and_then_the_head() -> None:
    messages = talk.exchanges(6, 50)[:-1]
    places = {room: [each.message for each in of_messages(messages, 4, room)] for room in range(MAX_MARKS + 1)}
    assert places == {0: [], 1: [10], 2: [8, 10], 3: [3, 8, 10], 4: [3, 8, 10]}


def test_in_a_tool_loop_each_round_reads_what_the_one_before_wrote() -> None:
    messages = [talk.request("find it"), *talk.rounds(3, 40)]
    assert [each.message for each in of_messages(messages)] == [4, 6]
    assert [each.message for each in of_messages(messages[:-2])] == [2, 4]


def test_a_request_with_context_blocks_is_no_place_for_one() -> None:
    messages = talk.exchanges(3, 50)[:-1]
    request = len(messages) - 1
    assert [each.message for each in message_breakpoints(sent(messages, 0, request), 3)] == [1, 3]
    loop = [*messages, *talk.rounds(2, 40)]
    assert [each.message for each in message_breakpoints(sent(loop, 1, request), 3)] == [0, 3, 8]
    # What the loop's calls end before its request is where the next request's begin.
    assert [
        each.message for each in message_breakpoints(sent([*loop, talk.answer("a"), talk.request("b")], 1, 10), 3)
    ] == [
        0,
        3,
        9,
    ]
    assert message_breakpoints(sent(messages[:1], 0, 0), 3) == []


@pytest.mark.parametrize(
    ("system", "tools", "first"),
    [
        ("Be brief.", None, [Breakpoint("system", None, None)]),
        ([{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}], TOOLS, [Breakpoint("system", None, 1)]),
        (None, TOOLS, [Breakpoint("tools", None, 1)]),
        (None, None, []),
        ("Be brief.", [TOOLS[0] | {"cache_control": {"type": "ephemeral"}}], []),
    ],
)
def test_the_first_ends_what_every_conversation_begins_with(system: Any, tools: Any, first: list[Breakpoint]) -> None:
    messages = talk.exchanges(6, 50)
    places = payload_breakpoints(sent(messages, 4), system, tools)
    assert places[: len(first)] == first
    assert all(each.field == "messages" for each in places[len(first) :])
    assert len(places) + count_marks(system) + count_marks(tools) <= MAX_MARKS
    assert len(places) == len(first) + 3
    # With room for one alone it is the newest message's.
    alone = payload_breakpoints(sent(messages, 4), system, tools, 1)
    assert [each.message for each in alone] == ([] if count_marks(tools) else [11])


def test_a_request_whose_marks_are_all_taken_gets_none() -> None:
    system = [{"type": "text", "text": str(number), "cache_control": {"type": "ephemeral"}} for number in range(4)]
    assert payload_breakpoints(sent(talk.exchanges(2, 20)), system, None) == []


def test_what_may_carry_no_mark_is_passed_over() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    messages: list[Message] = [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": [{"type": "text", "text": "Well."}, thought]},
        {"role": "user", "content": [{"type": "text", "text": " "}]},
    ]
    assert of_messages(messages) == [Breakpoint("messages", 0, None), Breakpoint("messages", 1, 0)]
    assert of_messages([{"role": "assistant", "content": [thought]}]) == []
    assert of_messages([]) == []
    assert markable(None) is None
    assert markable([7, thought]) is None


def test_a_marked_context_is_one_that_the_api_takes() -> None:
    messages = talk.exchanges(6, 50)
    places = of_messages(messages, 4)
    for each in places:
        assert each.message is not None
        content = with_mark(messages[each.message]["content"], {"type": "ephemeral"})
        messages[each.message] = messages[each.message] | {"content": content}
    assert problems(messages) == []
    assert sum(count_marks(each["content"]) for each in messages) == len(places)
    view = without_marks([ViewMessage(each["role"], each["content"]) for each in messages])
    assert not any(count_marks(each.content) for each in view)


def test_the_mark_says_how_long_the_policys_cache_lives() -> None:
    assert cache_mark(NO_CACHE) is None
    assert msgspec.to_builtins(cache_mark(FIVE_MINUTES)) == {"type": "ephemeral"}
    assert msgspec.to_builtins(cache_mark(ONE_HOUR)) == {"type": "ephemeral", "ttl": "1h"}
    assert cache_mark(Policy().prompt_cache_seconds) == cache_mark(FIVE_MINUTES)
