"""The revision that the code is written for."""

from __future__ import annotations

from typing import Final

HEAD: Final = "0016"
"""The newest revision in migrations/versions; a test holds the two together."""


def is_enough(revision: str | None) -> bool:
    """Tell whether the code can work on a database at `revision`: a newer one keeps what this one relies on."""
    return revision is not None and revision >= HEAD
