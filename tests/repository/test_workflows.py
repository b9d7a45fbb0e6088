"""Workflows of the repository: each step calls a script or a target that exists, with the Pythons that are supported.

`make check` holds the files against GitHub's schemas and zizmor's rules.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any, Final

import pytest
import yaml

from tests.support.places import ROOT

WORKFLOWS: Final = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS: Final = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def jobs(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]
    return parsed


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_steps_call_targets_and_scripts_that_exist(path: Any) -> None:
    every = jobs(path.name)
    runs = "\n".join(step.get("run", "") for job in every.values() for step in job["steps"])
    named = set(re.findall(r"\bmake ([a-z-]+)", runs))
    named |= {
        target for job in every.values() for target in job.get("strategy", {}).get("matrix", {}).get("target", [])
    }
    scripts = re.findall(r"^\.ci/[a-z]+", runs, re.MULTILINE)
    assert named | set(scripts)
    assert named <= TARGETS
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_unless_a_job_says_otherwise(path: Any) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_ci_runs_on_the_oldest_and_the_newest_python_that_is_supported() -> None:
    oldest = re.search(r'requires-python = ">=([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    newest = re.search(r"^ARG BASE=python:(\d+\.\d+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    pythons = jobs("ci.yml")["services"]["strategy"]["matrix"]["python"]
    assert oldest
    assert newest
    assert (pythons[0], pythons[-1]) == (oldest[1], newest[1])


def test_a_tag_of_another_version_is_not_released() -> None:
    done = subprocess.run([ROOT / ".ci/release", "v99.0.0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "release: pyproject.toml is not of version 99.0.0\n"


@pytest.mark.parametrize(("subject", "is_refused"), [("s" * 72, False), ("s" * 73, True)])
def test_the_commit_hook_counts_the_subject_alone(subject: str, is_refused: bool) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    (pattern,) = [hook["entry"] for hook in hooks if hook["id"] == "subject"]
    message = f"{subject}\n\n{'body ' * 40}\n"
    assert bool(re.search(pattern, message, re.MULTILINE | re.DOTALL)) is is_refused


def test_the_container_for_development_uses_targets_that_exist() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert set(re.findall(r"\bmake ([a-z-]+)", container["postCreateCommand"])) <= TARGETS
