"""History of Pydantic AI's agents: its own models of three APIs, a model on the loopback interface."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from loop import ANSWERED, ASKED, KEY, MODEL, POLICY, URL, check, looked_up, name
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from palimpsest_client import AsyncClient, Client, Outbox
from palimpsest_client.pydantic_ai import PalimpsestHistory, shape_of
from palimpsest_client.pydantic_ai_messages import from_served, to_sent

if TYPE_CHECKING:
    from palimpsest_client import Shape

__all__ = ["name"]

SHAPES: Final[tuple[Shape, ...]] = ("messages", "chat", "responses")


def model_of(shape: Shape) -> Any:
    if shape == "messages":
        thinks = AnthropicModelSettings(
            anthropic_thinking={"type": "enabled", "budget_tokens": 1_024}, max_tokens=2_000
        )
        provider = AnthropicProvider(base_url=MODEL, api_key="any")
        return AnthropicModel("claude-haiku-4-5", provider=provider, settings=thinks)
    provider = OpenAIProvider(base_url=f"{MODEL}/v1", api_key="any")
    if shape == "chat":
        return OpenAIChatModel("deepseek-reasoner", provider=provider)
    sealed = OpenAIResponsesModelSettings(openai_store=False, openai_reasoning_effort="low")
    return OpenAIResponsesModel("gpt-5.6", provider=provider, settings=sealed)


def agent_of(shape: Shape, *capabilities: Any) -> Agent[Any, str]:
    agent = Agent(model_of(shape), system_prompt="Be brief.", capabilities=capabilities)
    agent.tool_plain(look_up)
    return agent


def look_up(key: str) -> str:
    """Look a row up."""
    return looked_up(key)


def stored(identifier: str) -> list[Any]:
    with Client(URL, KEY) as client:
        return client.list_messages(identifier, limit=200).data


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keeps", [True, False])
def test_an_agent_whose_history_is_compacted(name: str, shape: Shape, keeps: bool) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client:
            agent = agent_of(shape, PalimpsestHistory(client, policy=POLICY))
            assert shape_of(agent.model) == shape
            history: Any = None
            for question, answer in zip(ASKED, ANSWERED, strict=True):
                result = await agent.run(question, message_history=history, conversation_id=name)
                assert result.output == answer
                (found,) = (await client.list_conversations(external_id=name)).data
                await asyncio.to_thread(check, found["id"])
                if keeps:
                    # As it is stored and loaded by an application.
                    history = ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
            context = await client.context(found["id"], shape=shape)
            assert context.version > 0
            assert context.tokens is not None
            assert context.tokens["measured"]
            assert "truncated for context management" in json.dumps(context.messages)
            assert {each["shape"] for each in stored(found["id"])} == {shape}
            whole = json.dumps([each.get("original", each["content"]) for each in stored(found["id"])])
            assert [whole.count(f'"{question}"') for question in ASKED] == [1, 1, 1, 1]
            assert [whole.count(f'"{answer}"') for answer in ANSWERED] == [1, 1, 1, 1]
            assert whole.count("Row k0") == 4
            assert "Be brief." not in whole
            mark = {"messages": "signature", "chat": "reasoning_content", "responses": "encrypted_content"}
            assert mark[shape] in whole
            if keeps:
                assert str(result.all_messages()).count("lorem ipsum") > json.dumps(context.messages).count(
                    "lorem ipsum"
                )

    asyncio.run(talk())


def test_a_run_that_is_streamed(name: str) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client:
            agent = agent_of("responses", PalimpsestHistory(client))
            async with agent.run_stream(ASKED[0], conversation_id=name) as streamed:
                assert await streamed.get_output() == ANSWERED[0]
            result = await agent.run(ASKED[2], message_history=streamed.all_messages(), conversation_id=name)
            assert result.output == ANSWERED[2]
            (found,) = (await client.list_conversations(external_id=name)).data
            whole = json.dumps([each["original"] for each in stored(found["id"])])
            assert [whole.count(f'"{text}"') for text in (ASKED[0], ANSWERED[0], ASKED[2], ANSWERED[2])] == [1, 1, 1, 1]

    asyncio.run(talk())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tool_that_raised(name: str, shape: Shape) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client:
            agent = Agent(model_of(shape), capabilities=[PalimpsestHistory(client)])

            @agent.tool_plain
            def look_up(key: str) -> str:
                raise ZeroDivisionError(key)

            with pytest.raises(ZeroDivisionError):
                await agent.run(ASKED[1], conversation_id=name)
            assert (await agent.run(ASKED[3], conversation_id=name)).output == ANSWERED[3]
            (found,) = (await client.list_conversations(external_id=name)).data
            assert json.dumps(stored(found["id"])).count("No result was recorded") >= 2
            assert (await client.context(found["id"])).warnings == []

    asyncio.run(talk())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_prompt_that_is_too_long_is_sent_again_with_less(name: str, shape: Shape) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client:
            made = await client.create_conversation(external_id=name)
            long = [{"role": "user", "content": "Long. " * 4_000}, {"role": "assistant", "content": "Yes."}]
            await client.append(made["id"], long * 4)
            agent = agent_of(shape, PalimpsestHistory(client))
            assert (await agent.run(ASKED[2], conversation_id=name)).output == ANSWERED[2]
            assert (await client.context(made["id"])).version > 0

    asyncio.run(talk())


def test_a_history_processor(name: str) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client:
            history = PalimpsestHistory(client, policy=POLICY)
            agent = agent_of("responses", ProcessHistory(history.process))
            known: Any = None
            for question, answer in zip(ASKED, ANSWERED, strict=True):
                result = await agent.run(question, message_history=known, conversation_id=name)
                assert result.output == answer
                known = result.all_messages()
                (found,) = (await client.list_conversations(external_id=name)).data
                await asyncio.to_thread(check, found["id"])
            assert (await client.context(found["id"])).version > 0
            whole = json.dumps([each["original"] for each in stored(found["id"])])
            assert [whole.count(f'"{question}"') for question in ASKED] == [1, 1, 1, 1]
            assert [whole.count(f'"{answer}"') for answer in ANSWERED[:3]] == [1, 1, 1]

    asyncio.run(talk())


def test_the_service_is_away(name: str) -> None:
    async def talk() -> None:
        async with AsyncClient("http://127.0.0.1:9", KEY) as away:
            agent = agent_of("responses", PalimpsestHistory(away, conversation=lambda _: "conv_of_this_run"))
            result = await agent.run(ASKED[0], conversation_id=name)
            assert result.output == ANSWERED[0]
            turns = away.outbox.waiting("conv_of_this_run")
            assert sum(len(turn.body["messages"]) for turn in turns) == len(to_sent(result.all_messages(), "responses"))
            agent = agent_of("chat", PalimpsestHistory(away))
            assert (await agent.run(ASKED[0], conversation_id=name)).output == ANSWERED[0]

    asyncio.run(talk())


def test_the_service_is_away_for_so_long_that_no_turn_can_wait_any_more(name: str) -> None:
    async def talk() -> None:
        full = Outbox(limit=0)
        async with AsyncClient("http://127.0.0.1:9", KEY, outbox=full) as away, AsyncClient(URL, KEY) as client:
            agent = agent_of("chat", PalimpsestHistory(away, conversation=lambda _: "conv_of_this_run"))
            result = await agent.run(ASKED[0], conversation_id=name)
            assert result.output == ANSWERED[0]
            agent = agent_of("chat", PalimpsestHistory(client))
            await agent.run(ASKED[3], message_history=result.all_messages(), conversation_id=name)
            (found,) = (await client.list_conversations(external_id=name)).data
            whole = json.dumps([each["original"] for each in stored(found["id"])])
            assert [whole.count(f'"{text}"') for text in (ASKED[0], ANSWERED[0], ASKED[3])] == [1, 1, 1]

    asyncio.run(talk())


@pytest.mark.parametrize("shape", SHAPES)
def test_texts_that_cannot_be_stored_as_they_are(name: str, shape: Shape) -> None:
    async def talk() -> None:
        async with AsyncClient(URL, KEY) as client:
            agent = Agent(model_of(shape), capabilities=[PalimpsestHistory(client)])

            @agent.tool_plain
            def look_up(key: str) -> str:
                return f"\x00Row {key}"

            assert (await agent.run(ASKED[2], conversation_id=name)).output == ANSWERED[2]
            (found,) = (await client.list_conversations(external_id=name)).data
            assert json.dumps(stored(found["id"]), ensure_ascii=False).count("\ufffdRow k0") >= 1

    asyncio.run(talk())


PICTURE: Final = base64.b64decode("iVBORw0KGgo=")
TALK: Final[dict[Shape, list[Any]]] = {
    shape: [
        ModelRequest(
            parts=[
                UserPromptPart(
                    [
                        "Look.",
                        BinaryContent(PICTURE, media_type="image/png"),
                        ImageUrl("https://example.com/a.png"),
                        BinaryContent(b"%PDF-", media_type="application/pdf"),
                        *([] if shape == "chat" else [DocumentUrl("https://example.com/a.pdf")]),
                    ]
                )
            ]
        ),
        ModelResponse(
            parts=[
                ThinkingPart("Hm.", **thought, provider_name="p"),
                TextPart("One moment."),
                ToolCallPart("look_up", {"key": "a"}, "c1"),
                ToolCallPart("look_up", {}, "c2"),
            ]
        ),
        ModelRequest(
            parts=[ToolReturnPart("look_up", "A", "c1"), ToolReturnPart("look_up", "B", "c2"), UserPromptPart("And?")]
        ),
        ModelResponse(parts=[TextPart("A and B.")]),
    ]
    for shape, thought in {
        "messages": {"signature": "s"},
        "chat": {"id": "reasoning_content"},
        "responses": {"id": "rs_1", "signature": "s"},
    }.items()
}


@pytest.mark.parametrize("shape", SHAPES)
def test_messages_come_back_as_they_were(shape: Shape) -> None:
    sent = to_sent(TALK[shape], shape)
    back = from_served(json.loads(json.dumps(sent)), shape, "p")
    assert to_sent(back, shape) == sent
    kinds = [[part.part_kind for part in message.parts] for message in back]
    assert kinds == [[part.part_kind for part in message.parts] for message in TALK[shape]]
    thought, *_ = back[1].parts
    assert (thought.content, thought.provider_name) == ("Hm.", "p")
