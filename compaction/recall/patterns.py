"""Patterns: regular expressions in RE2's syntax, which takes time linear in the text whatever the pattern is."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import re2

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CHARS: Final = 1_000
"""Characters of a pattern."""
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes that a pattern may take compiled; counted repetitions of repetitions take more."""
_MOST_PLACES: Final = 100
"""Places that are looked at in one text."""


class BadPatternError(ValueError):
    """No pattern, or too large a one."""


def compiled(pattern: str) -> Any:
    """Return a pattern ready to search; raise BadPatternError with what is wrong with it."""
    options = re2.Options()
    options.max_mem = _MOST_BYTES
    options.log_errors = False  # it would write the pattern to standard error
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        (reason, *_) = error.args or ("it does not compile",)
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise BadPatternError(f"Not a regular expression (RE2 syntax): {told}.") from None


def matches(pattern: Any, text: str) -> Sequence[tuple[int, float]]:
    """Return where `pattern` matches something of `text`, each place with the weight 1."""
    return [
        (found.start(), 1.0) for found in islice(pattern.finditer(text), _MOST_PLACES) if found.end() > found.start()
    ]
