"""Packages of docs/examples, put where an installer would put them."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

EXAMPLES = ROOT / "docs" / "examples"


def install(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an example's module importable, with the metadata that names its entry points."""
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, named in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in named.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(EXAMPLES / name))
