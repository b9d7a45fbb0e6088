"""Dropping: whole exchanges from the oldest, then rounds of the last; what stays is valid and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.messages import is_request
from compaction.repair import repair
from compaction.shorten.trimming import Trim, drop_oldest, exchanges, last_answer, rounds
from compaction.summary.zone import find_zone, rebuild
from compaction.view import ACKNOWLEDGEMENT, WRITTEN, View, ViewMessage
from tests.support.blocks import text_block
from tests.support.messages_api import alternates, problems
from tests.support.strategies import any_conversations

LIMITS = st.integers(0, 14)


def call(identifier: str = "a") -> dict[str, Any]:
    return {"type": "tool_use", "id": identifier, "name": "fetch", "input": {}}


def result(identifier: str = "a", content: Any = "found") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identifier, "content": content}


def view_of(*messages: tuple[str, Any]) -> View:
    return tuple(ViewMessage(role, content, seq) for seq, (role, content) in enumerate(messages))


ROUND = (("assistant", [call()]), ("user", [result()]))
TALK = view_of(
    ("user", "first"),
    *ROUND,
    ("assistant", "one"),
    ("user", "second"),
    ("assistant", "two"),
    ("user", "third"),
    *ROUND,
    *ROUND,
    ("assistant", "three"),
)
"""Exchanges 0..3, 4..5 and 6..11; rounds 7..8, 9..10 and 11 in the last."""


def to(limit: int, view: View, *, carries_summary: bool = False) -> Trim:
    return drop_oldest(view, lambda count, _: count <= limit, carries_summary=carries_summary)


def sent(view: View) -> list[dict[str, Any]]:
    return [message.as_message() for message in view]


def test_exchanges_begin_with_requests_and_cover_the_view() -> None:
    assert exchanges(TALK) == [range(4), range(4, 6), range(6, 12)]
    assert exchanges(TALK[1:]) == [range(5), range(5, 11)]
    assert exchanges(()) == []
    assert exchanges(view_of(("assistant", "a"))) == [range(1)]


def test_rounds_begin_with_the_assistant_and_neighbours_are_one() -> None:
    assert rounds(TALK, range(6, 12)) == [range(7, 9), range(9, 11), range(11, 12)]
    doubled = view_of(("user", "a"), ("assistant", "b"), ("assistant", [call()]), ("user", [result()]))
    assert rounds(doubled, range(4)) == [range(1, 4)]
    assert rounds(view_of(("user", "a"), ("user", "b")), range(2)) == []


@pytest.mark.requirement("S11", "S12")
@pytest.mark.parametrize(
    ("limit", "dropped"),
    [
        (50, []),
        (12, []),
        (11, [0, 1, 2, 3]),
        (8, [0, 1, 2, 3]),
        (7, [0, 1, 2, 3, 4, 5]),
        (6, [0, 1, 2, 3, 4, 5]),
        (5, [0, 1, 2, 3, 4, 5, 7, 8]),
        (2, [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]),
        (0, [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]),
    ],
)
def test_the_oldest_exchanges_go_first_then_the_oldest_rounds(limit: int, dropped: list[int]) -> None:
    trim = to(limit, TALK)
    assert trim.dropped == tuple(dropped)
    assert trim.view == tuple(message for index, message in enumerate(TALK) if index not in dropped)
    assert problems(sent(trim.view)) == []


@pytest.mark.requirement("S11")
def test_a_conversation_that_fits_is_not_touched() -> None:
    trim = to(12, TALK)
    assert all(new is old for new, old in zip(trim.view, TALK, strict=True))
    assert to(0, ()) == Trim((), ())
    alone = view_of(("user", "hello"))
    assert to(0, alone) == Trim(alone, ())


def test_sizes_are_measured_as_asked() -> None:
    sizes: list[int] = []

    def fits(_: int, total: int) -> bool:
        sizes.append(total)
        return total <= len("thirdthree")

    def measure(message: ViewMessage) -> int:
        return len(message.content) if isinstance(message.content, str) else 0

    trim = drop_oldest(TALK, fits, measure=measure)
    assert trim.dropped == (0, 1, 2, 3, 4, 5)
    assert sizes == [27, 19, 10]


def test_a_request_that_waits_pushes_nothing_out_and_goes_itself_in_the_end() -> None:
    view = view_of(
        ("user", "first"), *ROUND, ("assistant", "one"), ("user", "second"), ("user", "third"), ("user", "fourth")
    )
    assert exchanges(view) == [range(7)]
    assert [message.seq for message in to(6, view).view] == [0, 3, 4, 5, 6]
    assert [message.seq for message in to(4, view).view] == [0, 3, 5, 6]
    assert [message.seq for message in to(0, view).view] == [0, 3, 6]
    assert [message.seq for message in to(2, view_of(("user", "a"), ("user", "b"), ("user", "c"))).view] == [1, 2]


SUMMARIZED = (ViewMessage("user", "first\n\n(summary)", 0), ViewMessage("assistant", ACKNOWLEDGEMENT), *TALK[4:])


@pytest.mark.requirement("S11")
@pytest.mark.parametrize(
    ("limit", "seqs"),
    [
        (10, [0, WRITTEN, *range(4, 12)]),
        (9, [0, WRITTEN, *range(6, 12)]),
        (8, [0, WRITTEN, *range(6, 12)]),
        (7, [0, WRITTEN, 6, 9, 10, 11]),
        (2, [0, WRITTEN, 6, 11]),
    ],
)
def test_a_first_message_with_a_summary_stays_and_roles_alternate(limit: int, seqs: list[int]) -> None:
    trim = to(limit, SUMMARIZED, carries_summary=True)
    assert [message.seq for message in trim.view] == seqs
    assert trim.view[0] is SUMMARIZED[0]
    assert alternates(sent(trim.view))
    assert problems(sent(trim.view)) == []


def test_an_acknowledgement_counts_among_what_is_left() -> None:
    view = (SUMMARIZED[0], *TALK[5:])
    # Without the exchange's answer there would be 7 messages, and with the acknowledgement that it makes necessary 8.
    assert len(to(7, view, carries_summary=True).view) <= 7


def test_an_acknowledgement_alone_is_not_worth_dropping() -> None:
    view = SUMMARIZED[:2] + TALK[6:8]
    assert to(0, view, carries_summary=True) == Trim(view, ())


def test_inside_a_summarized_exchange_rounds_go() -> None:
    view = (SUMMARIZED[0], *TALK[7:])
    trim = to(4, view, carries_summary=True)
    assert [message.seq for message in trim.view] == [0, 9, 10, 11]


def test_a_request_that_answers_calls_loses_the_results_with_their_round() -> None:
    view = view_of(
        ("user", "first"),
        ("assistant", [call("a"), call("b")]),
        ("user", [result("a"), result("b"), text_block("stop, do this instead")]),
        ("assistant", "fine"),
    )
    trim = to(2, view)
    assert trim == Trim(
        (ViewMessage("user", [text_block("stop, do this instead")], 2), view[3]),
        dropped=(0, 1),
        cut=(2,),
        units=(range(2),),
    )
    assert to(4, view) == Trim(view, ())


def test_a_newest_message_that_speaks_keeps_the_results_it_brings() -> None:
    view = view_of(
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
        *ROUND,
        ("assistant", [call("b")]),
        ("user", [result("b"), text_block("and be quick")]),
    )
    assert exchanges(view) == [range(2), range(2, 7)]
    assert to(1, view) == Trim((view[2], *view[5:]), dropped=(0, 1, 3, 4), units=(range(2), range(3, 5)))
    answered = (*view, ViewMessage("assistant", "done", 7))
    assert exchanges(answered) == [range(2), range(2, 6), range(6, 8)]


def test_a_request_that_is_dropped_after_all_is_not_called_cut() -> None:
    view = view_of(
        ("user", "first"),
        ("assistant", [call()]),
        ("user", [result(), text_block("stop")]),
        ("assistant", "fine"),
        ("user", "next"),
        ("assistant", "done"),
    )
    assert to(2, view) == Trim(view[4:], dropped=(0, 1, 2, 3), units=(range(2), range(2, 4)))


def repaired(conversation: list[dict[str, Any]]) -> View:
    stored = tuple(ViewMessage(message["role"], message["content"], seq) for seq, message in enumerate(conversation))
    return repair(stored)[0]


@given(any_conversations(max_chars=700), LIMITS, st.booleans())
def test_what_stays_is_valid_and_the_newest(conversation: list[dict[str, Any]], limit: int, summarized: bool) -> None:
    view = repaired(conversation)
    if summarized and (zone := find_zone(view, max(1, len(view) - 4))):
        view = rebuild(view, zone, "so far so good")
    trim = to(limit, view, carries_summary=summarized)
    if not view:
        return
    assert problems(sent(trim.view)) == []
    assert repair(trim.view)[0] == trim.view
    kept = [message.seq for message in trim.view]
    assert trim.view[-1] is view[-1]
    assert not summarized or trim.view[0] is view[0]
    answer = last_answer(view)
    asked = [each.seq for each in view[:answer] if is_request(each.role, each.content)]
    # A request that nobody has answered yet never takes the place of the one that was answered last.
    if answer >= 0:
        assert not asked or asked[-1] in kept
        assert view[answer] in trim.view


@given(any_conversations(max_chars=700), LIMITS, st.booleans())
def test_only_whole_exchanges_and_then_whole_rounds_go(
    conversation: list[dict[str, Any]], limit: int, summarized: bool
) -> None:
    view = repaired(conversation)
    trim = to(limit, view, carries_summary=summarized)
    gone = set(trim.dropped)
    start = 1 if summarized else 0
    parts = exchanges(view)
    whole = [set(part) - set(range(start)) for part in parts[:-1]]
    fates = [part <= gone for part in whole if part]
    assert all(part <= gone or not part & gone for part in whole)
    assert fates == sorted(fates, reverse=True)
    if parts and gone & set(parts[-1]):
        assert all(fates)
        waiting = set(range(last_answer(view) + 1, len(view)))
        inner = [set(each) - waiting for each in rounds(view, parts[-1])]
        assert all(each <= gone or not each & gone for each in inner)
        assert not waiting & gone or all(each <= gone for each in inner[:-1])
        rounds_gone = [each <= gone for each in inner]
        assert rounds_gone == sorted(rounds_gone, reverse=True)
        assert not rounds_gone or not rounds_gone[-1]
    for index, message in enumerate(view):
        assert index in gone or index in trim.cut or any(kept is message for kept in trim.view)


@given(any_conversations(max_chars=700), LIMITS, st.booleans())
def test_dropping_again_changes_nothing_and_only_what_has_to_stay_is_too_much(
    conversation: list[dict[str, Any]], limit: int, summarized: bool
) -> None:
    view = repaired(conversation)
    once = to(limit, view, carries_summary=summarized)
    again = to(limit, once.view, carries_summary=summarized)
    assert again == Trim(once.view, ())
    if len(once.view) > limit:
        assert to(0, view, carries_summary=summarized).dropped == once.dropped
