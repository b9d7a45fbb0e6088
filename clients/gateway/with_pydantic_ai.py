"""Pydantic AI: an agent over the API that the first argument names."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from questions import KEY, URL, ask_all, look_up


def model() -> Any:
    """Return the model of an API."""
    if sys.argv[1] == "messages":
        return AnthropicModel("claude-haiku-4-5", provider=AnthropicProvider(base_url=URL, api_key=KEY))
    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
    if sys.argv[1] == "chat":
        return OpenAIChatModel("gpt-5.6", provider=provider)
    sealed = OpenAIResponsesModelSettings(openai_store=False, openai_reasoning_effort="low")
    return OpenAIResponsesModel("gpt-5.6", provider=provider, settings=sealed)


agent = Agent(model(), instructions="Be brief.", tools=[look_up])
history: list[Any] = []
loop = asyncio.new_event_loop()


async def answered(question: str, stream: bool) -> str:
    """Run the agent on the history and a question."""
    if not stream:
        run = await agent.run(question, message_history=history)
        history[:] = run.all_messages()
        return run.output
    async with agent.run_stream(question, message_history=history) as streamed:
        output = await streamed.get_output()
        history[:] = streamed.all_messages()
        return output


def ask(question: str, stream: bool) -> str:
    return loop.run_until_complete(answered(question, stream))


ask_all(ask)
