"""Which summarizer an installation uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.settings import Settings
    from worker.summarizers.base import Summarizer


def choose_summarizer(settings: Settings) -> Callable[[], Summarizer] | None:
    """Return what makes the summarizer that the settings name, None for `none`."""
    match settings.chosen_summarizer:
        case "anthropic":
            return lambda: _anthropic(settings)
        case "extractive":
            return ExtractiveSummarizer
        case "none":
            return None


def _anthropic(settings: Settings) -> Summarizer:
    # The SDK takes longer to load than all the rest, and workers of checks never ask a model.
    from worker.summarizers.anthropic import AnthropicSummarizer  # noqa: PLC0415

    return AnthropicSummarizer(settings)
