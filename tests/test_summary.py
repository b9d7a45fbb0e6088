"""Summaries: the zone, what the summarizer reads, the frame, and how the view is rebuilt around it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.policy import Policy
from compaction.repair import repair
from compaction.summary import (
    CLOSES,
    MINIMUM_ZONE,
    OPENS,
    SYSTEM_PROMPT,
    Zone,
    cut_middle,
    find_zone,
    framed,
    neutralize,
    preview,
    rebuild,
    render_transcript,
    with_summary,
    without_summary,
)
from compaction.view import ACKNOWLEDGEMENT, WRITTEN, View, ViewMessage
from tests.blocks import document_block, image_block, text_block, unknown_block
from tests.messages_api import problems
from tests.strategies import any_conversations

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
    found: list[tuple[int, int]] = []
    asked: dict[str, int] = {}
    for index, message in enumerate(view):
        for block in message.content if not isinstance(message.content, str) else ():
            assert isinstance(block, dict)
            if block["type"] in {"tool_use", "server_tool_use"}:
                asked[block["id"]] = index
            elif block["type"] in {"tool_result", "web_search_tool_result"}:
                found.append((asked.pop(block["tool_use_id"]), index))
    return [*found, *((index, len(view)) for index in asked.values())]


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


# What the summarizer reads


@pytest.mark.requirement("S6")
def test_a_long_result_is_shown_by_its_first_500_and_last_200_characters() -> None:
    shown = preview("h" * 500 + "m" * 1_300 + "t" * 200, Policy())
    assert shown.startswith("h" * 500)
    assert shown.endswith("t" * 200)
    assert "m" not in shown
    assert "1,300" in shown
    assert preview("x" * 700, Policy()) == "x" * 700


@pytest.mark.requirement("S6")
def test_a_preview_without_a_tail_has_none() -> None:
    policy = Policy(tool_preview_head_chars=2, tool_preview_tail_chars=0)
    assert re.fullmatch(r"ab \[.*4.*\] ", preview("abcdef", policy))


@pytest.mark.requirement("S6")
def test_the_transcript_is_text_with_calls_results_and_no_thinking() -> None:
    page = "h" * 500 + "m" * 9_000 + "t" * 200
    view = (
        ViewMessage("assistant", ACKNOWLEDGEMENT),
        *view_of(
            ("user", "Find jobs in Berlin"),
            (
                "assistant",
                [{"type": "thinking", "thinking": "secret", "signature": "s"}, text_block("Looking."), call()],
            ),
            ("user", [result(content=[text_block(page), image_block()]), text_block("hurry")]),
            ("assistant", [call("b")]),
            ("user", [result("b", "no such host", is_error=True), document_block(), unknown_block()]),
        ),
    )
    transcript = render_transcript(view, Policy())
    assert ACKNOWLEDGEMENT not in transcript
    assert "secret" not in transcript
    for expected in (
        "User:\nFind jobs in Berlin",
        'Assistant:\nLooking.\n(calls search with {"query":"jobs"})',
        "(result of search: " + "h" * 500,
        "hurry",
        "(result of search, an error: no such host)",
        "(document not shown)",
        "(hologram not shown)",
    ):
        assert expected in transcript
    assert "m" * 9_000 not in transcript
    assert "t" * 150 + "\n(image not shown))" in transcript
    assert "base64" not in transcript
    assert transcript.index("Berlin") < transcript.index("Looking") < transcript.index("hurry")


def test_the_transcript_begins_with_the_earlier_summary() -> None:
    transcript = render_transcript(chat(2), Policy(), previous="Acme scored 8/10.")
    assert transcript.startswith("Earlier summary:\nAcme scored 8/10.\n\nUser:\nmessage 0")


@pytest.mark.requirement("S7")
def test_the_transcript_is_capped_at_100_000_characters_in_the_middle() -> None:
    view = view_of(("user", "first " + "x" * 80_000), ("assistant", "y" * 80_000 + " last"))
    transcript = render_transcript(view, Policy())
    assert 99_990 <= len(transcript) <= 100_000
    assert transcript.startswith("User:\nfirst ")
    assert transcript.endswith(" last")


@pytest.mark.requirement("S7")
@given(st.integers(0, 3_000), st.integers(200, 2_000))
def test_the_cut_says_how_much_is_left_out(size: int, limit: int) -> None:
    text = "".join(chr(0x4E00 + index) for index in range(size))
    cut = cut_middle(text, limit)
    assert len(cut) <= limit
    if size <= limit:
        assert cut == text
        return
    shown = [character for character in cut if character >= "\u4e00"]
    hidden = re.search(r"\[\.\.\. ([\d,]+) characters left out of the middle \.\.\.\]", cut)
    assert hidden is not None
    assert int(hidden[1].replace(",", "")) == size - len(shown)
    assert cut.startswith(text[: hidden.start() - 1])
    assert cut.endswith(text[-(len(cut) - hidden.end() - 1) :])


@pytest.mark.requirement("S8")
def test_the_prompt_asks_for_what_has_to_survive() -> None:
    prompt = SYSTEM_PROMPT.lower()
    for expected in (
        ("asked", "criterion"),
        ("decision", "reason"),
        ("figures", "dates"),
        ("url", "path", "identifier"),
        ("score", "ranking"),
        ("finished", "under way", "next"),
        ("raw output of tools",),
        ("concise narrative",),
        ("earlier summary",),
    ):
        assert all(word in prompt for word in expected), expected


# The frame


@given(SUMMARIES)
def test_a_summary_cannot_open_or_close_its_own_frame(summary: str) -> None:
    frame = framed(summary)
    assert frame.count(OPENS) == frame.count(CLOSES) == 1
    assert frame.startswith(f"{OPENS}\n")
    assert frame.endswith(f"\n{CLOSES}")
    assert framed(neutralize(summary)) == frame


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
def test_blocks_of_the_first_message_stay_as_they_are() -> None:
    first = [image_block(), text_block("look")]
    after = rebuild(view_of(("user", first), *[("assistant", "a"), ("user", "b")] * 3), Zone(1, 3), "so far")
    assert after[0].content == [*first, text_block(framed("so far"))]


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
    assert without_summary(after[0], summary) == view[0]
    again = rebuild(after, Zone(1, len(after) - len(tail)), second, previous=summary)
    assert without_summary(again[0], second) == view[0]
    assert sum(text.count(OPENS) for text in texts(again)) == 1
    assert find_zone(after, protected) is None
