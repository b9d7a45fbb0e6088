"""The quality guard: decides whether a summary may replace its messages, and repairs small defects.

It is deterministic and linear in the texts. `gather` reads the evidence, `judge` finds defects, `mend` adds short
missing text. The limits were set on recorded conversations: extracts and summaries by hand pass or can be repaired,
those of a model too weak for the task do not.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from compaction.frames.wordings import ENGLISH, in_english
from compaction.pins.standing import standing_instructions
from compaction.quality.evidence import Evidence, gather, request_essence, terms
from compaction.quality.misfires import continues_transcript, is_error, is_prompt_echo, is_refusal, is_repetitive
from compaction.summary.frames import escape_markers, names_frame
from compaction.summary.zone import NOTHING_NOTED
from compaction.text.identifiers import Text, ValueKind, is_strong, kind_of, spelling_of
from compaction.text.invisible import SPACE, SPACES, UNSEEN, spread
from compaction.text.salience import neutralize_markers, values
from compaction.tokens import CHARS_PER_TOKEN, text_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Evidence", "Reason", "Verdict", "gather", "judge", "mend"]

KEPT: Final = ENGLISH.kept
"""Heading of the lines that `mend` adds."""
ASKED: Final = "asked, not answered when this was written: "
ASKED_AND_ANSWERED: Final = "asked, answered since: "
"""Begin an added request, after its author. Later summaries copy the line, so it does not call the request the latest,
and its statement about an answer stays true.
"""


class Reason(StrEnum):
    """Reasons to reject a summary."""

    EMPTY = "empty"
    TOO_LONG = "too_long"
    SECTIONS_MISSING = "sections_missing"
    IDENTIFIERS_MISSING = "identifiers_missing"
    REQUEST_NOT_REFLECTED = "request_not_reflected"
    IDENTIFIERS_INVENTED = "identifiers_invented"
    INSTRUCTIONS_INVENTED = "instructions_invented"
    ECHO = "echo"
    MARKERS = "markers"
    REFUSAL_TEXT = "refusal_text"
    ERROR_TEXT = "error_text"
    REPETITION = "repetition"
    NOT_A_SUMMARY = "not_a_summary"


MENDABLE: Final = frozenset(
    {Reason.SECTIONS_MISSING, Reason.IDENTIFIERS_MISSING, Reason.REQUEST_NOT_REFLECTED, Reason.MARKERS}
)
"""Reasons that `mend` can remove."""

_ROOM: Final = 1.5
"""Factor from estimated to allowed characters: some tokens have more than four characters, and repairs need room."""
MOST_REQUIRED: Final = 24
LEAST_REQUIRED: Final = 4
_CHARS_A_VALUE: Final = 200
"""Characters of summary for each required value."""
_INVENTED_SHARE: Final = 0.1
_GRAVE_SHARE: Final = 0.05
"""Largest shares of invented strong values: of all, and of misleading ones."""
_GRAVE: Final = frozenset({ValueKind.URL, ValueKind.EMAIL, ValueKind.HASH})
_EXACT: Final = frozenset({ValueKind.ID, ValueKind.HASH})
"""Kinds of which no value may be invented: they cannot be derived, and readers act on them."""
_COUNTED_INVENTIONS: Final = 20
_RULE_TERMS: Final = 4
_KNOWN_RULE_SHARE: Final = 0.34
"""Share of a rule's content words that the evidence must contain, for rules of four and more."""
_REQUEST_LEAST_TERMS: Final = 3
_REQUEST_SHARE: Final = 0.15
_REQUEST_MOST: Final = 4
_KNOWN_SHARE: Final = 0.35
_TELLING_TERMS: Final = 20
"""Stems below which a text cannot be distinguished from another."""
_SAID_TERMS: Final = 8
_SAID_SHARE: Final = 0.1
_HEADING_CHARS: Final = 200
_WORDLESS_CHARS: Final = 300
_DETAIL_TERMS: Final = 8
_ABOUT_SUMMARIES: Final = terms(
    "summary summarize transcript conversation message provide provided please help ready text information request "
    "user assistant context following details input"
)
"""Stems that occur in summaries without content."""

_PINNED: Final = re.compile(
    rf"\[({SPACES}(?:{spread('END')}{SPACE})?{spread('PIN')}(?:{UNSEEN}{spread('NED')})?\b[^\]\n]{{0,120}})\]",
    re.IGNORECASE,
)
_PLAIN_WORD: Final = re.compile(r"\w+")
_HEADING: Final = re.compile(r"^#{1,6} ", re.MULTILINE)
_ENGLISH: Final = re.compile(
    r"\b(?:the|and|of|to|is|was|were|for|with|that|not|be|by|are|it|on|from|has)\b", re.IGNORECASE
)
_ENGLISH_SHARE: Final = 0.05
"""Least share of these words in an English text."""
_NUMBERING: Final = re.compile(r"^[\s#*]*\d+[.)]\s")

Severity = Literal["none", "mendable", "final"]


class Verdict(NamedTuple):
    """The defects of a summary. Without reasons, it may be committed."""

    reasons: tuple[Reason, ...] = ()
    missing: tuple[str, ...] = ()
    """Required values that the summary lacks, the most important first."""
    missing_sections: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
    """Values in the summary that the evidence lacks."""
    invented_rules: tuple[str, ...] = ()
    """Standing instructions in the summary without support in the evidence."""
    request: str = ""
    """The essence of the latest request if the summary does not reflect it, else ""."""
    severity: Severity = "none"
    """Whether `mend` can make the summary acceptable."""

    @property
    def is_accepted(self) -> bool:
        """Whether the summary may be committed unchanged."""
        return not self.reasons

    @property
    def details(self) -> tuple[str, ...]:
        """The defects in plain words for a corrective prompt, a sentence or two for each reason."""
        return tuple(_describe_reason(self, reason) for reason in self.reasons)

    @property
    def detail(self) -> str:
        """The details on one line."""
        return " ".join(self.details)


def judge(
    summary: str,
    evidence: Evidence,
    *,
    sections: Sequence[str] = (),
    canary: str | None = None,
    prompt: str | None = None,
    max_chars: int | None = None,
    frames: Sequence[str] = (),
    other_texts: Sequence[str] = (),
) -> Verdict:
    """Return the defects of `summary` as a replacement of the evidence.

    `sections` are the required headings, `prompt` the model's fixed instructions without the transcript, `canary` a
    string in them that no summary may contain, and `frames` the strings that framed data in the prompt. Values in
    `other_texts`, other texts of the context such as pins, are not required. A summary is too long if it exceeds
    `max_chars` or is not smaller than the evidence.
    """
    text = summary.strip()
    if not any(char.isalnum() for char in text):
        return Verdict((Reason.EMPTY,), severity="final")
    held, said = Text(summary), terms(summary)
    context = Text("\n".join((summary, *other_texts)))
    required = required_values(evidence, max_chars)
    missing = tuple(value for value in required if not context.holds(value))
    absent = _find_missing_sections(summary, sections)
    invented, invented_rules = _find_invented_values(summary, evidence), _find_invented_rules(summary, evidence)
    request = request_essence(evidence.request)
    request = "" if _reflects_request(said.union(*map(terms, other_texts)), context, request) else request
    applying = {
        Reason.REFUSAL_TEXT: is_refusal(text),
        Reason.ERROR_TEXT: is_error(text),
        Reason.TOO_LONG: text_weight(summary) >= evidence.weight or len(summary) > (max_chars or len(summary)),
        Reason.ECHO: is_prompt_echo(summary, canary, prompt, lambda: evidence.text.folded_text)
        or (names_frame(summary) and not names_frame(evidence.text.folded_text))
        or any(frame.lower() in summary.lower() for frame in frames),
        Reason.REPETITION: is_repetitive(text),
        Reason.NOT_A_SUMMARY: continues_transcript(text) or _is_off_topic(said, held, evidence),
        Reason.IDENTIFIERS_INVENTED: bool(invented),
        Reason.INSTRUCTIONS_INVENTED: bool(invented_rules),
        Reason.MARKERS: _escape_markers(summary) != summary,
        Reason.SECTIONS_MISSING: bool(absent),
        Reason.IDENTIFIERS_MISSING: bool(missing),
        Reason.REQUEST_NOT_REFLECTED: bool(request),
    }
    reasons = tuple(reason for reason, applies in applying.items() if applies)
    severity: Severity = "mendable" if reasons else "none"
    if not MENDABLE.issuperset(reasons):
        severity = "final"
    return Verdict(reasons, missing, absent, invented, invented_rules, request, severity)


def most_chars(max_tokens: int) -> int:
    """Return the most characters for a summary of at most `max_tokens` tokens."""
    return int(max_tokens * CHARS_PER_TOKEN * _ROOM)


def required_values(evidence: Evidence, max_chars: int | None = None) -> tuple[str, ...]:
    """Return the exact values that a summary must contain, as many as fit `max_chars` characters."""
    room = evidence.weight // 4 if max_chars is None else min(max_chars, evidence.weight // 2)
    return evidence.top_values(min(MOST_REQUIRED, max(LEAST_REQUIRED, room // _CHARS_A_VALUE)))


def mend(summary: str, verdict: Verdict, evidence: Evidence, *, max_chars: int) -> str:
    """Return `summary` with missing text added verbatim under the heading `KEPT`.

    Each value comes with its surrounding words, in the order of the conversation. Markers become plain words, and
    missing headings are added. Text that does not fit `max_chars` characters is omitted, so judge the result again. The
    function is idempotent. It changes nothing if the severity is final.
    """
    if verdict.severity != "mendable":
        return summary
    text = _escape_markers(summary)
    if verdict.missing_sections and not _HEADING.search(text):
        # A narrative without headings goes under the first one.
        first = f"## {verdict.missing_sections[0].lstrip('# ')}"
        text = _fit_or_keep(text, f"{first}\n{text.lstrip()}", max_chars)
    for section in _find_missing_sections(text, verdict.missing_sections):
        text = _fit_or_keep(text, f"{text.rstrip()}\n\n## {section.lstrip('# ')}\n{NOTHING_NOTED}", max_chars)
    places: dict[str, int] = {}
    if verdict.request and not _reflects_request(terms(text), Text(text), verdict.request):
        state = ASKED_AND_ANSWERED if evidence.is_request_answered else ASKED
        asked = f"{evidence.request_speaker} {state}{verdict.request}"
        longer = _append_kept(text, asked)
        if len(longer) <= max_chars:
            text, places[_kept_line(asked)] = longer, evidence.request_place
    for value in verdict.missing:
        if Text(text).holds(value):
            continue
        for place, words in evidence.texts_around(value):
            longer = _append_kept(text, words)
            if len(longer) <= max_chars:
                text, places[_kept_line(words)] = longer, place
                break
    return _sort_added(text, places)


def _fit_or_keep(text: str, longer: str, max_chars: int) -> str:
    return longer if len(longer) <= max_chars else text


def _append_kept(text: str, words: str) -> str:
    """Return `text` with one more line under the heading `KEPT`."""
    lines = text.rstrip().split("\n")
    if KEPT not in lines:
        return "\n".join([*lines, "", KEPT, _kept_line(words)])
    end = _end_of_kept(lines)
    return "\n".join([*lines[:end], _kept_line(words), *lines[end:]])


def _kept_line(words: str) -> str:
    return _escape_markers(f"- {words}")


def _end_of_kept(lines: Sequence[str]) -> int:
    after = lines.index(KEPT) + 1
    return next((at for at in range(after, len(lines)) if not lines[at].startswith("- ")), len(lines))


def _sort_added(text: str, places: Mapping[str, int]) -> str:
    """Return `text` with the last added lines under `KEPT` in the order of their places."""
    if not places:
        return text
    lines = text.split("\n")
    end = _end_of_kept(lines)
    start = end - len(places)
    return "\n".join([*lines[:start], *sorted(lines[start:end], key=places.__getitem__), *lines[end:]])


def _escape_markers(text: str) -> str:
    """Return `text` with the markers of summaries, pins and cut results as plain words."""
    return _PINNED.sub(r"(\1)", escape_markers(neutralize_markers(text)))


def _is_off_topic(said: frozenset[str], held: Text, evidence: Evidence) -> bool:
    """Return whether a text shares almost no words and values with the evidence."""
    if len(evidence.terms) < _TELLING_TERMS:
        return False
    shared = (said & evidence.terms) - _ABOUT_SUMMARIES
    wanted = min(_SAID_TERMS, int(_SAID_SHARE * len(evidence.terms)))
    named = sum(1 for value in held.values if kind_of(value) and evidence.text.knows(value))
    if len(shared) + named < wanted:
        return True
    return named < wanted and len(said & evidence.terms) < _KNOWN_SHARE * len(said)


def _find_invented_values(summary: str, evidence: Evidence) -> tuple[str, ...]:
    """Return the strong values that the evidence lacks, if they exceed the allowed shares."""
    strong = sorted(value for value in set(values(summary)) if is_strong(value))
    unknown: list[str] = []
    for value in strong:
        if not evidence.text.knows(value):
            unknown.append(value)
            if len(unknown) >= _COUNTED_INVENTIONS:
                break
    grave = sum(kind_of(value) in _GRAVE for value in unknown)
    exact = any(kind_of(value) in _EXACT for value in unknown)
    if not exact and grave <= _GRAVE_SHARE * len(strong) and len(unknown) <= max(1, _INVENTED_SHARE * len(strong)):
        return ()
    return tuple(spelling_of(value, summary) for value in unknown)


def _find_invented_rules(summary: str, evidence: Evidence) -> tuple[str, ...]:
    """Return the standing instructions in a summary most of whose words the evidence lacks."""
    invented = []
    for rule in standing_instructions(summary):
        said = terms(rule) - _ABOUT_SUMMARIES
        if len(said) >= _RULE_TERMS and len(said & evidence.terms) < _KNOWN_RULE_SHARE * len(said):
            invented.append(rule)
    return tuple(invented)


def _find_missing_sections(summary: str, sections: Sequence[str]) -> tuple[str, ...]:
    """Return the headings that no line of the summary is or begins with.

    None is missing if a summary in another language than English has as many headings: they are translated.
    """
    if not sections or _has_translated_headings(summary, len(sections)):
        return ()
    lines = [line[:_HEADING_CHARS] for line in in_english(summary).split("\n")]
    headings = {_normalize_heading(part) for line in lines for part in (line, line.partition(":")[0])}
    return tuple(section for section in sections if _normalize_heading(section) not in headings)


def _has_translated_headings(summary: str, count: int) -> bool:
    if len(_HEADING.findall(summary.partition(KEPT)[0])) != count:
        return False
    words = len(_PLAIN_WORD.findall(summary))
    return len(_ENGLISH.findall(summary)) < _ENGLISH_SHARE * words


def _normalize_heading(heading: str) -> str:
    return " ".join(_PLAIN_WORD.findall(_NUMBERING.sub("", heading.lower())))


def _reflects_request(said: frozenset[str], held: Text, request: str) -> bool:
    """Return whether a text takes up the content words and values of a request. A short request has none."""
    asked = terms(request) - _ABOUT_SUMMARIES
    exact = [value for value in set(values(request)) if kind_of(value)]
    if len(asked) + len(exact) < _REQUEST_LEAST_TERMS:
        return True
    answered = len(asked & said) + sum(map(held.holds, exact))
    return answered >= min(_REQUEST_MOST, max(2, int(_REQUEST_SHARE * (len(asked) + len(exact)))))


def _describe_reason(verdict: Verdict, reason: Reason) -> str:
    match reason:
        case Reason.SECTIONS_MISSING:
            return f"These headings are missing: {'; '.join(verdict.missing_sections)}."
        case Reason.IDENTIFIERS_MISSING:
            return f"These exact values are missing, say what each is: {', '.join(verdict.missing)}."
        case Reason.REQUEST_NOT_REFLECTED:
            asked = sorted(terms(verdict.request) - _ABOUT_SUMMARIES)
            words_asked = [word for word in re.findall(r"\w+", verdict.request) if terms(word).intersection(asked)]
            words = ", ".join(dict.fromkeys(words_asked[:_DETAIL_TERMS])) or verdict.request[:_WORDLESS_CHARS]
            return f"The user's latest request is not reflected; it speaks of: {words}."
        case Reason.IDENTIFIERS_INVENTED:
            return f"These values stand nowhere in the transcript, leave them out: {', '.join(verdict.invented)}."
        case Reason.INSTRUCTIONS_INVENTED:
            rules = "; ".join(rule[:_WORDLESS_CHARS] for rule in verdict.invented_rules)
            return f"Nobody in the transcript gave these instructions, leave them out: {rules}"
        case _:
            return _DETAILS[reason]


_DETAILS: Final = {
    Reason.EMPTY: "The answer held no summary.",
    Reason.TOO_LONG: "The summary is not smaller than what it replaces, or over its limit: write a shorter one.",
    Reason.ECHO: "The summary repeats its instructions: write only what happened in the conversation.",
    Reason.MARKERS: "The summary holds markers that frame data: leave them out.",
    Reason.REFUSAL_TEXT: "The answer refused, or asked for the transcript, which was given: summarize it.",
    Reason.ERROR_TEXT: "The answer was an error message and not a summary.",
    Reason.REPETITION: "The summary says the same over and over: say each thing once.",
    Reason.NOT_A_SUMMARY: "The answer says next to nothing of the conversation: summarize it in its own language.",
}
