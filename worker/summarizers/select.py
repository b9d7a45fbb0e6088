"""Which summarizer an installation uses."""

from __future__ import annotations

from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from runtime.settings import SUMMARIZER_GROUP
from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.settings import Settings
    from worker.batches.provider import AnthropicBatches
    from worker.summarizers.anthropic import AnthropicModel
    from worker.summarizers.base import Model, NativeSummarizer, Summarizer
    from worker.summarizers.staged import StagedSummarizer


def choose_summarizer(settings: Settings) -> Callable[[], Summarizer | NativeSummarizer] | None:
    """Return what makes the summarizer that the settings name, None for `none`."""
    match settings.chosen_summarizer:
        case "anthropic" | "anthropic-batch":
            return lambda: _anthropic(settings)
        case "anthropic-native":
            return lambda: _native(settings)
        case "extractive":
            return ExtractiveSummarizer
        case "none":
            return None
        case name:
            return partial(_installed, name, settings)


def _installed(name: str, settings: Settings) -> Summarizer:
    """Return a summarizer that another package brings."""
    (found,) = entry_points(group=SUMMARIZER_GROUP, name=name)
    made: Summarizer = found.load()(settings)
    return made


def choose_model(settings: Settings) -> Callable[[], Model] | None:
    """Return what makes the model that the settings name, None where no model is asked."""
    return (lambda: _claude(settings)) if settings.chosen_summarizer.startswith("anthropic") else None


def choose_batches(settings: Settings) -> Callable[[], AnthropicBatches] | None:
    """Return what has summaries made at half price, None where no provider is asked.

    Also for the other summarizers of Claude: batches that were sent before the setting was changed are on their way.
    """
    return (lambda: _batches(settings)) if settings.chosen_summarizer.startswith("anthropic") else None


def _claude(settings: Settings) -> AnthropicModel:
    # The SDK takes longer to load than all the rest, and workers of checks never ask a model.
    from worker.summarizers.anthropic import AnthropicModel  # noqa: PLC0415
    from worker.summarizers.breaker import CircuitBreaker  # noqa: PLC0415

    return AnthropicModel(settings, CircuitBreaker.of(settings))


def _anthropic(settings: Settings, claude: AnthropicModel | None = None) -> StagedSummarizer:
    from worker.summarizers.guard import QualityGuard  # noqa: PLC0415 - see _claude
    from worker.summarizers.staged import StagedSummarizer  # noqa: PLC0415

    return StagedSummarizer(claude or _claude(settings), QualityGuard)


def _batches(settings: Settings) -> AnthropicBatches:
    from worker.batches.provider import AnthropicBatches  # noqa: PLC0415 - as above

    claude = _claude(settings)
    return AnthropicBatches(claude, _anthropic(settings, claude))


def _native(settings: Settings) -> NativeSummarizer:
    from worker.summarizers.native import AnthropicNative  # noqa: PLC0415 - as above

    return AnthropicNative(_claude(settings), _anthropic(settings))
