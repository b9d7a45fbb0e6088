"""The middleware under LangChain's own integrations of three APIs: PALIMPSEST_EVERY_MODEL_URL names a model of all."""

from __future__ import annotations

import json
import os
import uuid
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from palimpsest_client import Client

from palimpsest_langchain import PalimpsestMiddleware, from_stored, to_stored
from palimpsest_langchain.messages import shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from palimpsest_client import Shape

URL, KEY, MODEL = (os.environ[f"PALIMPSEST_{name}"] for name in ("URL", "KEY", "EVERY_MODEL_URL"))
POLICY = {"input_token_budget": 1_500, "min_savings_tokens": 50, "protected_tail_messages": 2}
ASKED = {"Look it up in 3 rounds.": 3, "Again, 2 rounds at once.": 4, "Once more, 2 rounds.": 2, "And now?": 0}
OPENAI: dict[str, Any] = {"base_url": f"{MODEL}/v1", "api_key": "any", "max_retries": 0}
MODELS: dict[Shape, Any] = {
    "messages": ChatAnthropic(
        model="claude-haiku-4-5",
        base_url=MODEL,
        api_key="any",
        max_retries=0,
        max_tokens=2_000,
        thinking={"type": "enabled", "budget_tokens": 1_024},
    ),
    "chat": ChatOpenAI(model="gpt-5.6", use_responses_api=False, **OPENAI),
    "responses": ChatOpenAI(
        model="gpt-5.6", use_responses_api=True, store=False, include=["reasoning.encrypted_content"], **OPENAI
    ),
}


@tool
def look_up(key: str) -> str:
    """Look a row up."""
    return f"Row {key}: " + "lorem ipsum dolor sit amet " * 60


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(URL, KEY) as made:
        yield made


@pytest.mark.parametrize("shape", MODELS)
@pytest.mark.parametrize("checkpointed", [True, False])
def test_an_agent_whose_history_is_compacted(client: Client, shape: Shape, checkpointed: bool) -> None:
    assert shape_of(MODELS[shape]) == shape
    identifier = client.create_conversation(policy=POLICY)["id"]
    agent = create_agent(
        MODELS[shape],
        [look_up],
        system_prompt="Be brief.",
        middleware=[PalimpsestMiddleware(client, conversation=lambda _: identifier)],
        checkpointer=InMemorySaver() if checkpointed else None,
    )
    thread: Any = {"configurable": {"thread_id": uuid.uuid4().hex}}
    for question, results in ASKED.items():
        state = agent.invoke({"messages": [HumanMessage(question)]}, thread)
        assert state["messages"][-1].text == f"Done after {results}."
        httpx2.post(f"{MODEL}/check", json={"conversation": identifier}, timeout=60).raise_for_status()
    context = client.context(identifier, shape=shape)
    assert context.version > 0
    assert context.tokens is not None
    assert context.tokens["measured"]
    assert "truncated for context management" in json.dumps(context.messages)
    stored = client.list_messages(identifier, limit=200).data
    assert {each["shape"] for each in stored} == {shape}
    whole = json.dumps([each.get("original", each["content"]) for each in stored])
    assert [whole.count(f'"{question}"') for question in ASKED] == [1, 1, 1, 1]
    assert {"messages": "signature", "chat": "tool_call_id", "responses": "encrypted_content"}[shape] in whole


def test_the_model_changes_in_the_middle(client: Client) -> None:
    identifier = client.create_conversation(policy=POLICY)["id"]
    for model in [*MODELS.values(), *reversed(MODELS.values())]:
        agent = create_agent(
            model, [look_up], middleware=[PalimpsestMiddleware(client, conversation=lambda _: identifier)]
        )
        state = agent.invoke({"messages": [HumanMessage("Look it up in 2 rounds.")]})
        assert state["messages"][-1].text == "Done after 2."
        httpx2.post(f"{MODEL}/check", json={"conversation": identifier}, timeout=60).raise_for_status()


@pytest.mark.parametrize("shape", MODELS)
def test_a_loop_that_is_too_long_again_goes_on_without_its_thinking(client: Client, shape: Shape) -> None:
    identifier = client.create_conversation()["id"]
    long = [{"role": "user", "content": "Long. " * 4_000}, {"role": "assistant", "content": "Yes."}]
    client.append(identifier, long * 4)
    middleware = PalimpsestMiddleware(client, conversation=lambda _: identifier)
    agent = create_agent(MODELS[shape], [look_up], middleware=[middleware])
    state = agent.invoke({"messages": [HumanMessage("Look it up in 3 rounds.")]})
    assert state["messages"][-1].text == "Done after 3."
    assert client.context(identifier).version > 1


CALL = {"id": "c1", "name": "look_up", "args": {"key": "a"}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
ASKING = [SystemMessage("Be brief."), HumanMessage([{"type": "text", "text": "Look."}, PICTURE])]
RESULT = ToolMessage("A", tool_call_id="c1", name="look_up")


def test_messages_of_chat_come_back_as_they_were() -> None:
    called = AIMessage("", tool_calls=[CALL], additional_kwargs={"reasoning_content": "Hm."})
    messages = [*ASKING, called, RESULT, AIMessage("A it is."), AIMessage("")]
    stored = to_stored(messages, "chat")
    assert [each["role"] for each in stored] == ["user", "assistant", "tool", "assistant"]
    assert stored[1]["reasoning_content"] == "Hm."
    assert to_stored(from_stored(stored, "chat"), "chat") == stored


def test_items_come_back_as_they_were() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    searched = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "a"},
    }
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look_up", "arguments": '{"key": "a"}'}
    cited = {"type": "file_citation", "file_id": "f", "filename": "a.md", "file_index": 3}
    said = {"type": "text", "text": "A it is.", "annotations": [cited], "id": "msg_1"}
    messages = [
        *ASKING,
        AIMessage([{**thought, "index": 0}, searched, call], tool_calls=[CALL]),
        RESULT,
        AIMessage([said, {**said, "text": "Yes."}]),
        HumanMessage("And?"),
        AIMessage("Plain.", tool_calls=[CALL]),
    ]
    stored = to_stored(messages, "responses")
    assert [each.get("type") for each in stored] == [
        None, "reasoning", "web_search_call", "function_call", "function_call_output", "message", None, None,
        "function_call",
    ]  # fmt: skip
    assert stored[1] == thought
    assert [part["text"] for part in stored[5]["content"]] == ["A it is.", "Yes."]
    assert stored[5]["content"][0]["annotations"] == [
        {**{k: v for k, v in cited.items() if k != "file_index"}, "index": 3}
    ]
    back = from_stored(stored, "responses")
    again = to_stored(back, "responses")
    assert again[:7] == stored[:7]
    assert next(message for message in back if isinstance(message, AIMessage)).tool_calls[0]["args"] == {"key": "a"}
