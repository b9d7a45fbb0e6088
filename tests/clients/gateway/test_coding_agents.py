"""Coding agents as npm gives them, through the gateway: resumed sessions, titles, compaction of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pytest

from tests.clients.gateway.asked_model import SUMMARY
from tests.clients.gateway.talking import talk
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runtime.settings import Settings
    from tests.clients.gateway.talking import Measured, Talk

FOLDER: Final = ROOT / "clients/agent/node_modules"
SECONDS: Final = 180
FILES: Final = 20
"""Files that a model may read, each long enough for its result to be cut."""
POLICY: Final = {
    "input_token_budget": 3_000,
    "compaction_threshold_tokens": 6_000,
    "min_savings_tokens": 100,
    "protected_tail_messages": 2,
}
QUESTIONS: Final = {"Look it up in 3 rounds.": 3, "Again, 2 rounds at once.": 4, "Once more, 3 rounds.": 3}
"""Questions, and how many files the model reads for each."""


NOTE: Final = re.compile(r"note (\d+), line 1:")
SENT: Final = "Look it up in 2 rounds, and say what you have."
"""What a subagent is asked."""


class Agent:
    """A coding agent in a home and a folder of its own, which has the files."""

    name = ""
    package = ""
    titles = 0
    """Conversations that are about the title of another."""
    subagent: ClassVar[tuple[str, dict[str, Any]] | None] = None
    """The call that has a subagent asked, None for an agent that has none by itself."""
    compacts = False
    """Whether it is known here how to have it compact by itself."""

    def __init__(self, talked: Talk, folder: Path) -> None:
        self.talked = talked
        self.folder = folder
        self.session = ""
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PALIMPSEST_KEY": talked.key,
        }

    def ask(self, question: str) -> str:
        """Ask in the session that was begun first."""
        raise NotImplementedError

    def compact(self) -> None:
        """Have it compact by itself, if that is known here."""

    @staticmethod
    def reads(names: list[str], path: str) -> tuple[str, dict[str, Any]] | None:
        """Return the call that reads a file."""
        raise NotImplementedError

    def run(self, *arguments: str) -> str:
        """Run the command; return what it printed."""
        done = subprocess.run(
            [str(FOLDER / ".bin" / self.name), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class ClaudeCode(Agent):
    """Claude Code."""

    name = "claude"
    package = "@anthropic-ai/claude-code"
    titles = 1
    subagent = "Agent", {"description": "Look it up", "prompt": SENT, "subagent_type": "general-purpose"}
    compacts = True

    def __init__(self, talked: Talk, folder: Path) -> None:
        super().__init__(talked, folder)
        self.environment |= {
            "ANTHROPIC_BASE_URL": talked.recorder.url,
            "ANTHROPIC_AUTH_TOKEN": talked.key,
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def ask(self, question: str) -> str:
        resumed = ["--resume", self.session] if self.session else []
        model = ["--model", "claude-haiku-4-5", "--output-format", "json"]
        said = json.loads(self.run("-p", question, *model, *resumed))
        self.session = said["session_id"]
        return str(said["result"])

    def compact(self) -> None:
        self.run("-p", "/compact", "--model", "claude-haiku-4-5", "--resume", self.session)

    @staticmethod
    def reads(names: list[str], path: str) -> tuple[str, dict[str, Any]] | None:
        return ("Read", {"file_path": path}) if "Read" in names else None


class Codex(Agent):
    """Codex."""

    name = "codex"
    package = "@openai/codex"
    compacts = True

    def __init__(self, talked: Talk, folder: Path) -> None:
        super().__init__(talked, folder)
        self.limited: list[str] = []
        home = folder / ".codex"
        home.mkdir()
        (home / "config.toml").write_text(
            f'model = "gpt-5.6"\nmodel_provider = "palimpsest"\n[model_providers.palimpsest]\nname = "Palimpsest"\n'
            f'base_url = "{talked.recorder.url}/v1"\nwire_api = "responses"\nenv_key = "PALIMPSEST_KEY"\n'
        )

    def ask(self, question: str) -> str:
        resumed = ["resume", "--last"] if self.session else []
        self.session = "last"
        free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
        free += self.limited
        events = [json.loads(line) for line in self.run("exec", *resumed, *free, question).splitlines()]
        said = [each["item"]["text"] for each in events if each.get("item", {}).get("type") == "agent_message"]
        return str(said[-1])

    def compact(self) -> None:
        # Before its next question, as what the model has counted is over that.
        self.limited = ["-c", "model_auto_compact_token_limit=5000"]

    @staticmethod
    def reads(names: list[str], path: str) -> tuple[str, dict[str, Any]] | None:
        commands: dict[str, dict[str, Any]] = {
            "exec_command": {"cmd": f"cat {path}"},
            "shell_command": {"command": f"cat {path}"},
            "shell": {"command": ["cat", path]},
        }
        return next(((name, given) for name, given in commands.items() if name in names), None)


class Opencode(Agent):
    """opencode, with Anthropic's provider."""

    name = "opencode"
    package = "opencode-ai"
    titles = 1
    subagent = "task", {"description": "Look it up", "prompt": SENT, "subagent_type": "general"}
    npm = "@ai-sdk/anthropic"
    model = "anthropic/claude-haiku-4-5"

    def __init__(self, talked: Talk, folder: Path) -> None:
        super().__init__(talked, folder)
        names = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
        self.environment |= {f"OPENCODE_DISABLE_{name}": "1" for name in names}
        provider, _, model = self.model.partition("/")
        options = {"baseURL": f"{talked.recorder.url}/v1", "apiKey": talked.key}
        own: dict[str, Any] = {"npm": self.npm, "options": options, "models": {model: {"name": model}}}
        config = {"provider": {provider: own}, "autoupdate": False, "share": "disabled", "permission": "allow"}
        (folder / "opencode.json").write_text(json.dumps(config))

    def ask(self, question: str) -> str:
        resumed = ["--continue"] if self.session else []
        self.session = "last"
        return self.run("run", "--model", self.model, *resumed, question).strip().splitlines()[-1]

    @staticmethod
    def reads(names: list[str], path: str) -> tuple[str, dict[str, Any]] | None:
        return ("read", {"filePath": path}) if "read" in names else None


class OpencodeChat(Opencode):
    """opencode, with a provider that speaks Chat Completions."""

    npm = "@ai-sdk/openai-compatible"
    model = "gateway/gpt-5.6"


AGENTS: Final[dict[str, type[Agent]]] = {
    "Claude Code": ClaudeCode,
    "Codex": Codex,
    "opencode messages": Opencode,
    "opencode chat": OpencodeChat,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", AGENTS)
def test_a_coding_agent_talks_through_the_gateway(
    module_settings: Settings, tmp_path: Path, client: str, note: Callable[[Measured], None]
) -> None:
    kind = AGENTS[client]
    if shutil.which("node") is None or not (FOLDER / ".installed").exists():
        pytest.skip("coding agents are not installed; make clients does that")
    if not (FOLDER / kind.package).exists():
        pytest.skip(f"npm could not install {kind.package} here")
    for number in range(1, FILES + 1):
        lines = [f"note {number}, line {line}: lorem ipsum dolor sit amet" for line in range(90)]
        (tmp_path / f"notes-{number}.txt").write_text("\n".join(lines))

    files = sum(QUESTIONS.values())

    def call(names: list[str], number: int) -> tuple[str, dict[str, Any]] | None:
        if number == files + 1 and kind.subagent is not None:
            return kind.subagent if kind.subagent[0] in names else None
        return kind.reads(names, str(tmp_path / f"notes-{number}.txt"))

    with talk(module_settings, client, call, is_strict=False, policy=POLICY) as talked:
        agent = kind(talked, tmp_path)
        for question, count in QUESTIONS.items():
            assert agent.ask(question) == f"Done after {count}."
        if kind.subagent is not None:
            assert agent.ask("Have somebody look it up, 1 round.") == "Done after 1."
        agent.compact()
        if kind.compacts:
            assert agent.ask("And now?") == "Done after 0."
        talked.check()
        note(talked.measured(client))
        main = talked.main()
        compacted = [
            each for each in talked.recorder.asked if each.conversation == main and each.outcome == "compacted"
        ]
        assert len(compacted) > files / 2
        # Requests for a title have one of their own, and so have subagents and what the agent has compacted by itself.
        assert len(talked.conversations()) == 1 + kind.titles + (kind.subagent is not None) + kind.compacts
        assert set(map(int, NOTE.findall(talked.said(main)))) == set(range(1, files + 1))
        # What it has compacted goes on from a summary, and from files that it reads again by itself.
        last = talked.recorder.asked[-1]
        if kind.compacts:
            assert last.conversation != main
            assert talked.branches()[last.conversation] == main
            assert SUMMARY in json.dumps(last.body)
        others = [talked.said(each) for each in talked.conversations() if each not in {main, last.conversation}]
        read = [sorted(set(map(int, NOTE.findall(said)))) for said in others]
        assert sorted(read) == [[]] * kind.titles + [[files + 2, files + 3]] * (kind.subagent is not None)
        received = json.dumps([each.body for sent, each in talked.pairs() if sent.conversation == main])
        assert not [word for word in ("Write the title", "Generate a title") if word in received]
