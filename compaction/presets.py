"""Presets: a whole policy for a model's context window, so that nobody has to compute every number."""

from __future__ import annotations

from typing import Final

from compaction.policy import MINIMUM_CONTEXT_WINDOW, Policy, PolicyError

LARGEST_CONTEXT_WINDOW: Final = 100_000_000
"""Tokens; the policy's own upper bound."""

_SCALED: Final = frozenset(
    {
        "input_token_budget",
        "max_tool_result_chars",
        "compaction_threshold_tokens",
        "model_context_tokens",
        "max_context_bytes",
        "total_token_budget",
        "context_block_compact_chars",
    }
)
"""Shares of the window: these keep their proportion to it whatever its size."""

_BOUNDED: Final = {
    # Previews serve reading: too short to say anything below, more than a glance above.
    "tool_result_retention_chars": (200, 2_000),
    "carry_forward_section_chars": (200, 2_000),
    # At four characters a token, 125,000 tokens: what a summarizer with a window of 200,000 can still read.
    "summary_input_max_chars": (4_000, 500_000),
    # The cap must leave room for the first message, a summary and the protected tail.
    "max_conversation_messages": (8, 1_000_000),
    "min_savings_tokens": (100, 100_000_000),
}
"""Shares of the window with a floor and a ceiling."""

_WINDOW_SHARE: Final = {"reserved_output_tokens": 16, "summary_max_tokens": 16}
"""Answers are as long as the task, not the window; but they never take more than this part of it."""


def preset(window_tokens: int) -> dict[str, int | float]:
    """Return policy overrides for a model with a context window of `window_tokens` tokens.

    Every number of the policy is in it; at the default window they are the defaults. Raises PolicyError for a window
    that no policy may have.
    """
    if not MINIMUM_CONTEXT_WINDOW <= window_tokens <= LARGEST_CONTEXT_WINDOW:
        raise PolicyError(
            "model_context_tokens",
            f"expected a window of {MINIMUM_CONTEXT_WINDOW:,} to {LARGEST_CONTEXT_WINDOW:,} tokens",
        )
    defaults = Policy()
    numbers: dict[str, int | float] = {}
    for key in Policy.__struct_fields__:
        value = getattr(defaults, key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        # Whole numbers throughout: a float would round differently than the seeds' own figures.
        scaled = int(value) * window_tokens // defaults.model_context_tokens
        if key in _SCALED:
            numbers[key] = scaled
        elif key in _BOUNDED:
            low, high = _BOUNDED[key]
            numbers[key] = max(low, min(high, scaled))
        elif key in _WINDOW_SHARE:
            numbers[key] = min(value, window_tokens // _WINDOW_SHARE[key])
        else:
            numbers[key] = value
    return numbers
