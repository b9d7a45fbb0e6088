"""The example chat, started as its README says: a conversation over HTTP that is compacted meanwhile."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest

from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.servers.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.service.running_api import Service

EXAMPLE: Final = ROOT / "docs/examples/chat"


@pytest.fixture
def proxy(service: Service) -> Iterator[FaultyProxy]:
    with faulty_proxy(service.api.url) as made:
        yield made


@pytest.fixture
def chat(service: Service, proxy: FaultyProxy) -> Iterator[httpx2.Client]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTHROPIC")} | {
        "PALIMPSEST_URL": proxy.url,
        "PALIMPSEST_KEY": str(service.client.headers["authorization"]).removeprefix("Bearer "),
        "PYTHONPATH": str(ROOT / "clients/python"),
    }
    command = [sys.executable, str(EXAMPLE / "app.py"), "--port", str(port)]
    process = subprocess.Popen(command, env=environment)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            eventually(lambda: process.poll() is not None or answers(client))
            assert process.poll() is None
            yield client
    finally:
        process.terminate()
        assert process.wait(20) in {0, -15}


def answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/").status_code == 200
    except httpx2.TransportError:
        return False


def say(chat: httpx2.Client, conversation: str, text: str) -> tuple[str, dict[str, Any]]:
    """Return the reply, and the last that was told of everything else."""
    reply = ""
    by_name: dict[str, Any] = {}
    with chat.stream("POST", f"/chats/{conversation}", json={"text": text}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line:
                event = json.loads(line.removeprefix("data: "))
                reply += event.pop("text", "")
                by_name |= event
    return reply, by_name


def test_a_conversation_that_is_compacted_meanwhile(chat: httpx2.Client, proxy: FaultyProxy, service: Service) -> None:
    page = chat.get("/").text
    assert 'fetch("/chats"' in page
    conversation = chat.post("/chats").json()["id"]
    reply, told = say(chat, conversation, "Hello!")
    assert 'you said "Hello!"' in reply
    assert told["snapshot"] == 0
    for name in ("checkout", "basket", "search"):
        reply, told = say(chat, conversation, f"Read the log of {name}")
        assert "The log has 60 lines, 5 of them warnings." in reply
        work(service.settings, f"/v1/conversations/{conversation}")
    reply, told = say(chat, conversation, "Thank you.")
    assert told["snapshot"] > 0
    assert not told["fallback"]
    path = f"/v1/conversations/{conversation}"
    assert service.client.get(path).json()["last_seq"] == 15
    runs = service.client.get(f"{path}/runs").json()["data"]
    assert "committed" in {run["state"] for run in runs}

    # Palimpsest away: the chat goes on, and nothing is lost.
    proxy.always = "drop"
    reply, told = say(chat, conversation, "Still there?")
    assert 'you said "Still there?"' in reply
    assert (told["fallback"], told["kept"]) == (True, 1)
    proxy.always = None
    eventually(lambda: say(chat, conversation, "And now?")[1]["kept"] == 0)
    texts = [each["content"] for each in service.client.get(f"{path}/messages?after=15&limit=100").json()["data"]]
    said = [text for text in texts if isinstance(text, str)]
    assert said[0] == "Still there?"
    assert set(said[1:]) == {"And now?"}


def test_the_integration_is_short() -> None:
    assert len((EXAMPLE / "app.py").read_text().splitlines()) < 100
