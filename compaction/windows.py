"""Context windows: how many tokens each Claude model takes, and which sizes are too small to work in."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from compaction.policy import MINIMUM_CONTEXT_WINDOW

LOW_CONTEXT_WINDOW: Final = 32_000
"""Tokens. A smaller window works, but leaves little beside a system prompt and tools (requirement O5)."""

_STANDARD: Final = 200_000
_LONG: Final = 1_000_000

WINDOWS: Final[dict[str, int]] = {
    # Claude docs, "Context windows" and each model's page: one million from the 4.6 generation on.
    "claude-fable-5": _LONG,
    "claude-mythos": _LONG,
    "claude-opus-5": _LONG,
    "claude-opus-4-8": _LONG,
    "claude-opus-4-7": _LONG,
    "claude-opus-4-6": _LONG,
    "claude-sonnet-5": _LONG,
    "claude-sonnet-4-6": _LONG,
    "claude-haiku-5-5": _LONG,
    # The same pages: all others 200,000. The beta that gave Sonnet 4 and 4.5 a million was retired in April 2026.
    "claude-opus-4": _STANDARD,
    "claude-sonnet-4": _STANDARD,
    "claude-haiku-4": _STANDARD,
    "claude-4": _STANDARD,
    "claude-3": _STANDARD,
    # Retired, still served by some clouds: Claude docs, "Model deprecations" and the 2.1 announcement.
    "claude-2-1": _STANDARD,
    "claude-2": 100_000,
    "claude-instant": 100_000,
}
"""Tokens by the beginning of a model id; the longest that fits counts.

Sources: platform.claude.com/docs/en/build-with-claude/context-windows and …/docs/en/models/<model>/overview; for Fable
and Mythos 5.2, which these pages do not have yet, the model card in the Amazon Bedrock user guide. The Models API
reports the same figure as `max_input_tokens` (`anthropic.types.ModelInfo`).
"""

_VERSION_DOT: Final = re.compile(r"(?<=\d)\.(?=\d)")
_STATED: Final = re.compile(r"(?:\[|:)(\d{1,5})([km])\]?\Z")
"""A size in the id itself: `[1m]` as Claude Code writes it, `:200k` as Amazon Bedrock's provisioned models do."""
_UNITS: Final = {"k": 1_000, "m": 1_000_000}


@lru_cache(maxsize=1_024)
def window_of(model: str | None, default: int) -> int:
    """Return the context window of `model` in tokens, or `default` for a model that is not known.

    The names clouds and gateways give a model are understood (`us.anthropic.claude-opus-4-6-v1:0`,
    `claude-opus-4-5@20251101`, `anthropic/claude-opus-4.6`), and a size stated in the name wins. A figure that is too
    small is returned as it is: the policy refuses what is under MINIMUM_CONTEXT_WINDOW.
    """
    if not model:
        return default
    name = model.strip().lower()
    if stated := _STATED.search(name):
        return int(stated[1]) * _UNITS[stated[2]]
    at = name.find("claude")
    if at < 0:
        return default
    name = _VERSION_DOT.sub("-", name[at:])
    # Dropping one part of the name after the other finds the longest entry first.
    parts = re.split(r"[-@:_/]", name)
    for count in range(len(parts), 0, -1):
        if window := WINDOWS.get("-".join(parts[:count])):
            return window
    return default


def window_warning(tokens: int) -> str | None:
    """Return what to tell people of a window of `tokens`, or None if it is large enough."""
    if tokens < MINIMUM_CONTEXT_WINDOW:
        return f"a context window of {tokens:,} tokens is under the minimum of {MINIMUM_CONTEXT_WINDOW:,}"
    if tokens < LOW_CONTEXT_WINDOW:
        return (
            f"a context window of {tokens:,} tokens is small: under {LOW_CONTEXT_WINDOW:,}, "
            "a system prompt and tools leave little for the conversation"
        )
    return None
