"""Strands Agents: an agent over the API that the first argument names; it always streams."""

from __future__ import annotations

import sys
from typing import Any

from questions import KEY, URL, ask_all, look_up
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel


def model() -> Any:
    """Return the model of an API."""
    if sys.argv[1] == "messages":
        return AnthropicModel(
            client_args={"api_key": KEY, "base_url": URL}, model_id="claude-haiku-4-5", max_tokens=2_000
        )
    return OpenAIModel(client_args={"api_key": KEY, "base_url": f"{URL}/v1"}, model_id="gpt-5.6")


agent = Agent(model=model(), tools=[tool(look_up)], system_prompt="Be brief.", callback_handler=None)


def ask(question: str, _stream: bool) -> str:
    return str(agent(question)).strip()


ask_all(ask)
