"""The interface of what calls to models are paid from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from worker.summarizers.base import Spent


class Payment(Protocol):
    """One call that was paid for."""

    def settle(self, spent: Spent) -> None:
        """Take the call's true cost for its estimate, once it has ended."""

    def recorded(self) -> None:
        """Hold nothing for the call any more: a step has recorded what it cost."""


class Purse(Protocol):
    """What the calls for one run are paid from."""

    @property
    def is_spent(self) -> bool:
        """Whether it has refused a call."""

    def reserve(self, model: str | None, input_tokens: int, output_tokens: int) -> Payment:
        """Set aside what a call may cost at most; raise SummaryError `budget_spent` if nothing is left."""


class _Unlimited:
    """Pays whatever is asked."""

    is_spent = False

    def reserve(self, model: str | None, input_tokens: int, output_tokens: int) -> Payment:
        del model, input_tokens, output_tokens
        return self

    def settle(self, spent: Spent) -> None:
        pass

    def recorded(self) -> None:
        pass


UNLIMITED: Final[Purse] = _Unlimited()
"""The purse of whoever has no budget."""
