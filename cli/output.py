"""What commands print: JSON on one line, and one line about what went wrong."""

from __future__ import annotations

import sys
from typing import Any

import msgspec


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(msgspec.json.encode(value, enc_hook=str).decode())  # noqa: T201 - the command's output


def failed(reason: str, code: int = 1) -> int:
    """Tell why the command failed, in one line; return its exit code."""
    print(f"palimpsest: {' '.join(reason.split())}", file=sys.stderr)  # noqa: T201 - the command's output
    return code


def noted(text: str) -> None:
    """Tell something beside the command's output."""
    print(f"palimpsest: {text}", file=sys.stderr)  # noqa: T201 - the command's output
