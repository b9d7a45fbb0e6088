"""Repair: whatever was stored, the Messages API takes the view, and what was sound stays the same objects."""

from __future__ import annotations

import copy
import json
from itertools import pairwise, takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.messages import acceptable, message_facts, tool_use_ids
from compaction.pins.pinned import latest_request_pin
from compaction.repair import LATE, LATE_DATA, NO_RESULT, NOTHING, ORPHANED, Repairs, mend, repair
from compaction.shorten.trimming import rounds
from compaction.soundness import is_sound
from compaction.view import MARKER, OPENING, OUT_OF_PLACE, WRITTEN, View, ViewMessage, strip_thinking
from tests.support.blocks import document_block, image_block, text_block, unknown_block
from tests.support.client_faults import Fault
from tests.support.messages_api import problems
from tests.support.strategies import any_conversations, valid_conversations

THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
SERVER_CALL = {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}
OPEN = ("user", "hello")

MALFORMED: list[Any] = [
    "loose text",
    None,
    {"text": "no type"},
    {"type": 3},
    {"type": "text"},
    {"type": "text", "text": None},
    {"type": "image"},
    {"type": "document", "source": "report.pdf"},
    {"type": "thinking", "thinking": "unsigned"},
    {"type": "redacted_thinking"},
    {"type": "tool_use", "id": "a", "name": "not a name", "input": {}},
    {"type": "tool_use", "id": "a", "name": "fetch", "input": "{}"},
    {"type": "tool_use", "name": "fetch", "input": {}},
    {"type": "tool_result", "content": "no id"},
    {"type": "tool_result", "tool_use_id": "a", "content": 17},
    {"type": "tool_result", "tool_use_id": "a", "content": None},
    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_use", "id": "x"}, "loose", {"type": 3}]},
    {"type": "tool_result", "tool_use_id": ["a"], "content": "unhashable"},
    {"type": "server_tool_use", "id": "", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": ["a"], "content": []},
    {"type": "mcp_tool_use", "id": "m", "name": "x", "input": {}},
]


def call(identifier: str = "a") -> dict[str, Any]:
    return {"type": "tool_use", "id": identifier, "name": "fetch", "input": {}}


def result(identifier: str = "a", content: Any = "found") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identifier, "content": content}


def missing(identifier: str = "a") -> dict[str, Any]:
    return result(identifier, NO_RESULT) | {"is_error": True}


def view_of(*messages: tuple[str, Any]) -> View:
    return tuple(
        ViewMessage(role, json.loads(json.dumps(content)), seq) for seq, (role, content) in enumerate(messages)
    )


def conversation_view(conversation: list[dict[str, Any]]) -> View:
    return tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(conversation))


def repaired(*messages: tuple[str, Any]) -> list[tuple[str, Any]]:
    view, _ = repair(view_of(*messages))
    sent = [message.as_message() for message in view]
    assert problems(sent) == []
    return [(message.role, message.content) for message in view]


def same(before: View, after: View) -> bool:
    return len(before) == len(after) and all(old is new for old, new in zip(before, after, strict=True))


@given(any_conversations())
def test_whatever_was_stored_the_api_takes_the_view(conversation: list[dict[str, Any]]) -> None:
    stored = copy.deepcopy(conversation)
    view, _ = repair(conversation_view(conversation))
    sent = [message.as_message() for message in view]
    assert sent == [] or problems(sent) == []
    assert conversation == stored


@given(any_conversations(max_faults=6, max_exchanges=3))
def test_repairing_again_changes_nothing(conversation: list[dict[str, Any]]) -> None:
    once, _ = repair(conversation_view(conversation))
    again, repairs = repair(once)
    assert same(once, again)
    assert repairs.warnings() == []


@given(valid_conversations())
def test_what_is_valid_comes_back_as_the_same_objects(conversation: list[dict[str, Any]]) -> None:
    assert problems(conversation) == []
    view = conversation_view(conversation)
    after, repairs = repair(view)
    assert same(view, after)
    assert repairs.warnings() == []


@given(any_conversations(max_faults=2, max_exchanges=3))
def test_what_looks_sound_is_left_alone_by_mending(conversation: list[dict[str, Any]]) -> None:
    view = conversation_view(conversation)

    mended, repairs = mend(view)

    if is_sound(view):
        assert same(view, mended)
        assert repairs == Repairs()


@given(valid_conversations())
def test_what_is_valid_looks_sound_where_roles_alternate(conversation: list[dict[str, Any]]) -> None:
    view = conversation_view(conversation)
    alternate = all(before.role != after.role for before, after in pairwise(view))

    assert is_sound(view) or not alternate or not all(map(_is_common, view))


def _is_common(message: ViewMessage) -> bool:
    kinds = {block["type"] for block in message.content} if isinstance(message.content, list) else set()
    return kinds <= {"text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result"}


def test_a_tool_loop_looks_sound_and_one_with_a_gap_does_not() -> None:
    loop = [
        OPEN,
        ("assistant", [THOUGHT, text_block("so"), call("a"), call("b")]),
        ("user", [result("b"), result("a"), image_block()]),
        ("assistant", "done"),
        ("user", "more"),
        ("assistant", [call("a")]),
    ]

    assert is_sound(view_of(*loop))
    assert not any(is_sound(view_of(*loop[:gap], *loop[gap + 1 :])) for gap in (0, 1, 2))


@given(any_conversations(max_faults=6))
def test_the_text_of_a_users_message_is_never_lost(conversation: list[dict[str, Any]]) -> None:
    after, _ = repair(conversation_view(conversation))
    assert user_texts([message.as_message() for message in after if message.seq != WRITTEN]) == user_texts(conversation)


def user_texts(messages: list[dict[str, Any]]) -> list[str]:
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "user" and isinstance(content, str):
            texts.append(content)
        elif message["role"] == "user":
            texts += [str(block["text"]) for block in content if block["type"] == "text"]
    return [text for text in texts if text.strip() and not text.startswith(OUT_OF_PLACE)]


NEWEST: list[Any] = [
    "and?",
    "",
    [],
    [{"type": "tool_result", "tool_use_id": "toolu_nowhere", "content": "orphan"}],
    [{"type": "tool_result", "tool_use_id": "toolu_nowhere", "content": [image_block()]}],
    [{"type": "tool_result", "tool_use_id": "toolu_nowhere"}, text_block("and?")],
    [{"type": "thinking", "thinking": "not the user's", "signature": "s"}],
    *([block] for block in MALFORMED),
]


@given(any_conversations(max_faults=4), st.sampled_from(NEWEST) | st.integers(0, 50))
def test_the_view_ends_with_the_newest_message_of_the_user_whatever_it_is(
    conversation: list[dict[str, Any]], newest: Any
) -> None:
    """An index stands for the results of some call in the conversation: late, a second time, or in time."""
    if isinstance(newest, int):
        calls = [block["id"] for block in blocks_of(conversation, "tool_use")] or ["toolu_nowhere"]
        newest = [{"type": "tool_result", "tool_use_id": calls[newest % len(calls)], "content": f"said {newest}"}]
    view = conversation_view([*conversation, {"role": "user", "content": newest}])
    after, _ = repair(view)
    assert problems([message.as_message() for message in after]) == []
    assert repair(after)[0] == after
    waits = bool(blocks_of([message.as_message() for message in after[-1:]], "tool_use")) and not said_by(view[-1])
    assert not after or after[-1].role == "user" or waits
    said = {str(block["content"]) for block in view[-1].content if isinstance(block, dict) and "content" in block}
    json_text = json.dumps([message.as_message() for message in after])
    for text in said & {"orphan", *(f"said {number}" for number in range(51))}:
        assert text in json_text
    # Without a stand-in nothing but the end is another.
    bare, _ = repair(view, ends_with_newest=False)
    assert after[: len(bare) - 1] == bare[:-1]
    assert len(after) - len(bare) in {0, 1}
    assert len({message.seq for message in after if message.seq != WRITTEN}) == sum(
        message.seq != WRITTEN for message in after
    )


def said_by(message: ViewMessage) -> bool:
    """Tell whether a message from the user has any block that the API would take somewhere."""
    content = message.content
    return bool(content.strip()) if isinstance(content, str) else any(acceptable("user", block) for block in content)


def test_what_stands_for_the_newest_message_says_what_it_said() -> None:
    asked = (OPEN, ("assistant", [call()]), ("user", "wait"), ("assistant", "fine"))
    for newest, expected in (
        ([result(content="found")], f"{LATE_DATA}\nfound"),
        ([result(content=[image_block()])], LATE),
        ([result("x", "found")], f"{ORPHANED}\nfound"),
        ([result("x", [text_block("a"), image_block(), text_block("b")])], f"{ORPHANED}\na\nb"),
        ([result("x", "y" * 9_000)], f"{ORPHANED}\n{'y' * 2_000}{MARKER}"),
        ([result("x", [image_block()])], NOTHING),
        ("", NOTHING),
    ):
        after, repairs = repair(view_of(*asked, ("user", newest)))
        assert (after[-1].role, after[-1].content, after[-1].seq) == ("user", expected, 4)
        assert repairs.warnings()[-1] == "the newest message has no place where it was sent; a text stands for it"
        assert latest_request_pin(after) == latest_request_pin(after[:-1])
    # As soon as another message follows, it is gone again, and what was thought next with it.
    after, _ = repair(view_of(*asked, ("user", [result("x")]), ("assistant", [THOUGHT, text_block("so")])))
    assert [message.content for message in after[-2:]] == ["fine", [text_block("so")]]


@given(
    any_conversations(
        faults=[Fault.MISPLACED_RESULT, Fault.RESULT_AFTER_TEXT, Fault.SWAP], max_faults=1, max_exchanges=3
    )
)
def test_no_result_whose_call_is_there_is_lost_by_being_out_of_place(conversation: list[dict[str, Any]]) -> None:
    view, repairs = repair(conversation_view(conversation))
    calls = blocks_of(conversation, "tool_use")
    results = blocks_of(conversation, "tool_result")
    identifiers = [block["id"] for block in calls]
    if len(set(identifiers)) < len(identifiers):
        return
    results_in_view = {
        block["tool_use_id"]: block for block in blocks_of([message.as_message() for message in view], "tool_result")
    }
    answer = list(takewhile(lambda message: message.role == "assistant", reversed(view)))
    open_ids = {block["id"] for block in blocks_of([message.as_message() for message in answer], "tool_use")}
    for block in results:
        if block["tool_use_id"] in identifiers and block["tool_use_id"] not in open_ids:
            assert results_in_view[block["tool_use_id"]] == block
    assert repairs.missing_results == len(set(identifiers) - {block["tool_use_id"] for block in results} - open_ids)


def blocks_of(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [
        block
        for message in messages
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == kind
    ]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.lists(st.sampled_from(MALFORMED))), max_size=6))
def test_malformed_blocks_are_mended_or_left_out(messages: list[tuple[str, Any]]) -> None:
    repaired(OPEN, ("assistant", [call()]), *messages, ("user", [result()]))


def test_a_result_moves_to_its_call() -> None:
    late = [result("b"), text_block("by the way")]
    assert repaired(
        OPEN, ("assistant", [call("a"), call("b")]), ("user", [result("a")]), ("assistant", "so"), ("user", late)
    ) == [
        OPEN,
        ("assistant", [call("a"), call("b")]),
        ("user", [result("a"), result("b")]),
        ("assistant", "so"),
        ("user", [text_block("by the way")]),
    ]


def test_a_call_with_an_id_or_a_name_that_the_api_refuses_is_served_with_another() -> None:
    foreign = [call("functions.fetch:0"), {**call("functions.fetch:1"), "name": "fetch page.v2"}]
    results = [result("functions.fetch:1", "two"), result("functions.fetch:0", "one")]
    after, repairs = repair(
        view_of(OPEN, ("assistant", foreign), *(("user", [each]) for each in results), ("user", "so?"))
    )
    assert problems([message.as_message() for message in after]) == []
    made = [block for block in after[1].content if isinstance(block, dict)]
    shown = [block for message in after[2:4] for block in message.content if isinstance(block, dict)]
    assert [(block["tool_use_id"], block["content"]) for block in shown] == [
        (made[1]["id"], "two"),
        (made[0]["id"], "one"),
    ]
    assert [block["name"] for block in made] == ["fetch", "fetch_page_v2"]
    assert repairs == Repairs(renamed_calls=2)
    assert repair(after) == (after, Repairs())


def test_a_result_that_came_at_last_takes_the_place_of_the_error_that_was_written_for_it() -> None:
    """A snapshot has that error, where it was made while the call was not answered."""
    written = [("assistant", [call("a"), call("b")]), ("user", [result("a"), missing("b")]), ("assistant", "so far")]
    late = [("user", [result("b")]), ("assistant", [THOUGHT, text_block("so")])]
    after, repairs = repair(view_of(OPEN, *written, *late))
    assert [message.content for message in after[2:]] == [[result("a"), result("b")], "so far", [text_block("so")]]
    assert (repairs.moved_results, repairs.missing_results, repairs.dropped_blocks) == (1, 0, 0)
    # Of two for one call the error is what there is no need of; where no other comes it stays as it is.
    newest = ("user", [result("b"), text_block("and?")])
    assert repaired(OPEN, *written, newest)[2] == ("user", [result("a"), result("b")])
    assert repaired(OPEN, *written) == [OPEN, *written]


def test_a_result_that_was_stored_before_its_call_moves_after_it() -> None:
    assert repaired(OPEN, ("user", [result()]), ("assistant", [call()]), ("user", "and?")) == [
        OPEN,
        ("assistant", [call()]),
        ("user", [result(), text_block("and?")]),
    ]


def test_a_second_answer_to_one_call_is_not_taken_for_an_early_one_to_the_next() -> None:
    answers = [result(content="first"), result(content="again")]
    after = repaired(OPEN, ("assistant", [call()]), ("user", answers), ("assistant", [call()]), ("user", "and?"))
    assert after[2] == ("user", answers[:1])
    assert after[4] == ("user", [missing(), text_block("and?")])


def test_a_result_goes_before_the_text_of_its_message() -> None:
    assert repaired(OPEN, ("assistant", [call()]), ("user", [text_block("here"), result()])) == [
        OPEN,
        ("assistant", [call()]),
        ("user", [result(), text_block("here")]),
    ]


def test_results_in_neighbouring_messages_stay_where_they_are() -> None:
    view = view_of(OPEN, ("assistant", [call("a"), call("b")]), ("user", [result("b")]), ("user", [result("a")]))
    assert same(view, repair(view)[0])


def test_a_call_without_a_result_gets_an_error_and_a_trailing_one_stays_open() -> None:
    assert repaired(OPEN, ("assistant", [call()]), ("user", "never mind"), ("assistant", [call("b")])) == [
        OPEN,
        ("assistant", [call()]),
        ("user", [missing(), text_block("never mind")]),
        ("assistant", [call("b")]),
    ]


def test_a_result_without_a_call_and_a_second_one_are_left_out() -> None:
    assert repaired(OPEN, ("assistant", [call()]), ("user", [result(), result(content="twice"), result("x")])) == [
        OPEN,
        ("assistant", [call()]),
        ("user", [result()]),
    ]


def test_ids_that_start_over_are_told_apart_by_place() -> None:
    first, second = result(content="first"), result(content="second")
    view = view_of(OPEN, ("assistant", [call()]), ("user", [first]), ("assistant", [call()]), ("user", [second]))
    assert same(view, repair(view)[0])
    lost = repaired(OPEN, ("assistant", [call()]), ("user", "?"), ("assistant", [call()]), ("user", [second]))
    assert lost[2] == ("user", [missing(), text_block("?")])
    assert lost[4] == ("user", [second])


def test_a_repeated_call_in_one_answer_is_left_out_across_neighbours() -> None:
    assert repaired(OPEN, ("assistant", [call()]), ("assistant", [text_block("so"), call()]), ("user", [result()])) == [
        OPEN,
        ("assistant", [text_block("so"), call()]),
        ("user", [result()]),
    ]


def test_calls_end_an_answer_and_thinking_does_not() -> None:
    assert repaired(OPEN, ("assistant", [call(), text_block("so")]), ("user", [result()]))[1] == (
        "assistant",
        [text_block("so"), call()],
    )
    assert repaired(OPEN, ("assistant", [text_block("so"), THOUGHT])) == [OPEN, ("assistant", [text_block("so")])]
    view, repairs = repair(view_of(OPEN, ("assistant", [THOUGHT])))
    assert [(message.role, message.content) for message in view] == [OPEN]
    assert repairs.warnings() == ["1 block(s) of thinking that nothing was said after are left out"]


@pytest.mark.parametrize(
    "answers",
    [
        [[text_block("so"), call()], [THOUGHT]],
        [[call("b")], [call("c"), THOUGHT]],
        [[call()], [text_block("so")], [THOUGHT]],
        [[call("b")], [THOUGHT, text_block("so"), call("c")]],
    ],
)
def test_calls_stay_where_they_are_once_what_was_thought_is_left_out(answers: list[list[dict[str, Any]]]) -> None:
    view = view_of(OPEN, *(("assistant", blocks) for blocks in answers))
    mended, _ = repair(view)
    assert strip_thinking(mended, len(view)) == repair(strip_thinking(view, len(view)))[0]
    assert sum(message.content.count(THOUGHT) for message in mended[1:] if isinstance(message.content, list)) == 1


def test_thinking_does_not_end_an_answer_whose_server_call_is_left_out() -> None:
    assert repaired(OPEN, ("assistant", [text_block("so"), THOUGHT, SERVER_CALL]), ("user", "and?"))[1] == (
        "assistant",
        [text_block("so")],
    )


def test_a_conversation_begins_with_the_user() -> None:
    view, repairs = repair(view_of(("assistant", "hello"), ("user", "hi")))
    assert (view[0].role, view[0].content, view[0].seq) == ("user", OPENING, WRITTEN)
    assert repairs.opened
    assert repaired(("user", [result()]), ("assistant", "hello"))[0] == ("user", OPENING)


@pytest.mark.parametrize("blank", ["", " \n\t", [], [text_block("")], [text_block(" "), text_block("\n")]])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_empty_messages_are_left_out(role: str, blank: Any) -> None:
    assert repaired(OPEN, (role, blank), ("assistant", "hello")) == [OPEN, ("assistant", "hello")]
    alone, _ = repair(view_of((role, blank)))
    # A list without messages is refused as well: of the user's, a text stands for what was said.
    assert [message.content for message in alone] == ([NOTHING] if role == "user" else [])


def test_blocks_in_the_wrong_role_are_left_out() -> None:
    assert repaired(
        ("user", [call(), THOUGHT, SERVER_CALL, SERVER_RESULT, text_block("hello")]),
        ("assistant", [image_block(), document_block(), result(), text_block("hi"), unknown_block()]),
    ) == [("user", [text_block("hello")]), ("assistant", [text_block("hi"), unknown_block()])]


def test_an_error_keeps_its_text_alone() -> None:
    failed = result(content=[text_block("no such page"), image_block()]) | {"is_error": True}
    assert repaired(OPEN, ("assistant", [call()]), ("user", [failed]))[2] == (
        "user",
        [failed | {"content": [text_block("no such page")]}],
    )


def test_server_tools_are_paired_in_order_inside_an_answer() -> None:
    right = ("assistant", [SERVER_CALL, SERVER_RESULT, text_block("so")])
    assert repaired(OPEN, right, ("user", "and?"))[1] == right
    wrong = ("assistant", [SERVER_RESULT, SERVER_CALL, text_block("so")])
    assert repaired(OPEN, wrong, ("user", "and?"))[1] == ("assistant", [text_block("so")])
    twice = ("assistant", [SERVER_CALL, SERVER_RESULT, SERVER_CALL, SERVER_RESULT])
    assert repaired(OPEN, twice, ("user", "and?"))[1] == ("assistant", [SERVER_CALL, SERVER_RESULT])


def test_a_server_call_may_be_unfinished_in_the_last_answer_alone() -> None:
    unfinished = ("assistant", [text_block("let me look"), SERVER_CALL])
    assert repaired(OPEN, unfinished)[1] == unfinished
    assert repaired(OPEN, unfinished, ("user", "well?"))[1] == ("assistant", [text_block("let me look")])
    mcp = ("assistant", [text_block("let me look"), SERVER_CALL | {"type": "mcp_tool_use"}])
    assert repaired(OPEN, mcp, ("user", "well?"))[1] == ("assistant", [text_block("let me look")])


def test_answers_that_an_orphan_parted_are_paired_as_the_one_they_become() -> None:
    answer = ("assistant", [SERVER_CALL, SERVER_RESULT])
    assert repaired(OPEN, answer, ("user", [result("nowhere")]), answer, ("user", "and?")) == [
        OPEN,
        answer,
        ("user", "and?"),
    ]


def test_thinking_from_before_a_late_result_is_left_out() -> None:
    view = view_of(
        OPEN,
        ("assistant", [THOUGHT, call()]),
        ("user", "while we wait: what is the time?"),
        ("assistant", [THOUGHT, text_block("noon")]),
        ("user", [result()]),
        ("assistant", [THOUGHT, text_block("found it")]),
    )
    after, repairs = repair(view)
    assert [message.content for message in after] == [
        "hello",
        [THOUGHT, call()],
        [result(), text_block("while we wait: what is the time?")],
        [text_block("noon")],
        # What was thought next saw a text in the place of the result.
        [text_block("found it")],
    ]
    assert repairs.stale_thinking == 2


@pytest.mark.parametrize("before", [[("user", [result()])], []], ids=["after a message that stays", "beside an error"])
def test_thinking_saw_the_text_that_stood_for_results_of_no_call(before: list[tuple[str, Any]]) -> None:
    said = [OPEN, ("assistant", [call()]), *before, ("user", [result("x")])]
    seen, _ = repair(view_of(*said))
    assert ORPHANED in json.dumps(seen[-1].content)
    after, repairs = repair(view_of(*said, ("assistant", [THOUGHT, text_block("so")])))
    assert ORPHANED not in json.dumps([message.content for message in after])
    assert (after[-1].content, repairs.stale_thinking) == ([text_block("so")], 1)


def test_a_thought_that_was_cut_off_is_left_out_where_the_assistant_went_on() -> None:
    cut_off = {"type": "thinking", "thinking": "hm, per", "signature": ""}
    went_on = ("assistant", [THOUGHT, text_block("so")])
    after, repairs = repair(view_of(OPEN, ("assistant", [cut_off]), went_on, ("user", "thanks")))
    assert [(message.role, message.content) for message in after] == [OPEN, went_on, ("user", "thanks")]
    assert repairs.last_thinking == 1
    # A thought with a signature is a piece of what comes after it, and models that sign nothing have theirs before it.
    for whole in ([[THOUGHT], [call()]], [[cut_off, call()]]):
        pieces = [("assistant", piece) for piece in whole]
        assert repaired(OPEN, *pieces, ("user", [result()])) == [OPEN, *pieces, ("user", [result()])]


def test_the_warnings_say_what_was_mended() -> None:
    _, repairs = repair(
        view_of(
            ("assistant", [call("a"), call("b"), text_block("")]),
            ("user", "wait"),
            ("assistant", [THOUGHT, text_block("well")]),
            ("user", [result("a"), result("x")]),
        )
    )
    assert (repairs.moved_results, repairs.missing_results, repairs.dropped_blocks, repairs.stale_thinking) == (
        1,
        1,
        2,
        1,
    )
    assert len(repairs.warnings()) == 6


def programmatic(*, answer: bool = True, between: tuple[dict[str, Any], ...] = ()) -> list[dict[str, Any]]:
    """Return an exchange in which code that a server tool runs calls two tools of the client, one after the other."""
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    code = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "await query()"}}
    done = {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {"stdout": "42"}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "How many rows?"}]
    for number in range(2):
        call = {"type": "tool_use", "id": f"t{number}", "name": "query", "input": {}, "caller": caller}
        messages.append({"role": "assistant", "content": [*([] if number else [code]), call]})
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "7"}
        messages.append({"role": "user", "content": [result, *between]})
    if answer:
        messages.append({"role": "assistant", "content": [done, {"type": "text", "text": "There are 42."}]})
    return messages


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6])
def test_calls_that_a_server_tool_made_stay_with_its_call(length: int) -> None:
    view = conversation_view(programmatic()[:length])
    assert repair(view)[0] == view
    # What nobody has asked for yet is in front of the model with everything that it refers to.
    (only,) = rounds(view, range(length))
    assert (only.start, only.stop) == (1, length)


def test_a_server_call_that_was_given_up_goes_and_its_calls_stand_by_themselves() -> None:
    talk = [*programmatic(answer=False), {"role": "user", "content": "Stop."}, {"role": "assistant", "content": "Yes."}]
    view, repairs = repair(conversation_view(talk))
    served = [message.as_message() for message in view]
    assert problems(served) == []
    assert "srvtoolu_1" not in json.dumps(served)
    assert [called for message in served for called in tool_use_ids(message["content"])] == ["t0", "t1"]
    assert repairs.detached_calls == 2
    assert repair(view)[0] == view


@pytest.mark.parametrize("first", [2, 3, 4, 5])
def test_calls_whose_server_call_is_not_there_stand_by_themselves(first: int) -> None:
    talk = programmatic()
    view, _ = repair(conversation_view([talk[0], *talk[first:]]))
    served = [message.as_message() for message in view]
    assert problems(served) == []
    assert "srvtoolu_1" not in json.dumps(served)


def test_a_remark_beside_the_results_ends_a_server_call() -> None:
    view, _ = repair(conversation_view(programmatic(between=({"type": "text", "text": "Hurry."},))))
    assert problems([message.as_message() for message in view]) == []
    assert "srvtoolu_1" not in json.dumps([message.content for message in view])


def test_a_call_that_the_model_made_itself_is_sound() -> None:
    call = {"type": "tool_use", "id": "t", "name": "query", "input": {}, "caller": {"type": "direct"}}
    assert message_facts("assistant", [call]).sound
    assert is_sound(conversation_view([{"role": "user", "content": "Go."}, {"role": "assistant", "content": [call]}]))
    by_code = {**call, "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}
    assert not message_facts("assistant", [by_code]).sound
