"""Failed answers of models, recognized by form: refusals, error pages, echoes of the prompt and loops."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OPENING_CHARS: Final = 300
_REFUSAL_CHARS: Final = 1_500
_ERROR_CHARS: Final = 2_000
"""Characters above which a text is more than a refusal or an error message."""
_ECHO_WORDS: Final = 8
_ECHO_RUNS: Final = 5
"""Words of a run, and shared runs that make an echo: those of one sentence of twelve words."""
_WINDOW_CHARS: Final = 600
_LEAST_LOOP_CHARS: Final = 200
_LOOP_RATIO: Final = 5.0
"""Compression ratio by zlib above which a stretch repeats itself. Ordinary text and lists stay below 3.5."""
_SAID_AGAIN_CHARS: Final = 20
_SAID_AGAIN_SHARE: Final = 0.4
"""Largest share of lines of 20 characters and more that may repeat an earlier line."""

_REFUSAL: Final = re.compile(
    r"(?:i['\u2019]?m|i am|we are) (?:sorry|unable|not able|afraid)\b|sorry\b|unfortunately,? i\b|as an ai\b|"
    r"i (?:can(?:not|['\u2019]?t)|won['\u2019]t|apologi[sz]e)\b|"
    r"(?:(?:okay|ok|sure|certainly|of course)\b[,.!]? ?)?(?:i['\u2019]?m|i am) ready\b|"
    r"(?:please|could you|can you)(?: please)? (?:provide|share|paste|send|give)\b|"
    r"(?:there is|i (?:do not|don['\u2019]t) (?:see|have)) (?:no|any|a|the)\b.{0,40}"
    r"\b(?:transcript|conversation|text)\b",
    re.IGNORECASE,
)
_HTML_PAGE: Final = re.compile(r"(?:```\w*\s*)?<(?:!doctype|html|head|body)\b", re.IGNORECASE)
_ERROR_JSON: Final = re.compile(
    r"""(?:```\w*\s*)?\{(?:[^{}]{0,300}"(?:type|status|object)"\s*:\s*"error"|"""
    r"""\s*"(?:error|errors|exception)"\s*:(?!\s*(?:null|false|""|\[\s*\])))""",
    re.IGNORECASE,
)
_ERROR_LINE: Final = re.compile(
    r"error(?: \w+){0,3}\s*[:(]|traceback \(most recent|"
    r"(?:http[ /]?)?[45]\d\d[:\s-]+[a-z ]{0,40}"
    r"(?:error|gateway|timeout|unavailable|requests|unauthorized|forbidden|found)|"
    r"(?:internal server error|bad gateway|service unavailable|gateway time-?out|upstream connect error|"
    r"rate limit exceeded|overloaded)\b",
    re.IGNORECASE,
)
_SPEAKER: Final = re.compile(
    r"^[^a-z\n]{0,20}(?:user|human|assistant|tool results|ai|model|bot)[^\w\n]{0,10}$", re.IGNORECASE | re.MULTILINE
)
_LEAST_SPEAKERS: Final = 3
_SENTENCE: Final = re.compile(r"[.!?;:]\s+|\n+")
_PLAIN_WORD: Final = re.compile(r"\w+")


def is_refusal(text: str) -> bool:
    """Return whether a short text declines, or asks for the transcript that it was given."""
    opening = re.sub(r"^[\W_]+", "", text[:_OPENING_CHARS])
    return len(text) <= _REFUSAL_CHARS and _REFUSAL.match(opening) is not None


def is_error(text: str) -> bool:
    """Return whether a text is an error message: a page, a JSON object, or a few lines that begin with one."""
    text = text.strip()
    if _HTML_PAGE.match(text) or _ERROR_JSON.match(text):
        return True
    return len(text) <= _ERROR_CHARS and _ERROR_LINE.match(text.lstrip("#*> `")) is not None


def is_prompt_echo(text: str, canary: str | None, prompt: str | None, source: Callable[[], str]) -> bool:
    """Return whether a text repeats the canary, or a sentence of the prompt that `source` does not contain."""
    if canary and "".join(canary.split()).lower() in "".join(text.split()).lower():
        return True
    instructed = set(_word_runs(prompt or ""))
    repeated = [run for run in _word_runs(text) if run in instructed] if instructed else []
    if len(repeated) < _ECHO_RUNS:
        return False
    spoken = " ".join(_PLAIN_WORD.findall(source().lower()))
    return sum(run not in spoken for run in repeated) >= _ECHO_RUNS


def _word_runs(text: str) -> Iterator[str]:
    """Yield every run of `_ECHO_WORDS` words inside a sentence."""
    for sentence in _SENTENCE.split(text.lower()):
        words = _PLAIN_WORD.findall(sentence)
        for start in range(len(words) - _ECHO_WORDS + 1):
            yield " ".join(words[start : start + _ECHO_WORDS])


def continues_transcript(text: str) -> bool:
    """Return whether a text continues the transcript, with lines that only name a speaker."""
    return len(_SPEAKER.findall(text)) >= _LEAST_SPEAKERS


def is_repetitive(text: str) -> bool:
    """Return whether the text, or any stretch of it, repeats itself."""
    stretches = [text, *(text[at : at + _WINDOW_CHARS] for at in range(0, len(text), _WINDOW_CHARS))]
    encoded = (stretch.encode(errors="replace") for stretch in stretches if len(stretch) >= _LEAST_LOOP_CHARS)
    if any(len(raw) > _LOOP_RATIO * len(zlib.compress(raw)) for raw in encoded):
        return True
    lines = [line for raw in text.split("\n") if len(line := raw.strip()) >= _SAID_AGAIN_CHARS]
    once, every = sum(map(len, set(lines))), sum(map(len, lines))
    return every >= _LEAST_LOOP_CHARS and every - once > _SAID_AGAIN_SHARE * every
