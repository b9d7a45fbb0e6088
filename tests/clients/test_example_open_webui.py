"""The filter function for Open WebUI, called as Open WebUI calls it, against a running API."""

from __future__ import annotations

import asyncio
import html
import importlib.util
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.places import ROOT
from tests.support.shapes import chat_api

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

FOLDER: Final = ROOT / "docs/examples/open-webui"
USER: Final = {"id": "u1"}


def loaded(service: Service, file: str, name: str) -> Any:
    """Return what a file has, its valves set."""
    spec = importlib.util.spec_from_file_location(file, FOLDER / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, name)()
    key = str(service.client.headers["authorization"]).removeprefix("Bearer ")
    found.valves = found.Valves(url=service.api.url, key=key)
    return found


@pytest.fixture
def made(service: Service) -> Any:
    return loaded(service, "palimpsest_filter", "Filter")


@pytest.fixture
def tools(service: Service) -> Any:
    return loaded(service, "palimpsest_recall", "Tools")


def said(number: int, text: str) -> dict[str, Any]:
    return {"id": f"m{number}", "role": "user" if number % 2 == 0 else "assistant", "content": text}


def stored(service: Service, chat: str) -> list[str]:
    (found,) = service.client.get(f"/v1/conversations?external_id=open-webui:{chat}").json()["data"]
    context = service.client.get(f"/v1/conversations/{found['id']}/context").json()
    return [message["content"] for message in context["messages"]]


async def turn(found: Any, chat: str, messages: list[dict[str, Any]], reply: dict[str, Any]) -> list[Any]:
    """Return what the model is sent."""
    body = {"messages": [{"role": "system", "content": "Be brief."}, *messages]}
    sent = await found.inlet(body, __user__=USER, __metadata__={"chat_id": chat})
    await found.outlet({"chat_id": chat, "messages": [*messages, reply]}, __user__=USER)
    return [message["content"] for message in sent["messages"]]


def test_what_cannot_be_stored_does_not_stop_a_chat(made: Any, service: Service) -> None:
    async def chat() -> None:
        # A chat that is older than the filter, with something in it that the service refuses.
        past = [said(0, "a"), {**said(1, "b"), "role": "tool", "tool_call_id": ""}]
        assert await turn(made, "odd", [*past, said(2, "c")], said(3, "d")) == ["Be brief.", "a", "b", "c"]
        assert await turn(made, "nul", [said(0, "a\x00b")], said(1, "half \ud83d")) == ["Be brief.", "a\x00b"]
        assert stored(service, "nul") == ["a\ufffdb", "half \ufffd"]

    asyncio.run(chat())


def test_a_chat(made: Any, service: Service) -> None:
    async def chat() -> None:
        assert await turn(made, "one", [said(0, "a")], said(1, "b")) == ["Be brief.", "a"]
        # What the chat itself has is not looked at: the context is the service's.
        sent = await turn(made, "one", [said(0, "?"), said(1, "?"), said(2, "c")], said(3, "d"))
        assert sent == ["Be brief.", "a", "b", "c"]
        assert stored(service, "one") == ["a", "b", "c", "d"]
        # The last reply is generated anew.
        past = [said(0, "a"), said(1, "b"), said(2, "c")]
        assert await turn(made, "one", past, {**said(3, "e"), "id": "m3b"}) == ["Be brief.", "a", "b", "c"]
        assert stored(service, "one") == ["a", "b", "c", "e"]

    asyncio.run(chat())


def test_a_chat_that_is_older_than_the_filter(made: Any, service: Service) -> None:
    async def chat() -> None:
        past = [said(number, str(number)) for number in range(5)]
        assert await turn(made, "old", past, said(5, "5")) == ["Be brief.", "0", "1", "2", "3", "4"]
        assert stored(service, "old") == ["0", "1", "2", "3", "4", "5"]

    asyncio.run(chat())


PNG = "data:image/png;base64,iVBORw0KGgo="
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'}
OUTPUT = [
    {"type": "reasoning", "content": [{"type": "output_text", "text": "Hm."}]},
    {"type": "message", "content": [{"type": "output_text", "text": "One moment."}]},
    CALL,
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "rain"}]},
    {"type": "message", "content": [{"type": "output_text", "text": "It rains."}]},
]


def test_calls_results_and_files_are_kept(made: Any, service: Service) -> None:
    asked = {**said(0, "Weather?"), "files": [{"type": "image", "url": PNG}, {"type": "file", "name": "a.pdf"}]}
    call = {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    answered = {"role": "tool", "tool_call_id": "c2", "content": "sun"}

    async def chat() -> list[Any]:
        first = {**said(1, '<details type="tool_calls">rain</details> It rains.'), "output": OUTPUT}
        await turn(made, "tools", [asked], first)
        past = [asked, first, said(2, "And now?"), {**said(3, ""), "tool_calls": [call]}, answered]
        await made.outlet({"chat_id": "tools", "messages": [*past, said(5, "The sun shines.")]}, __user__=USER)
        sent = await made.inlet(
            {"messages": [*past, said(5, "The sun shines."), said(6, "Thanks.")]}, __metadata__={"chat_id": "tools"}
        )
        return list(sent["messages"])

    messages = asyncio.run(chat())
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert messages[:-1] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Weather?"},
                {"type": "image_url", "image_url": {"url": PNG}},
                {"type": "text", "text": "[attached file: a.pdf]"},
            ],
        },
        {
            "role": "assistant",
            "content": "One moment.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        answered,
        {"role": "assistant", "content": "The sun shines."},
    ]
    assert chat_api.problems(messages) == []
    (found,) = service.client.get("/v1/conversations?external_id=open-webui:tools").json()["data"]
    assert found["shape"] == "chat"


def test_palimpsest_is_away(made: Any) -> None:
    made.valves = made.Valves(url="http://127.0.0.1:9", key="k")

    async def chat() -> None:
        assert await turn(made, "away", [said(0, "a")], said(1, "b")) == ["Be brief.", "a"]

    asyncio.run(chat())


def test_the_model_recalls_the_chat_that_it_is_in(made: Any, tools: Any, service: Service) -> None:
    code = "The garage opens with 4711-B."

    async def chat() -> None:
        await turn(made, "recalled", [said(0, code)], said(1, "Noted."))
        there = {"chat_id": "recalled"}
        result = await tools.recall(query="how does the garage open?", __metadata__=there)
        assert result.startswith("<recalled refs=")
        assert code in result
        assert code in await tools.recall(ref="m0", __metadata__=there)
        assert "RE2" in await tools.recall(pattern="(", __metadata__=there)
        assert code not in await tools.recall(query="garage", __metadata__={"chat_id": "another"})
        # Open WebUI puts the call with its whole result before the reply; what is stored has neither.
        called = (
            f'<details type="tool_calls" done="true" id="c" name="recall" arguments="{html.escape(json.dumps({}))}"'
            f' result="{html.escape(json.dumps(result))}">\n<summary>Tool Executed</summary>\n</details>\n'
        )
        other = called.replace('name="recall"', 'name="weather"')
        past = [said(0, code), said(1, "Noted."), said(2, "How does it open?")]
        await turn(made, "recalled", past, said(3, f"{called}{other}With 4711-B."))
        assert stored(service, "recalled")[-1] == f"{other}With 4711-B."

    asyncio.run(chat())


def test_recall_while_palimpsest_is_away(tools: Any) -> None:
    tools.valves = tools.Valves(url="http://127.0.0.1:9", key="k")
    assert asyncio.run(tools.recall(query="a")) == "Nothing can be recalled at the moment."
