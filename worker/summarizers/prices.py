"""What a model's tokens cost."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from runtime.token_prices import TokenPrices
from worker.summarizers.list_prices import PRICES, listed_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compaction.policy import ModelPrices, Policy
    from runtime.settings import Settings


MOST_TOKENS: Final = 10_000_000
"""Tokens; ten times the largest window there is. A server that bills more says something else than tokens."""

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


class PriceTable(NamedTuple):
    """Prices by the beginning of a model's name: `own` go before the list prices, `otherwise` after them.

    The last are a tenant's, who may say what is not known but not what its budget counts by.
    """

    own: Mapping[str, TokenPrices]
    otherwise: Mapping[str, ModelPrices]

    @classmethod
    def of(cls, settings: Settings, policy: Policy | None = None) -> Self:
        """Return the prices of an installation, and those of a policy for what it does not know."""
        return cls(settings.summarizer_prices, policy.model_prices if policy else {})


NO_OWN_PRICES: Final = PriceTable({}, {})
"""The list prices alone."""


def prices_of(model: str, table: PriceTable = NO_OWN_PRICES) -> TokenPrices | None:
    """Return the prices of `model`, None if they are not known.

    Of the table's the longest key counts that the id begins with, capitals aside. In the list an id has to name the
    very release, with nothing but a date or a variant after it: `claude-opus-5-9` is not `claude-opus-5`.
    """
    name = model.strip().lower()
    if (key := _longest(table.own, name)) is not None:
        return table.own[key]
    if (listed := listed_name(name)) is not None:
        return PRICES[listed]
    return None if (key := _longest(table.otherwise, name)) is None else _token_prices(table.otherwise[key])


def _longest(table: Mapping[str, object], name: str) -> str | None:
    return max((key for key in table if name.startswith(key.strip().lower())), key=len, default=None)


def _token_prices(prices: ModelPrices) -> TokenPrices:
    given = {
        "input": prices.input,
        "output": prices.output,
        "cache_read": prices.cache_read,
        "cache_write_5m": prices.cache_write,
        "cache_write_1h": prices.cache_write,
    }
    return TokenPrices.model_validate({kind: Decimal(str(usd)) for kind, usd in given.items() if usd is not None})


def cost(model: str, usage: BilledTokens, table: PriceTable = NO_OWN_PRICES) -> Decimal | None:
    """Return what one call cost in USD, None for a model whose price is not known."""
    prices = prices_of(model, table)
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
    return total / _MILLION
