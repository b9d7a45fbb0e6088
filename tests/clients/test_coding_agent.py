"""A coding agent as it is published recalls by MCP; its model is on the loopback interface, all else is its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from api.routes.mcp import CONVERSATION
from tests.clients.recalling_model import CODE
from tests.support.places import ROOT
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.loopback_http import Answering
    from tests.support.service.running_api import Service

FOLDER: Final = ROOT / "clients/agent/node_modules"
SECONDS: Final = 120
TOOL: Final = "mcp__palimpsest__recall"


def _answer(answering: Answering) -> None:
    body = answering.received.body
    seen = CODE.findall(json.dumps(body["messages"]))
    if seen:
        ok(f"It opens with {seen[0]}.")(answering)
    elif any(tool["name"] == TOOL for tool in body.get("tools", ())):
        call = {"type": "tool_use", "id": "toolu_1", "name": TOOL, "input": {"query": "garage"}}
        ok("", stop_reason="tool_use", content=[call])(answering)
    else:
        ok("I do not remember.")(answering)


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_a_coding_agent_recalls(service: Service, tmp_path: Path, way: str) -> None:
    if shutil.which("node") is None or not (FOLDER / ".installed").exists():
        pytest.skip("the coding agent is not installed; make clients does that")
    path = service.conversation()
    noted = {"role": "assistant", "content": "Noted."}
    service.append(path, {"role": "user", "content": "The garage opens with 4711-B."}, noted)
    conversation = path.rpartition("/")[2]
    key = service.client.headers["authorization"]
    servers: dict[str, Any] = {
        "http": {
            "type": "http",
            "url": f"{service.api.url}/mcp",
            "headers": {"Authorization": key, CONVERSATION: conversation},
        },
        "stdio": {
            "command": sys.executable,
            "args": ["-m", "cli.main", "mcp", conversation],
            "env": {"PALIMPSEST_URL": service.api.url, "PALIMPSEST_KEY": key.removeprefix("Bearer ")}
            | {"PYTHONPATH": str(ROOT)},
        },
    }
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"palimpsest": servers[way]}}))
    with LoopbackModel(default=_answer, context_tokens=None, validate=False) as model:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "any",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # Else its first request does not wait for a server that is a process, which takes a second to start.
            "MCP_CONNECTION_NONBLOCKING": "0",
        }
        asked = ["-p", "How does the garage open?", "--model", "claude-haiku-4-5", "--allowedTools", TOOL]
        given = ["--mcp-config", str(config), "--strict-mcp-config"]
        done = subprocess.run(
            ["node", FOLDER / "@anthropic-ai/claude-code/cli-wrapper.cjs", *asked, *given],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    assert done.stdout.strip() == "It opens with 4711-B.", done.stdout + done.stderr
    (recalled,) = service.client.get(f"{path}/recalls").json()["data"]
    assert (recalled["asked"], [each["ref"] for each in recalled["refs"]]) == ("garage", ["m0-m1"])
