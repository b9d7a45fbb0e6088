"""What a call began with as the one before it did, and what it cost compared with the same call without compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from compaction.cost.calls import CallPrices


class Call(NamedTuple):
    """A call of a model, in tokens of its input as the provider counted them."""

    input: int
    saved: int = 0
    """That it would have had more without compaction."""
    cached: int | None = None
    """Read from a cache; None where nobody says."""
    written: int | None = None
    """Written to one; None where nobody says."""


def prefix_of(call: Call, before: Call | None, shared: int | None, *, has_moved: bool) -> int | None:
    """Return the tokens that a call begins with as the one before it did; None where that is not known.

    Under the same head a context only grows: all of the call before. `shared` is what contexts before and after the
    head's moves begin with alike.
    """
    if before is None:
        return 0
    if not has_moved:
        return min(before.input, call.input)
    return None if shared is None else max(0, min(shared, before.input, call.input))


class Savings(NamedTuple):
    """USD that a call's input cost, and that compaction saved of it."""

    cost_usd: float
    saved_usd: float
    """With the prompt cache as it was; below 0 where writing a new prefix cost more than was saved."""
    saved_uncached_usd: float
    """As if nothing were ever cached."""


def savings(call: Call, before: Call | None, expected: int | None, prices: CallPrices, gap: float) -> Savings:
    """Return what a call cost and what compaction saved of it, `gap` seconds after the one `before`.

    Without compaction it would have begun with all of the call before, so that a cache that was warm would have had
    that. What the provider counted goes before what was `expected` of the cache.
    """
    unread, read = prices.written, 0
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
    more_read = _more_read(call, before, expected, is_cold=before is None or prices.is_cold(gap))
    more_read = min(more_read, call.input + saved - read)
    per_read = prices.cache_read if prices.has_cache else unread
    return Savings(cost, more_read * per_read + (saved - more_read) * unread, saved * prices.input)


def _more_read(call: Call, before: Call | None, expected: int | None, *, is_cold: bool) -> float:
    """Return how many more tokens a cache would have had without compaction.

    Where the provider's cache did not have what it should, it would not have had more without compaction.
    """
    saved = max(0, call.saved)
    if before is None or is_cold:
        return 0
    if expected is None:
        # What it began with is not known; what it would have had more is taken to be as old as the rest.
        return saved
    hit = 1.0 if call.cached is None or expected <= 0 else min(1.0, call.cached / expected)
    whole = min(before.input + max(0, before.saved), call.input + saved)
    return max(0, whole - expected) * hit
