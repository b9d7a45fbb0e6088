"""The models of both providers at a loopback server, and one question for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from runtime.settings import Settings
from worker.summarizers.anthropic import AnthropicModel
from worker.summarizers.base import SummaryError
from worker.summarizers.openai import OpenAIModel

if TYPE_CHECKING:
    from tests.support.servers.loopback_model import LoopbackModel
    from worker.summarizers.base import Answer, Model
    from worker.summarizers.breaker import CircuitBreaker

SECRET = "sk-nobody-may-see-this"
SHORT = 3.0
"""Seconds that nothing is expected to come in; long enough for a busy machine to send a request in."""
QUESTION = "what the user wrote in confidence"


def anthropic_model(server: LoopbackModel, breaker: CircuitBreaker | None = None, **fields: Any) -> AnthropicModel:
    return AnthropicModel(_settings(ANTHROPIC_API_KEY=SECRET, ANTHROPIC_BASE_URL=server.url, **fields), breaker)


def openai_model(server: LoopbackModel, breaker: CircuitBreaker | None = None, **fields: Any) -> OpenAIModel:
    given = {"OPENAI_API_KEY": SECRET, "OPENAI_BASE_URL": f"{server.url}/v1"}
    return OpenAIModel(_settings(**given | fields), breaker)


def _settings(**fields: Any) -> Settings:
    return Settings(**{"summarizer_deadline_seconds": 20} | fields)


def ask(asked: Model, most: int = 300) -> Answer:
    return asked.ask("Write the summary.", QUESTION, max_tokens=most)


def fail(asked: Model) -> SummaryError:
    with pytest.raises(SummaryError) as caught:
        ask(asked)
    return caught.value


def waits_of(events: list[Any]) -> list[float]:
    """Return the seconds between a model's attempts, as they were logged."""
    return [event["wait_seconds"] for event in events if "wait_seconds" in event]
