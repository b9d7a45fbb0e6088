"""Presets: the policy for a model's context window, so that nobody has to compute every number."""

from __future__ import annotations

import re
from typing import Final

from compaction.policy import MINIMUM_CONTEXT_WINDOW, Policy, PolicyError
from compaction.windows import window_of

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
        "carried_context_max_tokens",
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
    "prune_head_chars": (200, 6_000),
    "prune_tail_chars": (200, 6_000),
    "prune_min_freed_tokens": (400, 100_000_000),
}
"""Shares of the window with a floor and a ceiling."""

_WINDOW_SHARE: Final = {"reserved_output_tokens": 16, "summary_max_tokens": 16}
"""Answers are as long as the task, not the window; but they never take more than this part of it."""


AUTO: Final = "auto"
"""The preset for the window that is in force anyway: the model's own, or what the policy says."""

_TOKENS: Final = re.compile(r"([0-9]{1,9})([km]?)\Z", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1_000, "m": 1_000_000}


def preset(window_tokens: int) -> dict[str, int]:
    """Return policy overrides for a model with a context window of `window_tokens` tokens.

    Every number that depends on the window is in it; at the default window they are the defaults. What does not depend
    on it (shares of it, how many messages are protected, lists) is left to whoever set it. Raises PolicyError for a
    window that no policy may have.
    """
    if not MINIMUM_CONTEXT_WINDOW <= window_tokens <= LARGEST_CONTEXT_WINDOW:
        raise PolicyError(
            "model_context_tokens",
            f"expected a window of {MINIMUM_CONTEXT_WINDOW:,} to {LARGEST_CONTEXT_WINDOW:,} tokens",
        )
    defaults = Policy()
    numbers: dict[str, int] = {}
    for key in Policy.__struct_fields__:
        if key not in _SCALED and key not in _BOUNDED and key not in _WINDOW_SHARE:
            continue
        # Whole numbers throughout: a float would round differently than the seeds' own figures.
        scaled = getattr(defaults, key) * window_tokens // defaults.model_context_tokens
        if key in _BOUNDED:
            low, high = _BOUNDED[key]
            numbers[key] = max(low, min(high, scaled))
        elif key in _WINDOW_SHARE:
            numbers[key] = min(getattr(defaults, key), window_tokens // _WINDOW_SHARE[key])
        else:
            numbers[key] = scaled
    return numbers


def window_named(name: str) -> int | None:
    """Return the window in tokens that a preset's name stands for, None for a name that says nothing.

    A number of tokens (`200000`, `200k`, `1m`), or a model whose window is known.
    """
    if tokens := _TOKENS.match(name.strip()):
        return int(tokens[1]) * _UNITS[tokens[2].lower()]
    return window_of(name, 0) or None
