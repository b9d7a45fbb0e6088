"""The middleware in agents of LangChain itself, against a running API, which PALIMPSEST_URL and _KEY name."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from palimpsest_client import AsyncClient, Client, Outbox
from pydantic import Field

from palimpsest_langchain import PalimpsestMiddleware, from_stored, to_stored

if TYPE_CHECKING:
    from collections.abc import Iterator

URL, KEY = os.environ["PALIMPSEST_URL"], os.environ["PALIMPSEST_KEY"]
LONG = "lorem ipsum dolor sit amet " * 30


class Model(GenericFakeChatModel):
    """LangChain's fake model, which remembers what it was sent and can refuse a prompt."""

    seen: list[list[Any]] = Field(default_factory=list)
    most: int = 10_000

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *args: Any, **fields: Any) -> Any:
        self.seen.append(messages)
        if len(messages) > self.most:
            raise RuntimeError("prompt is too long: 10000 tokens > 8000 maximum")
        return super()._generate(messages, *args, **fields)


def model(*replies: AIMessage, **fields: Any) -> Model:
    return Model(messages=iter(replies), **fields)


def reply(text: str, **fields: Any) -> AIMessage:
    usage = {"input_tokens": 30, "output_tokens": 3, "total_tokens": 33, "input_token_details": {"cache_read": 20}}
    return AIMessage(text, usage_metadata=usage, **fields)


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


CALL = {"id": "t1", "name": "weather", "args": {"city": "Oslo"}}
TALK = [
    {"role": "user", "content": "Weather in Oslo?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain in Oslo"}]},
    {"role": "assistant", "content": "It rains."},
]


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(URL, KEY) as made:
        yield made


@pytest.fixture
def thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": uuid.uuid4().hex}}


def conversation(client: Client, thread: dict[str, Any]) -> str:
    return client.create_conversation(external_id=thread["configurable"]["thread_id"])["id"]


def stored(client: Client, thread: dict[str, Any]) -> list[dict[str, Any]]:
    page = client.list_messages(conversation(client, thread), limit=100)
    return [{"role": each["role"], "content": each["content"]} for each in page.data]


@pytest.mark.parametrize("checkpointed", [True, False])
def test_an_agent_with_a_tool(client: Client, thread: dict[str, Any], checkpointed: bool) -> None:
    fake = model(reply("", tool_calls=[CALL]), reply("It rains."), reply("Take one."))
    agent = create_agent(
        fake,
        [weather],
        system_prompt="Be brief.",
        middleware=[PalimpsestMiddleware(client)],
        checkpointer=InMemorySaver() if checkpointed else None,
    )
    agent.invoke({"messages": [HumanMessage("Weather in Oslo?")]}, thread)
    assert stored(client, thread) == TALK
    tokens = client.context(conversation(client, thread)).tokens
    assert tokens is not None
    assert tokens["measured"] == 30
    agent.invoke({"messages": [HumanMessage("An umbrella?")]}, thread)
    kinds = [type(message) for message in fake.seen[-1]]
    assert kinds == [SystemMessage, HumanMessage, AIMessage, ToolMessage, AIMessage, HumanMessage]
    assert to_stored(fake.seen[-1])[:4] == TALK
    assert len(stored(client, thread)) == 6


@tool("weather")
def fails(city: str) -> str:
    """Fail to tell the weather."""
    raise RuntimeError(f"no weather in {city}")


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_tool_that_raised(client: Client, thread: dict[str, Any], checkpointed: bool) -> None:
    fake = model(reply("", tool_calls=[CALL]), reply("A joke."))
    saver = InMemorySaver() if checkpointed else None
    agent = create_agent(fake, [fails], middleware=[PalimpsestMiddleware(client)], checkpointer=saver)
    with pytest.raises(RuntimeError, match="no weather"):
        agent.invoke({"messages": [HumanMessage("Weather in Oslo?")]}, thread)
    agent.invoke({"messages": [HumanMessage("Then a joke.")]}, thread)
    assert [type(message) for message in fake.seen[-1]] == [HumanMessage, AIMessage, ToolMessage, HumanMessage]
    assert fake.seen[-1][2].status == "error"
    assert len(stored(client, thread)) == 5
    assert client.context(conversation(client, thread)).warnings == []


def test_a_compacted_context_takes_the_place_of_the_state(client: Client, thread: dict[str, Any]) -> None:
    fake = model(*(reply(f"{number} {LONG}") for number in range(20)), reply("Here."), most=30)
    agent = create_agent(fake, middleware=[PalimpsestMiddleware(client)], checkpointer=InMemorySaver())
    for number in range(16):
        result = agent.invoke({"messages": [HumanMessage(f"{number} {LONG}")]}, thread)
    assert len(result["messages"]) == 32
    assert len(fake.seen) > 16  # once the model refused, and was called again with less
    assert len(fake.seen[-1]) < 31
    assert len(stored(client, thread)) == 32


def test_the_service_is_away(client: Client, thread: dict[str, Any]) -> None:
    fake = model(reply("one"), reply("two"))
    with Client("http://127.0.0.1:9", KEY) as away:
        middleware = PalimpsestMiddleware(away, conversation=lambda _: "conv_of_this_thread")
        agent = create_agent(fake, middleware=[middleware], checkpointer=InMemorySaver())
        agent.invoke({"messages": [HumanMessage("a")]}, thread)
        result = agent.invoke({"messages": [HumanMessage("b")]}, thread)
        assert [message.content for message in result["messages"]] == ["a", "one", "b", "two"]
        assert [message.content for message in fake.seen[-1]] == ["a", "one", "b"]
        kept = [turn.body["messages"] for turn in away.outbox.waiting("conv_of_this_thread")]
    assert [[each["content"] for each in turn] for turn in kept] == [["a", "one"], ["b", "two"]]


def test_the_service_is_away_for_so_long_that_no_turn_can_wait_any_more(client: Client, thread: dict[str, Any]) -> None:
    fake, saver = model(reply("one"), reply("two"), reply("three")), InMemorySaver()
    with Client("http://127.0.0.1:9", KEY, outbox=Outbox(limit=1)) as away:
        middleware = PalimpsestMiddleware(away, conversation=lambda _: "conv_of_this_thread")
        agent = create_agent(fake, middleware=[middleware], checkpointer=saver)
        for text in ("a", "b"):
            result = agent.invoke({"messages": [HumanMessage(text)]}, thread)
        assert [message.content for message in result["messages"]] == ["a", "one", "b", "two"]
        assert len(away.outbox) == 1
    agent = create_agent(fake, middleware=[PalimpsestMiddleware(client)], checkpointer=saver)
    agent.invoke({"messages": [HumanMessage("c")]}, thread)
    assert [message["content"] for message in stored(client, thread)] == ["b", "two", "c", "three"]


def test_a_turn_that_is_refused(client: Client, thread: dict[str, Any]) -> None:
    fake = model(reply("one"), reply("two"))
    nowhere = conversation(client, thread)[:-4] + "0000"
    agent = create_agent(
        fake, middleware=[PalimpsestMiddleware(client, conversation=lambda _: nowhere)], checkpointer=InMemorySaver()
    )
    for text in ("a", "b"):
        result = agent.invoke({"messages": [HumanMessage(text)]}, thread)
    assert [message.content for message in result["messages"]] == ["a", "one", "b", "two"]
    assert [message.content for message in fake.seen[-1]] == ["a", "one", "b"]


@tool("weather")
def odd(city: str) -> str:
    """Tell the weather as no text may be that is stored."""
    return f"\x00rain in {city} \ud83d"


def test_texts_that_cannot_be_stored_as_they_are(client: Client, thread: dict[str, Any]) -> None:
    fake = model(reply("", tool_calls=[CALL]), reply("\n"), reply("It rains."))
    agent = create_agent(fake, [odd], middleware=[PalimpsestMiddleware(client)], checkpointer=InMemorySaver())
    agent.invoke({"messages": [HumanMessage("Weather in Oslo?")]}, thread)
    agent.invoke({"messages": [HumanMessage("Pardon?")]}, thread)
    assert [message["content"] for message in stored(client, thread)[2:]] == [
        [{"type": "tool_result", "tool_use_id": "t1", "content": "\ufffdrain in Oslo \ufffd"}],
        "Pardon?",
        "It rains.",
    ]


def test_asyncio(client: Client, thread: dict[str, Any]) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as other:
            fake = model(reply("", tool_calls=[CALL]), reply("It rains."))
            agent = create_agent(fake, [weather], middleware=[PalimpsestMiddleware(async_client=other)])
            await agent.ainvoke({"messages": [HumanMessage("Weather in Oslo?")]}, thread)

    asyncio.run(talk())
    assert stored(client, thread) == TALK


def test_messages_come_back_as_they_were() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    messages = [
        HumanMessage([{"type": "text", "text": "look"}, picture]),
        AIMessage([{"type": "thinking", "thinking": "hm", "signature": "s"}], tool_calls=[CALL]),
        ToolMessage("no", tool_call_id="t1", name="weather", status="error"),
        AIMessage("It rains."),
    ]
    back = from_stored(to_stored([SystemMessage("Be brief."), *messages, AIMessage("")]))
    assert [(type(each), each.content) for each in back] == [(type(each), each.content) for each in messages]
    assert to_stored(back) == to_stored(messages)
