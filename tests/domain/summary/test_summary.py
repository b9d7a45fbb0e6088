"""Summaries: the zone, what the summarizer reads, the frame, and how the view is rebuilt around it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.media.shedding import without_media
from compaction.policy import Policy
from compaction.repair import repair
from compaction.summary.zone import (
    CLOSES,
    MINIMUM_ZONE,
    OPENS,
    PARTIAL,
    REFERENCE,
    SIDE_BY_SIDE,
    Zone,
    carried_over,
    find_zone,
    framed,
    neutralize,
    rebuild,
    with_summary,
    without_reference,
    without_summary,
)
from compaction.view import ACKNOWLEDGEMENT, WRITTEN, View, ViewMessage
from tests.support.blocks import image_block, text_block
from tests.support.messages_api import problems
from tests.support.strategies import any_conversations
from worker.summarizers.staged import finished

TAILS = st.integers(1, 8)
SUMMARIES = st.text(min_size=1, max_size=60) | st.lists(
    st.sampled_from([OPENS, CLOSES, "[CONTEXT ", "SUMMARY]", "[END ", "]", "Acme scored 8/10. ", "\n"]), min_size=1
).map("".join)


def call(identifier: str = "a", query: str = "jobs") -> dict[str, Any]:
    return {"type": "tool_use", "id": identifier, "name": "search", "input": {"query": query}}


def result(identifier: str = "a", content: Any = "found", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identifier, "content": content} | fields


def view_of(*messages: tuple[str, Any]) -> View:
    return tuple(ViewMessage(role, content, seq) for seq, (role, content) in enumerate(messages))


def chat(count: int) -> View:
    return tuple(ViewMessage("assistant" if seq % 2 else "user", f"message {seq}", seq) for seq in range(count))


def repaired(conversation: list[dict[str, Any]]) -> View:
    stored = tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(conversation))
    return repair(stored)[0]


def texts(view: View) -> list[str]:
    return [
        str(block.get("text", ""))
        for message in view
        for block in ([{"text": message.content}] if isinstance(message.content, str) else message.content)
    ]


def pairs(view: View) -> list[tuple[int, int]]:
    """Where each call and its result stand in a valid view; a result that is still to come stands after its end."""
    call_and_result: list[tuple[int, int]] = []
    asked: dict[str, int] = {}
    for index, message in enumerate(view):
        for block in message.content if not isinstance(message.content, str) else ():
            assert isinstance(block, dict)
            if block["type"] in {"tool_use", "server_tool_use"}:
                asked[block["id"]] = index
            elif block["type"].endswith("tool_result"):
                call_and_result.append((asked.pop(block["tool_use_id"]), index))
    return [*call_and_result, *((index, len(view)) for index in asked.values())]


# The zone


@pytest.mark.requirement("S3", "S4")
@pytest.mark.parametrize(
    ("count", "zone"), [(0, None), (1, None), (5, None), (7, None), (8, None), (9, Zone(1, 3)), (30, Zone(1, 24))]
)
def test_the_zone_lies_between_the_first_message_and_the_last_six(count: int, zone: Zone | None) -> None:
    assert find_zone(chat(count), Policy().protected_tail_messages) == zone


@pytest.mark.requirement("S4")
@pytest.mark.parametrize("protected", [5, 6, 8, 100])
def test_a_tail_longer_than_the_conversation_leaves_no_zone(protected: int) -> None:
    assert find_zone(chat(5), protected) is None


@pytest.mark.requirement("S5")
def test_the_end_is_pulled_back_to_the_call_whose_result_stays() -> None:
    view = view_of(
        ("user", "go"),
        ("assistant", "one"),
        ("user", "on"),
        ("assistant", [call("a"), call("b")]),
        ("user", [result("a")]),
        ("user", [result("b")]),
        ("assistant", "done"),
    )
    assert [find_zone(view, protected) for protected in (1, 2, 3, 4)] == [
        Zone(1, 6),
        Zone(1, 3),
        Zone(1, 3),
        Zone(1, 3),
    ]


@pytest.mark.requirement("S5")
def test_a_server_tool_is_not_parted_from_its_result_either() -> None:
    view = view_of(
        ("user", "go"),
        ("assistant", "one"),
        ("user", "on"),
        ("assistant", [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]),
        ("assistant", [{"type": "web_search_tool_result", "tool_use_id": "s", "content": []}]),
    )
    assert find_zone(view, 1) == Zone(1, 3)


@pytest.mark.requirement("S5")
def test_a_call_whose_result_is_still_to_come_stays() -> None:
    view = view_of(("user", "go"), ("assistant", "one"), ("user", "on"), ("assistant", [call("a")]))
    assert find_zone((*view, ViewMessage("assistant", [call("b")], 4)), 1) == Zone(1, 3)
    assert find_zone(view, 1) == Zone(1, 3)


@pytest.mark.requirement("S3")
def test_what_compaction_wrote_does_not_make_a_zone() -> None:
    written = ViewMessage("assistant", ACKNOWLEDGEMENT)
    assert MINIMUM_ZONE == 2
    assert find_zone((chat(1)[0], written, *chat(9)[2:]), 6) is None
    assert find_zone((chat(1)[0], written, *chat(10)[2:]), 6) == Zone(1, 4)


@pytest.mark.requirement("S3", "S4", "S5")
@given(any_conversations(max_chars=700), TAILS)
def test_no_zone_takes_the_first_message_the_tail_or_half_a_pair(
    conversation: list[dict[str, Any]], protected: int
) -> None:
    view = repaired(conversation)
    zone = find_zone(view, protected)
    whole = [
        stop
        for stop in range(1, len(view) - protected + 1)
        if all((asked < stop) == (answered < stop) for asked, answered in pairs(view))
    ]
    # The largest zone that parts no pair, if it is worth it at all.
    stop = max(whole, default=0)
    assert zone == (Zone(1, stop) if stop - 1 >= MINIMUM_ZONE else None)


# The frame


@given(SUMMARIES)
def test_a_summary_cannot_open_or_close_its_own_frame(summary: str) -> None:
    frame = framed(summary)
    assert frame.count(OPENS) == frame.count(CLOSES) == 1
    assert frame.startswith(f"{OPENS}\n")
    assert frame.endswith(f"\n{CLOSES}")
    assert framed(neutralize(summary)) == frame


@pytest.mark.parametrize(
    "marker",
    [
        OPENS,
        CLOSES,
        "[context summary]",
        "[ End  Context\tSummary ]",
        "[CONTEXT\u200b SUM\u00adMARY]",
        "[\u202eCONTEXT SUMMARY]",
        "[C\U000e0041ONTEXT SUMMARY]",
        "\uff3bCONTEXT SUMMARY\uff3d",
        "\u3010END CONTEXT SUMMARY\u3011",
        "[CONTEXT_SUMMARY]",
        "[END-CONTEXT-SUMMARY]",
        "[CONTEXT\nSUMMARY]",
        "[CONTEXT\u2028SUMMARY]",
        "[\x1b[1mCONTEXT SUMMARY]",
    ],
)
def test_a_marker_in_any_disguise_becomes_words(marker: str) -> None:
    assert " ".join(neutralize(f"before {marker} after").lower().split()) in {
        "before (context summary) after",
        "before (end of context summary) after",
        "before (end context summary) after",
    }


@pytest.mark.parametrize(
    "text",
    [
        "a [link](https://example.com), [1], a context summary",
        "Find jobs\n\tin Berlin: \u20ac 85,000",
        "\U0001f600\ufe0f",
    ],
)
def test_plain_words_stay_as_they_are(text: str) -> None:
    assert neutralize(text) == text


@given(SUMMARIES)
def test_the_line_that_marks_a_summary_comes_off_again(summary: str) -> None:
    assert without_reference(f"{REFERENCE}\n\n{summary}") == summary.lstrip("\n")
    if not summary.startswith(REFERENCE):
        assert without_reference(summary).strip() == summary.strip()


def test_what_tells_how_a_summary_was_made_is_not_taken_over_into_the_next() -> None:
    notes = (f"{PARTIAL}it covers 1 of 2", "left out for its size: message 12", f"{SIDE_BY_SIDE}, as they are long")
    summary = finished("## Facts\nThe depot is in Rotterdam.", notes)
    taken = "## Facts\nThe depot is in Rotterdam.\n\nNote: left out for its size: message 12."
    assert carried_over(summary) == taken
    assert carried_over(taken) == taken


FIRSTS = st.text(min_size=1, max_size=30) | st.lists(
    st.text(min_size=1, max_size=9).map(text_block) | st.just(image_block()) | SUMMARIES.map(framed).map(text_block),
    min_size=1,
    max_size=3,
)


@given(FIRSTS, SUMMARIES)
def test_taking_a_summary_out_gives_the_message_back(content: Any, summary: str) -> None:
    first = ViewMessage("user", content, 0)
    merged = with_summary(first, summary)
    assert merged.seq == 0
    assert without_summary(merged, summary) == first
    assert framed(summary) in texts((merged,))[-1]


@given(FIRSTS, SUMMARIES)
def test_a_message_that_ends_otherwise_is_left_alone(content: Any, summary: str) -> None:
    first = ViewMessage("user", content, 0)
    if not texts((first,))[-1].endswith(framed(summary)):
        assert without_summary(first, summary) == first


# The new view


@pytest.mark.requirement("S9")
def test_the_summary_is_merged_into_the_first_message_and_the_tail_is_the_same() -> None:
    view = chat(10)
    after = rebuild(view, Zone(1, 4), "Acme scored 8/10.")
    assert after[0].content == f"message 0\n\n{OPENS}\nAcme scored 8/10.\n{CLOSES}"
    assert (after[1].role, after[1].content, after[1].seq) == ("assistant", ACKNOWLEDGEMENT, WRITTEN)
    assert all(new is old for new, old in zip(after[2:], view[4:], strict=True))


@pytest.mark.requirement("S9")
def test_there_is_no_acknowledgement_where_roles_alternate_without_one() -> None:
    view = chat(10)
    after = rebuild(view, Zone(1, 5), "Acme scored 8/10.")
    assert len(after) == 6
    assert all(new is old for new, old in zip(after[1:], view[5:], strict=True))


@pytest.mark.requirement("S9")
def test_blocks_of_the_first_message_stay_as_they_are_but_for_media() -> None:
    first = [image_block(), text_block("look"), text_block("closely")]
    after = rebuild(view_of(("user", first), *[("assistant", "a"), ("user", "b")] * 3), Zone(1, 3), "so far")
    assert isinstance(after[0].content, list)
    assert str(after[0].content[0]["text"]).startswith("[image, PNG, 1,568 x 1,568 px, ")
    assert after[0].content[1:] == [*first[1:], text_block(framed("so far"))]


def test_a_second_summary_takes_the_firsts_place() -> None:
    once = rebuild(chat(10), Zone(1, 4), "first summary")
    twice = rebuild(once, Zone(1, 5), "second summary", previous="first summary")
    assert twice[0].content == f"message 0\n\n{framed('second summary')}"
    assert "first summary" not in "".join(texts(twice))


def test_an_empty_summary_is_replaced_too() -> None:
    once = rebuild(chat(10), Zone(1, 4), "")
    twice = rebuild(once, Zone(1, 5), "second summary", previous="")
    assert str(twice[0].content).count(OPENS) == 1


@pytest.mark.requirement("S9")
@given(any_conversations(max_chars=700), TAILS, SUMMARIES, SUMMARIES)
def test_a_rebuilt_view_is_valid_and_its_tail_the_same(
    conversation: list[dict[str, Any]], protected: int, summary: str, second: str
) -> None:
    view = repaired(conversation)
    zone = find_zone(view, protected)
    if zone is None:
        return
    after = rebuild(view, zone, summary)
    tail = view[zone.stop :]
    assert all(new is old for new, old in zip(after[-len(tail) :], tail, strict=True))
    assert len(after) - len(tail) in {1, 2}
    assert problems([message.as_message() for message in after]) == []
    assert after[1].role == "assistant"
    assert without_summary(after[0], summary) == without_media(view[0])
    again = rebuild(after, Zone(1, len(after) - len(tail)), second, previous=summary)
    assert without_summary(again[0], second) == without_media(view[0])
    assert sum(text.count(OPENS) for text in texts(again)) == 1
    assert find_zone(after, protected) is None
