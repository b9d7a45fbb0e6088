"""Patterns: regular expressions in RE2's syntax, which takes time linear in the text whatever the pattern is.

Linear is not fast: counted repetitions of repetitions take a second for 30 KB. So a search goes through a text window
by window, and ends between two of them when its time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import re2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_CHARS: Final = 1_000
"""Characters of a pattern."""
WINDOW_BYTES: Final = 4_096
"""Bytes of a text (UTF-8) between two looks at the time."""
OVERLAP_BYTES: Final = 1_024
"""Bytes that two windows share: a match of as many is found wherever it is, a longer one may be missed."""
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes that a pattern may take compiled, what is remembered of its states included."""
_MOST_INSTRUCTIONS: Final = 10_000
"""Instructions of a pattern compiled, of which each may be tried for every byte of a text."""
_MOST_PLACES: Final = 100
"""Places that are taken in one text."""
_CONTINUES: Final = range(0x80, 0xC0)
"""Bytes of UTF-8 that begin no character."""


class BadPatternError(ValueError):
    """No pattern, or too large a one."""


class PatternSearch:
    """One search, until `is_over`: what it found in a text stays known, and what it had no time for has nothing."""

    def __init__(self, pattern: str, is_over: Callable[[], bool] = lambda: False) -> None:
        """Raise BadPatternError with what is wrong with `pattern`."""
        self._pattern = _compiled(pattern)
        self._is_over = is_over
        self._matches: dict[str, Sequence[tuple[int, float]]] = {}
        self.is_cut = False
        """Whether there was no time for something."""

    def places(self, text: str) -> Sequence[tuple[int, float]]:
        """Return where the pattern matches something of `text`, in characters, each place with the weight 1."""
        if (matches := self._matches.get(text)) is None:
            matches = self._matches[text] = () if self._ends() else self._match(text.encode())
        return matches

    def _ends(self) -> bool:
        self.is_cut = self.is_cut or self._is_over()
        return self.is_cut

    def _match(self, text: bytes) -> Sequence[tuple[int, float]]:
        matches: list[tuple[int, float]] = []
        start = known = characters = 0
        while start < len(text) and len(matches) < _MOST_PLACES:
            window_end = min(len(text), start + WINDOW_BYTES)
            for match in self._pattern.finditer(text, start, _boundary(text, window_end)):
                if match.end() > match.start():
                    # `\C` matches a single byte, in the middle of a character too.
                    at = _boundary(text, match.start())
                    characters += len(text[known:at].decode())
                    known = at
                    matches.append((characters, 1.0))
                    start = match.end()
            if window_end == len(text) or self._ends():
                break
            start = max(start, _boundary(text, window_end - OVERLAP_BYTES))
        return matches[:_MOST_PLACES]


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem = _MOST_BYTES
    options.never_capture = True
    options.log_errors = False  # it would write the pattern to standard error
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        (reason, *_) = error.args or ("it does not compile",)
        explanation = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise BadPatternError(f"Not a regular expression (RE2 syntax): {explanation}.") from None
    finally:
        # The library remembers as many as 128 of them, megabytes each, and what one caller asked is no other caller's.
        re2.purge()
    if max(compiled.programsize, compiled.reverseprogramsize) > _MOST_INSTRUCTIONS:
        raise BadPatternError("Too large: it repeats what repeats, or counts too far.")
    return compiled


def _boundary(text: bytes, at: int) -> int:
    """Return the place of the character that byte `at` belongs to."""
    while at < len(text) and text[at] in _CONTINUES:
        at -= 1
    return at
