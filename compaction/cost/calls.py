"""What a call of a model costs: its prompt read from a cache, written to one, or neither."""

from __future__ import annotations

from math import isfinite
from typing import Final, NamedTuple

FIVE_MINUTES: Final = 300
"""Seconds that the Messages API's usual cache lives after it was last read (API documentation, prompt caching)."""
ONE_HOUR: Final = 3_600
"""Seconds that its longer one lives."""
AUTOMATIC: Final = 300
"""Seconds after which OpenAI's may be gone: "5 to 10 minutes of inactivity" (API documentation, prompt caching)."""
NO_CACHE: Final = 0
"""Seconds: nothing is read from a cache."""


class CallPrices(NamedTuple):
    """USD for a token of each kind, and the seconds that a cache lives after it was last read.

    Where nothing is taken for writing to a cache, `cache_write` is `input`.
    """

    input: float
    output: float
    cache_read: float
    cache_write: float
    lifetime: int = FIVE_MINUTES

    @property
    def has_cache(self) -> bool:
        """Whether anything is cheaper for having been sent before."""
        return self.lifetime > NO_CACHE and self.cache_read < self.written

    @property
    def written(self) -> float:
        """USD for a token that comes from no cache: written to one, where there is one."""
        return self.input if self.lifetime == NO_CACHE else self.cache_write

    @property
    def rewriting(self) -> float:
        """USD that a token costs more because the cache does not have it."""
        return max(0.0, self.written - self.cache_read) if self.has_cache else 0.0

    @property
    def carrying(self) -> float:
        """USD that a token costs in each call that it is sent with again."""
        return self.cache_read if self.has_cache else self.written

    @property
    def are_known(self) -> bool:
        """Whether they can be reckoned with: a price for reading at all, and none below nothing."""
        return self.input > 0 and all(isfinite(each) and each >= 0 for each in self)

    def is_cold(self, gap: float) -> bool:
        """Tell whether a cache is gone `gap` seconds after its last call; a clock that went back says nothing."""
        return not self.has_cache or gap > self.lifetime

    def cost(self, total: int, cached: int, output: int = 0) -> float:
        """Return USD of a call with `total` tokens of input, of which `cached` come from the cache."""
        read = max(0, min(cached, total)) if self.has_cache else 0
        return read * self.cache_read + (total - read) * self.written + output * self.output
