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
    if call.cached is None:
        cost = prices.cost(call.input, expected or 0)
    else:
        read = min(call.cached, call.input)
        written = min(call.written or 0, call.input - read)
        rest = call.input - read - written
        cost = read * prices.cache_read + written * prices.cache_write + rest * prices.input
    whole = call.input + max(0, call.saved)
    had = 0 if before is None or prices.is_cold(gap) else before.input + max(0, before.saved)
    # Where the provider's cache did not have what it should, it would not have had more without compaction.
    if call.cached is not None and expected:
        had = round(had * min(1.0, call.cached / expected))
    without = prices.cost(whole, had)
    return Savings(cost, without - cost, max(0, call.saved) * prices.input)
