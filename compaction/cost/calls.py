"""The cost of a model call: input that is read from a cache, written to one, or neither."""

from __future__ import annotations

from math import isfinite
from typing import Final, NamedTuple

FIVE_MINUTES: Final = 300
"""Lifetime in seconds of the Messages API's default cache after its last use (API documentation, prompt caching)."""
ONE_HOUR: Final = 3_600
"""Lifetime of the longer cache, in seconds."""
AUTOMATIC: Final = 300
"""Lifetime of OpenAI's cache, in seconds: "5 to 10 minutes of inactivity" (API documentation, prompt caching)."""
NO_CACHE: Final = 0
"""Lifetime without a cache, in seconds."""


class CallPrices(NamedTuple):
    """Prices in USD for a token of each kind, and the cache's lifetime in seconds after its last use.

    If cache writes have no price of their own, `cache_write` equals `input`.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    lifetime: int = FIVE_MINUTES

    @property
    def has_cache(self) -> bool:
        """Whether cached input is cheaper."""
        return self.lifetime > NO_CACHE and self.cache_read < self.uncached_price

    @property
    def uncached_price(self) -> float:
        """USD for an input token that is not read from the cache."""
        return self.input if self.lifetime == NO_CACHE else self.cache_write

    @property
    def rewrite_premium(self) -> float:
        """Additional USD for a token that the cache lacks."""
        return max(0.0, self.uncached_price - self.cache_read) if self.has_cache else 0.0

    @property
    def resend_price(self) -> float:
        """USD for a token in each further call that contains it."""
        return self.cache_read if self.has_cache else self.uncached_price

    @property
    def is_usable(self) -> bool:
        """Whether the prices can be used: there is a price for input, and none is negative."""
        return self.input > 0 and all(isfinite(each) and each >= 0 for each in self)

    def is_cold(self, gap: float) -> bool:
        """Return whether the cache has expired `gap` seconds after its last call. A negative gap counts as unknown."""
        return not self.has_cache or gap > self.lifetime

    def cost(self, total: int, cached: int, output: int = 0) -> float:
        """Return the USD for a call with `total` input tokens, of which `cached` are read from the cache."""
        read = max(0, min(cached, total)) if self.has_cache else 0
        return read * self.cache_read + (total - read) * self.uncached_price + output * self.output
