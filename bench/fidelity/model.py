"""The model that is asked, where the environment says which, and what asking it takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.answers.costs import summaries_cost, total
from bench.fidelity.chained import chains_of
from bench.fidelity.look_ahead import BUDGETS
from bench.fidelity.recall import characters
from bench.measure import progress
from compaction.tokens import CHARS_PER_TOKEN
from runtime.settings import Settings
from worker.parts import choose_summarizer

if TYPE_CHECKING:
    from bench.answers.costs import Estimate
    from bench.fidelity.sources import Source
    from runtime.summarizers import Provider
    from worker.summarizers.base import Summarizer

VARIABLES: Final[dict[Provider, tuple[str, ...]]] = {
    "anthropic": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
}
"""Of which provider a model is asked: the first of which one is set. `PALIMPSEST_SUMMARIZER_MODEL` names the model."""
_ASKING: Final = 2
"""Strategies that ask the model: the summary, and the ladder with it."""
_PINNED: Final = 2
"""Chains are compacted with pins and without."""


class AskedModel(NamedTuple):
    """A model behind an API."""

    provider: Provider
    settings: Settings
    summarizer: Summarizer

    @property
    def name(self) -> str:
        """The model's id."""
        return self.settings.model_of(self.provider)


def asked_model() -> AskedModel | None:
    """Return the model that the environment names, None for none."""
    for provider, names in VARIABLES.items():
        if any(os.environ.get(name) for name in names):
            settings = Settings(summarizer=provider)
            make = choose_summarizer(settings)
            return AskedModel(provider, settings, make()) if make else None
    every = ", ".join(name for names in VARIABLES.values() for name in names)
    progress(f"model: skipped, none of {every} is set")
    return None


def look_ahead_cost(source: Source, cuts: int) -> Estimate:
    """Return what look-ahead recall of the model's summaries takes: of pasts that on average are half of the whole."""
    tokens = [characters(messages) // CHARS_PER_TOKEN for messages in source.conversations]
    return total(
        summaries_cost(cuts * _ASKING, count // 2, round(count / 2 * budget)) for count in tokens for budget in BUDGETS
    )


def chains_cost(source: Source, most: int, compactions: int) -> Estimate:
    """Return what ten compactions in a row take, each of a tenth and of a summary half as long."""
    parts = [characters(chain) // CHARS_PER_TOKEN // compactions for chain in chains_of(source, most=most)]
    return total(summaries_cost(compactions * _PINNED, part * 3 // 2, part // 2) for part in parts)
