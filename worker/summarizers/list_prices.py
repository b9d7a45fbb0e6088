"""List prices of models, and under which name a model is on the list.

Each vendor's are from its own pages, of the date next to them. Surcharges of regions, faster tiers and audio
are not in here. What these pages do not say, or say for a time that has ended, has no price: `summarizer_prices` and
the policy key `model_prices` can give it one.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from runtime.token_prices import TokenPrices


def _usual(per_input: str, per_output: str, *, cache_read: str = "0.1") -> TokenPrices:
    """Return prices with the usual cache writes; `cache_read` is a share of the input's price."""
    return TokenPrices(
        input=Decimal(per_input), output=Decimal(per_output), cache_read=Decimal(per_input) * Decimal(cache_read)
    )


def _long(short: TokenPrices, tokens: int, long: TokenPrices) -> TokenPrices:
    return short.model_copy(update={"long_prompt_tokens": tokens, "long_prompt": long})


def _openai(per_input: str, per_output: str, *, cache_read: str = "0.1") -> TokenPrices:
    """Return prices that double for prompts over 272,000 tokens, the output's at half as much again."""
    long = _usual(str(Decimal(per_input) * 2), str(Decimal(per_output) * Decimal("1.5")), cache_read=cache_read)
    return _long(_usual(per_input, per_output, cache_read=cache_read), 272_000, long)


def _unwritten(per_input: str, per_output: str, cache_read: str) -> TokenPrices:
    """Return prices of a vendor that takes nothing for writing to its cache; `cache_read` is one too."""
    return TokenPrices(
        input=Decimal(per_input),
        output=Decimal(per_output),
        cache_read=Decimal(cache_read),
        cache_write_5m=Decimal(per_input),
        cache_write_1h=Decimal(per_input),
    )


_CLAUDE: Final = {
    # platform.claude.com/docs/en/about-claude/pricing, "Model pricing", and …/docs/en/models/<model>/overview, October
    # 2026.
    "claude-fable-5-1": _usual("10", "50", cache_read="0.025"),
    "claude-fable-5": _usual("10", "50"),
    "claude-mythos-5-1": _usual("10", "50", cache_read="0.025"),
    "claude-mythos-5": _usual("10", "50"),
    "claude-opus-5-5": _usual("4", "20", cache_read="0.05"),
    "claude-opus-5": _usual("5", "25"),
    "claude-opus-4-8": _usual("5", "25"),
    "claude-opus-4-7": _usual("5", "25"),
    "claude-opus-4-6": _usual("5", "25"),
    "claude-opus-4-5": _usual("5", "25"),
    "claude-opus-4-1": _usual("15", "75"),
    "claude-opus-4-0": _usual("15", "75"),
    "claude-opus-4": _usual("15", "75"),
    "claude-sonnet-5-5": _usual("2", "10", cache_read="0.05"),
    "claude-sonnet-5": _usual("2", "10"),
    "claude-sonnet-4-6": _usual("3", "15"),
    "claude-sonnet-4-5": _usual("3", "15"),
    "claude-sonnet-4-0": _usual("3", "15"),
    "claude-sonnet-4": _usual("3", "15"),
    "claude-haiku-5-5": _long(_usual("0.10", "0.50"), 100_000, _usual("0.50", "2.50")),
    "claude-haiku-4-5": _usual("1", "5"),
    "claude-3-7-sonnet": _usual("3", "15"),
    "claude-3-5-sonnet": _usual("3", "15"),
    "claude-3-5-haiku": _usual("0.80", "4"),
}

_OPENAI: Final = {
    # developers.openai.com/api/docs/models/<model> and …/pricing, Standard: the GPT-6 family as of 2026-11-18, GPT-5.6
    # as of September 2026. Cache writes at 1.25 times the input from GPT-5.6 on. GPT-5.6 Sol is not in here: its price
    # of then was said to end on 2026-11-21.
    "gpt-6.2-astra": _openai("8", "40", cache_read="0.05"),
    "gpt-6.2-sol": _openai("2", "10", cache_read="0.05"),
    "gpt-6.1-sol": _openai("2", "10", cache_read="0.05"),
    "gpt-6.1-terra": _openai("1", "5", cache_read="0.05"),
    "gpt-6-astra": _openai("10", "50"),
    "gpt-6-sol": _openai("2", "10"),
    "gpt-6-luna": _openai("0.10", "0.50"),
    "gpt-5.6-terra": _openai("2", "12"),
    "gpt-5.6-luna": _openai("0.20", "1.20"),
    # …/pricing, Standard, June 2026. Nothing for cache writes, which these do not report.
    "gpt-5.5": _openai("5", "30"),
    "gpt-5.4": _openai("2.50", "15"),
    "gpt-5.4-mini": _usual("0.75", "4.50"),
    "gpt-5.4-nano": _usual("0.20", "1.25"),
    "gpt-5.2": _usual("1.75", "14"),
}

_GOOGLE: Final = {
    # ai.google.dev/gemini-api/docs/pricing, Standard, paid tier, read on 2026-10-07; a cache's storage is billed by the
    # hour and not in here. Gemini 3.8 Flash until 2026-12-31, twice as much from then on.
    "gemini-3.8-flash": _unwritten("0.75", "3.75", "0.075"),
    "gemini-3.5-flash": _unwritten("1.50", "9", "0.15"),
    "gemini-3.5-flash-lite": _unwritten("0.30", "2.50", "0.03"),
    "gemini-3.1-pro": _long(_unwritten("2", "12", "0.20"), 200_000, _unwritten("4", "18", "0.40")),
    "gemini-3.1-flash-lite": _unwritten("0.25", "1.50", "0.025"),
    "gemini-2.5-pro": _long(_unwritten("1.25", "10", "0.125"), 200_000, _unwritten("2.50", "15", "0.25")),
    "gemini-2.5-flash": _unwritten("0.30", "2.50", "0.03"),
    "gemini-2.5-flash-lite": _unwritten("0.10", "0.40", "0.01"),
}

_OPEN_WEIGHTS: Final = {
    # Served by who made them; other hosts of the same weights have prices of their own, so that only the bare names
    # that the makers' APIs take are meant. platform.kimi.ai/docs/pricing, July 2026, and
    # docs.z.ai/guides/overview/pricing, August 2026. DeepSeek is not in here: its prices go by the hour of the day.
    "kimi-k3": _unwritten("3", "15", "0.30"),
    "glm-5.3": _unwritten("1.40", "4.40", "0.26"),
    "glm-5.2": _unwritten("1.40", "4.40", "0.26"),
    "glm-5.1": _unwritten("1.40", "4.40", "0.26"),
    "glm-5": _unwritten("1", "3.20", "0.20"),
}

PRICES: Final[dict[str, TokenPrices]] = _CLAUDE | _OPENAI | _GOOGLE | _OPEN_WEIGHTS
"""List prices by the beginning of a model id."""

_CLAUDE_ID: Final = re.compile(r"(?:global\.)?(?:anthropic[./])?(claude-.+)")
_VENDOR: Final = re.compile(r"(?:openai/(?=gpt-)|(?:models/|google/)(?=gemini-))")
"""As gateways and Google's own endpoint for Chat Completions write it."""
_VERSION_DOT: Final = re.compile(r"(?<=\d)\.(?=\d)")
_RELEASE: Final = re.compile(r"\d{1,2}")
"""The number of a release, as opposed to a date."""
_FASTER: Final = "fast"
"""Ends the names under which gateways have a model's faster tier, which has a price of its own."""
_SAME: Final = re.compile(r"(?:-(?:preview|latest|exp|\d{3}|\d{4}-\d{2}-\d{2}|\d{2}-\d{4}|\d{2}-\d{2}))*")
"""What may come after a name of the others without making it another model: a date, or the state of a release."""


def listed_name(model: str) -> str | None:
    """Return the name under which the list has a model, None if it has not."""
    name = model.strip().lower()
    if not (known := _CLAUDE_ID.fullmatch(name)):
        name = _VENDOR.sub("", name, count=1)
        fitting = (key for key in PRICES if name.startswith(key) and _SAME.fullmatch(name, len(key)))
        return max(fitting, key=len, default=None)
    parts = re.split(r"[-@:_/\[]", _VERSION_DOT.sub("-", known[1]))
    for count in range(len(parts), 0, -1):
        if (name := "-".join(parts[:count])) in PRICES:
            is_another = count < len(parts) and _RELEASE.fullmatch(parts[count]) is not None
            return None if is_another or _FASTER in parts[count:] else name
    return None
