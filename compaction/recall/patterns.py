"""Regular expressions in RE2's syntax, which match in time linear in the text.

Linear is not always fast: nested counted repetitions take a second for 30 KB. So a search scans a text in windows, and
stops between two windows when its time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import re2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_CHARS: Final = 1_000
"""Longest pattern, in characters."""
WINDOW_BYTES: Final = 4_096
"""Bytes of a text (UTF-8) that are searched between two checks of the time."""
OVERLAP_BYTES: Final = 1_024
"""Bytes shared by two windows. A longer match may be missed at a window's edge."""
_MOST_BYTES: Final = 4 * 1024 * 1024
"""Memory limit of a compiled pattern with its cached states, in bytes."""
_MOST_INSTRUCTIONS: Final = 10_000
"""Limit of a compiled pattern's instructions. Each may be tried for every byte of a text."""
_MOST_PLACES: Final = 100
"""Matches returned for one text."""
_CONTINUES: Final = range(0x80, 0xC0)
"""UTF-8 continuation bytes."""


class BadPatternError(ValueError):
    """The pattern is invalid or too large."""


class PatternSearch:
    """A search that stops when `is_over` returns True.

    Matches are cached by text. A text that was not searched in time has no matches.
    """

    def __init__(self, pattern: str, is_over: Callable[[], bool] = lambda: False) -> None:
        """Compile `pattern`. Raise BadPatternError with the reason if it is invalid or too large."""
        self._pattern = _compile_pattern(pattern)
        self._is_over = is_over
        self._matches: dict[str, Sequence[tuple[int, float]]] = {}
        self.is_cut = False
        """Whether the time ran out before every text was searched."""

    def find_places(self, text: str) -> Sequence[tuple[int, float]]:
        """Return the character offsets of matches in `text`, each with the weight 1."""
        if (matches := self._matches.get(text)) is None:
            matches = self._matches[text] = () if self._is_out_of_time() else self._match(text.encode())
        return matches

    def _is_out_of_time(self) -> bool:
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
            if window_end == len(text) or self._is_out_of_time():
                break
            start = max(start, _boundary(text, window_end - OVERLAP_BYTES))
        return matches[:_MOST_PLACES]


def _compile_pattern(pattern: str) -> Any:
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
        # The library caches up to 128 patterns of megabytes each, which are private to the caller.
        re2.purge()
    if max(compiled.programsize, compiled.reverseprogramsize) > _MOST_INSTRUCTIONS:
        raise BadPatternError("Too large: it repeats what repeats, or counts too far.")
    return compiled


def _boundary(text: bytes, at: int) -> int:
    """Return the start of the character that contains byte `at`."""
    while at < len(text) and text[at] in _CONTINUES:
        at -= 1
    return at
