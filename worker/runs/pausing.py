"""Which conversations are compacted in a pause: those whose policy goes by price, and whose model has a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.cost.pauses import Pause
from worker.runs.swapping import call_prices
from worker.summarizers.prices import PriceTable

if TYPE_CHECKING:
    from compaction.policy import Policy
    from runtime.settings import Settings


class Pausing:
    """Says it for policies and models. One object a process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def pause_of(self, policy: Policy, model: str | None) -> Pause | None:
        """Return what is due in a pause, None where no pause is waited for."""
        if policy.swap != "when_it_pays":
            return None
        prices = call_prices(model, policy, PriceTable.of(self._settings, policy))
        return Pause(policy) if prices is not None and prices.is_usable and prices.has_cache else None
