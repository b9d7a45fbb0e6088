"""The revision that the code is written for."""

from __future__ import annotations

from typing import Final

FIRST: Final = "0100"
"""The first revision of the first release; no way leads on from the lower numbers, which databases of before have."""
HEAD: Final = "0132"
"""The newest revision in migrations/versions; a test holds the two together."""


def is_enough(revision: str | None) -> bool:
    """Tell whether the code can work on a database at `revision`: a newer one keeps what this one relies on."""
    return revision is not None and revision >= HEAD
