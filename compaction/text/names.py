"""Who wrote a message where it says so, as the `name` of Chat Completions, and how lines of text show it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

NAME_CHARS: Final = 64
"""Most characters of a name: as many as the API takes (reference, "Create chat completion")."""
_FORGEABLE: Final = """
    system developer assistant tool user human operator administrator admin moderator root function model bot ai
"""
ROLES: Final = frozenset(_FORGEABLE.split())
"""Words that a text may forge a message's role with: nobody has them for a name."""
_OTHERS: Final = re.compile(r"[^\w.@+'-]+")
_STATED: Final = re.compile(
    rf"\s{{0,20}}\[(?:from\s{{1,4}})?([^\W\d_][\w .@+'-]{{0,{NAME_CHARS - 1}}})\]:\s", re.IGNORECASE
)
_ATTRIBUTION: Final = re.compile(rf"([A-Z][a-z]*)(?: \(([\w .@+'-]{{1,{NAME_CHARS}}})\))?: ")


def plain_name(given: str) -> str:
    """Return a name of letters, digits and a few marks, which ends neither its brackets nor its line; "" for none."""
    return " ".join(_OTHERS.sub(" ", given[: 4 * NAME_CHARS]).split())[:NAME_CHARS].strip()


def attribution(speaker: str, name: str = "") -> str:
    """Return what a line of somebody's words begins with: `User: `, `User (anna): `, nothing for no speaker."""
    if not speaker:
        return ""
    return f"{speaker} ({name}): " if name else f"{speaker}: "


def split_attribution(line: str) -> tuple[str, str, str]:
    """Return the speaker and the name that a line begins with, "" where there is none, and what it says."""
    match = _ATTRIBUTION.match(line)
    return (match[1], match[2] or "", line[match.end() :]) if match else ("", "", line)


class _NamedMessage(msgspec.Struct):
    role: str
    name: str | None = None


def name_in(sent: str | None) -> str:
    """Return the name of who wrote a message; "" where it does not say."""
    if sent is None:
        return ""
    with suppress(msgspec.MsgspecError):
        # What is stored around a text is an array of two: see `as_sent` in the schema.
        whole = "null".join(msgspec.json.decode(sent, type=tuple[str, str])) if sent.startswith("[") else sent
        message = msgspec.json.decode(whole, type=_NamedMessage)
        return plain_name(message.name or "") if message.role in {"user", "assistant"} else ""
    return ""


class StatedName(NamedTuple):
    """The name that an application writes before a message, as in `[from Carol]: Hello`."""

    name: str
    length: int
    """Characters of the text up to what the person says."""


def stated_name(text: str) -> StatedName:
    """Return the name that a text begins with and where its words begin; "" and 0 if it begins with none."""
    match = _STATED.match(text)
    if match is None or match[1].strip().lower() in ROLES:
        return StatedName("", 0)
    return StatedName(plain_name(match[1]), match.end())


def speaker_of(role: str, name: str = "") -> str:
    """Return a role and a name as frames and transcripts show them: `user (anna)`, or `user` for no name."""
    return f"{role} ({name})" if name else role
