#!/usr/bin/env python3
"""Prints docs/reference-refusals.md from the table of refusals; `make docs` writes the file."""

from __future__ import annotations

import re
import sys
from typing import Final

from compaction.steps.refusal_wordings import WORDINGS, Wording

HEADER: Final = """\
# Refusals of providers

What providers say of a request that is too large, and what it is about. The
[gateway](gateway.md#when-the-provider-refuses), `POST …/overflow` and the summarizers read errors by this table; the
first row that fits counts. An error that no row fits is passed on, and counted by
`palimpsest_gateway_unread_refusals_total`. `make docs` writes this page.

In a wording, `N` is any number, `…` is text in between, and `a/b` is either word. Without a wording, every other error
with the status fits. Rows about the output or about something else shorten nothing.

| provider | status | wording | counts | is about |
|---|---|---|---|---|
"""
_NAMED: Final = re.compile(r"\{([^{}]*)\}")


def page() -> str:
    """Return the page."""
    return HEADER + "".join(map(_row, WORDINGS))


def _row(wording: Wording) -> str:
    statuses = ", ".join(map(str, sorted(wording.statuses))) or "any"
    says = f"`{_readable(wording.says)}`" if wording.says else ""
    cells = (f"[{wording.provider}]({wording.source})", statuses, says, wording.unit.value, wording.fault.value)
    return f"| {' | '.join(cells)} |\n"


def _readable(says: str) -> str:
    """Return a wording as people read it."""
    text = _NAMED.sub(lambda match: _word(match[1]), says).replace("*", "…").replace("`", "'")
    return re.sub(r"\s*…\s*", " … ", text).replace("|", "\\|")


def _word(name: str) -> str:
    if "|" not in name:
        return "N"
    words = [word.strip() for word in name.split("|") if word.strip()]
    return "/".join(words) if len(words) > 1 else (f"({words[0]}) " if words and words[0].isalpha() else " ")


if __name__ == "__main__":
    sys.stdout.write(page())
