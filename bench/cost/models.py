"""The models that are reckoned with, at the list prices that the product knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compaction.cost.calls import AUTOMATIC, FIVE_MINUTES, NO_CACHE, CallPrices
from worker.summarizers.prices import prices_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS: Final = {"claude-opus-5-5": FIVE_MINUTES, "claude-haiku-4-5": FIVE_MINUTES, "gpt-6-sol": AUTOMATIC}
"""A large one whose cache is read at a twentieth of the input's price, a small one at a tenth, and one whose provider
caches by itself; with the seconds that their caches live."""
_MILLION: Final = 1_000_000


SUMMARIZER: Final = "claude-haiku-4-5"
"""The model that writes the summaries, whoever chats."""


def models() -> Iterator[tuple[str, CallPrices]]:
    """Yield each model with its prices."""
    for model, lifetime in MODELS.items():
        yield model, _prices(model, lifetime)


def summarizer() -> CallPrices:
    """Return the prices of the model that writes summaries; each is asked for once, so that nothing is cached."""
    return _prices(SUMMARIZER, NO_CACHE)


def _prices(model: str, lifetime: int) -> CallPrices:
    prices = prices_of(model)
    if prices is None:
        raise LookupError(f"no list price of {model}")
    return CallPrices(
        input=float(prices.input) / _MILLION,
        output=float(prices.output) / _MILLION,
        cache_read=float(prices.cache_read) / _MILLION,
        cache_write=float(prices.cache_write_5m) / _MILLION,
        lifetime=lifetime,
    )
