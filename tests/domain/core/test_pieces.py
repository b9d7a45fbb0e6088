"""What a policy says of messages means the same whether an answer and its results are one message each, or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.messages import blocks
from compaction.pieces import count_messages, newest, places
from compaction.policy import Policy
from compaction.shorten.tool_results import cut_tool_results
from compaction.shorten.trimming import drop_oldest
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.summary.zone import find_zone, rebuild
from compaction.tokens import json_text
from compaction.view import ViewMessage
from tests.support.blocks import text_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

    from compaction.view import View


@st.composite
def conversations(draw: DrawFn) -> View:
    """Return a conversation of requests, rounds of parallel calls, and answers."""
    every: list[tuple[str, Any]] = []
    for exchange in range(draw(st.integers(1, 5))):
        every.append(("user", f"Request {exchange}."))
        for number, calls in enumerate(draw(st.lists(st.integers(1, 3), max_size=4))):
            ids = [f"call_{exchange}_{number}_{call}" for call in range(calls)]
            spoken = [text_block(f"Looking {exchange} {number}.")] if draw(st.booleans()) else []
            asked = [{"type": "tool_use", "id": each, "name": "look", "input": {}} for each in ids]
            results = [{"type": "tool_result", "tool_use_id": each, "content": f"Found {each}. " * 20} for each in ids]
            every += [("assistant", [*spoken, *asked]), ("user", results)]
        if draw(st.booleans()):
            every.append(("assistant", f"Answer {exchange}."))
    return tuple(ViewMessage(role, content, seq) for seq, (role, content) in enumerate(every))


def in_pieces(view: Sequence[ViewMessage]) -> View:
    """Return a conversation with each block a message of its own, as Responses has it."""
    every = [
        (message.role, content)
        for message in view
        for content in ([message.content] if isinstance(message.content, str) else [[each] for each in message.content])
    ]
    return tuple(ViewMessage(role, content, seq) for seq, (role, content) in enumerate(every))


def said(view: Sequence[ViewMessage]) -> list[tuple[str, Any]]:
    return [(message.role, block) for message in view for block in blocks(message.content)]


@given(conversations(), st.integers(1, 8))
def test_the_protected_tail_and_the_zone_are_the_same(whole: View, tail: int) -> None:
    pieces = in_pieces(whole)
    assert count_messages(pieces, in_pieces=True) == count_messages(whole, in_pieces=False) == len(whole)
    newer = newest(pieces, tail, in_pieces=True)
    assert said(pieces[len(pieces) - newer :]) == said(whole[-tail:])
    zone, same = find_zone(whole, tail), find_zone(pieces, newer, in_pieces=True)
    assert (zone is None) == (same is None)
    if zone is not None and same is not None:
        assert said(pieces[same.start : same.stop]) == said(whole[zone.start : zone.stop])
        numbers = places(pieces[same.start : same.stop], in_pieces=True)
        assert sorted(set(numbers)) == places(whole[zone.start : zone.stop], in_pieces=False)


@given(conversations(), st.integers(1, 8), st.integers(2, 12), st.booleans())
def test_what_is_dropped_is_the_same(whole: View, tail: int, limit: int, summarizes: bool) -> None:
    pieces = in_pieces(whole)
    zone = find_zone(whole, tail) if summarizes else None
    if zone is not None:
        same = find_zone(pieces, newest(pieces, tail, in_pieces=True), in_pieces=True)
        assert same is not None
        whole, pieces = rebuild(whole, zone, "Before."), rebuild(pieces, same, "Before.")

    def fits(count: int, _: int) -> bool:
        return count <= limit

    left = drop_oldest(whole, fits, carries_summary=zone is not None).view
    other = drop_oldest(pieces, fits, carries_summary=zone is not None, in_pieces=True).view
    assert said(other) == said(left)
    assert count_messages(other, in_pieces=True) == len(left)


def test_requests_count_one_by_one_and_others_by_the_answer() -> None:
    asked = tuple(ViewMessage("user", f"Remark {seq}.", seq) for seq in range(20))
    assert count_messages(asked, in_pieces=True) == 20
    assert newest(asked, 6, in_pieces=True) == 6
    assert newest(asked, 30, in_pieces=True) == newest(asked, 30, in_pieces=False) == 20
    assert newest((), 3, in_pieces=True) == count_messages((), in_pieces=True) == 0


def test_messages_of_the_messages_api_count_as_they_are_stored() -> None:
    view = tuple(ViewMessage("assistant", "Again.", seq) for seq in range(7))
    assert count_messages(view, in_pieces=False) == 7
    assert count_messages(view, in_pieces=True) == 1
    assert newest(view, 6, in_pieces=False) == 6


@pytest.mark.parametrize("pieces", [True, False])
def test_a_working_view_says_which_of_them_it_is(pieces: bool) -> None:
    rows = [Original(0, "user", json_text("Hello."))]
    assert build(Snapshot(), rows, Policy(), in_pieces=pieces).in_pieces is pieces


@given(conversations(), st.integers(0, 60))
def test_the_newest_results_stay_and_the_others_are_cut_the_same(whole: View, retention: int) -> None:
    cut = cut_tool_results(whole, retention)
    other = cut_tool_results(in_pieces(whole), retention)
    assert said(other.view) == said(cut.view)
    assert other.results == cut.results
    again = cut_tool_results(other.view, retention)
    assert (again.results, again.view) == (0, other.view)
