"""LangChain: an agent over the API that the first argument names."""

from __future__ import annotations

import sys
from typing import Any

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from questions import KEY, URL, ask_all, look_up


def model() -> Any:
    """Return the model of an API."""
    own: dict[str, Any] = {"api_key": KEY, "max_retries": 0}
    if sys.argv[1] == "messages":
        return ChatAnthropic(model="claude-haiku-4-5", base_url=URL, max_tokens=2_000, **own)
    if sys.argv[1] == "chat":
        return ChatOpenAI(model="gpt-5.6", base_url=f"{URL}/v1", use_responses_api=False, **own)
    encrypted = {"store": False, "include": ["reasoning.encrypted_content"]}
    return ChatOpenAI(model="gpt-5.6", base_url=f"{URL}/v1", use_responses_api=True, **encrypted, **own)


agent: Any = create_agent(model(), [tool(look_up)], system_prompt="Be brief.", checkpointer=InMemorySaver())


def ask(question: str, stream: bool) -> str:
    asked = {"messages": [{"role": "user", "content": question}]}, {"configurable": {"thread_id": "one"}}
    if not stream:
        return agent.invoke(*asked)["messages"][-1].text
    pieces: list[str] = []
    for message, about in agent.stream(*asked, stream_mode="messages"):
        if about["langgraph_node"] == "model":
            pieces.append(message.text)
    return "".join(pieces)


ask_all(ask)
