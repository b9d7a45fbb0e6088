"""The policy: its defaults, layers of overrides, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.overrides import in_force
from compaction.policy import FIELDS, Policy, PolicyError, merge
from tests.support.strategies import policies

DEFAULTS = {
    "input_token_budget": 40_000,
    "tool_result_retention_chars": 500,
    "html_results": "text",
    "max_tool_result_chars": 40_000,
    "tool_results_growth_ratio": 0.0,
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
    "carried_context_max_tokens": 20_000,
    "inline_tool_tags": (),
    "pinned_max_tokens": 2_000,
    "summary_instructions": "",
    "private_result_fields": (),
    "prune_soft_share": 0.3,
    "prune_hard_share": 0.5,
    "prune_head_chars": 1_500,
    "prune_tail_chars": 1_500,
    "prune_min_freed_tokens": 4_000,
    "prune_allow": (),
    "prune_deny": (),
    "extra_strategies": (),
    "pause_threshold_ratio": 0.75,
    "recall_handles": False,
    "gateway_recall": False,
    "summarizer_model": "",
    "model_prices": {},
    "unsupported_claims": "mark",
    "secrets": "mask",
    "frame_language": "auto",
    "swap": "when_it_pays",
    "prompt_cache_seconds": 300,
    "message_retention_days": 0,
    "max_context_images": 100,
    "max_context_image_side": 2_000,
    "max_context_documents": 0,
    "max_context_document_pages": 100,
    "max_context_media_bytes": 30_000_000,
}
PATTERNS = st.lists(st.sampled_from(["look", "web_*", "a?c"]), max_size=3).map(tuple)
LATER = st.fixed_dictionaries(
    {},
    optional={
        "carried_context_max_tokens": st.integers(0, 50_000),
        "inline_tool_tags": st.lists(st.sampled_from(["readNote", "ns:search", "_x-1.y"]), max_size=3).map(tuple),
        "pinned_max_tokens": st.integers(0, 10_000),
        "summary_instructions": st.text(max_size=20),
        "private_result_fields": st.lists(st.sampled_from(["details", "raw"]), max_size=3).map(tuple),
        "prune_soft_share": st.floats(0.01, 0.4),
        "prune_hard_share": st.floats(0.5, 1),
        "prune_head_chars": st.integers(0, 10_000),
        "prune_min_freed_tokens": st.integers(0, 10_000),
        "prune_allow": PATTERNS,
        "prune_deny": PATTERNS,
        "extra_strategies": PATTERNS,
        "pause_threshold_ratio": st.floats(0.01, 1),
        "recall_handles": st.booleans(),
        "gateway_recall": st.booleans(),
        "unsupported_claims": st.sampled_from(["mark", "drop", "refuse"]),
        "html_results": st.sampled_from(["text", "raw"]),
        "secrets": st.sampled_from(["mask", "keep"]),
        "frame_language": st.sampled_from(["auto", "en"]),
        "swap": st.sampled_from(["at_once", "when_it_pays"]),
        "prompt_cache_seconds": st.integers(0, 604_800),
        "message_retention_days": st.integers(0, 36_500),
        "summarizer_model": st.sampled_from(["", "gpt-6-luna", "ours"]),
        "max_context_images": st.integers(0, 1_000),
        "max_context_image_side": st.integers(0, 10_000),
        "max_context_documents": st.integers(0, 100),
        "max_context_document_pages": st.integers(0, 1_000),
        "max_context_media_bytes": st.integers(0, 50_000_000),
    },
)


@pytest.mark.requirement("T2")
def test_the_defaults_are_the_contracts() -> None:
    assert {name: getattr(Policy(), name) for name in FIELDS} == DEFAULTS
    assert merge() == Policy()


def test_later_layers_win_and_leave_the_rest() -> None:
    policy = merge({"input_token_budget": 1, "min_savings_tokens": 2}, {}, {"input_token_budget": 3})
    assert policy == Policy(input_token_budget=3, min_savings_tokens=2)


@given(policies(), LATER)
def test_what_is_given_is_in_force(overrides: dict[str, Any], later: dict[str, Any]) -> None:
    policy = merge(overrides, later)
    assert {name: getattr(policy, name) for name in FIELDS} == DEFAULTS | overrides | later


@given(policies(), LATER)
def test_a_stored_policy_is_loaded_as_it_was(overrides: dict[str, Any], later: dict[str, Any]) -> None:
    policy = merge(overrides, later)
    stored = json.loads(json.dumps(msgspec.to_builtins(policy)))
    assert in_force(stored) == (policy, stored, ())
    assert json.loads(msgspec.json.encode(policy)) == stored


def test_a_policy_of_another_version_is_loaded_as_far_as_it_is_known() -> None:
    earlier: dict[str, Any] = {"input_token_budget": 7, "max_conversation_messages": 9}
    assert in_force(earlier).policy == Policy(**earlier)
    newer = {**earlier, "prune_by_moonlight": True, "trim_threshold_ratio": 1.5, "prune_allow": [1]}
    policy, overrides, ignored = in_force(newer)
    assert (policy, overrides) == (Policy(**earlier), earlier)
    assert [reason.split()[3] for reason in ignored] == ["prune_by_moonlight", "trim_threshold_ratio", "prune_allow"]


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
        ("carried_context_max_tokens", -1),
        ("inline_tool_tags", "readNote"),
        ("inline_tool_tags", ["x"] * 101),
        ("prune_soft_share", 0),
        ("prune_hard_share", 1.01),
        ("prune_hard_share", "0.5"),
        ("prune_min_freed_tokens", None),
        ("prune_allow", {"look": True}),
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
    assert caught.value.fields == ("reserved_output_tokens", "total_token_budget")
    assert merge({"total_token_budget": 4_097}).reserved_output_tokens == 4_096
    with pytest.raises(PolicyError) as caught:
        merge({"prune_hard_share": 0.2})
    assert caught.value.field == "prune_soft_share"
    assert merge({"prune_hard_share": 0.3}).prune_soft_share == 0.3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inline_tool_tags", "a b"),
        ("inline_tool_tags", "<a>"),
        ("inline_tool_tags", ""),
        ("inline_tool_tags", "a\n"),
        ("inline_tool_tags", "1a"),
        ("inline_tool_tags", "a" * 101),
        ("inline_tool_tags", 1),
        ("prune_allow", ""),
        ("prune_deny", "x" * 201),
    ],
)
def test_an_item_that_cannot_be_taken_is_named_by_its_place(field: str, value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        merge({field: ["fine", value]})
    assert (caught.value.field, caught.value.path) == (field, (field, 1))
    assert " - at " not in caught.value.detail


def test_what_a_later_layer_replaces_is_not_in_the_way() -> None:
    assert merge({"input_token_budget": 5}, {"input_token_budget": 6}).input_token_budget == 6
    assert merge({"total_token_budget": 2_000}, {"reserved_output_tokens": 100}).total_token_budget == 2_000


def test_the_trim_threshold_is_a_share_of_the_window() -> None:
    assert Policy().trim_threshold_tokens == 120_000
    assert Policy(model_context_tokens=16_000, trim_threshold_ratio=0.5).trim_threshold_tokens == 8_000


def test_output_that_is_asked_for_is_kept_free_up_to_half_of_the_budget() -> None:
    asked = {None: 4_096, 1: 1, 9_000: 9_000, 64_000: 64_000, 64_001: 4_096, 128_000: 4_096, 262_144: 4_096}
    assert {each: Policy().reserving(each).reserved_output_tokens for each in asked} == asked
    assert Policy().reserving(None) == Policy()


def test_a_summary_is_due_before_the_answer_takes_its_room() -> None:
    assert Policy().reserving(20_000).compaction_threshold_tokens == Policy().compaction_threshold_tokens
    narrow = Policy().reserving(64_000)
    assert narrow.compaction_threshold_tokens == narrow.context_limit_tokens == 64_000


def test_no_snapshot_waits_for_the_end_of_a_loop_when_there_is_no_room_left() -> None:
    assert Policy().pending_limit_tokens == 120_000
    large = Policy(model_context_tokens=1_000_000)
    assert large.pending_limit_tokens == large.context_limit_tokens == 128_000 - 4_096
