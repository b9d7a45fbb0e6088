"""The LangChain middleware: its own tests, in a venv that has LangChain, against a running API."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from tests.clients.every_api_model import EveryApiModel
from tests.clients.recalling_model import check_recalled, recalling_model
from tests.support.places import ROOT
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.service.running_api import Service

CLIENTS: Final = ROOT / "clients"
VENV: Final = CLIENTS / ".cache/langchain"


def test_the_adapter_passes_its_own_tests(service: Service) -> None:
    if not (VENV / ".installed").exists():
        pytest.skip("LangChain is not installed; make clients does that")
    command: list[str | Path] = [VENV / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    with recalling_model() as model, EveryApiModel(partial(work, service.settings)) as every:
        environment = {
            **os.environ,
            "PALIMPSEST_URL": service.api.url,
            "PALIMPSEST_KEY": str(service.client.headers["authorization"]).removeprefix("Bearer "),
            "PALIMPSEST_MODEL_URL": model.url,
            "PALIMPSEST_EVERY_MODEL_URL": every.url,
            "PYTHONPATH": os.pathsep.join([str(CLIENTS / "python"), str(CLIENTS / "langchain")]),
        }
        cwd = CLIENTS / "langchain"
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=150
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert {each.shape for each in every.requests} == {"messages", "chat", "responses"}
        assert [each.problems for each in every.requests if each.problems] == []
        check_recalled(model, service.client.get("/v1/recall-tool").json())
