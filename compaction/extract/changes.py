"""Changes of mind: which earlier statement a later one takes back, and stands for both of them."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from compaction.extract.talk import CHANGE, unopened
from compaction.extract.vocabulary import EMPTY
from compaction.recall.words import tokens
from compaction.text.salience import FUNCTION_WORDS

if TYPE_CHECKING:
    from compaction.extract.lines import Clause

BEFORE: Final = " (before: "
"""What stands between a statement and the one that it takes back."""
_SHOWN_CHARS: Final = 90
"""Characters of the earlier statement that are shown beside the later one."""
_REMEMBERED: Final = 400
"""Statements that may still be taken back."""
_NEAR_MESSAGES: Final = 6
"""Messages back to which "it" may refer without a word in common."""
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
"""Days, months, clock times and numbers: what one statement says in the place of another."""
_PRONOUN: Final = re.compile(r"\b(?:it|that|this|them|then)\b", re.IGNORECASE)
_FLAT: Final = re.compile(
    r"\b(?:no longer|any ?more|changed? (?:my|our) minds?|scratch that|second thought)\b", re.IGNORECASE
)
"""Takes back without anything of the same kind in its place."""


class Changes:
    """The statements of a conversation that may still be taken back, in order."""

    def __init__(self) -> None:
        self._said: deque[Clause] = deque(maxlen=_REMEMBERED)

    def note(self, clause: Clause) -> None:
        """Remember a statement."""
        self._said.append(clause)

    def taken_back(self, text: str, place: int) -> Clause | None:
        """Return the newest earlier statement that `text`, said in message number `place`, changes; None for none."""
        # What ends in a colon only leads to what follows it.
        if not CHANGE.search(text) or BEFORE in text or text.endswith(":"):
            return None
        subjects = _subjects(text)
        kinds = [(form, _of_kind(form, text)) for form in _KINDS]
        refers = bool(_PRONOUN.search(text))
        for clause in reversed(self._said):
            if BEFORE in clause.text or clause.text.endswith("?"):
                continue
            before = _subjects(clause.text)
            is_near = refers and place - clause.line.place <= _NEAR_MESSAGES
            if not subjects & before and not is_near:
                continue
            # A number says little of what it counts: only with the same words does another take its place.
            forms = kinds if len(subjects & before) > 1 else kinds[:-1]
            instead = any(new and (old := _of_kind(form, clause.text)) and not new & old for form, new in forms)
            if instead or (_FLAT.search(text) and subjects & before):
                return clause
        return None


def changed(text: str, earlier: str) -> str:
    """Return a statement with the one that it takes back beside it."""
    earlier = unopened(earlier).rstrip(" ,.;!")
    if len(earlier) > _SHOWN_CHARS:
        cut = earlier.rfind(" ", 0, _SHOWN_CHARS)
        earlier = f"{earlier[: cut if cut > 0 else _SHOWN_CHARS]} \u2026"
    return f"{text}{BEFORE}{earlier})"


@lru_cache(maxsize=_REMEMBERED * 4)
def _subjects(text: str) -> frozenset[str]:
    words = (word.lower() for word in tokens(text) if len(word) >= _LEAST_CHARS and word.isalpha())
    plain = frozenset(word for word in words if word not in EMPTY and word not in FUNCTION_WORDS)
    return plain - frozenset(word for form in _KINDS for word in _of_kind(form, text)) - {"actually", "instead"}


def _of_kind(form: re.Pattern[str], text: str) -> frozenset[str]:
    return frozenset(match.lower() for match in form.findall(text))
