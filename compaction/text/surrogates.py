"""Lone surrogates in JSON: halves of a character that UTF-16 writes as two code units. No stored text has them."""

from __future__ import annotations

import re
from typing import Final

_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""An escaped backslash, a surrogate pair, or half of one."""


def replace_lone_surrogates(body: bytes) -> tuple[bytes, int]:
    """Return a JSON text with U+FFFD in the place of lone surrogates, and how many there were.

    Clients that cut texts leave such halves behind. They are no Unicode, and many providers refuse them.
    """
    if not _HALF.search(body):
        return body, 0
    count = 0

    def replaced(escape: re.Match[bytes]) -> bytes:
        nonlocal count
        if escape["half"] is None:
            return escape[0]
        count += 1
        return b"\\ufffd"

    return _ESCAPE.sub(replaced, body), count
