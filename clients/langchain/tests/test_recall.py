"""Recall in agents of LangChain: a running API, and the model that PALIMPSEST_MODEL_URL names."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from palimpsest_client import AsyncClient, Client

from palimpsest_langchain import PalimpsestMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

URL, KEY, MODEL = (os.environ[f"PALIMPSEST_{name}"] for name in ("URL", "KEY", "MODEL_URL"))
LONG = "lorem ipsum dolor sit amet " * 30
CODE = "The garage opens with 4711-B."
QUESTION = {"messages": [HumanMessage("How does the garage open?")]}
CALL = {"id": "t1", "name": "recall", "args": {"query": "garage", "why": "x"}}


class Scripted(GenericFakeChatModel):
    """A model that gives its replies one after the other, whatever tools it has."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def scripted(*replies: AIMessage) -> Scripted:
    return Scripted(messages=iter(replies))


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(URL, KEY) as made:
        yield made


@pytest.fixture
def thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": uuid.uuid4().hex}}


@pytest.fixture
def conversation(client: Client, thread: dict[str, Any]) -> str:
    identifier = client.create_conversation(external_id=thread["configurable"]["thread_id"])["id"]
    client.append(identifier, [{"role": "user", "content": CODE}, {"role": "assistant", "content": "Noted."}])
    return identifier


def results(state: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def test_the_tool_is_the_services(client: Client) -> None:
    (tool,) = PalimpsestMiddleware(client, recall=True).tools
    wanted = {"name": tool.name, "description": tool.description, "input_schema": tool.args_schema}
    assert wanted == client.recall_tool()
    assert not PalimpsestMiddleware(client).tools


def test_a_model_recalls_what_left_its_context(client: Client, thread: dict[str, Any], conversation: str) -> None:
    talk = [{"role": "assistant" if at % 2 else "user", "content": LONG} for at in range(40)]
    client.append(conversation, talk)
    model = ChatAnthropic(model="claude-haiku-4-5", base_url=MODEL, api_key="any", max_retries=0)
    agent = create_agent(model, middleware=[PalimpsestMiddleware(client, recall=True)], checkpointer=InMemorySaver())
    state = agent.invoke(QUESTION, thread)
    assert state["messages"][-1].text == "It opens with 4711-B."
    assert [message.status for message in results(state)] == ["error", "success"]
    stored = client.list_messages(conversation, limit=100).data  # each result is a message of its own
    assert [(block["name"], block["input"]) for block in stored[-4]["content"]] == [
        ("recall", {"pattern": "("}),
        ("recall", {"query": "garage"}),
    ]
    # Neither what the model asked nor what it was given is found again.
    again = client.recall(conversation, "garage")
    assert {part["kind"] for passage in again["passages"] for part in passage["parts"]} == {"text"}


@pytest.mark.parametrize("checkpointed", [True, False])
def test_the_tool_asks_the_conversation_of_the_request(client: Client, conversation: str, checkpointed: bool) -> None:
    middleware = PalimpsestMiddleware(client, conversation=lambda _: conversation, recall=True)
    saver = InMemorySaver() if checkpointed else None
    model = scripted(AIMessage("", tool_calls=[CALL]), AIMessage("It opens."))
    agent = create_agent(model, middleware=[middleware], checkpointer=saver)
    state = agent.invoke(QUESTION, {"configurable": {"thread_id": "another"}} if checkpointed else None)
    (result,) = results(state)
    assert CODE in result.text
    assert (result.status, result.tool_call_id, result.name) == ("success", "t1", "recall")
    assert "palimpsest_conversation" not in state


def test_asyncio(thread: dict[str, Any], conversation: str) -> None:
    async def talk() -> dict[str, Any]:
        async with AsyncClient(URL, KEY) as other:
            model = scripted(AIMessage("", tool_calls=[CALL]), AIMessage("It opens."))
            agent = create_agent(model, middleware=[PalimpsestMiddleware(async_client=other, recall=True)])
            return await agent.ainvoke(QUESTION, thread)

    (result,) = results(asyncio.run(talk()))
    assert result.text.startswith("<recalled refs=")
    assert CODE in result.text


@pytest.mark.parametrize("known", [True, False])
def test_a_call_while_the_service_is_away_has_a_result_that_says_so(thread: dict[str, Any], known: bool) -> None:
    with Client("http://127.0.0.1:9", KEY) as away:
        conversation = (lambda _: "conv_of_this_thread") if known else None
        middleware = PalimpsestMiddleware(away, conversation=conversation, recall=True)
        model = scripted(AIMessage("", tool_calls=[CALL]), AIMessage("I can't look now."))
        state = create_agent(model, middleware=[middleware]).invoke(QUESTION, thread)
    (result,) = results(state)
    assert (result.status, result.text) == ("error", "Nothing can be recalled at the moment.")
    assert state["messages"][-1].text == "I can't look now."
