"""What calls cost and what compaction saved of them, reckoned from what providers counted: off every hot path."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from sqlalchemy.exc import DBAPIError

from compaction.cost.savings import Call, Savings, compute_savings, shared_prefix_tokens
from compaction.overrides import in_force
from runtime.log import fault
from store.conversations import usages
from store.conversations.usages import Reckoned
from worker.metrics import METRICS
from worker.runs.swapping import call_prices
from worker.summarizers.prices import PriceTable

if TYPE_CHECKING:
    from uuid import UUID

    from compaction.cost.calls import CallPrices
    from runtime.settings import Settings
    from store.conversations.usages import ToReckon
    from worker.database import Database

log = structlog.get_logger()

LIMIT: Final = 2_000
"""Usages of a tenant that one sweep reckons."""
POLICIES: Final = 1_024
"""Policies whose prices are remembered by their texts."""
_MOST_USD: Final = 1e7
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class Reckoning:
    """Reckons usages, those of each tenant in one transaction. One object a process."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._prices = lru_cache(POLICIES)(self._prices_of)

    def reckon(self) -> int:
        """Reckon what has come; return how many calls that were.

        Raises the first error of a tenant's usages, once the other tenants had their turn: unless nobody answers, one
        says nothing of the next.
        """
        with self._database.transaction(None) as connection:
            tenants = usages.tenants_to_reckon(connection, LIMIT)
        count = 0
        failures: list[Exception] = []
        for tenant_id in tenants:
            try:
                count += self._of_tenant(tenant_id)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with what one tenant has
                log.warning("usages.not_reckoned", tenant_id=str(tenant_id), error=fault(error))
                failures.append(error)
                if isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) is None:
                    break
        if failures:
            raise failures[0]
        return count

    def _of_tenant(self, tenant_id: UUID) -> int:
        with self._database.transaction(tenant_id) as connection:
            due = usages.to_reckon(connection, tenant_id, LIMIT)
            reckoned: dict[tuple[UUID, int], Reckoned] = {}
            for each in due:
                before = None if each.before_seq is None else reckoned.get((each.conversation_id, each.before_seq))
                reckoned[each.conversation_id, each.seq] = self._reckoned(each, before)
            usages.reckon(connection, reckoned)
        for each in due:
            METRICS.reckoned(each.input_tokens, each.cached_tokens, reckoned[each.conversation_id, each.seq])
        return len(due)

    def _reckoned(self, each: ToReckon, earlier: Reckoned | None) -> Reckoned:
        saved_before = earlier.saved_tokens if earlier is not None else each.before_saved
        is_same_head = each.before_version == each.snapshot_version
        if is_same_head and saved_before is not None and not each.is_edit:
            saved = saved_before
        else:
            saved = min(round(each.hidden_tokens * each.token_ratio), usages.MOST_TOKENS)
        call = Call(each.input_tokens, saved, each.cached_tokens, each.written_tokens)
        before = None if each.before_input is None else Call(each.before_input, saved_before or 0)
        prefix = None
        if not each.is_edit:
            shared = None if each.shared_tokens is None else round(each.shared_tokens + each.fixed_tokens)
            prefix = shared_prefix_tokens(call, before, shared, has_moved=not is_same_head)
        prices, lifetime = self._prices(each.tenant_policy, each.policy, each.model)
        # A clock that jumped back says nothing.
        gap = 0.0 if each.before_at is None else max(0.0, (each.answered_at - each.before_at).total_seconds())
        expected = None if prefix is None else (prefix if lifetime > 0 and gap <= lifetime else 0)
        if prices is None:
            return Reckoned(prefix, expected, saved, None, None, None)
        return Reckoned(prefix, expected, saved, *_bounded(compute_savings(call, before, expected, prices, gap)))

    def _prices_of(self, tenant_policy: str, policy: str, model: str | None) -> tuple[CallPrices | None, int]:
        holds = in_force(self._settings.policy, _decode(tenant_policy), _decode(policy), model=model).policy
        prices = call_prices(model, holds, PriceTable.of(self._settings, holds))
        is_known = prices is not None and prices.is_usable
        return (prices if is_known else None), holds.prompt_cache_seconds


def _bounded(money: Savings) -> tuple[float | None, float | None, float | None]:
    """Return sums that fit their columns; with a price that is none nothing is known."""
    return money if all(abs(usd) < _MOST_USD for usd in money) else (None, None, None)
