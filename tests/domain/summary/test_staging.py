"""The plan of a summary: parts, their size against the summarizer's window, and how their texts are merged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.policy import Policy, merge
from compaction.repair import repair
from compaction.summary.prompts import corrective_prompt, shorter
from compaction.summary.staging import MINIMUM_RATIO, Plan, WindowTooSmallError, join_summaries, plan
from compaction.summary.transcript import SECTIONS
from compaction.tokens import CHARS_PER_TOKEN, text_weight
from compaction.view import ACKNOWLEDGEMENT, WRITTEN, View, ViewMessage
from tests.support.encoded import messages, request, unmarked
from tests.support.strategies import any_conversations, policies, texts
from tests.support.talk import answer, call, exchanges, result
from tests.support.talk import request as asks

WINDOWS = st.sampled_from([200_000, 6_000, 16_000, 32_000, 100_000])


def zone_of(*given_messages: dict[str, Any], start: int = 1) -> View:
    return tuple(
        ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(given_messages, start=start)
    )


def repaired(conversation: list[dict[str, Any]]) -> View:
    stored = tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(conversation))
    return repair(stored)[0]


def pairs(zone: View) -> list[tuple[int, int]]:
    """Where each call and its result stand."""
    call_and_result: list[tuple[int, int]] = []
    asked: dict[str, int] = {}
    for index, message in enumerate(zone):
        for block in message.content if not isinstance(message.content, str) else ():
            if block["type"] in {"tool_use", "server_tool_use"}:
                asked[block["id"]] = index
            elif block["type"] in {"tool_result", "web_search_tool_result"}:
                call_and_result.append((asked.pop(block["tool_use_id"]), index))
    return call_and_result


def shown(staged: Plan) -> list[int]:
    return [heard.seq for part in staged.parts for heard in messages(part.body)]


# Properties


@pytest.mark.requirement("O6")
@given(
    any_conversations(max_chars=3_000),
    policies(),
    WINDOWS,
    st.none() | texts(max_chars=12_000),
    st.none() | texts(max_chars=3_000),
    st.lists(texts(max_chars=3_000), max_size=3),
)
def test_every_plan_covers_the_zone_and_fits_its_window(
    conversation: list[dict[str, Any]],
    overrides: dict[str, Any],
    window: int,
    previous: str | None,
    instructions: str | None,
    pins: list[str],
) -> None:
    zone, policy = repaired(conversation)[1:], merge(overrides)
    if not zone:
        return

    def planned(**given: Any) -> Plan:
        return plan(zone, previous, policy, window, instructions=instructions, pins=pins, **given)

    staged = planned()
    # Every message once, in order, and no pair in two parts.
    assert [part.start for part in staged.parts] == [0, *(part.stop for part in staged.parts[:-1])]
    assert staged.parts[-1].stop == len(zone)
    place = {index: part.number for part in staged.parts for index in range(part.start, part.stop)}
    assert len(place) == len(zone)
    assert all(place[asked] == place[answered] for asked, answered in pairs(zone))
    assert [entry.position for part in staged.parts for entry in part.entries] == list(range(len(zone)))
    # The same again from the same.
    assert planned() == staged
    assert [each.ask(part) for each in (staged, planned()) for part in each.parts][: len(staged.parts)] == [
        staged.ask(part) for part in staged.parts
    ]
    # Every request fits, whatever is asked for once more.
    for each in (staged, planned(without_oversized=True)):
        for part in (*each.parts, *(part.lighter() for part in each.parts)):
            prompt = each.ask(part)
            assert len(part.body) + len(part.previous or "") <= policy.summary_input_max_chars
            assert prompt.tokens(each.answer_tokens) <= window
            assert shorter(prompt, each.answer_tokens).tokens(each.answer_tokens) <= window
            again = corrective_prompt(
                prompt, "x" * 9_000, ["wrong " * 900], window=window, answer_tokens=each.answer_tokens
            )
            assert shorter(again, each.answer_tokens).tokens(each.answer_tokens) <= window
            assert sum(name == "transcript" for name, _ in request(prompt.text).frames) == 1


@given(
    st.lists(texts(max_chars=12_000), min_size=2, max_size=40),
    st.none() | texts(max_chars=12_000),
    WINDOWS,
    st.sampled_from([64, 4_096]),
)
def test_any_number_of_parts_is_merged_in_levels_that_fit(
    summaries: list[str], previous: str | None, window: int, answer_tokens: int
) -> None:
    staged = plan(zone_of(asks("a"), answer("b")), previous, Policy(summary_max_tokens=answer_tokens), window)
    level, levels = summaries, 0
    while len(level) > 1:
        groups = staged.groups(level)
        assert [index for start, stop in groups for index in range(start, stop)] == list(range(len(level)))
        assert len(groups) < len(level)
        for start, stop in groups:
            if stop - start > 1:
                final = len(groups) == 1
                prompt = staged.merge(level[start:stop], ["messages 1\u20132"] * (stop - start), final=final)
                assert prompt.tokens(staged.answer_tokens) <= window
                held = [name for name, _ in request(prompt.text).frames]
                assert held.count("part-summary") == stop - start
                assert held.count("earlier-summary") == (final and previous is not None)
        level = ["y" * staged.answer_tokens * CHARS_PER_TOKEN for _ in groups]
        levels += 1
    assert levels <= len(summaries).bit_length() + 1


# Parts


@pytest.mark.requirement("S7")
def test_what_fits_is_one_part() -> None:
    zone = zone_of(*exchanges(10, 500))
    staged = plan(zone, "what was before", Policy(), 200_000)
    (part,) = staged.parts
    assert (part.start, part.stop, part.previous) == (0, 20, "| what was before")
    prompt = staged.ask(part)
    taken = request(prompt.text)
    assert [name for name, _ in taken.frames] == ["earlier-summary", "transcript"]
    assert "all of it, messages 1\u201320" in taken.task
    assert "part" not in taken.task
    assert staged.answer_tokens == 4_096


@pytest.mark.requirement("O2")
@pytest.mark.requirement("S7")
def test_more_than_a_request_may_hold_is_several_parts_of_about_one_size() -> None:
    zone = zone_of(*exchanges(60, 1_000))
    staged = plan(zone, "what was before", Policy(), 200_000)
    sizes = [len(part.body) for part in staged.parts]
    assert len(sizes) == 5  # 480,000 characters at 100,000 each
    assert max(sizes) <= 100_000
    assert min(sizes) > 0.7 * max(sizes)
    assert shown(staged) == list(range(1, 121))
    assert [part.previous is not None for part in staged.parts] == [True, False, False, False, False]
    task = request(staged.ask(staged.parts[1]).text).task
    first, last = (messages(staged.parts[1].body)[index].seq for index in (0, -1))
    assert f"part 2 of 5, messages {first}\u2013{last} of messages 1\u2013120" in task
    assert "cover this part alone" in task


@pytest.mark.requirement("O2")
def test_parts_take_two_fifths_of_a_window_and_less_where_messages_are_large() -> None:
    policy = Policy(summary_input_max_chars=10_000_000, tool_preview_head_chars=1_000_000)
    small = plan(zone_of(*exchanges(200, 200)), None, policy, 32_000)
    large = plan(zone_of(*exchanges(16, 5_000)), None, policy, 32_000)
    asked = [small.ask(part).tokens(0) for part in small.parts]
    assert max(asked) <= 0.4 * 32_000
    assert max(asked) > 0.3 * 32_000
    assert max(len(part.entries) for part in large.parts) == 1
    assert large.parts[0].room.weight < small.parts[0].room.weight
    assert large.parts[0].room.weight * 1.2 / 4 <= MINIMUM_RATIO * 32_000


@pytest.mark.requirement("O2")
def test_parts_of_a_small_window_share_its_room_and_not_what_the_rules_take() -> None:
    staged = plan(zone_of(*exchanges(10, 200)), None, Policy(), 5_000)
    weights = [text_weight(part.body) for part in staged.parts]
    assert max(weights) > 0.3 * staged.available.weight
    assert len(weights) <= 7  # 20 messages; a share of the window less the rules would hold two


def test_a_part_knows_when_it_was() -> None:
    zone = zone_of(*exchanges(60, 1_000))
    times = {message.seq: f"2026-05-01T10:{message.seq % 60:02}:00Z" for message in zone if message.seq != 2}
    staged = plan(zone, None, Policy(), 200_000, times=times)
    first = staged.parts[0]
    last = first.entries[-1].seq
    assert first.place == f"messages 1\u2013{last}, 2026-05-01T10:01:00Z to {times[last]}"
    assert first.place in staged.ask(first).text
    assert messages(first.body)[1].time is None


def test_a_round_longer_than_a_part_stays_whole_and_is_cut_in_the_middle() -> None:
    calls, results = call(1, names=40), result(1, 700, names=40)
    zone = zone_of(asks("a", 20_000), answer("b", 20_000), calls, results, answer("c", 20_000))
    policy = Policy(tool_preview_head_chars=5_000, summary_input_max_chars=50_000)
    staged = plan(zone, None, policy, 200_000)
    (part,) = [part for part in staged.parts if part.start <= 2 < part.stop]
    assert part.start <= 2
    assert part.stop >= 4
    assert "characters left out of the middle" in part.body
    assert len(part.body) <= 50_000
    assert [heard.speaker for heard in messages(part.body)][-1] == "tool results"


def test_results_that_come_late_stay_with_their_calls() -> None:
    late = [
        {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]},
        answer("still searching", 5_000),
        {"role": "assistant", "content": [{"type": "web_search_tool_result", "tool_use_id": "s", "content": []}]},
    ]
    zone = zone_of(*exchanges(4, 5_000), *late, *exchanges(4, 5_000))
    staged = plan(zone, None, Policy(summary_input_max_chars=30_000), 200_000)
    (part,) = [part for part in staged.parts if part.start <= 8 < part.stop]
    assert part.stop >= 11


def test_what_compaction_wrote_is_covered_and_not_shown() -> None:
    written = ViewMessage("assistant", ACKNOWLEDGEMENT)
    zone = (written, *zone_of(*exchanges(2, 20)), written)
    (part,) = plan(zone, None, Policy(), 200_000).parts
    assert (part.start, part.stop) == (0, 6)
    assert ACKNOWLEDGEMENT not in part.body
    assert all(heard.seq != WRITTEN for heard in messages(part.body))


def test_nothing_to_show_is_a_part_without_text() -> None:
    (part,) = plan((ViewMessage("assistant", ACKNOWLEDGEMENT),), None, Policy(), 200_000).parts
    assert (part.body, part.stop) == ("", 1)


# Messages too large by themselves


def test_messages_over_half_a_part_are_known_by_name_and_size() -> None:
    zone = zone_of(*exchanges(3, 100), asks("long", 15_000), answer("longer", 20_000), *exchanges(3, 100))
    staged = plan(zone, None, Policy(), 200_000)
    assert [each.name for each in staged.oversized] == [
        "message 7 (user, about 15,003 tokens)",
        "message 8 (assistant, about 20,004 tokens)",
    ]
    without = plan(zone, None, Policy(), 200_000, without_oversized=True)
    (part,) = without.parts
    assert without.oversized == ()
    assert part.left_out == staged.oversized
    heard = messages(part.body)
    assert [message.seq for message in heard] == list(range(1, 15))
    assert heard[6].notes == ["left out for its size: about 15,003 tokens"]
    assert heard[6].words == []


def test_a_part_can_be_asked_for_without_them() -> None:
    zone = zone_of(asks("a", 100), answer("long", 15_000), asks("b", 100))
    (part,) = plan(zone, None, Policy(), 200_000).parts
    lighter = part.lighter()
    assert (lighter.start, lighter.stop, lighter.oversized) == (0, 3, ())
    assert lighter.left_out == part.oversized
    assert [message.words != [] for message in messages(lighter.body)] == [True, False, True]


# The window and what else stands in a request


def test_a_policy_that_leaves_no_room_to_read_gets_a_shorter_answer() -> None:
    staged = plan(zone_of(*exchanges(40, 500)), None, Policy(summary_max_tokens=128_000), 32_000)
    assert staged.answer_tokens == 8_000
    assert all(staged.ask(part).tokens(staged.answer_tokens) <= 32_000 for part in staged.parts)


def test_a_window_without_room_is_refused() -> None:
    with pytest.raises(WindowTooSmallError, match="1,500 tokens leave no room"):
        plan(zone_of(*exchanges(2, 20)), None, Policy(), 1_500)
    staged = plan(zone_of(*exchanges(2, 20)), "before", Policy(), 32_000)
    with pytest.raises(WindowTooSmallError):
        staged.with_window(1_500)
    narrowed = staged.with_window(8_000)
    assert (narrowed.window, narrowed.answer_tokens) == (8_000, 2_000)
    assert narrowed.available.weight < staged.available.weight


def test_an_earlier_summary_never_takes_more_than_half() -> None:
    zone = zone_of(*exchanges(4, 100))
    staged = plan(zone, "old " * 100_000, Policy(), 200_000)
    assert len(staged.parts[0].previous or "") <= 50_000
    assert text_weight(staged.merge(["a", "b"], ["x", "y"], final=True).text) < 4 * 200_000
    small = plan(zone, "old " * 100_000, Policy(), 8_000)
    assert shown(small) == list(range(1, 9))


def test_wishes_and_pins_are_bounded() -> None:
    zone = zone_of(*exchanges(4, 100))
    staged = plan(zone, None, Policy(), 200_000, instructions="stress dates " * 900, pins=("no refunds", "p" * 9_000))
    assert len(staged.wishes.instructions) <= 2_000
    assert len(staged.wishes.pins) <= 4_000
    assert staged.wishes.pins.startswith("| no refunds\n| ppp")
    taken = request(staged.ask(staged.parts[0]).text)
    assert [name for name, _ in taken.frames] == ["transcript", "kept-verbatim", "wishes"]
    assert unmarked(taken.body("wishes").split("\n+")[0]).startswith("stress dates stress dates")
    small = plan(zone, None, Policy(), 8_000, instructions="stress dates " * 900, pins=("p" * 9_000,))
    assert text_weight(small.wishes.instructions + small.wishes.pins) <= 8_000 * 4 // 8


def test_a_plan_without_wishes_has_no_frames_for_them() -> None:
    staged = plan(zone_of(*exchanges(1, 20)), None, Policy(), 200_000, instructions=" \u200b ", pins=("",))
    assert [name for name, _ in request(staged.ask(staged.parts[0]).text).frames] == ["transcript"]


# Texts of parts


@pytest.mark.requirement("O3")
def test_the_merge_lists_what_must_survive_and_has_the_earlier_summary() -> None:
    staged = plan(zone_of(*exchanges(60, 1_000)), "Acme scored 8/10.", Policy(), 200_000)
    prompt = staged.merge(["part one", "part two"], [staged.place(0, 2), staged.place(2, 5)], final=True)
    taken = request(prompt.text)
    assert [name for name, _ in taken.frames] == ["earlier-summary", "part-summary", "part-summary"]
    assert [unmarked(body) for _, body in taken.frames] == ["Acme scored 8/10.", "part one", "part two"]
    for wanted in (
        "requirement",
        "constraint",
        "decision with its reason",
        "identifiers",
        "scores",
        "open questions",
        "to-dos",
        "under way",
        *SECTIONS,
    ):
        assert wanted in taken.task
    assert f'covers="{staged.place(0, 2)}"' in prompt.text
    level = staged.merge(["part one", "part two"], ["a", "b"], final=False)
    assert [name for name, _ in request(level.text).frames] == ["part-summary", "part-summary"]


def test_texts_side_by_side_have_each_heading_once() -> None:
    one = f"{SECTIONS[0]}\nFind jobs.\n\n{SECTIONS[1]}\nNone.\n\n{SECTIONS[4]}\nLooking."
    two = f"A preface.\n{SECTIONS[0].upper()}:\nIn Berlin.\n\n{SECTIONS[4]}\nFound two."
    text = join_summaries([one, two])
    assert [line for line in text.split("\n") if line.startswith("## ")] == list(SECTIONS)
    assert text.startswith(f"A preface.\n\n{SECTIONS[0]}\nFind jobs.\nIn Berlin.\n\n{SECTIONS[1]}\nNone.")
    assert text.endswith(f"{SECTIONS[4]}\nLooking.\nFound two.")
    assert join_summaries(["plain", "words"]).startswith("plain\nwords\n")


def test_a_correction_names_the_reasons_and_shows_the_draft_where_there_is_room() -> None:
    staged = plan(zone_of(*exchanges(4, 100)), None, Policy(), 200_000)
    prompt = staged.ask(staged.parts[0])
    again = request(
        corrective_prompt(prompt, "a draft", ["no dates", "</reasons>"], window=200_000, answer_tokens=4_096).text
    )
    assert [name for name, _ in again.frames] == ["transcript", "draft", "reasons"]
    assert unmarked(again.body("reasons")) == "- no dates\n- &lt;/reasons>"
    tight = prompt.tokens(4_096) + 700
    again = request(corrective_prompt(prompt, "d" * 9_000, ["no dates"], window=tight, answer_tokens=4_096).text)
    assert [name for name, _ in again.frames] == ["transcript", "reasons"]
    assert corrective_prompt(prompt, "d", ["no dates"], window=prompt.tokens(4_096), answer_tokens=4_096) == prompt
