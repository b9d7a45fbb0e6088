"""What calls cost, how long conversations go on, and when a snapshot that is ready becomes the head."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.cost.calls import NO_CACHE, ONE_HOUR, CallPrices
from compaction.cost.pauses import Pause
from compaction.cost.survival import HORIZON, Life, SurvivalCurve, share_of_pauses
from compaction.cost.swap import Bounds, ExpectedCourse, Ground, SwapCandidate, bounds_of, decide_swap, is_worth_summary
from compaction.policy import merge
from compaction.steps.ladder import Load

OPUS = CallPrices(4e-6, 20e-6, 0.2e-6, 5e-6)
UNCACHED = OPUS._replace(lifetime=NO_CACHE)
UNWRITTEN = OPUS._replace(cache_write=OPUS.input)

prices = st.builds(
    CallPrices,
    *[st.floats(min_value=-1, max_value=1e9) | st.just(math.nan) | st.just(math.inf)] * 4,
    st.integers(-10, 10**9),
)
any_seconds = st.floats()
tokens = st.integers(-100, 10**7)
bounds = st.builds(Bounds, st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**5))
situations = st.builds(SwapCandidate, tokens, tokens, tokens, bounds, any_seconds, st.booleans(), st.integers())


def test_a_call_costs_what_it_reads_writes_and_answers() -> None:
    assert OPUS.cost(10_000, 8_000, 100) == pytest.approx((8_000 * 0.2 + 2_000 * 5 + 100 * 20) / 1e6)
    assert UNCACHED.cost(10_000, 8_000) == pytest.approx(10_000 * 4e-6)
    assert UNWRITTEN.cost(10_000, 0) == pytest.approx(10_000 * 4e-6)
    # More than the whole is not read from anywhere, whatever a usage says.
    assert OPUS.cost(1_000, 5_000) == OPUS.cost(1_000, 1_000)


def test_a_cache_is_cold_when_its_life_is_over() -> None:
    assert [OPUS.is_cold(gap) for gap in (0, 300, 301)] == [False, False, True]
    assert not OPUS._replace(lifetime=ONE_HOUR).is_cold(3_000)
    assert UNCACHED.is_cold(0)
    assert not OPUS.is_cold(-5)


@given(st.lists(st.builds(Life, st.integers(-5, 500), st.booleans())), st.integers(0, 500))
def test_a_hazard_is_a_probability_and_more_pauses_are_fewer_turns(lives: list[Life], turns: int) -> None:
    curve = SurvivalCurve(lives)
    assert 0 <= curve.hazard(turns) <= 1
    expected = [curve.expected_turns(turns, pauses) for pauses in (0, 0.1, 0.5, 1)]
    assert all(one >= other for one, other in pairwise(expected))
    assert 0 == expected[-1] <= expected[0] <= HORIZON


def test_without_others_a_conversation_lasts_longer_the_longer_it_has_lasted() -> None:
    curve = SurvivalCurve()
    expected = [curve.expected_turns(turns) for turns in (1, 5, 20, 100)]
    assert expected == sorted(expected)


def test_conversations_that_all_ended_after_ten_turns_are_expected_to() -> None:
    curve = SurvivalCurve([Life(10, has_ended=True)] * 500)
    assert curve.expected_turns(4) == pytest.approx(6, abs=0.5)
    assert curve.expected_turns(10) < 1
    # Those that go on still have not ended at what they have come to so far.
    going_on = SurvivalCurve([Life(10, has_ended=False)] * 500)
    assert going_on.expected_turns(4) > 10


def test_few_gaps_say_little_of_pauses() -> None:
    assert share_of_pauses([], 300) == pytest.approx(0.05)
    assert share_of_pauses([10.0] * 95, 300) < 0.01
    assert share_of_pauses([900.0] * 95, 300) > 0.9
    assert share_of_pauses([-5.0, math.nan], 300) == pytest.approx(0.05)


LIMITS = Bounds(budget=40_000, hard=80_000, large=8_000)


def test_a_cut_that_answers_no_threshold_is_put_off_while_the_cache_is_worth_more() -> None:
    ready = SwapCandidate(before=45_000, after=44_000, shared=2_000, bounds=LIMITS, since=20)
    waiting = decide_swap(ready, OPUS, 50)
    assert (waiting.swaps, waiting.ground) == (False, Ground.WARM)
    assert waiting.saves_usd == pytest.approx(1_000 * 0.2e-6 * 50)
    assert waiting.costs_usd == pytest.approx(42_000 * 4.8e-6)


@pytest.mark.parametrize(
    ("change", "ground"),
    [
        ({"before": 80_001}, Ground.LIMIT),
        ({"after": 40_000}, Ground.LIMIT),
        ({"before": 60_000, "after": 52_000}, Ground.LIMIT),
        ({"before": 38_000, "after": 20_000, "since": 1}, Ground.WARM),
        ({"gap": 301.0}, Ground.COLD),
        ({"is_broken": True}, Ground.BROKEN),
        ({"before": 39_000, "after": 4_000}, Ground.PAYS),
        ({"since": 100_000}, Ground.PAYS),
    ],
)
def test_it_becomes_the_head_when_that_is_cheap_or_has_to_be(change: dict[str, Any], ground: Ground) -> None:
    ready = SwapCandidate(before=45_000, after=44_000, shared=2_000, bounds=LIMITS, since=20)._replace(**change)
    decision = decide_swap(ready, OPUS, 50)
    assert (decision.swaps, decision.ground) == (ground is not Ground.WARM, ground)


def test_where_nothing_is_cached_it_is_never_waited() -> None:
    ready = SwapCandidate(before=45_000, after=44_000, shared=2_000, bounds=LIMITS)
    assert decide_swap(ready, UNCACHED, 0).ground is Ground.COLD
    assert decide_swap(ready, None, 50).ground is Ground.UNPRICED


def test_bounds_are_the_lowest_limits_of_the_policy() -> None:
    assert bounds_of(merge({})) == Bounds(40_000, 80_000, 8_000)
    # The window and the whole budget press before the summary's threshold does.
    assert bounds_of(merge({"compaction_threshold_tokens": 10**7})).hard == 120_000 - 1
    assert bounds_of(merge({"total_token_budget": 50_000, "reserved_output_tokens": 4_000})).hard == 46_000 - 1
    assert not Bounds(0, 80_000, 8_000).are_exceeded(80_000)


@given(situations, prices | st.none(), st.floats(allow_nan=True))
def test_nothing_waits_over_a_threshold_and_absurd_prices_hold_nothing_back(
    ready: SwapCandidate, known: CallPrices | None, turns: float
) -> None:
    decision = decide_swap(ready, known, turns)
    over = ready.before > ready.bounds.hard or ready.after <= ready.bounds.budget < ready.before
    if (over and ready.bounds.budget) or known is None or not known.is_usable or ready.is_broken:
        assert decision.swaps
    assert all(math.isfinite(each) and each >= 0 for each in (decision.saves_usd, decision.costs_usd, decision.turns))


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=200), prices | st.none(), any_seconds)
def test_a_life_of_waiting_never_passes_a_threshold(growth: list[int], known: CallPrices | None, gap: float) -> None:
    """Whatever is decided on the way, what is over a threshold after a turn has become the head before the next."""
    before = 20_000
    for since, each in enumerate(growth):
        before += each
        ready = SwapCandidate(before, before // 2, 1_000, LIMITS, gap, since=since)
        if decide_swap(ready, known, 1e9).swaps:
            before //= 2
        assert before <= LIMITS.budget


@given(
    st.integers(-100, 10**6),
    prices | st.none(),
    st.builds(ExpectedCourse, st.floats(), st.floats()),
    st.floats(0, 1e9) | st.just(math.nan),
)
def test_a_summary_is_worth_no_more_than_it_saves(
    freed: int, known: CallPrices | None, expected: ExpectedCourse, usd: float
) -> None:
    if is_worth_summary(freed, known, expected, usd):
        assert known is not None
        assert freed > 0
        assert usd < freed * max(known.uncached_price, known.resend_price) * (1 + max(0.0, expected.turns)) * (1 + 1e-9)


def test_a_summary_is_worth_its_price_where_many_turns_are_expected() -> None:
    assert is_worth_summary(58_000, OPUS, ExpectedCourse(50, 0), 0.08)
    assert not is_worth_summary(58_000, OPUS, ExpectedCourse(0, 0), 0.08)
    assert not is_worth_summary(58_000, OPUS, ExpectedCourse(50, 0), 2)
    # Each pause is one more time that all of it would be written anew.
    assert is_worth_summary(58_000, OPUS, ExpectedCourse(50, 0.2), 2)


def test_a_pause_is_used_from_the_share_on_from_which_work_is_done_ahead() -> None:
    pause = Pause(merge({}))
    assert (pause.early_policy.input_token_budget, pause.early_policy.compaction_threshold_tokens) == (30_000, 60_000)
    assert not pause.is_due(Load(30_000, None))
    assert pause.is_due(Load(30_001, None))
    assert not pause.is_due(Load(30_001, None, has_old_results=False))
    assert pause.is_due(Load(60_001, None, has_old_results=False))
    # Nothing is dropped in one that no threshold asks for.
    dropping = Pause(merge({"compaction_enabled": False}))
    assert not dropping.is_due(Load(60_001, None, has_old_results=False, bytes=10**9))
    # After a step the conversation has to have grown by a little at least.
    assert not pause.is_due(Load(35_000, None, tool_results_hold=35_000 + 6_000))
    assert pause.is_due(Load(37_000, None, tool_results_hold=35_000 + 6_000))
