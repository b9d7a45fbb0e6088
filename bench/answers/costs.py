"""What asking will cost at most, and about, before anything is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

from bench.answers.originals import MAX_TOKENS as RECALLED_TOKENS
from worker.summarizers.prices import BilledTokens, cost

if TYPE_CHECKING:
    from collections.abc import Iterable
    from decimal import Decimal

    from worker.summarizers.prices import PriceTable

REPLY_TOKENS: Final = 100
"""Tokens of an answer; most are ten, a call of recall is fifty, and some models think before they answer."""
AROUND_TOKENS: Final = 150
"""Tokens of the system prompt and a question."""
TOOL_TOKENS: Final = 400
"""Tokens that the tool's definition takes."""
JUDGED_TOKENS: Final = 300
"""Tokens of a question to the judge."""
JUDGED_SHARE: Final = 0.5
"""Of the answers, about those that rules cannot judge."""


class Estimate(NamedTuple):
    """Calls and tokens: `prompt` at most, of which about `cached` come from the provider's cache."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    output: int = 0

    def __add__(self, other: Self) -> Self:  # type: ignore[override]
        """Return both together."""
        return type(self)(*(one + two for one, two in zip(self, other, strict=True)))

    def most(self, model: str, prices: PriceTable) -> Decimal | None:
        """Return USD where no cache helps, None where the price is not known."""
        return cost(model, BilledTokens(self.prompt, self.output), prices)

    def about(self, model: str, prices: PriceTable) -> Decimal | None:
        """Return USD where the cache does."""
        return cost(model, BilledTokens(self.prompt - self.cached, self.output, cache_read=self.cached), prices)


def questions_cost(context_tokens: int, count: int, *, may_recall: bool) -> Estimate:
    """Return what `count` questions of one context take, each in a call of its own or two; and the judge's."""
    each = context_tokens + AROUND_TOKENS + (TOOL_TOKENS if may_recall else 0)
    asked = Estimate(count, count * each, max(0, count - 1) * context_tokens, count * REPLY_TOKENS)
    again = Estimate(
        count, count * (each + RECALLED_TOKENS + REPLY_TOKENS), count * context_tokens, count * REPLY_TOKENS
    )
    judged = round(count * JUDGED_SHARE)
    judge = Estimate(judged, judged * JUDGED_TOKENS, 0, judged * REPLY_TOKENS)
    return asked + again + judge if may_recall else asked + judge


def summaries_cost(runs: int, input_tokens: int, output_tokens: int) -> Estimate:
    """Return what summaries take that read and write so many tokens each; each may be asked for twice."""
    return Estimate(2 * runs, 2 * runs * input_tokens, 0, 2 * runs * output_tokens)


def total(estimates: Iterable[Estimate]) -> Estimate:
    """Return all together."""
    return sum(estimates, start=Estimate())
