"""The OpenAI Agents SDK: an agent over Chat Completions or Responses, by the first argument."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from questions import KEY, URL, ask_all, look_up

set_tracing_disabled(disabled=True)
api = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
if sys.argv[1] == "chat":
    model: Any = OpenAIChatCompletionsModel("gpt-5.6", openai_client=api)
    settings = ModelSettings()
else:
    model = OpenAIResponsesModel("gpt-5.6", openai_client=api)
    settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
agent = Agent(
    name="Clerk", instructions="Be brief.", model=model, model_settings=settings, tools=[function_tool(look_up)]
)
history: list[Any] = []
loop = asyncio.new_event_loop()


async def answered(question: str, stream: bool) -> Any:
    """Run the agent on the history and a question."""
    asked = [*history, {"role": "user", "content": question}]
    if not stream:
        return await Runner.run(agent, asked)
    run = Runner.run_streamed(agent, asked)
    async for _ in run.stream_events():
        pass
    return run


def ask(question: str, stream: bool) -> str:
    run = loop.run_until_complete(answered(question, stream))
    history[:] = run.to_input_list()
    return str(run.final_output)


ask_all(ask)
