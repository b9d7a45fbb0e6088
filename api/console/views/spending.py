"""What models cost, day by day and model by model, and what that saved."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from api.console.views.bars import Bars, stacked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from store.console.spending import ModelDay
    from store.operations.statistics import Day
    from store.tenants.budgets import Budget

MICRO: Final = 1_000_000
"""Parts of a dollar that the plot of money counts in: its scale has whole numbers."""
_COLOURS: Final = 5
OTHER: Final = "other"
"""What no step tells of any more, or of a model that has no colour of its own."""


class Model(NamedTuple):
    """What a model was asked in all days; `share` is its part of the money, or of the tokens where all is free."""

    name: str
    kind: str
    """Its colour in the plots: `model-1` to `model-5`, or `other`."""
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    unpriced_calls: int
    share: float


class Spent(NamedTuple):
    """What the page of spending shows; days are the newest first."""

    days: Sequence[Day]
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    """Of the calls whose price is known."""
    unpriced_calls: int
    tokens_cut: int
    runs: int
    models: Sequence[Model]
    money: Bars
    """In millionths of a dollar."""
    tokens: Bars

    @property
    def kinds(self) -> dict[str, str]:
        """The colour of each model."""
        return {model.name: model.kind for model in self.models}

    @property
    def cost_of_cut_million(self) -> Decimal | None:
        """USD for a million tokens cut; None if none were, or if the price of a call is not known."""
        return self.cost_usd * MICRO / self.tokens_cut if self.tokens_cut and not self.unpriced_calls else None


class _Amount(NamedTuple):
    """Of a model, in one day or in all."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal = Decimal(0)

    def plus(self, other: _Amount) -> _Amount:
        return _Amount(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_usd + other.cost_usd,
        )


def spent(days: Sequence[Day], by_model: Sequence[ModelDay], budget: Budget) -> Spent:
    """Return the figures ready to be drawn. The days count; what the models of a day do not explain is `OTHER`."""
    by_day: dict[date, dict[str, _Amount]] = {day.day: {} for day in days}
    for row in by_model:
        amount = _Amount(row.model_calls, row.input_tokens, row.output_tokens, row.cost_usd)
        by_day.setdefault(row.day, {})[row.model] = amount
    for day in days:
        _add_rest(by_day[day.day], day)
    totals: dict[str, _Amount] = {}
    for amounts in by_day.values():
        for name, amount in amounts.items():
            totals[name] = totals.get(name, _Amount()).plus(amount)
    unpriced: Counter[str] = Counter()
    for row in by_model:
        unpriced[row.model] += row.unpriced
    models = _models(totals, unpriced)
    kinds = {model.name: model.kind for model in models}
    oldest_first = [day.day for day in reversed(days)]
    return Spent(
        days=days,
        calls=sum(day.model_calls for day in days),
        input_tokens=sum(day.model_input_tokens for day in days),
        output_tokens=sum(day.model_output_tokens for day in days),
        cost_usd=sum((day.cost_usd for day in days), Decimal(0)),
        unpriced_calls=sum(day.unpriced_calls for day in days),
        tokens_cut=sum(day.tokens_cut for day in days),
        runs=sum(day.runs for day in days),
        models=models,
        money=stacked(
            [
                (day, [(name, int(by_day[day][name].cost_usd * MICRO)) for name in kinds if name in by_day[day]])
                for day in oldest_first
            ],
            None if budget.cost_usd is None else int(budget.cost_usd * MICRO),
        ),
        tokens=stacked(
            [
                (day, [(name, _tokens(by_day[day][name])) for name in kinds if name in by_day[day]])
                for day in oldest_first
            ],
            budget.tokens,
        ),
    )


def _tokens(amount: _Amount) -> int:
    return amount.input_tokens + amount.output_tokens


def _add_rest(amounts: dict[str, _Amount], day: Day) -> None:
    """Add what the day came to beyond its models: steps that retention removed, or that nobody names a model for."""
    sums = _Amount()
    for amount in amounts.values():
        sums = sums.plus(amount)
    rest = _Amount(
        max(0, day.model_calls - sums.calls),
        max(0, day.model_input_tokens - sums.input_tokens),
        max(0, day.model_output_tokens - sums.output_tokens),
        max(Decimal(0), day.cost_usd - sums.cost_usd),
    )
    if any(rest):
        amounts[OTHER] = amounts.get(OTHER, _Amount()).plus(rest)


def _models(totals: Mapping[str, _Amount], unpriced: Mapping[str, int]) -> list[Model]:
    """Return the models, the dearest first; `OTHER` is the last."""
    cost = sum((amount.cost_usd for amount in totals.values()), Decimal(0))
    tokens = sum(_tokens(amount) for amount in totals.values())
    order = sorted(totals, key=lambda name: (name == OTHER, -totals[name].cost_usd, -_tokens(totals[name]), name))
    return [
        Model(
            name=name,
            kind=OTHER if name == OTHER or number >= _COLOURS else f"model-{number + 1}",
            calls=totals[name].calls,
            input_tokens=totals[name].input_tokens,
            output_tokens=totals[name].output_tokens,
            cost_usd=totals[name].cost_usd,
            unpriced_calls=unpriced.get(name, 0),
            share=float(totals[name].cost_usd / cost) if cost else _tokens(totals[name]) / max(1, tokens),
        )
        for number, name in enumerate(order)
    ]
