"""Ctrl-C in the first moments of a command ends it quietly, whatever is being loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

INTERRUPTING: Final = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["palimpsest", *{arguments!r}]
{before}
from cli.entry import main
main()
"""
"""Runs the command, and presses Ctrl-C when it loads a module."""


def run(module: str, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    code = INTERRUPTING.format(module=module, arguments=list(arguments), before=before)
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("cli.main", ["serve"]),
        ("typer", ["serve"]),
        ("cli.conversations.commands", ["--version"]),
        ("cli.local.installations", ["demo"]),
        ("cli.installation.keys", ["keys", "list"]),
    ],
)
def test_an_interrupt_while_it_loads(module: str, arguments: list[str]) -> None:
    done = run(module, *arguments)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_a_job_in_the_background_is_not_interrupted() -> None:
    done = run("typer", "--version", before="signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
