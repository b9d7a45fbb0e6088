"""Context windows by model, what is too small, and the policy that fits a window."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from anthropic.types import ModelParam
from hypothesis import given
from hypothesis import strategies as st
from openai.types import ChatModel

from compaction.policy import FIELDS, MINIMUM_CONTEXT_WINDOW, Policy, PolicyError, merge
from compaction.presets import LARGEST_CONTEXT_WINDOW, preset, window_named
from compaction.windows import ANSWERS, LOW_CONTEXT_WINDOW, WINDOWS, longest_answer_of, window_of, window_warning

UNKNOWN = 64_321


@pytest.mark.requirement("O5")
@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("claude-opus-4-5", 200_000),
        ("claude-opus-4-5-20251101", 200_000),
        ("claude-opus-4-6", 1_000_000),
        ("claude-opus-4-20250514", 200_000),
        ("claude-opus-5-5", 1_000_000),
        ("claude-sonnet-4-5", 200_000),
        ("claude-sonnet-4-6", 1_000_000),
        ("claude-haiku-4-5", 200_000),
        ("claude-haiku-5-5", 1_000_000),
        ("claude-fable-5-2", 1_000_000),
        ("claude-mythos-preview", 1_000_000),
        ("claude-3-5-sonnet-latest", 200_000),
        ("claude-2.0", 100_000),
        ("claude-2.1", 200_000),
        ("gpt-6.2-sol", 1_050_000),
        ("gpt-6-luna-2026-09-22", 1_050_000),
        ("gpt-5.4", 1_050_000),
        ("gpt-5.4-mini", 400_000),
        ("gpt-5.2-chat-latest", 128_000),
        ("gpt-4.1-nano", 1_047_576),
        ("gpt-4o-2024-11-20", 128_000),
        ("o4-mini-2025-04-16", 200_000),
        ("gemini-3.8-flash", 1_048_576),
        ("gemini-3.1-pro-preview-customtools", 1_048_576),
        ("kimi-k2.6", 262_144),
        ("glm-5.2", 1_048_576),
        ("glm-5.1", 200_000),
        ("deepseek-flash", 1_000_000),
        ("mistral-large-4-0", 1_048_576),
    ],
)
def test_the_longest_entry_that_a_model_id_begins_with_gives_its_window_O5(model: str, window: int) -> None:
    assert window_of(model, UNKNOWN) == window


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("us.anthropic.claude-opus-4-6-v1:0", 1_000_000),
        ("arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-haiku-4-5-20251001-v1:0", 200_000),
        ("claude-opus-4-5@20251101", 200_000),
        ("anthropic/claude-opus-4.6", 1_000_000),
        (" Claude-Sonnet-4-6 ", 1_000_000),
        ("claude-sonnet-4-5[1m]", 1_000_000),
        ("anthropic.claude-3-haiku-20240307-v1:0:48k", 48_000),
        ("openai/gpt-5.6-terra", 1_050_000),
        ("models/gemini-2.5-pro", 1_048_576),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072),
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M", 131_072),
        ("llama3.1:8b", 131_072),
        ("gemma3:12b", 131_072),
        ("Qwen/Qwen3.6-27B-FP8", 262_144),
        ("deepseek-ai/DeepSeek-V3.2", 131_072),
        ("gpt-oss:20b", 131_072),
        ("us.openai.gpt-oss-120b-1:0", 131_072),
        ("ours:64k", 64_000),
    ],
)
def test_names_that_clouds_and_gateways_give_are_understood(model: str, window: int) -> None:
    assert window_of(model, UNKNOWN) == window


@pytest.mark.requirement("O5")
@pytest.mark.parametrize(
    "model",
    [
        None,
        "",
        "gpt-9",
        "gpt-60-sol",
        "qwen",
        "our-gpt-6",
        "llama3:8b",
        "claude",
        "claude-opus-40",
        "claude-haiku-50-1",
        "my-claudette-2",
    ],
)
def test_an_unknown_model_has_the_default_window_O5(model: str | None) -> None:
    assert window_of(model, UNKNOWN) == UNKNOWN


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("gpt-6.2-astra", 128_000),
        ("openai/gpt-4o-mini", 16_384),
        ("gemini-3.8-flash", 65_536),
        ("o3-mini", 100_000),
        ("claude-opus-5-5", UNKNOWN),
        ("ours", UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_how_long_an_answer_may_be(model: str | None, tokens: int) -> None:
    assert longest_answer_of(model, UNKNOWN) == tokens
    assert all(answer < window_of(name, 0) for name, answer in ANSWERS.items())


def test_every_model_the_sdk_names_has_a_window() -> None:
    named = [name for literal in get_args(ModelParam) for name in get_args(literal)]
    # Those with windows that are too small to work in, and previews that are gone, have no business here.
    chat = [
        name
        for name in get_args(ChatModel)
        if re.match(r"gpt-[5-9]|gpt-4\.1|gpt-4o(?!.*(?:audio|search))|o[1-9]", name)
    ]
    assert {name for name in chat if not window_of(name, 0)} == set()
    assert named
    assert {name: window_of(name, 0) for name in named if window_of(name, 0) < 200_000} == {}


@pytest.mark.requirement("O5")
def test_the_window_guard_warns_under_32_000_and_the_policy_refuses_under_16_000_O5() -> None:
    assert (MINIMUM_CONTEXT_WINDOW, LOW_CONTEXT_WINDOW) == (16_000, 32_000)
    assert window_warning(32_000) is None
    assert "31,999" in (window_warning(31_999) or "")
    assert "minimum of 16,000" in (window_warning(15_999) or "")
    assert all(window_warning(window) is None for window in WINDOWS.values())
    assert merge({"model_context_tokens": 16_000}).model_context_tokens == 16_000
    with pytest.raises(PolicyError):
        merge({"model_context_tokens": 15_999})


def test_the_preset_of_the_default_window_is_the_default_policy() -> None:
    numbers = preset(Policy().model_context_tokens)
    assert merge(numbers) == Policy()
    assert numbers == {key: getattr(Policy(), key) for key in numbers}
    # What is a share of the window already, counts messages, or is nobody's to guess, is left to whoever set it.
    assert set(FIELDS) - set(numbers) == {
        "max_context_images",
        "max_context_image_side",
        "max_context_documents",
        "max_context_document_pages",
        "max_context_media_bytes",
        "compaction_enabled",
        "protected_tail_messages",
        "tool_preview_head_chars",
        "tool_preview_tail_chars",
        "recall_handles",
        "html_results",
        "gateway_recall",
        "unsupported_claims",
        "secrets",
        "frame_language",
        "swap",
        "prompt_cache_seconds",
        "tool_results_growth_ratio",
        "trim_threshold_ratio",
        "inline_tool_tags",
        "pinned_max_tokens",
        "summary_instructions",
        "private_result_fields",
        "prune_soft_share",
        "prune_hard_share",
        "prune_allow",
        "prune_deny",
        "extra_strategies",
        "pause_threshold_ratio",
        "summarizer_model",
        "model_prices",
        "message_retention_days",
    }


@given(st.integers(MINIMUM_CONTEXT_WINDOW, LARGEST_CONTEXT_WINDOW))
def test_a_preset_is_a_policy_for_its_window_whose_thresholds_keep_their_order(window: int) -> None:
    policy = merge(preset(window))
    assert policy.model_context_tokens == window
    assert 0 < policy.input_token_budget < policy.compaction_threshold_tokens < policy.trim_threshold_tokens
    assert policy.trim_threshold_tokens < policy.total_token_budget < window
    assert policy.reserved_output_tokens + policy.summary_max_tokens <= window // 8
    assert policy.tool_result_retention_chars < policy.max_tool_result_chars
    assert policy.carry_forward_section_chars < policy.context_block_compact_chars
    assert policy.max_conversation_messages > policy.protected_tail_messages
    assert policy.min_savings_tokens < policy.input_token_budget
    assert policy.carried_context_max_tokens < policy.total_token_budget - policy.reserved_output_tokens
    assert policy.prune_min_freed_tokens < policy.prune_soft_share * window
    assert policy.prune_head_chars + policy.prune_tail_chars < policy.max_tool_result_chars


@pytest.mark.parametrize("window", [16_000, 32_000, 128_000, 1_000_000])
def test_presets_keep_the_defaults_shares_of_the_window(window: int) -> None:
    numbers = preset(window)
    for key in (
        "input_token_budget",
        "compaction_threshold_tokens",
        "total_token_budget",
        "max_context_bytes",
        "carried_context_max_tokens",
    ):
        assert numbers[key] / window == pytest.approx(getattr(Policy(), key) / 200_000, rel=1e-3)


@pytest.mark.parametrize("window", [0, 15_999, LARGEST_CONTEXT_WINDOW + 1])
def test_there_is_no_preset_for_a_window_no_policy_may_have(window: int) -> None:
    with pytest.raises(PolicyError) as refused:
        preset(window)
    assert refused.value.field == "model_context_tokens"


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("200000", 200_000),
        ("200k", 200_000),
        (" 1M ", 1_000_000),
        ("16000", 16_000),
        ("claude-sonnet-5", 1_000_000),
        ("us.anthropic.claude-opus-4-5-20251101-v1:0", 200_000),
        ("anything[64k]", 64_000),
        ("0", 0),
        ("gpt-9", None),
        ("-1", None),
        ("1.5m", None),
        ("", None),
    ],
)
def test_a_window_is_named_by_its_tokens_or_by_a_model(name: str, window: int | None) -> None:
    assert window_named(name) == window
