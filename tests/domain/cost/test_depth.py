"""How deep tool results are cut: by price, and never so that a threshold is answered less than by the deepest cut."""

from __future__ import annotations

import json
import math
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cost.gaps import GAPS, gaps
from bench.cost.ladder import NO_HEAD, recorded
from bench.cost.models import models, summarizer
from bench.cost.replay import Played
from compaction.cost.depth import HEDGE, Choice, Depth, choose_depth, cut_depths
from compaction.cost.swap import Bounds, bounds_of
from compaction.policy import merge
from compaction.shorten.tool_results import cut_tool_results
from compaction.steps.snapshot import Original, Snapshot, build
from compaction.steps.stage import Stage
from compaction.steps.steps import StepOptions, cut_results
from tests.domain.cost.test_cost import OPUS, prices
from tests.support.talk import answer, exchanges, request, rounds

if TYPE_CHECKING:
    from compaction.cost.calls import CallPrices

POLICY = merge({"input_token_budget": 2_050, "min_savings_tokens": 100, "tool_result_retention_chars": 100})
TALK = [
    request("go", 20),
    *rounds(1, 60),
    answer("so", 20),
    *exchanges(5, 100),
    request("on", 20),
    *rounds(3, 400, start=1),
]
"""A small result with much talk behind it, and large ones after that."""


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[Depth], int]:
    """Return depths as a view has them, the deepest first, and the tokens before the cut."""
    sizes = draw(st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 5_000)), min_size=1, max_size=8))
    fixed, newest = draw(st.integers(0, 2_000)), draw(st.integers(0, 5_000))
    before = fixed + sum(map(sum, sizes)) + newest
    begins = [fixed, *accumulate((sum(size) for size in sizes), initial=fixed)][1:]
    left = [sum(freed for _, freed in sizes[at:]) for at in range(len(sizes))]
    return [Depth(at, before - left[at], begins[at] + sizes[at][0]) for at in range(len(sizes))], before


bounds = st.builds(Bounds, st.integers(0, 40_000), st.integers(1, 40_000), st.integers(1, 5_000))


@given(cuts(), bounds, prices, st.floats())
def test_no_threshold_is_answered_less_whatever_prices_and_turns_are(
    given_cuts: tuple[list[Depth], int], limits: Bounds, each: CallPrices, turns: float
) -> None:
    every, before = given_cuts
    depth = choose_depth(every, before, limits, each, turns).depth
    assert depth in every
    for limit in (limits.hard, limits.budget, limits.budget - limits.large):
        assert depth.after <= limit or every[0].after > limit or limits.budget == 0
    assert before - depth.after >= min(limits.large, before - every[0].after)
    assert limits.relieves_threshold(before, depth.after) == limits.relieves_threshold(before, every[0].after)
    assert limits.are_exceeded(depth.after) == limits.are_exceeded(every[0].after)


@given(cuts(), bounds, st.floats(0, 1_000))
def test_it_costs_no_more_than_the_deepest_over_the_turns_expected_and_over_more(
    given_cuts: tuple[list[Depth], int], limits: Bounds, turns: float
) -> None:
    every, before = given_cuts
    choice = choose_depth(every, before, limits, OPUS, turns)
    assert choice.spares_usd >= choice.costs_usd * HEDGE - 1e-12
    assert choice.costs_usd >= 0
    if choice.depth is every[0]:
        assert choice == Choice(every[0], 0.0, 0.0)


@pytest.mark.parametrize(
    "each", [None, OPUS._replace(lifetime=0), OPUS._replace(input=0.0), OPUS._replace(input=math.nan)]
)
def test_where_nothing_is_cached_or_no_price_is_known_it_is_the_deepest(each: CallPrices | None) -> None:
    every = [Depth(0, 1_000, 10), Depth(5, 1_010, 900)]
    assert choose_depth(every, 2_000, Bounds(1_800, 3_000, 100), OPUS, 5).depth is every[1]
    assert choose_depth(every, 2_000, Bounds(1_800, 3_000, 100), each, 5).depth is every[0]
    # Over ever more turns the few tokens cost more than what is spared.
    assert choose_depth(every, 2_000, Bounds(1_800, 3_000, 100), OPUS, 10_000).depth is every[0]


def stage() -> Stage:
    originals = [Original(seq, each["role"], json.dumps(each["content"])) for seq, each in enumerate(TALK)]
    return Stage(build(Snapshot(), originals, POLICY, pinned=()), fixed_tokens=10)


def test_depths_are_what_cuts_from_there_come_to() -> None:
    before = stage()
    every = cut_depths(before, POLICY)
    assert [each.start for each in every] == [2, 16, 18]
    for each in every:
        cut = cut_tool_results(before.view, POLICY.tool_result_retention_chars, start=each.start)
        assert cut.indices[0] == each.start
        assert abs(before.load_of(cut.view).input_tokens - each.after) <= 1
        assert abs(before.fixed_input + before.shared(cut.view) - each.shared) <= 1


def test_a_small_result_with_much_behind_it_stays_whole() -> None:
    before = stage()
    every = cut_depths(before, POLICY)
    choice = choose_depth(every, before.load.input_tokens, bounds_of(POLICY), OPUS, 10)
    assert choice.depth is every[1]
    outcome = cut_results(before, POLICY, StepOptions(start=choice.depth.start))
    assert (outcome.reason, outcome.results_cut, outcome.truncated) == (None, 2, (16, 18))
    assert before.load_of(outcome.view).input_tokens <= POLICY.input_token_budget


@pytest.mark.parametrize("kind", GAPS)
@pytest.mark.parametrize("model", dict(models()))
def test_replayed_it_costs_no_more_than_the_deepest_cut_and_than_thresholds(
    kind: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recorded(
        "depth", [*TALK, *(each for at in range(4) for each in rounds(2, 100, start=10 + 2 * at))], None, POLICY
    )
    played = Played(whole, gaps(kind, whole.requests, "one"), dict(models())[model], summarizer())
    bill = played.break_even([])
    monkeypatch.setattr("bench.cost.replay.choose_depth", lambda every, *_: Choice(every[0]))
    deepest = played.break_even([])
    assert bill.usd <= deepest.usd
    assert bill.usd <= played.thresholds.usd
    assert bill.breaks <= deepest.breaks
    if kind == "agent":
        assert bill.usd < deepest.usd
    assert whole.climb(NO_HEAD, len(TALK)) is not None
