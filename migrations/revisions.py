"""The revision that the code is written for."""

from __future__ import annotations

from typing import Final

HEAD: Final = "0001_initial"
"""The newest revision in migrations/versions; a test holds the two together."""


def is_unreleased(revision: str) -> bool:
    """Return whether a revision is of the schemas before the first release, which were bare numbers."""
    return revision.isdecimal()


def is_enough(revision: str | None) -> bool:
    """Return whether the code can work on a database at `revision`; newer revisions keep what older code relies on."""
    return revision is not None and not is_unreleased(revision) and revision >= HEAD
