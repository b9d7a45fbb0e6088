"""Which release this is."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
"""As pyproject.toml has it, where the distribution is called `palimpsest-context`."""
