"""The policy: its defaults, layers of overrides, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from compaction.policy import FIELDS, Policy, PolicyError, merge
from tests.strategies import policies

DEFAULTS = {
    "input_token_budget": 40_000,
    "tool_result_retention_chars": 500,
    "max_tool_result_chars": 40_000,
    "compaction_enabled": True,
    "compaction_threshold_tokens": 80_000,
    "protected_tail_messages": 6,
    "tool_preview_head_chars": 500,
    "tool_preview_tail_chars": 200,
    "summary_input_max_chars": 100_000,
    "summary_max_tokens": 4_096,
    "max_conversation_messages": 50,
    "model_context_tokens": 200_000,
    "trim_threshold_ratio": 0.60,
    "max_context_bytes": 737_280,
    "total_token_budget": 128_000,
    "reserved_output_tokens": 4_096,
    "context_block_compact_chars": 50_000,
    "carry_forward_section_chars": 500,
    "min_savings_tokens": 1_000,
}


@pytest.mark.requirement("T2")
def test_the_defaults_are_the_contracts() -> None:
    assert {name: getattr(Policy(), name) for name in FIELDS} == DEFAULTS
    assert merge() == Policy()


def test_later_layers_win_and_leave_the_rest() -> None:
    policy = merge({"input_token_budget": 1, "min_savings_tokens": 2}, {}, {"input_token_budget": 3})
    assert policy == Policy(input_token_budget=3, min_savings_tokens=2)


@given(policies())
def test_what_is_given_is_in_force(overrides: dict[str, Any]) -> None:
    policy = merge(overrides)
    assert {name: getattr(policy, name) for name in FIELDS} == DEFAULTS | overrides


@pytest.mark.requirement("T2")
def test_a_budget_of_0_is_allowed() -> None:
    assert merge({"input_token_budget": 0}).input_token_budget == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_token_budgets", 1),
        ("input_token_budget", -1),
        ("input_token_budget", "40000"),
        ("input_token_budget", 1.5),
        ("input_token_budget", True),
        ("input_token_budget", None),
        ("compaction_enabled", 1),
        ("compaction_threshold_tokens", 0),
        ("protected_tail_messages", 0),
        ("max_conversation_messages", 1),
        ("max_tool_result_chars", 0),
        ("summary_input_max_chars", 199),
        ("model_context_tokens", 15_999),
        ("trim_threshold_ratio", 0),
        ("trim_threshold_ratio", 1.01),
        ("trim_threshold_ratio", float("nan")),
        ("min_savings_tokens", 10**12),
        ("total_token_budget", 999),
    ],
)
def test_an_impossible_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        merge({"min_savings_tokens": 0}, {field: value})
    assert caught.value.field == field
    assert caught.value.detail


def test_values_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(PolicyError) as caught:
        merge({"total_token_budget": 4_096})
    assert caught.value.field == "reserved_output_tokens"
    assert merge({"total_token_budget": 4_097}).reserved_output_tokens == 4_096


def test_the_trim_threshold_is_a_share_of_the_window() -> None:
    assert Policy().trim_threshold_tokens == 120_000
    assert Policy(model_context_tokens=16_000, trim_threshold_ratio=0.5).trim_threshold_tokens == 8_000
