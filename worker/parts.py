"""Which parts a worker has, by its settings: the one place that knows of each summarizer."""

from __future__ import annotations

from functools import cache, partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from runtime.summarizers import SUMMARIZER_GROUP
from worker.summarizers.extractive import ExtractiveSummarizer
from worker.summarizers.native_step import write_signed

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.settings import Settings
    from worker.runs.summarizing import WriteSigned
    from worker.summarizers.anthropic import AnthropicModel
    from worker.summarizers.base import Model, Summarizer
    from worker.summarizers.native import AnthropicNative
    from worker.summarizers.openai import OpenAIModel
    from worker.summarizers.staged import StagedSummarizer


def choose_summarizer(settings: Settings) -> Callable[[], Summarizer] | None:
    """Return what makes the summarizer that the settings name, None for `none`."""
    match settings.chosen_summarizer:
        case "anthropic" | "anthropic-native":
            return lambda: _staged(_claude(settings))
        case "openai":
            return lambda: _staged(_openai(settings))
        case "extractive":
            return ExtractiveSummarizer
        case "none":
            return None
        case name:
            return partial(_installed, name, settings)


def choose_signed(settings: Settings) -> WriteSigned | None:
    """Return what asks the API for its own summaries, None if the summarizer writes all of them."""
    if settings.chosen_summarizer != "anthropic-native":
        return None
    return partial(write_signed, cache(partial(native_of, settings)))


def _installed(name: str, settings: Settings) -> Summarizer:
    """Return a summarizer that another package brings."""
    (entry_point,) = entry_points(group=SUMMARIZER_GROUP, name=name)
    summarizer: Summarizer = entry_point.load()(settings)
    return summarizer


def choose_model(settings: Settings) -> Callable[[], Model] | None:
    """Return what makes the model that the settings name, None where no model is asked."""
    match settings.chosen_provider:
        case "anthropic":
            return lambda: _claude(settings)
        case "openai":
            return lambda: _openai(settings)
        case None:
            return None


def _claude(settings: Settings) -> AnthropicModel:
    # The SDK takes longer to load than all the rest, and workers of checks never ask a model.
    from worker.summarizers.anthropic import AnthropicModel  # noqa: PLC0415
    from worker.summarizers.breaker import CircuitBreaker  # noqa: PLC0415

    return AnthropicModel(settings, CircuitBreaker.of(settings, "anthropic"))


def _openai(settings: Settings) -> OpenAIModel:
    from worker.summarizers.breaker import CircuitBreaker  # noqa: PLC0415 - as above
    from worker.summarizers.openai import OpenAIModel  # noqa: PLC0415 - as above, and only where the extra is there

    return OpenAIModel(settings, CircuitBreaker.of(settings, "openai"))


def _staged(model: Model) -> StagedSummarizer:
    from worker.summarizers.guard import QualityGuard  # noqa: PLC0415 - see _claude
    from worker.summarizers.staged import StagedSummarizer  # noqa: PLC0415

    return StagedSummarizer(model, QualityGuard)


def native_of(settings: Settings) -> AnthropicNative:
    """Return the API that signs its summaries."""
    from worker.summarizers.native import AnthropicNative  # noqa: PLC0415 - as above

    return AnthropicNative(_claude(settings))
