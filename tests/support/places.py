"""Where tests find the repository, and recorded conversations that are not part of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TRANSCRIPTS: Final = Path(os.environ.get("PALIMPSEST_TRANSCRIPTS", ROOT.parent / "shared" / "data"))
"""Transcripts as JSON lines; they need not be there."""
