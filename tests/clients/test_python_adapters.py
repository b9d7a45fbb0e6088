"""The Python client under the packages that chats are built with: its own tests, in a venv that has these."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.clients.every_api_model import EveryApiModel
from tests.support.places import ROOT
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.service.running_api import Service

CLIENTS: Final = ROOT / "clients"
VENV: Final = CLIENTS / ".cache/python"
FILES: Final = sorted(path.name for path in (CLIENTS / "python/tests").glob("test_*.py"))


class ThinkingModel(EveryApiModel):
    """One that thinks in Chat Completions too, as DeepSeek's does, and refuses what it did not think."""

    def _chat(self, body: dict[str, Any], wanted: Sequence[Any]) -> dict[str, Any]:
        whole = super()._chat(body, wanted)
        thought = f"Thought {len(self._sealed)}."
        self._sealed[thought] = thought
        whole["choices"][0]["message"]["reasoning_content"] = thought
        return whole

    def _problems_chat(self, body: dict[str, Any]) -> list[str]:
        thoughts = [each["reasoning_content"] for each in body["messages"] if each.get("reasoning_content")]
        strange = [f"{each} is none of mine" for each in thoughts if each not in self._sealed]
        return [*super()._problems_chat(body), *strange]


@pytest.mark.parametrize("file", FILES)
def test_the_client_passes_its_tests(service: Service, file: str) -> None:
    if not (VENV / ".installed").exists():
        pytest.skip("the packages of the model APIs are not installed; make clients does that")
    command: list[str | Path] = [VENV / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{file}"]
    with ThinkingModel(partial(work, service.settings)) as model:
        environment = {
            **os.environ,
            "PALIMPSEST_URL": service.api.url,
            "PALIMPSEST_KEY": str(service.client.headers["authorization"]).removeprefix("Bearer "),
            "PALIMPSEST_MODEL_URL": model.url,
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "PYTHONPATH": str(CLIENTS / "python"),
        }
        cwd = CLIENTS / "python"
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=150
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert model.requests
        assert [each.problems for each in model.requests if each.problems] == []
