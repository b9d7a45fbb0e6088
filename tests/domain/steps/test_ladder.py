"""What a check decides from counters and a policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.policy import Policy
from compaction.steps.catalogue import (
    LADDER,
    OF_REQUESTS,
    PRUNE,
    STEPS,
    SUMMARY,
    TOOL_RESULTS,
    TRIM,
    Result,
    Step,
)
from compaction.steps.ladder import Due, Load, decide, growth_margin, must_wait, saves_enough
from compaction.steps.plan import Progress, RunContext, ending_of, next_step

TOKENS = st.integers(0, 300_000)


@pytest.mark.requirement("T1")
@pytest.mark.parametrize(("tokens", "due"), [(39_999, False), (40_000, False), (40_001, True)])
def test_tool_results_are_due_strictly_over_the_budget(tokens: int, due: bool) -> None:
    assert decide(Load(0, tokens), Policy()).tool_results is due


@pytest.mark.requirement("T1", "T2")
def test_a_budget_of_0_turns_the_step_off() -> None:
    assert not decide(Load(10**6, 10**6), Policy(input_token_budget=0)).tool_results


@pytest.mark.requirement("T1", "S3")
def test_a_short_conversation_is_not_touched_at_all() -> None:
    assert not decide(Load(0, None), Policy())
    assert not decide(Load(2_000, 2_500), Policy())


@pytest.mark.requirement("S3")
@pytest.mark.parametrize(("tokens", "due"), [(79_999, False), (80_000, False), (80_001, True)])
def test_a_summary_is_due_strictly_over_the_threshold(tokens: int, due: bool) -> None:
    assert decide(Load(tokens, None), Policy()).summary is due


def test_the_apis_count_goes_before_the_estimate_in_both_directions() -> None:
    assert decide(Load(estimated=10, measured=90_000), Policy()) == Due(
        tool_results=True, summary=True, trim=False, prune=True
    )
    assert decide(Load(estimated=90_000, measured=10), Policy()) == Due(tool_results=False, summary=False, trim=False)
    assert Load(estimated=90_000, measured=None).input_tokens == 90_000


def test_a_hold_keeps_a_step_from_being_tried_again_until_the_conversation_has_grown() -> None:
    held = Load(50_000, None, tool_results_hold=50_000, summary_hold=90_000)
    assert not decide(held, Policy())
    assert decide(held._replace(estimated=50_001), Policy()) == Due(tool_results=True, summary=False, trim=False)
    assert decide(held._replace(estimated=90_001), Policy()) == Due(
        tool_results=True, summary=True, trim=False, prune=True
    )


def test_a_hold_under_the_threshold_does_not_lower_it() -> None:
    assert not decide(Load(40_000, None, tool_results_hold=100, summary_hold=100), Policy())


def test_the_margin_is_a_fifth_of_the_threshold_but_never_less_than_a_run_has_to_save() -> None:
    assert growth_margin(80_000, Policy()) == 16_000
    assert growth_margin(500, Policy()) == 1_000
    assert growth_margin(0, Policy(min_savings_tokens=0)) == 0


@pytest.mark.parametrize(
    ("before", "after", "least", "enough"),
    [
        (5_000, 4_000, 1_000, True),
        (5_000, 4_001, 1_000, False),
        (5_000, 5_000, 0, False),
        (5_000, 4_999, 0, True),
        (5_000, 6_000, 0, False),
        (5_000, 6_000, 1_000, False),
        (900, 0, 1_000, False),
    ],
)
def test_a_snapshot_has_to_be_smaller_by_what_the_policy_says(
    before: int, after: int, least: int, enough: bool
) -> None:
    assert saves_enough(before, after, Policy(min_savings_tokens=least)) is enough


@given(TOKENS, st.none() | TOKENS, TOKENS, TOKENS, TOKENS, st.integers(1, 300_000))
def test_more_tokens_never_make_less_due(
    estimated: int, measured: int | None, hold: int, other_hold: int, budget: int, threshold: int
) -> None:
    policy = Policy(input_token_budget=budget, compaction_threshold_tokens=threshold)
    load = Load(estimated, measured, tool_results_hold=hold, summary_hold=other_hold)
    more = load._replace(estimated=estimated + 1, measured=None if measured is None else measured + 1)
    now, later = decide(load, policy), decide(more, policy)
    assert now.tool_results <= later.tool_results
    assert now.summary <= later.summary
    assert now.prune <= later.prune
    assert bool(now) == (now.tool_results or now.summary or now.prune)


@given(TOKENS, TOKENS, TOKENS)
def test_what_saves_enough_shrinks(before: int, after: int, least: int) -> None:
    if saves_enough(before, after, Policy(min_savings_tokens=least)):
        assert after < before
        assert before - after >= least


@pytest.mark.parametrize(
    ("tokens", "in_loop", "waits"), [(119_999, True, True), (120_000, True, False), (0, False, False)]
)
def test_a_snapshot_waits_in_a_signed_loop_up_to_the_trim_threshold(tokens: int, in_loop: bool, waits: bool) -> None:
    assert Policy().pending_limit_tokens == 120_000
    assert must_wait(tokens, Policy(), in_signed_loop=in_loop) is waits


def test_one_step_by_hand_is_taken_once_whatever_the_thresholds_say() -> None:
    context = RunContext(Policy(), "summary", can_summarize=True)

    def after(**results: Result) -> Step | None:
        return next_step(context, Progress({STEPS[name]: done for name, done in results.items()}), Load(10, None), 4)

    assert after() is SUMMARY
    assert after(summary="committed") is None
    assert after(tool_results="pending") is None


@pytest.mark.parametrize(("newer", "step"), [(0, TRIM), (3, None)])
def test_what_came_while_a_summary_was_made_is_not_trimmed_before_the_next_has_read_it(
    newer: int, step: Step | None
) -> None:
    load = Load(190_000, None, bytes=10**7)
    assert decide(load, Policy()).trim
    progress = Progress(dict.fromkeys((TOOL_RESULTS, PRUNE, SUMMARY), "committed"))
    assert next_step(RunContext(Policy(), can_summarize=True), progress, load, 20, newer) is step


def test_steps_that_a_run_leaves_out_are_not_taken_and_count_as_nothing() -> None:
    context = RunContext(Policy(), can_summarize=True, excluded=frozenset({TOOL_RESULTS, PRUNE}))
    assert next_step(context, Progress(), Load(90_000, None), 20) is SUMMARY


@pytest.mark.parametrize(
    ("results", "has_failed", "ending"),
    [
        ({}, False, (None, None)),
        ({"summary": "failed"}, True, ("failed", "summary_failed_nothing_dropped")),
        ({"summary": "failed", "extract": "committed"}, True, ("failed", "summary_failed_extract_committed")),
        (
            {"summary": "failed", "extract": "failed", "fallback": "pending"},
            True,
            ("failed", "summary_failed_fallback_committed"),
        ),
        ({"fallback": "skipped"}, False, (None, "summaries_disabled")),
        ({"summary": "failed", "extract": "committed"}, False, (None, None)),
    ],
)
def test_a_run_ends_as_what_stood_in_for_its_summary_says(
    results: dict[str, Result], has_failed: bool, ending: tuple[str | None, str | None]
) -> None:
    progress = Progress({STEPS[name]: done for name, done in results.items()})
    assert ending_of(RunContext(Policy()), progress, has_failed=has_failed) == ending


def test_each_step_is_declared_once() -> None:
    assert len(STEPS) == len(LADDER) + len(OF_REQUESTS)
    strategies = [name for step in LADDER for name in step.strategies]
    assert len(strategies) == len(set(strategies))
    for step in LADDER:
        assert (step.act is None) == (step.summarizer is not None), step.name
        assert step.event, step.name
