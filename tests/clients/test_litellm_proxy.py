"""LiteLLM's own proxy, with the configuration of docs/gateway.md, before a loopback model."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import make_url

from cli.local.embedded_server import free_port
from runtime import ids
from tests.conftest import make_tenant
from tests.gateway.chatter import PATHS, Chatter
from tests.gateway.conftest import room_on
from tests.gateway.test_compacting import PROBLEMS, SHORT, calls_a_tool, talk
from tests.support.eventually import eventually
from tests.support.places import ROOT
from tests.support.servers.tcp_gate import gate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runtime.settings import Settings
    from tests.gateway.conftest import Room
    from tests.support.servers.tcp_gate import Gate

VENV: Final = ROOT / "clients/.cache/litellm"
PAGE: Final = ROOT / "docs/gateway.md"
START_SECONDS: Final = 120.0
SHAPES: Final = tuple(PATHS)
MODELS: Final = {"messages": "anthropic/model-1", "chat": "openai/model-1", "responses": "openai/model-1"}


@pytest.fixture(scope="module")
def behind(module_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Room, Gate]]:
    """A room whose client is LiteLLM's: `room.gateway` is called by it alone."""
    if not (VENV / ".installed").exists():
        pytest.skip("LiteLLM's proxy is not installed; make clients does that")
    url = make_url(module_settings.database_url.get_secret_value())
    tenant = make_tenant(url.render_as_string(hide_password=False), "acme")
    with gate(url.port or 5432) as way:
        behind = SecretStr(url.set(port=way.port).render_as_string(hide_password=False))
        direct = module_settings.model_copy(update={"policy": SHORT})
        settings = direct.model_copy(update={"database_url": behind})
        with room_on(settings, tenant) as room, proxied(room, tmp_path_factory.mktemp("litellm")) as client:
            yield room._replace(settings=direct, client=client), way


@contextmanager
def proxied(room: Room, folder: Path) -> Iterator[httpx2.Client]:
    """Run LiteLLM's proxy before the room's providers, with the page's guardrail; yield a client of it."""
    text = re.search(r"```yaml\n(guardrails:\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert text is not None
    guardrail = text[1].replace("http://127.0.0.1:8081", room.gateway.url)
    bases = {"messages": room.providers.url, "chat": room.providers.openai_url, "responses": room.providers.openai_url}
    models = [
        {
            "model_name": f"{shape}-model",
            "litellm_params": {"model": MODELS[shape], "api_base": base, "api_key": "sk-x"},
        }
        for shape, base in bases.items()
    ]
    (folder / "config.yaml").write_text(f"model_list: {json.dumps(models)}\n{guardrail}")
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "PALIMPSEST_KEY": room.tenant.key,
        "LITELLM_MASTER_KEY": "sk-master",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "NO_PROXY": "127.0.0.1",
    }
    command: list[str | Path] = [
        VENV / "bin/litellm",
        "--config",
        "config.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            headers = {"authorization": "Bearer sk-master"}
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
                eventually(lambda: answers(client) or process.poll() is not None, START_SECONDS)
                assert process.poll() is None, (folder / "log").read_text()[-4_000:]
                yield client
        finally:
            process.terminate()
            process.wait(30)


def answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/health/liveliness").status_code == 200
    except httpx2.HTTPError:
        return False


class ProxiedChatter(Chatter):
    """A client of one shape whose base URL is LiteLLM's."""

    def send(self, *, stream: bool = True, rows: list[Any] | None = None) -> None:
        number = len(self.room.providers.asked)
        name = "input" if self.shape == "responses" else "messages"
        body = {"model": f"{self.shape}-model", "max_tokens": 99, name: rows or self.rows, "stream": stream}
        if self.shape == "responses":
            body["max_output_tokens"] = body.pop("max_tokens")
        look = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
        match self.shape:
            case "messages":
                body["tools"] = [{"name": "look", "input_schema": look["parameters"]}]
            case "chat":
                body["tools"] = [{"type": "function", "function": look}]
            case _:
                body["tools"] = [{"type": "function", **look}]
        answer = self.room.client.post(PATHS[self.shape], json=body, headers=self.headers)
        assert answer.status_code == 200, answer.text
        # LiteLLM lists the models when it has started.
        asked = next(each for each in self.room.providers.asked[number:] if each.method == "POST")
        says: Any = self.room.providers.model(asked)
        self.rows += self.answer(says)
        self.called = says.calls[-1][0] if says.calls else ""


def conversation(room: Room, words: str) -> str:
    """Return the conversation that begins with these words."""
    found = "select conversation_id from messages where seq = 0 and content::text like %s"
    rows = eventually(lambda: room.query(found, f"%{words}%"))
    assert len(rows) == 1, rows
    return ids.external("conv", rows[0]["conversation_id"])


@pytest.mark.parametrize("session", [None, "two words"])
def test_session_that_litellm_does_not_take(behind: tuple[Room, Gate], session: str | None) -> None:
    room, _ = behind
    room.providers.model = calls_a_tool
    chat = ProxiedChatter(room, "chat", **({"x-session-id": session} if session else {}))
    talk(chat, 1, f"no session but {session}")
    # Until there is an answer, nobody can say whose it is.
    has_answer = "select conversation_id from messages where content::text like %s"
    (row,) = eventually(lambda: room.query(has_answer, f"%no session but {session} result 0%"))
    name = ids.external("conv", row["conversation_id"])
    chat.ask("and on")
    assert "and on" in json.dumps(room.eventually_stored(name, len(chat.rows)))


@pytest.mark.parametrize("shape", SHAPES)
def test_history_is_shorter_through_litellm(behind: tuple[Room, Gate], shape: str) -> None:
    room, _ = behind
    room.providers.model = calls_a_tool
    chat = ProxiedChatter(room, shape, **{"x-session-id": f"session-of-{shape}"})
    talk(chat, 14, f"{shape} through LiteLLM")
    name = conversation(room, f"{shape} through LiteLLM 0")
    # Streams of the Messages API are not shown when they end: the answer comes with the next request.
    unseen = 1 if shape == "messages" else 0
    stored = room.eventually_stored(name, len(chat.rows) - unseen)
    assert stored[-1]["role"] == ("user" if unseen else "assistant")
    room.compact(name)
    chat.ask(f"{shape} after it")
    asked = room.providers.asked[-1]
    assert not PROBLEMS[shape](asked.rows)
    assert f"{shape} after it" in json.dumps(asked.rows[-1])
    assert len(asked.raw) < len(json.dumps(chat.rows)) / 2
    room.eventually_stored(name, len(chat.rows) - unseen)


def test_requests_go_through_while_the_database_is_away(behind: tuple[Room, Gate]) -> None:
    room, way = behind
    room.providers.model = calls_a_tool
    chat = ProxiedChatter(room, "chat", **{"x-session-id": "session-without-a-database"})
    chat.ask("before it is away")
    name = conversation(room, "before it is away")
    chat.give(chat.called, "result")
    try:
        way.shut()
        chat.send()
        assert "before it is away" in json.dumps(room.providers.asked[-1].rows[0])
    finally:
        way.open()
    room.eventually_back()
    chat.ask("after it")
    room.eventually_stored(name, len(chat.rows))


def test_requests_go_through_while_the_gateway_is_away(behind: tuple[Room, Gate]) -> None:
    room, _ = behind
    room.providers.model = calls_a_tool
    room.gateway.stop()
    chat = ProxiedChatter(room, "chat", **{"x-session-id": "session-without-a-gateway"})
    chat.ask("nobody there")
    assert "nobody there" in json.dumps(room.providers.asked[-1].rows[0])
