"""The samples of docs/integrate.md, run as they stand there."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.places import ROOT
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import ok, prompt_too_long
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.service.running_api import Service

PAGE: Final = (ROOT / "docs/integrate.md").read_text()
ADAPTER: Final = ROOT / "clients/ai-sdk"
SDKS: Final = ROOT / "clients/typescript/node_modules"
DECLARED: Final = "\ndeclare function callClaude(messages: Message[]): Promise<{ content: string; usage: object }>;\n"


def samples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_python_samples(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    key = str(service.client.headers["authorization"]).removeprefix("Bearer ")
    names: dict[str, Any] = {"PALIMPSEST_URL": service.api.url, "PALIMPSEST_KEY": key}
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")

    async def use() -> None:
        chat = await names["begin"]("chat of mine", "user of mine")
        assert await names["reply"](chat, "Hello?", []) == "Hello!"
        await names["palimpsest"].append(chat, exchanges(10, 200))
        assert await names["reply"](chat, "Too much to read", []) == "Read."
        page = await names["palimpsest"].list_messages(chat, limit=100)
        assert [page.data[seq]["content"] for seq in (0, 22)] == ["Hello?", "Too much to read"]
        flushing = asyncio.create_task(names["flush_every"](60))
        await asyncio.sleep(0)
        flushing.cancel()
        assert len(names["durable_outbox"]({})) == 0
        await names["palimpsest"].close()

    with LoopbackModel([ok("Hello!"), prompt_too_long(), ok("Read.")]) as model:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url)
        for sample in samples("python"):
            exec(compile(sample, "docs/integrate.md", "exec"), names)  # noqa: S102 - the page's own code
        asyncio.run(use())


def test_the_typescript_samples_compile() -> None:
    if shutil.which("npm") is None or not (ADAPTER / "node_modules/.installed").exists():
        pytest.skip("the TypeScript compiler is not installed; make clients does that")
    if not (ROOT / "clients/typescript/dist/src/index.d.ts").exists():
        subprocess.run(["npm", "run", "--silent", "build"], cwd=ROOT / "clients/typescript", check=True)
    # The client is a package of the adapter, and OpenAI's SDK one of the client.
    sdk = ADAPTER / "dist/node_modules/openai"
    sdk.parent.mkdir(parents=True, exist_ok=True)
    if not sdk.exists():
        sdk.symlink_to(SDKS / "openai")
    file = ADAPTER / "dist/integrate.ts"
    # The second goes on from the first.
    file.write_text("\n".join(samples("typescript")) + DECLARED)
    options = (
        "--noEmit --strict --exactOptionalPropertyTypes --skipLibCheck --module nodenext --target es2022 --types node"
    )
    command: list[str | Path] = ["npx", "tsc", "--ignoreConfig", *options.split(), file.relative_to(ADAPTER)]
    done = subprocess.run(command, cwd=ADAPTER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
