"""What `palimpsest doctor` finds: whether something is well, and if not, why that matters and how it is mended."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """One thing that was looked at."""

    check: str
    """A name that stays the same from run to run."""
    state: State
    what: str
    why: str | None = None
    mend: str | None = None
    """A command, or what to do."""


def ok(check: str, what: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check, "ok", what)


def warning(check: str, what: str, *, why: str, mend: str) -> Finding:
    """Return a finding that something works, but perhaps not as it is meant to, or not for long."""
    return Finding(check, "warning", what, why, mend)


def problem(check: str, what: str, *, why: str, mend: str) -> Finding:
    """Return a finding that something does not work."""
    return Finding(check, "problem", what, why, mend)
