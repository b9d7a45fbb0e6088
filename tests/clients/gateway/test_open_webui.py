"""Open WebUI as PyPI gives it, through the gateway: a chat with tools as its page has it, by its own server's calls.

It is 7 GB with what it needs, so `make clients` does not install it: PALIMPSEST_OPEN_WEBUI names its command.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import httpx2
import pytest

from cli.local.embedded import free_port
from tests.clients.gateway.talking import talk
from tests.clients.gateway.test_programs import ASKED, ROW, looks_up
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from runtime.settings import Settings
    from tests.clients.gateway.talking import Measured, Talk

CLIENT: Final = "Open WebUI"
COMMAND: Final = os.environ.get("PALIMPSEST_OPEN_WEBUI")
STARTS_WITHIN: Final = 500.0
"""Seconds: it loads half a machine-learning library."""
ANSWERS_WITHIN: Final = 90.0
MODEL: Final = "gpt-5.6"
POLICY: Final = {
    "input_token_budget": 7_500,
    "compaction_threshold_tokens": 30_000,
    "min_savings_tokens": 100,
    "protected_tail_messages": 2,
}
"""Cuts results beside the six thousand tokens of its own tools, which it declares in every call."""
TOOL: Final = '''
class Tools:
    def look_up(self, key: str) -> str:
        """
        Look up a row.
        :param key: which one
        """
        return f"Row {key}: " + "lorem ipsum dolor sit amet, " * 60
'''
BESIDE: Final = ("title_generation", "tags_generation", "follow_up_generation")


class OpenWebui:
    """Its server, as its page calls it."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client
        self.chat = ""
        self._last: str | None = None

    def sign_in(self) -> None:
        """Sign in, and make the tool."""
        token = self.post("/api/v1/auths/signin", {"email": "", "password": ""})["token"]
        self._client.headers["authorization"] = f"Bearer {token}"
        about = {"name": "Rows", "meta": {"description": "Rows"}}
        self.post("/api/v1/tools/create", {"id": "rows", "content": TOOL, **about})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ask(self, text: str) -> str:
        """Ask something in the chat; return what it shows in the end."""
        question, shown = str(uuid4()), str(uuid4())
        said = {"id": question, "parentId": self._last, "childrenIds": [shown], "role": "user", "content": text}
        body: dict[str, Any] = {
            "model": MODEL,
            "stream": True,
            "parent_id": self._last,
            "id": shown,
            "user_message": {**said, "timestamp": 1, "models": [MODEL]},
            "messages": [],
            "tool_ids": ["rows"],
            "params": {"function_calling": "native"},
            "session_id": str(uuid4()),
            "background_tasks": dict.fromkeys(BESIDE, True),
        }
        if self.chat:
            body["chat_id"] = self.chat
        self.chat = self.post("/api/chat/completions", body)["chat_id"]
        self._last = shown

        def done() -> str | None:
            chat = self._client.get(f"/api/v1/chats/{self.chat}").json()["chat"]
            message = chat["history"]["messages"].get(shown, {})
            return str(message["content"]) if message.get("done") else None

        return str(eventually(done, ANSWERS_WITHIN))


@contextmanager
def served(talked: Talk, folder: Path) -> Iterator[OpenWebui]:
    """Run it before the gateway, with a folder of its own and nothing of the network."""
    port = free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "DATA_DIR": str(folder),
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "of this test",
        "OFFLINE_MODE": "True",
        "HF_HUB_OFFLINE": "1",
        "ENABLE_OLLAMA_API": "False",
        "ENABLE_FORWARD_USER_INFO_HEADERS": "True",
        "OPENAI_API_BASE_URLS": f"{talked.recorder.url}/v1",
        "OPENAI_API_KEYS": talked.key,
    }
    with (folder / "log").open("wb") as log:
        command = [str(COMMAND), "serve", "--host", "127.0.0.1", "--port", str(port)]
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as running:
            try:
                with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

                    def is_up() -> bool:
                        assert running.poll() is None, (folder / "log").read_text()[-2_000:]
                        try:
                            return client.get("/health").status_code == 200
                        except httpx2.HTTPError:
                            return False

                    eventually(is_up, STARTS_WITHIN)
                    webui = OpenWebui(client)
                    webui.sign_in()
                    yield webui
            finally:
                running.terminate()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(COMMAND is None, reason="PALIMPSEST_OPEN_WEBUI does not name its command")
def test_open_webui_talks_through_the_gateway(
    module_settings: Settings, tmp_path: Path, note: Callable[[Measured], None]
) -> None:
    with talk(module_settings, CLIENT, looks_up, policy=POLICY) as talked, served(talked, tmp_path) as webui:
        for question, rows in ASKED.items():
            shown = webui.ask(question)
            assert re.sub(r"<details.*?</details>", "", shown, flags=re.DOTALL).strip().endswith(f"Done after {rows}.")
        talked.check()
        main = talked.main()
        note(talked.measured(CLIENT))
        own = [each for each in talked.pairs() if each[0].conversation == main]
        assert own[-1][0].outcome == "compacted"
        said = json.dumps([each["content"] for each in talked.stored(main)])
        assert len(ROW.findall(said)) == sum(ASKED.values())
        (about,) = talked.query(
            "select metadata -> 'gateway' as gateway from conversations where metadata #>> '{gateway,session}' = %s"
            " order by id limit 1",
            webui.chat,
        )
        assert about["gateway"]["client"] == "open-webui"
        # What it asks beside the chat, for a title and the like, has none of it and is in none of it.
        beside = [sent for sent, _ in talked.pairs() if sent.conversation != main]
        assert beside
        assert "### Task:" not in json.dumps([received.body for _, received in own])
