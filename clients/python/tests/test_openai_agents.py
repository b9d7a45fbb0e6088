"""The session of the OpenAI Agents SDK: its own runner, its own models, a model on the loopback interface."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from agents.memory import Session, SessionSettings
from loop import ANSWERED, ASKED, KEY, MODEL, POLICY, URL, check, looked_up, name
from openai import AsyncOpenAI

from palimpsest_client import AsyncClient, UnreachableError
from palimpsest_client.openai_agents import PalimpsestSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["name"]

SETTINGS = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])


@function_tool
def look_up(key: str) -> str:
    """Look a row up."""
    return looked_up(key)


@asynccontextmanager
async def agent_of(kind: type[Any]) -> AsyncIterator[Agent[Any]]:
    async with AsyncOpenAI(base_url=f"{MODEL}/v1", api_key="any", max_retries=0) as api:
        settings = SETTINGS if kind is OpenAIResponsesModel else ModelSettings()
        yield Agent(name="Clerk", model=kind("gpt-5.6", api), tools=[look_up], model_settings=settings)


def items(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
def test_an_agent_whose_session_is_compacted(name: str, kind: type[Any]) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client, agent_of(kind) as agent:
            session = PalimpsestSession(name, client, policy=POLICY)
            assert isinstance(session, Session)
            beside = SQLiteSession(name)
            for question, answer in zip(ASKED, ANSWERED, strict=True):
                result = await Runner.run(agent, question, session=session)
                assert result.final_output == answer
                await Runner.run(agent, question, session=beside)
                await asyncio.to_thread(check, await session.conversation_id())
            served, whole = await session.get_items(), await beside.get_items()
            assert len(str(served)) < len(str(whole)) / 2
            context = await client.context(await session.conversation_id(), shape="responses")
            assert context.version > 0
            assert context.tokens is not None
            assert context.tokens["measured"]
            stored = await client.list_messages(await session.conversation_id(), limit=200)
            assert len(stored.data) == len(whole)  # every item, once
            assert {each["shape"] for each in stored.data} == {"responses"}

    asyncio.run(talk())


def test_a_run_that_is_streamed(name: str) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client, agent_of(OpenAIResponsesModel) as agent:
            session = PalimpsestSession(name, client)
            streamed = Runner.run_streamed(agent, ASKED[0], session=session)
            async for _ in streamed.stream_events():
                pass
            assert streamed.final_output == ANSWERED[0]
            assert (await session.get_items())[0] == items(ASKED[0])[0]
            assert ANSWERED[0] in str((await session.get_items())[-1])

    asyncio.run(talk())


def test_the_newest_items(name: str) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client:
            session = PalimpsestSession(name, client, session_settings=SessionSettings(limit=2))
            assert await session.get_items() == []
            assert await session.pop_item() is None
            await session.add_items([])
            await session.add_items(items("a", "b", "c"))
            assert await session.get_items() == items("b", "c")
            assert await session.get_items(limit=5) == items("a", "b", "c")
            assert await session.get_items(limit=0) == []
            async with agent_of(OpenAIResponsesModel) as agent:
                few = RunConfig(session_settings=SessionSettings(limit=1))
                assert (await Runner.run(agent, "Hm?", session=session, run_config=few)).final_output == "Done after 0."

    asyncio.run(talk())


def test_what_is_taken_out_stays_out(name: str) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client:
            session = PalimpsestSession(name, client)
            await session.add_items(items("a", "b", "c"))
            assert [await session.pop_item(), await session.pop_item()] == [*items("c"), *items("b")]
            # Of another process, or after a restart.
            again = PalimpsestSession(name, client)
            assert await again.get_items() == items("a")
            await again.add_items(items("d"))
            assert await session.get_items() == items("a", "d")
            assert [await session.pop_item() for _ in range(3)] == [*items("d"), *items("a"), None]
            assert await session.get_items() == []
            later = PalimpsestSession(name, client)
            assert await later.get_items() == []
            await later.add_items(items("e"))
            assert await later.get_items() == items("e")
            assert await PalimpsestSession(name, client).get_items() == items("e")

    asyncio.run(talk())


def test_a_session_begins_anew(name: str) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client, agent_of(OpenAIResponsesModel) as agent:
            session = PalimpsestSession(name, client, metadata={"team": "a"})
            await session.clear_session()
            await Runner.run(agent, ASKED[0], session=session)
            await session.clear_session()
            assert await session.get_items() == []
            again = PalimpsestSession(name, client)
            assert await again.get_items() == []
            assert (await Runner.run(agent, ASKED[2], session=again)).final_output == ANSWERED[2]
            assert (await session.get_items())[0] == items(ASKED[2])[0]
            found = await client.get_conversation(await session.conversation_id())
            assert found["metadata"]["team"] == "a"

    asyncio.run(talk())


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
def test_a_tool_that_raised(name: str, kind: type[Any]) -> None:
    @function_tool(name_override="look_up", failure_error_function=None)
    def fails(key: str) -> str:
        """Look a row up."""
        raise ZeroDivisionError(key)

    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client, agent_of(kind) as agent:
            agent.tools = [fails]
            with pytest.raises(Exception, match="look_up"):
                await Runner.run(agent, ASKED[1], session=PalimpsestSession(name, client))
            result = await Runner.run(agent, ASKED[3], session=PalimpsestSession(name, client))
            assert result.final_output == ANSWERED[3]
            result = await Runner.run(agent, ASKED[3], session=PalimpsestSession(name, client))
            assert result.final_output == ANSWERED[3]

    asyncio.run(talk())


def test_the_service_is_away(name: str) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client:
            session = PalimpsestSession(name, client)
            await session.add_items(items("a"))
            assert await session.get_items() == items("a")
            await session.add_items(items("b\x00"))
            assert await session.get_items() == items("a", "b\ufffd")
            assert await session.pop_item() == items("b\ufffd")[0]
            client._http.base_url = "http://127.0.0.1:9"
            await session.add_items(items("b"))
            assert await session.get_items() == items("a", "b")
            client.outbox._limit = 1
            await session.add_items(items("c"))
            assert await session.get_items() == items("a", "b", "c")
            with pytest.raises(UnreachableError):
                await session.pop_item()
            client._http.base_url = URL
            client.core._caller._away_until = 0
            assert await client.flush() == 0
            assert await session.get_items() == items("a", "b")
        async with AsyncClient("http://127.0.0.1:9", KEY) as away:
            with pytest.raises(UnreachableError):
                await PalimpsestSession(name, away).get_items()

    asyncio.run(talk())
