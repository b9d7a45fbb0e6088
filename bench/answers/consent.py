"""Whether what asking will cost may be spent: told beforehand, and agreed to by an option, a limit or an answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from bench.answers.costs import Estimate, total
from bench.measure import progress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from worker.summarizers.prices import PriceTable

LIMIT: Final = 10.0
"""USD that are spent without a question asked."""


class Consent(NamedTuple):
    """What may be spent; `limit` in USD, None for none."""

    given: bool
    limit: Decimal | None = None


def consent(costs: Mapping[str, Estimate], model: str, prices: PriceTable, limit: Decimal, *, is_yes: bool) -> Consent:
    """Tell what `costs` come to, and return whether to go on.

    Within the limit: yes, up to it. Over it, or where no price is known: with `is_yes`, or where somebody at a terminal
    says so; without an end then.
    """
    for what, estimate in costs.items():
        progress(f"costs: {_line(what, estimate, model, prices)}")
    whole = total(costs.values())
    about = whole.about(model, prices)
    progress(f"costs: {_line('together', whole, model, prices)}")
    if is_yes:
        return Consent(given=True)
    if about is not None and about <= limit:
        progress(f"costs: within the limit of ${limit:.2f}, which is where asking stops")
        return Consent(given=True, limit=limit)
    why = "no price is known" if about is None else f"over the limit of ${limit:.2f}"
    if sys.stdin.isatty() and sys.stderr.isatty():
        return Consent(given=typer.confirm(f"costs: {why}. Go on?", err=True))
    progress(f"costs: {why}, so that no model is asked; --yes or --limit USD goes on")
    return Consent(given=False)


def _line(what: str, estimate: Estimate, model: str, prices: PriceTable) -> str:
    most, about = estimate.most(model, prices), estimate.about(model, prices)
    price = (
        f"no price known for {model}"
        if most is None or about is None
        else f"${most:.2f} by the price of {model}, ${about:.2f} where its cache serves the contexts"
    )
    return f"{what}: at most {estimate.calls:,} calls, {estimate.prompt:,} tokens in, {estimate.output:,} out, {price}"
