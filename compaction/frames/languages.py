"""The language of a conversation's frames."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from compaction.frames.wordings import WORDINGS, language_shown
from compaction.messages import is_request
from compaction.pins.pinned import message_text
from compaction.recall.words import NEUTRAL, language_of
from compaction.summary.zone import frames_index, opening_length
from compaction.view import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.view import ViewMessage

ENGLISH: Final = "english"
_MESSAGES: Final = 20
"""The user's first messages that are looked at."""
_MESSAGE_CHARS: Final = 1_000
_LEAST_WORDS: Final = 8
"""Of fewer words nobody can say what language they are in."""
_WORD: Final = re.compile(r"[^\W\d_]+")
_LEAST_SHARE: Final = 0.3
"""Share of a text's letters that are of a script that one language alone is written in."""
_SCRIPTS: Final = (
    ("japanese", re.compile(r"[\u3040-\u30ff]"), 0.1),
    ("korean", re.compile(r"[\uac00-\ud7af]"), _LEAST_SHARE),
    ("chinese", re.compile(r"[\u3400-\u9fff]"), _LEAST_SHARE),
)
"""Languages by their scripts, with the share of letters that tells them. Japanese mixes its own with Chinese ones."""
_LETTER: Final = re.compile(r"[^\W\d_]")
_POLISH: Final = re.compile(
    r"\b(?:i|w|na|z|do|nie|się|jest|to|że|jak|dla|po|ale|od|za|przez|przed|tak|czy|już|lub|oraz|są|był|była|było|co|"
    r"ten|ta|te|tym|tego|tej|który|która|które|mnie|mi|mój|proszę|tylko|jeszcze|gdy|kiedy|będzie|może|można)\b",
    re.IGNORECASE,
)
_POLISH_LETTERS: Final = re.compile(r"[ąćęłńśźż]", re.IGNORECASE)
_POLISH_SHARE: Final = 0.12
"""Share of such words in Polish prose; every text of that kind has some of its letters too."""


def language_of_frames(choice: Literal["auto", "en"], view: Sequence[ViewMessage], *, is_framed: bool) -> str:
    """Return the language that compaction writes in: that of the frames in a view, else of what the user wrote.

    English where the policy's `choice` asks for it, and for every language that there is no wording for. `is_framed`
    tells whether the view may have frames.
    """
    if choice == "en":
        return ENGLISH
    host = frames_index(view) if is_framed else None
    framed = [*view[1 : opening_length(view)], *([] if host is None else [view[host]])]
    shown = next(filter(None, (language_shown(message_text(each.content)) for each in framed)), None)
    return shown or spoken_language(view)


def spoken_language(view: Sequence[ViewMessage]) -> str:
    """Return the language of the user's first message that tells one, where there is a wording in it; else English."""
    requests = (
        message_text(message.content)[:_MESSAGE_CHARS]
        for message in view
        if message.seq != WRITTEN and message.role == "user" and is_request(message.role, message.content)
    )
    told = next(filter(None, map(language_of_text, islice(requests, _MESSAGES))), ENGLISH)
    return told if told in WORDINGS else ENGLISH


def language_of_text(text: str) -> str:
    """Return the language of a text by its script or its words; NEUTRAL where they do not tell."""
    letters = len(_LETTER.findall(text))
    for language, script, share in _SCRIPTS:
        if letters and len(script.findall(text)) >= share * letters:
            return language
    words = len(_WORD.findall(text))
    if words < _LEAST_WORDS:
        return NEUTRAL
    if _POLISH_LETTERS.search(text) and len(_POLISH.findall(text)) >= _POLISH_SHARE * words:
        return "polish"
    return language_of(text)
