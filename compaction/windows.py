"""Context windows: how many tokens a model takes, how long its answers may be, and which windows are too small."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from compaction.policy import MINIMUM_CONTEXT_WINDOW

if TYPE_CHECKING:
    from collections.abc import Mapping

_Entry = TypeVar("_Entry")

LOW_CONTEXT_WINDOW: Final = 32_000
"""Tokens. A smaller window works, but leaves little besides a system prompt and tools (requirement O5)."""
UNKNOWN_SUMMARIZER_WINDOW: Final = LOW_CONTEXT_WINDOW
"""Tokens; a summarizer that is not known is taken for a small one: more parts cost less than a refused request."""

_STANDARD: Final = 200_000
_LONG: Final = 1_000_000
_MEGA: Final = 1_048_576
_OPENAI_LONG: Final = 1_050_000
_LLAMA: Final = 131_072
_DOUBLE: Final = 262_144

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
    # developers.openai.com/api/docs/models/<model>, November 2026. Prompts may have 128,000 tokens less, which are
    # kept for the answer.
    "gpt-6": _OPENAI_LONG,
    "gpt-5-6": _OPENAI_LONG,
    "gpt-5-5": _OPENAI_LONG,
    "gpt-5-4": _OPENAI_LONG,
    "gpt-5-4-mini": 400_000,
    "gpt-5-4-nano": 400_000,
    "gpt-5": 400_000,
    "gpt-5-chat": 128_000,
    "gpt-5-1-chat": 128_000,
    "gpt-5-2-chat": 128_000,
    "gpt-4-1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-4-turbo": 128_000,
    "o1": _STANDARD,
    "o3": _STANDARD,
    "o4-mini": _STANDARD,
    "gpt-oss": _LLAMA,
    # ai.google.dev/gemini-api/docs/models, "Input token limit", November 2026.
    "gemini-3": _MEGA,
    "gemini-2-5": _MEGA,
    "gemini-2-0": _MEGA,
    # Open weights: the model cards of who made them. A server may have been started with less, and says so only when it
    # refuses; `model_context_tokens` and `summarizer_context_tokens` are for that.
    "gemma-4": _LLAMA,
    "gemma-4-26b": _DOUBLE,
    "gemma-4-31b": _DOUBLE,
    "gemma-3": _LLAMA,
    "gemma-3-1b": 32_768,
    "gemma-3-270m": 32_768,
    "llama-4-maverick": _MEGA,
    "llama-4-scout": 10_485_760,
    "llama-3-3": _LLAMA,
    "llama-3-2": _LLAMA,
    "llama-3-1": _LLAMA,
    "qwen3-8": _LONG,
    "qwen3-7": _LONG,
    "qwen3-6": _DOUBLE,
    "qwen3-5": _DOUBLE,
    "qwen3-next": _DOUBLE,
    "qwen3-coder": _DOUBLE,
    "deepseek-flash": _LONG,
    "deepseek-v4": _LONG,
    "deepseek-v3": _LLAMA,
    "deepseek-r1": _LLAMA,
    "kimi-k3": _MEGA,
    "kimi-k2": _DOUBLE,
    "glm-5-3": _MEGA,
    "glm-5-2": _MEGA,
    "glm-5": _STANDARD,
    "glm-4-7": _STANDARD,
    "glm-4-6": _STANDARD,
    "glm-4-5": _LLAMA,
    "mistral-large-4": _MEGA,
    "mistral-large-3": _DOUBLE,
    "mistral-small-3": _LLAMA,
    "ministral-3": _DOUBLE,
    "devstral-2": _DOUBLE,
    "minimax-m2": 204_800,
}
"""Tokens by the beginning of a model id; the longest that fits counts.

Of Claude's: platform.claude.com/docs/en/build-with-claude/context-windows and …/docs/en/models/<model>/overview;
for Fable and Mythos 5.2, which these pages do not have yet, the model card in the Amazon Bedrock user guide. The Models
API reports the same figure as `max_input_tokens` (`anthropic.types.ModelInfo`).
"""

ANSWERS: Final[dict[str, int]] = {
    # developers.openai.com/api/docs/models/<model>, "max output tokens", November 2026.
    "gpt-6": 128_000,
    "gpt-5": 128_000,
    "gpt-5-chat": 16_384,
    "gpt-5-1-chat": 16_384,
    "gpt-5-2-chat": 16_384,
    "gpt-4-1": 32_768,
    "gpt-4o": 16_384,
    "gpt-4-turbo": 4_096,
    "o1": 100_000,
    "o3": 100_000,
    "o4-mini": 100_000,
    # ai.google.dev/gemini-api/docs/models, "Output token limit", November 2026.
    "gemini-3": 65_536,
    "gemini-2-5": 65_536,
    "gemini-2-0": 8_192,
    # api-docs.deepseek.com/quick_start/pricing, October 2026.
    "deepseek-flash": 384_000,
    "deepseek-v4": 384_000,
}
"""Tokens that a model may write at most, where that is less than its window and asking for more is refused."""

_VERSION_DOT: Final = re.compile(r"(?<=\d)\.(?=\d)")
_STATED: Final = re.compile(r"(?:\[|:)(\d{1,5})([km])\]?\Z")
"""A size in the id itself: `[1m]` as Claude Code writes it, `:200k` as Amazon Bedrock's provisioned models do."""
_UNITS: Final = {"k": 1_000, "m": 1_000_000}
_RUN_TOGETHER: Final = re.compile(r"\A(llama|gemma|glm|kimi)(?=\d)")
"""Families that Ollama writes without the hyphen."""
_PREFIXES: Final = re.compile(r"\A(?:meta-|(?:[a-z]+\.(?=[a-z]))+)")
"""`meta-llama-3.1-8b`, and Amazon Bedrock's `deepseek.v3`, `openai.gpt-oss-120b-1:0`, `google.gemma-3-27b-it`."""


@lru_cache(maxsize=1_024)
def window_of(model: str | None, default: int) -> int:
    """Return the context window of `model` in tokens, or `default` for a model that is not known.

    The names clouds and gateways give a model are understood (`us.anthropic.claude-opus-4-6-v1:0`,
    `claude-opus-4-5@20251101`, `anthropic/claude-opus-4.6`, `models/gemini-3.8-flash`, `Qwen/Qwen3.6-27B`,
    `llama3.1:8b`), and a size stated in the name wins. A figure that is too small is returned as it is: the policy
    refuses what is under MINIMUM_CONTEXT_WINDOW.
    """
    if model and (stated := _STATED.search(model.strip().lower())):
        return int(stated[1]) * _UNITS[stated[2]]
    return _lookup(model, WINDOWS, default)


def longest_answer_of(model: str | None, default: int) -> int:
    """Return how many tokens `model` may write in one answer, or `default` for a model that is not known."""
    return _lookup(model, ANSWERS, default)


def _lookup(model: str | None, table: Mapping[str, int], default: int) -> int:
    return find_by_model(model, table) or default


def find_by_model(model: str | None, table: Mapping[str, _Entry]) -> _Entry | None:
    """Return the entry of `table` whose name begins that of `model`, the longest that fits; None for none.

    Names are understood as `window_of` tells.
    """
    name = (model or "").strip().lower()
    at = name.find("claude")
    name = name[at:] if at >= 0 else _PREFIXES.sub("", name.rpartition("/")[2])
    name = _VERSION_DOT.sub("-", _RUN_TOGETHER.sub(r"\1-", name))
    # Dropping one part of the name after the other finds the longest entry first.
    parts = re.split(r"[-@:_/]", name)
    for count in range(len(parts), 0, -1):
        if (entry := table.get("-".join(parts[:count]))) is not None:
            return entry
    return None


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
