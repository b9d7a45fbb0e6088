"""What a tenant's day allows: asked before each paid call, charged afterwards with what the call has cost.

Without a budget a call costs one short look at the tenant's limits, and nothing is reserved.
"""

from __future__ import annotations

from decimal import Decimal
from functools import partial, reduce
from threading import Lock
from typing import TYPE_CHECKING

from compaction.steps.runs import RunReason
from store.tenants import budgets
from store.tenants.budgets import Amount, Budget
from worker.summarizers.base import SummaryError
from worker.summarizers.prices import BilledTokens, PriceTable, cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.policy import Policy
    from runtime.settings import Settings
    from store.runs.runs import Lease
    from worker.database import Database
    from worker.summarizers.base import Spent


class Budgets:
    """The budgets of an installation's tenants. One object a process; safe to use from many threads."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self.default = Budget.of(settings)

    def purse(self, lease: Lease) -> RunPurse:
        """Return what one attempt at a run pays from."""
        return RunPurse(self, self._database, lease)

    def estimate(self, model: str | None, input_tokens: int, output_tokens: int, policy: Policy) -> Amount:
        """Return what a call may come to; a model of unknown price costs nothing, as in the audit."""
        prices = PriceTable.of(self._settings, policy)
        price = cost(model, BilledTokens(input_tokens, output_tokens), prices) if model else None
        return Amount(input_tokens + output_tokens, price or Decimal(0))


class RunPurse:
    """Pays the calls of one attempt at a run, from several threads at once."""

    def __init__(self, owner: Budgets, database: Database, lease: Lease) -> None:
        self._owner = owner
        self._database = database
        self._lease = lease
        self._lock = Lock()
        self._held: list[_Payment] = []
        self.is_spent = False
        """Whether it has refused a call."""

    def reserve(self, model: str | None, input_tokens: int, output_tokens: int) -> _Payment:
        """Set aside what a call may cost at most; see `worker.summarizers.paying.Purse`."""
        payment = _Payment(self, self._owner.estimate(model, input_tokens, output_tokens, self._lease.policy))
        # One at a time: each writes what all of them hold together.
        with self._lock:
            reserve = partial(
                budgets.reserve_for_run,
                lease=self._lease,
                held=_total(self._held),
                more=payment.amount,
                default=self._owner.default,
            )
            if not self._database.insist(self._lease.tenant_id, reserve):
                self.is_spent = True
                raise SummaryError(RunReason.BUDGET_SPENT, "today's budget for models is spent")
            self._held.append(payment)
        return payment

    def drop(self, payment: _Payment) -> None:
        """Hold nothing for a call any more."""
        with self._lock:
            self._held.remove(payment)


class _Payment:
    """One call: its estimate, and once it has ended what it has cost."""

    def __init__(self, purse: RunPurse, amount: Amount) -> None:
        self._purse = purse
        self.amount = amount

    def settle(self, spent: Spent) -> None:
        tokens = (spent.input_tokens or 0) + (spent.output_tokens or 0)
        self.amount = Amount(tokens, spent.cost_usd or Decimal(0))

    def recorded(self) -> None:
        self._purse.drop(self)


def _total(payments: Sequence[_Payment]) -> Amount:
    return reduce(Amount.plus, (each.amount for each in payments), Amount())
