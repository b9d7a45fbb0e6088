"""What calls began with as the ones before them did, and what compaction saved of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.cost.calls import CallPrices
from compaction.cost.savings import Call, compute_savings, shared_prefix_tokens

OPUS = CallPrices(4e-6, 20e-6, 0.2e-6, 5e-6)
tokens = st.integers(0, 10**7)
calls = st.builds(Call, tokens, tokens, tokens | st.none(), tokens | st.none())


def test_under_one_head_a_call_begins_with_all_of_the_one_before() -> None:
    assert shared_prefix_tokens(Call(12_000), Call(10_000), None, has_moved=False) == 10_000
    assert shared_prefix_tokens(Call(12_000), None, None, has_moved=False) == 0


def test_when_the_head_has_moved_it_begins_with_what_was_measured() -> None:
    assert shared_prefix_tokens(Call(7_000), Call(40_000), 2_000, has_moved=True) == 2_000
    # Of an overflow, a restore or a pin nobody measured anything.
    assert shared_prefix_tokens(Call(7_000), Call(40_000), None, has_moved=True) is None


def test_what_a_warm_cache_had_and_what_was_saved_of_it() -> None:
    money = compute_savings(Call(12_000, 30_000, 10_000, 2_000), Call(10_000, 30_000), 10_000, OPUS, gap=20)
    assert money.cost_usd == pytest.approx((10_000 * 0.2 + 2_000 * 5) / 1e6)
    # The same 2,000 would have been written, and 30,000 more would have been read.
    assert money.saved_usd == pytest.approx(30_000 * 0.2 / 1e6)
    assert money.saved_uncached_usd == pytest.approx(30_000 * 4 / 1e6)


def test_after_a_pause_all_of_it_would_have_been_written_anew() -> None:
    money = compute_savings(Call(12_000, 30_000, 0, 12_000), Call(10_000, 30_000), 0, OPUS, gap=1_000)
    assert money.saved_usd == pytest.approx(30_000 * 5 / 1e6)


def test_a_swap_costs_what_is_written_anew() -> None:
    money = compute_savings(Call(7_000, 35_000, 2_000, 5_000), Call(40_000, 0), 2_000, OPUS, gap=20)
    # Without it 40,000 would have been read from the cache, and 2,000 written.
    assert money.saved_usd == pytest.approx((40_000 * 0.2 + 2_000 * 5 - 2_000 * 0.2 - 5_000 * 5) / 1e6)
    assert money.saved_usd < 0


def test_a_break_that_was_not_ours_is_no_saving() -> None:
    broken = compute_savings(Call(12_000, 30_000, 0, 12_000), Call(10_000, 30_000), 10_000, OPUS, gap=20)
    assert broken.saved_usd == pytest.approx(30_000 * 5 / 1e6)


@given(calls, calls | st.none(), tokens | st.none(), st.floats(), st.booleans())
def test_contradictory_usages_give_figures_all_the_same(
    call: Call, before: Call | None, expected: int | None, gap: float, has_moved: bool
) -> None:
    prefix = shared_prefix_tokens(call, before, expected, has_moved=has_moved)
    assert prefix is None or 0 <= prefix <= call.input
    money = compute_savings(call, before, prefix, OPUS, gap)
    assert all(math.isfinite(each) for each in money)
    assert money.cost_usd >= 0
    assert money.cost_usd + money.saved_usd >= 0
    assert money.cost_usd <= call.input * 5e-6 * (1 + 1e-9)


@given(calls, tokens, tokens | st.none())
def test_where_compaction_kept_nothing_out_it_saved_nothing(call: Call, before: int, expected: int | None) -> None:
    """Whatever a usage says of the cache: more than there was to read, or nothing."""
    call = call._replace(saved=0)
    prefix = shared_prefix_tokens(call, Call(before), expected, has_moved=False)
    money = compute_savings(call, Call(before), prefix, OPUS, gap=20)
    assert (money.saved_usd, money.saved_uncached_usd) == (0, 0)
    assert compute_savings(call, Call(before), None, OPUS, gap=20).saved_usd == 0
