"""Two releases that run beside each other: this one and the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from migrations.revisions import HEAD
from tests.store.schema.next_release import write_next_release

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

AS_HERE: Final[Mapping[str, str]] = {"PYTHONPATH": ""}


class Releases(NamedTuple):
    """An old and a new release: the environment of their processes, and the old one's revision of the schema."""

    old: Mapping[str, str]
    new: Mapping[str, str]
    revision: str


def after_this_one(folder: Path) -> Releases:
    """Return this release and the next, see tests/store/schema/next_release.py."""
    write_next_release(folder)
    return Releases(AS_HERE, {"PYTHONPATH": str(folder)}, HEAD)
