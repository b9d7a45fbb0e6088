"""Replaced statements: recognize the earlier statement that a later one changes."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from compaction.extract.talk import CHANGE, strip_opening
from compaction.extract.vocabulary import EMPTY
from compaction.recall.words import tokens
from compaction.text.salience import FUNCTION_WORDS

if TYPE_CHECKING:
    from compaction.extract.lines import Clause

BEFORE: Final = " (before: "
"""Separates a statement from the earlier one that it replaces."""
_SHOWN_CHARS: Final = 90
"""Characters of the earlier statement that are shown after the later one."""
_REMEMBERED: Final = 400
"""Latest statements that can still be replaced."""
_NEAR_MESSAGES: Final = 6
"""Messages back to which a pronoun may refer without a word in common."""
_LEAST_CHARS: Final = 4
_COUNTS: Final = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty"
_KINDS: Final = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|today|tonight|tomorrow)\b",
        r"\b(?:january|february|march|april|june|july|august|september|october|november|december)\b",
        rf"\b(?:\d{{1,2}}:\d\d|\d{{1,2}} ?(?:am|pm|o['\u2019]clock)|at (?:{_COUNTS}|noon|midnight))\b",
        rf"[$\u20ac\u00a3]\d[\d,.]*|\b(?:\d[\d,.]*|{_COUNTS})\b",
    )
)
"""Days, months, clock times and numbers, by which one statement can replace another."""
_PRONOUN: Final = re.compile(r"\b(?:it|that|this|them|then)\b", re.IGNORECASE)
_FLAT: Final = re.compile(
    r"\b(?:no longer|any ?more|changed? (?:my|our) minds?|scratch that|second thought)\b", re.IGNORECASE
)
"""Matches statements that withdraw an earlier one without a replacement value."""


class StatementHistory:
    """The latest statements of a conversation, in order."""

    def __init__(self) -> None:
        self._said: deque[Clause] = deque(maxlen=_REMEMBERED)

    def add(self, clause: Clause) -> None:
        """Add a statement."""
        self._said.append(clause)

    def find_replaced(self, text: str, place: int) -> Clause | None:
        """Return the newest earlier statement that `text` in message number `place` replaces, or None."""
        # A statement that ends with a colon only introduces the next one.
        if not CHANGE.search(text) or BEFORE in text or text.endswith(":"):
            return None
        subjects = _subjects(text)
        kinds = [(form, _matches_of(form, text)) for form in _KINDS]
        refers = bool(_PRONOUN.search(text))
        for clause in reversed(self._said):
            if BEFORE in clause.text or clause.text.endswith("?"):
                continue
            before = _subjects(clause.text)
            is_near = refers and place - clause.line.place <= _NEAR_MESSAGES
            if not subjects & before and not is_near:
                continue
            # A number replaces another only if the statements share more words than one.
            forms = kinds if len(subjects & before) > 1 else kinds[:-1]
            instead = any(new and (old := _matches_of(form, clause.text)) and not new & old for form, new in forms)
            if instead or (_FLAT.search(text) and subjects & before):
                return clause
        return None


def append_replaced(text: str, earlier: str) -> str:
    """Return a statement followed by the one that it replaces."""
    earlier = strip_opening(earlier).rstrip(" ,.;!")
    if len(earlier) > _SHOWN_CHARS:
        cut = earlier.rfind(" ", 0, _SHOWN_CHARS)
        earlier = f"{earlier[: cut if cut > 0 else _SHOWN_CHARS]} \u2026"
    return f"{text}{BEFORE}{earlier})"


@lru_cache(maxsize=_REMEMBERED * 4)
def _subjects(text: str) -> frozenset[str]:
    words = (word.lower() for word in tokens(text) if len(word) >= _LEAST_CHARS and word.isalpha())
    plain = frozenset(word for word in words if word not in EMPTY and word not in FUNCTION_WORDS)
    return plain - frozenset(word for form in _KINDS for word in _matches_of(form, text)) - {"actually", "instead"}


def _matches_of(form: re.Pattern[str], text: str) -> frozenset[str]:
    return frozenset(match.lower() for match in form.findall(text))
