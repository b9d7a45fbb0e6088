"""Characters that show nothing, as Unicode classifies them: between the letters of a word no reader sees them."""

from __future__ import annotations

import unicodedata
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_BLOCKS: Final = (range(0x3000), range(0xFE00, 0x10000), range(0x11000, 0x13500), range(0x1BC00, 0x1D200))
"""Where Unicode has controls and format characters; to look at all of it would take every process 0.3 s."""
_OTHER_IGNORABLE: Final = (
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0),
    *chain(range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xFFF0, 0xFFF9), range(0xE0000, 0xE1000)),
    *range(0xD800, 0xE000),
)
"""Default_Ignorable_Code_Point without the format characters (Unicode 16, DerivedCoreProperties.txt); surrogates."""
_SHOWN: Final = (
    *chain(range(0x0600, 0x0606), range(0x13430, 0x13440)),
    *(0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD, 0x110CD),
)
"""Format characters that are shown: signs around numbers and Egyptian joiners (Prepended_Concatenation_Mark)."""
_EMOJI: Final = (0xFE0E, 0xFE0F)
"""Variation selectors that say how a character is shown: an emoji in colour, or as text."""
_BREAKS: Final = (*range(0x09, 0x0E), 0x85)
"""Controls that are white space."""


def _ranges(points: Iterable[int]) -> str:
    """Return code points as the inside of a regular expression's class."""
    ordered = sorted(points)
    spans: list[list[int]] = []
    for point in ordered:
        if spans and point == spans[-1][1] + 1:
            spans[-1][1] = point
        else:
            spans.append([point, point])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in spans)


_FORMATS: Final = {point for block in _BLOCKS for point in block if unicodedata.category(chr(point)) in {"Cc", "Cf"}}
_IGNORABLE: Final = _FORMATS.union(_OTHER_IGNORABLE).difference(_BREAKS)

IGNORABLE: Final = _ranges(_IGNORABLE)
"""The inside of a class: whatever may stand unseen between two letters, and the few format characters that are seen."""
INVISIBLE: Final = _ranges(_IGNORABLE.difference(_SHOWN, _EMOJI))
"""The inside of a class: what shows nothing and may say something, white space left out."""


UNSEEN: Final = f"[{IGNORABLE}]*+"
"""Any number of them, as a regular expression."""
SPACES: Final = rf"[\s{IGNORABLE}]*+"
"""White space or none, and anything ignorable between."""
SPACE: Final = rf"{UNSEEN}\s{SPACES}"
"""White space, and anything ignorable around it."""


def spread(words: str) -> str:
    """Return a regular expression for words with anything ignorable between their letters."""
    return SPACE.join(UNSEEN.join(word) for word in words.split())
