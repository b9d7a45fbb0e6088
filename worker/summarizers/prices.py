"""What a model's tokens cost."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from runtime.settings import TokenPrices

if TYPE_CHECKING:
    from collections.abc import Mapping

BATCH_SHARE: Final = Decimal("0.5")
"""A request of the Message Batches API pays this share of every price (Claude docs, "Pricing", batch processing)."""

_MILLION: Final = 1_000_000


class BilledTokens(NamedTuple):
    """Tokens that a call was billed for; the five kinds do not overlap."""

    input: int = 0
    output: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_read: int = 0

    @property
    def prompt(self) -> int:
        """Tokens of the whole prompt, from the cache or not."""
        return self.input + self.cache_write_5m + self.cache_write_1h + self.cache_read


def _usual(per_input: str, per_output: str, *, cache_read: str = "0.1") -> TokenPrices:
    """Return prices with the usual cache writes; `cache_read` is a share of the input's price."""
    return TokenPrices(
        input=Decimal(per_input), output=Decimal(per_output), cache_read=Decimal(per_input) * Decimal(cache_read)
    )


_HAIKU_5_5: Final = _usual("0.10", "0.50").model_copy(
    update={"long_prompt_tokens": 100_000, "long_prompt": _usual("0.50", "2.50")}
)

PRICES: Final[dict[str, TokenPrices]] = {
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
    "claude-haiku-5-5": _HAIKU_5_5,
    "claude-haiku-4-5": _usual("1", "5"),
    "claude-3-7-sonnet": _usual("3", "15"),
    "claude-3-5-sonnet": _usual("3", "15"),
    "claude-3-5-haiku": _usual("0.80", "4"),
}
"""List prices by the beginning of a model id.

Source: platform.claude.com/docs/en/about-claude/pricing, "Model pricing", and …/docs/en/models/<model>/overview, as of
October 2026. Regional surcharges and the fast mode are not in here: the client asks for neither. A model that these
pages do not list has no price; `summarizer_prices` can give it one.
"""

_ID: Final = re.compile(r"(?:global\.)?(?:anthropic[./])?(claude-.+)")
_VERSION_DOT: Final = re.compile(r"(?<=\d)\.(?=\d)")
_RELEASE: Final = re.compile(r"\d{1,2}")
"""The number of a release, as opposed to a date."""


def prices_of(model: str, own: Mapping[str, TokenPrices]) -> TokenPrices | None:
    """Return the prices of `model`, None if they are not known.

    `own` comes first: the longest key that the id begins with, capitals aside. In the table above an id has to name
    the very release, with nothing but a date or a variant after it: `claude-opus-5-9` is not `claude-opus-5`.
    """
    name = model.strip().lower()
    if fitting := [key for key in own if name.startswith(key.strip().lower())]:
        return own[max(fitting, key=len)]
    listed = listed_name(name)
    return PRICES[listed] if listed is not None else None


def listed_name(model: str) -> str | None:
    """Return the name under which the table above has a model, None if it has not."""
    if not (known := _ID.fullmatch(model.strip().lower())):
        return None
    parts = re.split(r"[-@:_/\[]", _VERSION_DOT.sub("-", known[1]))
    for count in range(len(parts), 0, -1):
        if (name := "-".join(parts[:count])) in PRICES:
            return None if count < len(parts) and _RELEASE.fullmatch(parts[count]) else name
    return None


def cost(
    model: str, usage: BilledTokens, own: Mapping[str, TokenPrices] | None = None, *, batch: bool = False
) -> Decimal | None:
    """Return what one call cost in USD, None for a model whose price is not known.

    `own` are prices by the beginning of a model id that go before the list prices; `batch` halves all of them.
    """
    prices = prices_of(model, own or {})
    if prices is None:
        return None
    if prices.long_prompt and prices.long_prompt_tokens is not None and usage.prompt > prices.long_prompt_tokens:
        prices = prices.long_prompt
    total = (
        usage.input * prices.input
        + usage.output * prices.output
        + usage.cache_write_5m * prices.cache_write_5m
        + usage.cache_write_1h * prices.cache_write_1h
        + usage.cache_read * prices.cache_read
    )
    return total * (BATCH_SHARE if batch else 1) / _MILLION
