"""What each provider's usage says, read into the counts that everything else goes by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CompletionUsage
from openai.types.responses import ResponseUsage

from compaction.shapes.usage import TokenUsage, UsageError, read_usage

if TYPE_CHECKING:
    from compaction.shapes.inner import Shape

COUNTS = st.integers(0, 10_000)

SAID: list[tuple[Shape, Any, TokenUsage]] = [
    # Anthropic counts beside what was cached.
    (
        "messages",
        {"input_tokens": 10, "cache_read_input_tokens": 200, "cache_creation_input_tokens": 30, "output_tokens": 7},
        TokenUsage(240, 7, 200, 30),
    ),
    ("messages", {"input_tokens": 10, "output_tokens": 7, "service_tier": "standard"}, TokenUsage(10, 7)),
    ("messages", {"input_tokens": None, "cache_read_input_tokens": 5}, TokenUsage(5, None, 5)),
    ("messages", {"output_tokens": 7}, TokenUsage(None, 7)),
    # OpenAI counts it in; audio, images and what was thought are parts.
    (
        "chat",
        {
            "prompt_tokens": 2_006,
            "completion_tokens": 300,
            "total_tokens": 2_306,
            "prompt_tokens_details": {
                "cached_tokens": 1_920,
                "cache_write_tokens": 80,
                "audio_tokens": 20,
                "image_tokens": 40,
            },
            "completion_tokens_details": {"reasoning_tokens": 250, "audio_tokens": 10, "accepted_prediction_tokens": 0},
        },
        TokenUsage(2_006, 300, 1_920, 80, 250),
    ),
    (
        "responses",
        {
            "input_tokens": 2_006,
            "output_tokens": 300,
            "total_tokens": 2_306,
            "input_tokens_details": {"cached_tokens": 1_920, "cache_write_tokens": 80},
            "output_tokens_details": {"reasoning_tokens": 250},
        },
        TokenUsage(2_006, 300, 1_920, 80, 250),
    ),
    ("chat", {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}, TokenUsage(10, 7)),
    ("chat", {"prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": None}, TokenUsage(10, 7)),
    ("responses", {"input_tokens": 10}, TokenUsage(10)),
    # DeepSeek and Moonshot have names of their own for what was cached, LiteLLM for what Claude wrote to a cache.
    (
        "chat",
        {"prompt_tokens": 10, "completion_tokens": 7, "prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 2},
        TokenUsage(10, 7, 8),
    ),
    ("chat", {"prompt_tokens": 10, "completion_tokens": 7, "cached_tokens": 8}, TokenUsage(10, 7, 8)),
    (
        "chat",
        {
            "prompt_tokens": 10,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 3, "cache_creation_tokens": 6},
        },
        TokenUsage(10, 7, 3, 6),
    ),
    # Grok, and Gemini behind Chat Completions, count what was thought beside what was written.
    (
        "chat",
        {
            "prompt_tokens": 10,
            "completion_tokens": 7,
            "total_tokens": 117,
            "completion_tokens_details": {"reasoning_tokens": 100},
        },
        TokenUsage(10, 107, reasoning=100),
    ),
    # A part is no larger than its whole, whatever a server says.
    (
        "chat",
        {
            "prompt_tokens": 10,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 90, "cache_write_tokens": 90},
            "completion_tokens_details": {"reasoning_tokens": 90},
        },
        TokenUsage(10, 7, 10, 0, 7),
    ),
    # 0 is said, and is not the same as nothing.
    (
        "messages",
        {"input_tokens": 10, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0},
        TokenUsage(10, None, 0, 0),
    ),
    ("chat", {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}}, TokenUsage(10, None, 0)),
    ("responses", {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}}, TokenUsage(10, None, 0)),
    ("responses", {"input_tokens": 10, "input_tokens_details": {}}, TokenUsage(10)),
    ("chat", None, TokenUsage()),
    ("responses", {}, TokenUsage()),
]


@pytest.mark.parametrize(("shape", "usage", "tokens"), SAID)
def test_what_a_usage_says(shape: Shape, usage: Any, tokens: TokenUsage) -> None:
    assert read_usage(shape, usage) == tokens


def test_the_sdks_own_objects_are_read_as_their_json_is() -> None:
    chat = CompletionUsage.model_validate(SAID[4][1])
    responses = ResponseUsage.model_validate(SAID[5][1])
    assert read_usage("chat", chat) == SAID[4][2]
    assert read_usage("responses", responses) == SAID[5][2]
    assert read_usage("messages", SimpleNamespace(input_tokens=3, output_tokens=4)) == TokenUsage(3, 4)


@pytest.mark.parametrize(
    ("shape", "usage", "path"),
    [
        ("messages", {"input_tokens": -1}, ("input_tokens",)),
        ("messages", {"cache_read_input_tokens": 100_000_001}, ("cache_read_input_tokens",)),
        ("chat", {"prompt_tokens": "5"}, ("prompt_tokens",)),
        ("chat", {"completion_tokens": 1.5}, ("completion_tokens",)),
        ("chat", {"prompt_tokens_details": {"cached_tokens": -1}}, ("prompt_tokens_details", "cached_tokens")),
        ("responses", {"output_tokens": True}, ("output_tokens",)),
        ("responses", {"output_tokens_details": []}, ("output_tokens_details",)),
        ("responses", [], ()),
        ("chat", 7, ()),
    ],
)
def test_what_is_no_usage_is_refused_where_it_is_wrong(shape: Shape, usage: Any, path: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        read_usage(shape, usage)
    assert caught.value.path == path


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_same_call_counts_the_same_in_every_shape(
    fresh: int, read: int, written: int, output: int, reasoning: int
) -> None:
    reasoning = min(reasoning, output)
    whole = fresh + read + written
    usages: dict[Shape, Any] = {
        "messages": {
            "input_tokens": fresh,
            "output_tokens": output,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
        },
        "chat": {
            "prompt_tokens": whole,
            "completion_tokens": output,
            "total_tokens": whole + output,
            "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        },
        "responses": {
            "input_tokens": whole,
            "output_tokens": output,
            "total_tokens": whole + output,
            "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
            "output_tokens_details": {"reasoning_tokens": reasoning},
        },
    }
    counts = {shape: read_usage(shape, usage) for shape, usage in usages.items()}
    assert counts["chat"] == counts["responses"] == (whole, output, read, written, reasoning)
    assert counts["messages"][:4] == counts["chat"][:4]
