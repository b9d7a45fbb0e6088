"""What calls to models are paid from, and the interface of a summarizer that pays each of its calls itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar, runtime_checkable

from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker.summarizers.base import Spent, Summary, SummaryRequest


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


class HasSpent(Protocol):
    """What a paid call came to."""

    @property
    def spent(self) -> Spent:
        """What it cost."""


Paid = TypeVar("Paid", bound=HasSpent)


def pay(purse: Purse, model: str | None, tokens: tuple[int, int], call: Callable[[], Paid]) -> Paid:
    """Return what a call returns, paid from `purse`: at most `tokens` to read and to write. Raises SummaryError."""
    payment = purse.reserve(model, *tokens)
    try:
        answer = call()
    except SummaryError as error:
        payment.settle(error.spent)
        raise
    payment.settle(answer.spent)
    return answer


@runtime_checkable
class PayingSummarizer(Protocol):
    """A summarizer that pays each of its calls; another is paid once, as one question about the whole zone."""

    def summarize_paid(self, request: SummaryRequest, purse: Purse) -> Summary:
        """Return a summary whose calls were paid from `purse`; raise SummaryError if none can be made."""
