"""Which summarizer an installation uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.summarizers.anthropic import AnthropicSummarizer
from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from store.settings import Settings
    from worker.summarizers.base import Summarizer


def make_summarizer(settings: Settings) -> Summarizer | None:
    """Return the summarizer that the settings name, None for `none`."""
    match settings.chosen_summarizer:
        case "anthropic":
            return AnthropicSummarizer(settings)
        case "extractive":
            return ExtractiveSummarizer()
        case "none":
            return None
