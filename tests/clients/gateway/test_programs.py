"""Programs on published packages, through the gateway by base URL alone: questions with tools, over the threshold."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.clients.gateway.talking import talk
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.settings import Settings
    from tests.clients.gateway.talking import Measured

CLIENTS: Final = ROOT / "clients"
FOLDER: Final = CLIENTS / "gateway"
SECONDS: Final = 150
ASKED: Final = {
    "Look it up in 3 rounds.": 3,
    "Again, 2 rounds at once.": 4,
    "Once more, 3 rounds.": 3,
    "Then 2 rounds.": 2,
    "And now?": 0,
}
"""Questions, and how many rows the model has looked up for each."""
ROW: Final = re.compile(r"Row k\d+:")
PROGRAMS: Final[dict[str, tuple[str, str]]] = {
    "anthropic (Python)": ("python", "with_anthropic.py"),
    "openai chat (Python)": ("python", "with_openai.py chat"),
    "openai responses (Python)": ("python", "with_openai.py responses"),
    "anthropic (TypeScript)": ("node", "with_sdks.mjs messages"),
    "openai chat (TypeScript)": ("node", "with_sdks.mjs chat"),
    "openai responses (TypeScript)": ("node", "with_sdks.mjs responses"),
    "AI SDK, @ai-sdk/anthropic": ("node", "with_ai_sdk.mjs messages"),
    "AI SDK, @ai-sdk/openai chat": ("node", "with_ai_sdk.mjs chat"),
    "AI SDK, @ai-sdk/openai responses": ("node", "with_ai_sdk.mjs responses"),
    "OpenAI Agents SDK chat": ("python", "with_openai_agents.py chat"),
    "OpenAI Agents SDK responses": ("python", "with_openai_agents.py responses"),
    "Pydantic AI messages": ("python", "with_pydantic_ai.py messages"),
    "Pydantic AI chat": ("python", "with_pydantic_ai.py chat"),
    "Pydantic AI responses": ("python", "with_pydantic_ai.py responses"),
    "LangChain messages": ("langchain", "with_langchain.py messages"),
    "LangChain chat": ("langchain", "with_langchain.py chat"),
    "LangChain responses": ("langchain", "with_langchain.py responses"),
    "Strands messages": ("gateway", "with_strands.py messages"),
    "Strands chat": ("gateway", "with_strands.py chat"),
    "LiteLLM SDK to Anthropic": ("python", "with_litellm.py messages"),
    "LiteLLM SDK to OpenAI": ("python", "with_litellm.py chat"),
}


def command(kind: str, arguments: str) -> list[str]:
    """Return what runs a program; the test is skipped where that is not installed."""
    script, *others = arguments.split()
    if kind == "node":
        if shutil.which("node") is None or not (FOLDER / "node_modules/.installed").exists():
            pytest.skip("its packages are not installed from npm; make clients does that")
        return ["node", str(FOLDER / script), *others]
    venv = CLIENTS / ".cache" / kind
    if not (venv / ".installed").exists():
        pytest.skip("its packages are not installed; make clients does that")
    return [str(venv / "bin/python"), str(FOLDER / script), *others]


def looks_up(names: list[str], number: int) -> tuple[str, dict[str, Any]] | None:
    return ("look_up", {"key": f"k{number}"}) if "look_up" in names else None


@pytest.mark.slow
@pytest.mark.parametrize("client", PROGRAMS)
def test_a_program_talks_through_the_gateway(
    module_settings: Settings, client: str, note: Callable[[Measured], None]
) -> None:
    arguments = command(*PROGRAMS[client])
    with talk(module_settings, client, looks_up) as talked:
        environment = {
            **os.environ,
            "GATEWAY_URL": talked.recorder.url,
            "GATEWAY_QUESTIONS": json.dumps(list(ASKED)),
            "PALIMPSEST_KEY": talked.key,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        done = subprocess.run(
            arguments, cwd=FOLDER, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        assert [each.problems for each in talked.model.requests if each.problems] == []
        assert done.returncode == 0, done.stdout + done.stderr
        answers = json.loads(done.stdout.splitlines()[-1])
        assert answers == [f"Done after {rows}." for rows in ASKED.values()]
        talked.check()
        (conversation,) = talked.conversations()
        assert talked.branches() == {}
        note(talked.measured(client))
        outcomes = [each.outcome for each in talked.recorder.asked]
        assert outcomes[-1] == "compacted"
        said = json.dumps([each["content"] for each in talked.stored(conversation)])
        last, received = talked.pairs()[-1]
        looked_up = ROW.findall(json.dumps(last.body))
        # Those of answers that the client did not take and asked for again are none of the conversation's.
        assert len(looked_up) == sum(ASKED.values())
        assert ROW.findall(said) == looked_up
        assert len(json.dumps(received.body)) < len(json.dumps(last.body)) / 2
