"""Who wrote a message where it says so, as the `name` of Chat Completions, and how lines of text show it."""

from __future__ import annotations

import re
from typing import Final

NAME_CHARS: Final = 64
"""Most characters of a name: as many as the API takes (reference, "Create chat completion")."""
_OTHERS: Final = re.compile(r"[^\w.@+'-]+")
_ATTRIBUTION: Final = re.compile(rf"([A-Z][a-z]*)(?: \(([\w .@+'-]{{1,{NAME_CHARS}}})\))?: ")


def plain_name(given: str) -> str:
    """Return a name of letters, digits and a few marks, which ends neither its brackets nor its line; "" for none."""
    return " ".join(_OTHERS.sub(" ", given[: 4 * NAME_CHARS]).split())[:NAME_CHARS].strip()


def attribution(speaker: str, name: str = "") -> str:
    """Return what a line of somebody's words begins with: `User: `, `User (anna): `, nothing for no speaker."""
    if not speaker:
        return ""
    return f"{speaker} ({name}): " if name else f"{speaker}: "


def attributed(line: str) -> tuple[str, str, str]:
    """Return the speaker and the name that a line begins with, "" where there is none, and what it says."""
    match = _ATTRIBUTION.match(line)
    return (match[1], match[2] or "", line[match.end() :]) if match else ("", "", line)
