"""Facts about the repository that have to stay true."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

from compaction.steps.catalogue import LADDER
from tests.repository.pinned_versions import pins
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, flags=re.MULTILINE))

# Places and hosts of one machine; written so that this line does not match itself.
FOREIGN = re.compile(
    r"/(?:work|root|home)/|/opt/(?:pypi|wheels)|py(?:pi)\.org|python(?:hosted)\.org|(?:extra-)?index(?:-)url"
    r"|shared/(?:seeds|reference|DESIGN|CONTRACT)|(?i:seeds?) 00\d"
)


def repository_files() -> list[Path]:
    """Every text file that belongs to the repository, whatever else a checkout has collected."""
    folders = [*PACKAGES, "tests", "bench", "docs", ".ci"]
    suffixes = {".py", ".md", ".sql", ".toml", ".ini", ".yml", ".txt", ".mako", ".json", ".jsonl", ""}
    nested = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    top = [path for path in ROOT.iterdir() if not path.name.startswith((".env", ".git"))]
    generated = {"__pycache__", "out"}
    return sorted(path for path in [*nested, *top] if path.is_file() and not generated & set(path.parts))


def rows(page: str) -> list[list[str]]:
    """The body rows of every table in docs/<page>.md, as cells."""
    lines = [line for line in (ROOT / "docs" / f"{page}.md").read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] not in {"id", "variable", "key"} and set(row[0]) != {"-"}]


def test_no_module_is_in_a_circle_of_imports() -> None:
    """Imports for types count: whoever reads one module of a circle has to know all of them."""
    graph = grimp.build_graph(*PACKAGES, "bench", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # Raises CycleError, which names the modules.
    TopologicalSorter(imports).prepare()


def test_no_public_class_of_the_services_has_the_name_of_another() -> None:
    names = Counter(
        node.name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.is_relative_to(ROOT / "cli") and not path.is_relative_to(ROOT / "api" / "console")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_no_module_is_named_for_nothing() -> None:
    names = {path.stem for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}


def test_every_top_level_package_is_shipped_linted_and_typed() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench", "docs"}
    assert found == set(PACKAGES)
    assert found == set(PYPROJECT["tool"]["mypy"]["packages"])
    assert found == set(PYPROJECT["tool"]["importlinter"]["root_packages"])


def test_make_explains_every_target_and_has_the_promised_ones() -> None:
    (phony,) = re.findall(r"^\.PHONY: (help .*)$", MAKEFILE, flags=re.MULTILINE)
    assert set(phony.split()) == TARGETS
    assert {"help", "setup", "demo", "unit", "test", "check", "bench", "serve", "clean"} <= TARGETS


def test_the_files_that_make_runs_exist() -> None:
    scripts = set(re.findall(r"(?:bench/\w+\.py|\.ci/\w+(?:\.py)?)", MAKEFILE)) | {".ci/run"}
    assert {script for script in scripts if not (ROOT / script).is_file()} == set()
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts if re.fullmatch(r"\.ci/\w+", script))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/deployment.md", "docs/architecture.md"])
def test_the_commands_that_a_page_shows_exist(page: str) -> None:
    from cli.main import app  # noqa: PLC0415 - the other tests need no command line

    text = (ROOT / page).read_text()
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL))
    assert set(re.findall(r"\bmake (?:-C \S+ )?([a-z-]+)", code)) <= TARGETS
    command: Any = get_command(app)
    used = set(re.findall(r"(?:^|[`/ ])palimpsest ([a-z]+)\b", code, flags=re.MULTILINE))
    assert used <= set(command.commands)


def test_the_modules_that_a_page_names_exist() -> None:
    named = {
        module
        for path in repository_files()
        if path.suffix == ".md"
        for module in re.findall(rf"`((?:{'|'.join(PACKAGES)}|tests|docs|bench)/[\w/]+\.\w+)`", path.read_text())
    }
    assert {module for module in named if not (ROOT / module).is_file()} == set()


def test_the_map_leads_to_what_is_there_for_each_kind_of_change() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    places = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", page))
    # A folder is named from the top, or in the row of the folder that it is in.
    assert {place for place in places if not [*ROOT.glob(place), *ROOT.glob(f"*/{place}")]} == set()
    _, _, table = page.partition("## Where do I change")
    changes = re.findall(r"^\| (.+?) \| (.+) \|$", table.partition("\n## ")[0], flags=re.MULTILINE)[1:]
    assert len(changes) == 13
    assert {kind for kind, where in changes if len(re.findall(r"`[\w.-]+/", where)) < 3} == set()


def test_functions_and_classes_that_the_architecture_names_are_in_the_modules_it_names() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.(?:py|sql))`((?:,?\s+`\w+`)+)", page)
    assert len(named) > 30
    for module, names in named:
        text = (ROOT / module).read_text()
        for name in re.findall(r"`(\w+)`", names):
            defined = rf"^\s*(?:(?:async )?def|class|create or replace function) {name}\b"
            assert re.search(defined, text, re.MULTILINE), (module, name)


def test_the_table_of_the_ladder_says_what_its_steps_declare() -> None:
    _, _, section = (ROOT / "docs" / "architecture.md").read_text().partition("## The ladder")
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    assert rows[2:] == [(step.name, step.when, step.does) for step in LADDER]


def test_requirements_are_each_shown_by_a_test() -> None:
    shown = {row[0]: row[2] for row in rows("requirements")}
    expected = {f"T{number}" for number in range(1, 11)} | {f"S{number}" for number in range(1, 16)}
    assert expected <= set(shown)
    assert {id_ for id_, tests in shown.items() if not tests} == set()


def test_tests_name_only_requirements_that_exist() -> None:
    known = {row[0] for row in rows("requirements")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for marked in re.findall(r"pytest\.mark\.requirement\(([^)]*)\)", path.read_text()):
            named = set(ast.literal_eval(f"({marked},)"))
            assert named <= known, f"{path.relative_to(ROOT)} names {sorted(named - known)}"


def test_every_setting_says_what_it_means() -> None:
    assert [row[0] for row in rows("settings") if not row[-1]] == []


def test_nothing_names_the_machine_it_was_written_on() -> None:
    items = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in repository_files()
        for line in path.read_text(errors="replace").splitlines()
        if FOREIGN.search(line)
    ]
    assert items == []


def declared() -> list[Requirement]:
    project = PYPROJECT["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in [*project["dependencies"], *extras]]


def test_constraints_pin_every_dependency_to_a_version_it_allows() -> None:
    versions = {(pin.name, pin.version) for pin in pins("constraints.txt")}
    wrong = [
        str(need)
        for need in declared()
        if not any(name == canonicalize_name(need.name) and version in need.specifier for name, version in versions)
    ]
    assert wrong == []


def test_every_dependency_has_its_reason_written_down() -> None:
    text = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text().lower()
    assert {need.name for need in declared() if f"`{need.name.lower()}`" not in text} == set()


def test_decisions_are_numbered_and_state_their_status() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [path.name[:4] for path in decisions] == [f"{number:04}" for number in range(1, len(decisions) + 1)]
    for path in decisions:
        text = path.read_text()
        assert re.match(r"# \d+\. \S", text)
        assert re.search(r"^Status: (accepted|superseded by \d{4})$", text, flags=re.MULTILINE)


def test_the_changelog_names_what_is_not_released_and_its_groups() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)[0] == "Unreleased"
    groups = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert groups
    assert set(groups) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
