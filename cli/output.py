"""What commands print: JSON on one line, one line about what went wrong, and nothing that a terminal would obey."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but tab and line feed: with escape, a name would move the cursor or set the window's title."""


def printable(text: str) -> str:
    """Return a text without control characters."""
    return _CONTROLS.sub("", text)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    import msgspec  # noqa: PLC0415 - who notes what it does, and prints no JSON, need not hold it

    print(msgspec.json.encode(value, enc_hook=str).decode())  # noqa: T201 - the command's output


def failed(reason: str, code: int = 1) -> int:
    """Tell why the command failed, in one line; return its exit code."""
    print(f"palimpsest: {' '.join(printable(reason).split())}", file=sys.stderr)  # noqa: T201 - the command's output
    return code


def noted(text: str) -> None:
    """Print something apart from the command's output."""
    print(f"palimpsest: {printable(text)}", file=sys.stderr)  # noqa: T201 - the command's output
