"""The TypeScript client: its types are the OpenAPI document's, and its own tests pass against a running API."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest
from palimpsest_client import refusals

from tests.clients.every_api_model import PATHS, EveryApiModel
from tests.clients.recalling_model import check_recalled, recalling_model
from tests.support.places import ROOT
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.service.running_api import Service

CLIENTS: Final = ROOT / "clients"
SCRIPT_SECONDS: Final = 80


def test_the_types_are_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(CLIENTS / "typescript/generate_schema.py"), run_name="__main__")
    kept = (CLIENTS / "typescript/src/schema.ts").read_text()
    assert capsys.readouterr().out == kept, (
        "the API has changed: make clients writes clients/typescript/src/schema.ts anew"
    )


def test_both_clients_know_the_same_refusals() -> None:
    # The Python one is tried on every refusal that was seen.
    source = (CLIENTS / "typescript/src/refusals.ts").read_text()
    (listed,) = re.findall(r"const TOO_LONG = \[\n(.*?)\n\];", source, re.DOTALL)
    assert json.loads(f"[{listed.rstrip().removesuffix(',')}]") == list(refusals.TOO_LONG)


def npm(package: str, service: Service, *scripts: str, **variables: str) -> str:
    """Run scripts of a package, its tests against the API; return what the last one printed."""
    missing = None
    if shutil.which("npm") is None:
        missing = "there is no Node here"
    elif not (CLIENTS / package / "node_modules/.installed").exists():
        missing = "its packages are not installed; make clients does that"
    if missing:
        pytest.skip(f"{package} is not tested: {missing}")
    key = str(service.client.headers["authorization"]).removeprefix("Bearer ")
    printed = ""
    for script in scripts:
        done = subprocess.run(
            ["npm", "run", "--silent", script],
            cwd=CLIENTS / package,
            env={**os.environ, "PALIMPSEST_URL": service.api.url, "PALIMPSEST_KEY": key, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=SCRIPT_SECONDS,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == 0, printed
    return printed


@pytest.fixture(scope="module")
def built(service: Service) -> None:
    """The client is compiled, which its own tests and the adapter's need: it takes longer than either."""
    npm("typescript", service, "build")


@pytest.fixture
def every_api(service: Service) -> Iterator[EveryApiModel]:
    """A model that speaks every API; posted to `/check`, a conversation has done for it what is due."""
    with EveryApiModel(lambda conversation: work(service.settings, f"/v1/conversations/{conversation}")) as model:
        yield model


def check_asked(model: EveryApiModel) -> None:
    """Assert that a model was asked by every API, for nothing that its API refuses."""
    assert {each.shape for each in model.requests} == set(PATHS.values())
    assert [each.problems for each in model.requests if each.problems] == []


@pytest.mark.usefixtures("built")
def test_the_client_passes_its_own_tests(service: Service, every_api: EveryApiModel) -> None:
    with recalling_model() as model:
        urls = {"PALIMPSEST_MODEL_URL": model.url, "PALIMPSEST_EVERY_API_URL": every_api.url}
        assert "everything else" in npm("typescript", service, "test", **urls)
        check_recalled(model, service.client.get("/v1/recall-tool").json())
    check_asked(every_api)


@pytest.mark.usefixtures("built")
def test_the_adapter_of_the_ai_sdk_passes_its_own_tests(service: Service, every_api: EveryApiModel) -> None:
    with recalling_model() as model:
        urls = {"PALIMPSEST_MODEL_URL": model.url, "PALIMPSEST_EVERY_API_URL": every_api.url}
        assert "a stream" in npm("ai-sdk", service, "build", "test", **urls)
        check_recalled(model, service.client.get("/v1/recall-tool").json())
    check_asked(every_api)


@pytest.mark.usefixtures("built")
def test_the_tarball_is_whole_and_loads_as_either_kind_of_module(tmp_path: Path) -> None:
    packed = ["npm", "pack", "--silent", "--pack-destination", str(tmp_path)]
    subprocess.run(packed, cwd=CLIENTS / "typescript", check=True, capture_output=True)
    (tarball,) = tmp_path.glob("*.tgz")
    project = tmp_path / "project"
    project.mkdir()
    (project / "package.json").write_text("{}")
    # It needs no other package, so that no registry is asked.
    install = ["npm", "install", "--offline", "--no-audit", "--no-fund", str(tarball)]
    done = subprocess.run(install, cwd=project, check=True, capture_output=True, text=True)
    assert "EBADENGINE" not in done.stderr
    tarball.unlink()
    for name, source in (
        ("a.cjs", 'console.log(typeof require("palimpsest-context-client").Client)'),
        ("a.mjs", 'import { Client } from "palimpsest-context-client"; console.log(typeof Client)'),
    ):
        (project / name).write_text(source)
        ran = subprocess.run(["node", name], cwd=project, check=True, capture_output=True, text=True)
        assert ran.stdout == "function\n"
