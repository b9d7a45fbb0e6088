"""A model calls the tool of its own accord: through the Python client and through MCP, in each of its ways."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import anthropic
import pytest
from palimpsest_client import Client

from tests.clients.recalling_model import check_recalled, recalling_model
from tests.support.mcp_clients import WAYS, Way, called, mcp_client
from tests.support.service.in_process import SMALL
from tests.support.service.in_process_worker import work
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.service.running_api import Service

    Json = dict[str, Any]
    Answer = Callable[[Json], Awaitable[Json]]


async def ask(url: str, messages: list[Json], tool: Any, answer: Answer) -> str:
    """Do what an agent does: have the model's calls answered until it replies."""
    messages = [*messages, {"role": "user", "content": "How does the garage open?"}]
    async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
        while True:
            reply = await client.messages.create(
                model="claude-haiku-4-5",
                max_tokens=200,
                tools=[tool],
                messages=messages,  # type: ignore[arg-type] # as they were served
            )
            content = [block.model_dump(exclude_none=True) for block in reply.content]
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return str(content[0]["text"])
            results = [await answer(call) for call in calls]
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]


async def by_client(service: Service, path: str, messages: list[Json], url: str) -> str:
    key = service.client.headers["authorization"].removeprefix("Bearer ")
    with Client(service.api.url, key) as client:

        async def answer(call: Json) -> Json:
            return client.answer_recall(path.rpartition("/")[2], call)

        return await ask(url, messages, client.recall_tool(), answer)


async def by_mcp(service: Service, path: str, messages: list[Json], url: str, way: Way) -> str:
    async with mcp_client(service, way, path) as client:
        first = (await client.list_tools()).tools[0]
        tool = {"name": first.name, "description": first.description, "input_schema": first.input_schema}

        async def answer(call: Json) -> Json:
            text, is_error = await called(client, call["name"], **call["input"])
            return {"type": "tool_result", "tool_use_id": call["id"], "content": text, "is_error": is_error}

        return await ask(url, messages, tool, answer)


@pytest.mark.parametrize("way", ["client", *WAYS])
def test_a_model_recalls_what_left_its_context(service: Service, way: Literal["client"] | Way) -> None:
    path = service.conversation(policy=SMALL | {"compaction_enabled": False, "max_conversation_messages": 10})
    noted = {"role": "assistant", "content": "Noted."}
    service.append(path, {"role": "user", "content": "The garage opens with 4711-B."}, noted, *exchanges(30, 100))
    work(service.settings, path)
    messages = service.client.get(f"{path}/context").json()["messages"]
    with recalling_model() as model:
        asked = (service, path, messages, model.url)
        replied = asyncio.run(by_client(*asked) if way == "client" else by_mcp(*asked, way))
        assert replied == "It opens with 4711-B."
        check_recalled(model, service.client.get("/v1/recall-tool").json())
