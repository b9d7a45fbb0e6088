"""Models that take no temperature: asked again without it, once, and not bothered with it any more."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.settings import Settings
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok, status
from worker.summarizers.anthropic import AnthropicModel
from worker.summarizers.base import SummaryError

REFUSED = "`temperature` is deprecated for this model."


def asking(server: LoopbackModel, name: str, **fields: Any) -> AnthropicModel:
    given: dict[str, Any] = {
        "ANTHROPIC_API_KEY": "sk-test",
        "ANTHROPIC_BASE_URL": server.url,
        "summarizer_model": name,
        "summarizer_deadline_seconds": 20,
    }
    return AnthropicModel(Settings(**given | fields))


def test_a_refused_temperature_is_left_out_from_then_on() -> None:
    with LoopbackModel([status(400, REFUSED), ok("a summary")]) as server:
        answer = asking(server, "claude-without").ask("rules", "text", max_tokens=100)
        assert (answer.text, answer.spent.calls) == ("a summary", 2)
        asking(server, "claude-without").ask("rules", "text", max_tokens=100)
        asking(server, "claude-with").ask("rules", "text", max_tokens=100)
        sent = [each.body.get("temperature") for each in server.requests]
    assert sent == [0.0, None, None, 0.0]


def test_a_second_refusal_is_one() -> None:
    with LoopbackModel(default=status(400, REFUSED)) as server:
        with pytest.raises(SummaryError, match="model_rejected") as raised:
            asking(server, "claude-never").ask("rules", "text", max_tokens=100)
        assert raised.value.spent.calls == len(server.requests) == 2


def test_another_400_is_not_tried_again() -> None:
    with LoopbackModel(default=status(400, "max_tokens: too large")) as server:
        with pytest.raises(SummaryError, match="model_rejected"):
            asking(server, "claude-other").ask("rules", "text", max_tokens=100)
        assert len(server.requests) == 1
