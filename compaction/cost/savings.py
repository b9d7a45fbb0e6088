"""Prompt prefix shared between two calls, and the cost of a call compared with one without compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from compaction.cost.calls import CallPrices


class Call(NamedTuple):
    """A model call, in input tokens as counted by the provider."""

    input: int
    saved: int = 0
    """Additional tokens without compaction."""
    cached: int | None = None
    """Tokens read from a cache. None if unknown."""
    written: int | None = None
    """Tokens written to a cache. None if unknown."""


def shared_prefix_tokens(call: Call, before: Call | None, shared: int | None, *, has_moved: bool) -> int | None:
    """Return the tokens at the beginning of a call that equal the previous call's, or None if unknown.

    Without a new head a context only grows, so all of the previous call is shared. `shared` is the common prefix of the
    contexts before and after the head's moves.
    """
    if before is None:
        return 0
    if not has_moved:
        return min(before.input, call.input)
    return None if shared is None else max(0, min(shared, before.input, call.input))


class Savings(NamedTuple):
    """The USD for a call's input, and the USD saved by compaction."""

    cost_usd: float
    saved_usd: float
    """With the actual prompt cache. Negative if writing a new prefix cost more than was saved."""
    saved_uncached_usd: float
    """Without a prompt cache."""


def compute_savings(call: Call, before: Call | None, expected: int | None, prices: CallPrices, gap: float) -> Savings:
    """Return the cost of a call and its savings by compaction, `gap` seconds after the call `before`.

    Without compaction the call would have begun with all of the previous one, so a warm cache would have had that.
    Counts of the provider override the `expected` cached tokens.
    """
    unread, read = prices.uncached_price, 0
    if call.cached is None:
        cost = prices.cost(call.input, expected or 0)
    else:
        read = min(call.cached, call.input)
        written = min(call.written or 0, call.input - read)
        rest = call.input - read - written
        cost = read * prices.cache_read + written * prices.cache_write + rest * prices.input
        if written + rest > 0:
            unread = (written * prices.cache_write + rest * prices.input) / (written + rest)
    saved = max(0, call.saved)
    more_read = _extra_cached_tokens(call, before, expected, is_cold=before is None or prices.is_cold(gap))
    more_read = min(more_read, call.input + saved - read)
    per_read = prices.cache_read if prices.has_cache else unread
    return Savings(cost, more_read * per_read + (saved - more_read) * unread, saved * prices.input)


def _extra_cached_tokens(call: Call, before: Call | None, expected: int | None, *, is_cold: bool) -> float:
    """Return how many more tokens would have been cached without compaction.

    If the provider's cache missed expected tokens, it would have missed the others as well.
    """
    saved = max(0, call.saved)
    if before is None or is_cold:
        return 0
    if expected is None:
        # The shared prefix is unknown, so the additional tokens are assumed to be cached like the rest.
        return saved
    hit = 1.0 if call.cached is None or expected <= 0 else min(1.0, call.cached / expected)
    whole = min(before.input + max(0, before.saved), call.input + saved)
    return max(0, whole - expected) * hit
