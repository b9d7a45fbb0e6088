"""Two releases that run beside each other: the one before this one and this one, or this one and the next."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from migrations.revisions import HEAD
from tests.store.schema.next_release import write_next_release
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PACKAGES: Final = ("api", "cli", "compaction", "gateway", "migrations", "runtime", "store", "worker")
AS_HERE: Final[Mapping[str, str]] = {"PYTHONPATH": ""}


class Releases(NamedTuple):
    """An old and a new release: the environment of their processes, and the old one's revision of the schema."""

    old: Mapping[str, str]
    new: Mapping[str, str]
    revision: str


def before_this_one(folder: Path) -> Releases:
    """Return this release and the code of before its newest revision; the test is skipped without the history."""
    (newest,) = (ROOT / "migrations" / "versions").glob(f"{HEAD}_*.py")
    added = _git("log", "-1", "--diff-filter=A", "--format=%H", "--", str(newest.relative_to(ROOT)))
    archive = _git("archive", f"{added.decode().strip()}^", *PACKAGES) if added else b""
    if not archive:
        pytest.skip("the repository's history is not here")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    head = re.search(
        r'^HEAD: Final = "(\d+)"', (folder / "migrations" / "revisions.py").read_text(), flags=re.MULTILINE
    )
    assert head is not None
    assert head[1] < HEAD
    return Releases({"PYTHONPATH": str(folder)}, AS_HERE, head[1])


def after_this_one(folder: Path) -> Releases:
    """Return this release and the next, see tests/store/schema/next_release.py."""
    write_next_release(folder)
    return Releases(AS_HERE, {"PYTHONPATH": str(folder)}, HEAD)


def _git(*arguments: str) -> bytes:
    """Return what git answers, nothing where there is no git or it does not know."""
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], check=False, capture_output=True).stdout
    except FileNotFoundError:
        return b""
