"""The filter function for Open WebUI, called as Open WebUI calls it, against a running API."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.places import ROOT

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

FILE: Final = ROOT / "docs/examples/open-webui/palimpsest_filter.py"
USER: Final = {"id": "u1"}


@pytest.fixture
def made(service: Service) -> Any:
    spec = importlib.util.spec_from_file_location("palimpsest_filter", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.Filter()
    key = str(service.client.headers["authorization"]).removeprefix("Bearer ")
    found.valves = found.Valves(url=service.api.url, key=key)
    return found


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


def test_palimpsest_is_away(made: Any) -> None:
    made.valves = made.Valves(url="http://127.0.0.1:9", key="k")

    async def chat() -> None:
        assert await turn(made, "away", [said(0, "a")], said(1, "b")) == ["Be brief.", "a"]

    asyncio.run(chat())
