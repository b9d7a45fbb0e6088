"""The extractive summarizer: selects text verbatim from the originals, deterministically and without a model."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from compaction.extract.draft import INITIALS, ROOMY_CHARS, SPEAKERS, Draft
from compaction.extract.talk import manner_of
from compaction.frames.wordings import ENGLISH, EXTRACT_LINES
from compaction.messages import THINKING, blocks
from compaction.summary.zone import SAYS_NOTHING
from compaction.text.clauses import READ_CHARS, chars_in
from compaction.text.dates import split_stamp
from compaction.text.names import split_attribution
from compaction.text.outline import read_share
from compaction.text.salience import Source, clean, neutralize_markers, values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compaction.extract.lines import Clause, Line

TITLE: Final = "Extract (made without a model)"
"""Begins extracts of this and of earlier releases."""
LATEST: Final = ENGLISH.latest
_SOURCES: Final = {speaker: source for names in (SPEAKERS, INITIALS) for source, speaker in names.items()}
HEADING: Final = re.compile(rf"#{{1,6}} |{'|'.join(map(re.escape, (TITLE, *EXTRACT_LINES)))}")
_LATEST_MESSAGES: Final = 4
_CALL_LINE: Final = re.compile(r"Called ([^\s(]{1,200})(?:\((.*?)\))?(?: \u2192 (.*))?")
_AGAIN: Final = 0.03
"""Worth of a value's second occurrence. The third is worth nothing."""
_TWICE: Final = 2
_VALUES_IN_TALK: Final = 0.3
"""Worth of a value in talk, in addition to its worth as a word."""
_SHORT_CHARS: Final = 10
"""Fixed cost of each statement of talk, in characters, so that short fragments do not come first."""
_NOISE: Final = 1e-12
_MAX_NESTING: Final = 20
_TEXT_FIELDS: Final = ("title", "path", "url", "name", "text", "content")
_SOURCE_FIELDS: Final = ("url", "file_id", "content")


def extract(
    messages: Sequence[Mapping[str, Any]],
    *,
    max_chars: int,
    previous: str | None = None,
    places: Sequence[int] | None = None,
    beside: Iterable[tuple[Source, str]] = (),
) -> str:
    """Return an extract of `messages` of at most `max_chars` characters.

    `messages` are in the Messages API's form and order, with the `name` of their author if known. `previous` is the
    summary of earlier messages, by this function or a model. Its lines compete with the new ones for room. The same
    input gives the same output, "" if there is nothing to keep. `places` are the numbers of the messages, ascending
    from 0; pieces of one message share a number. `beside` are texts that stay in the context, with their sources. A
    value in them counts as one that was already said.
    """
    return extract_placed(messages, max_chars=max_chars, previous=previous, places=places, beside=beside)[0]


def extract_placed(
    messages: Sequence[Mapping[str, Any]],
    *,
    max_chars: int,
    previous: str | None = None,
    places: Sequence[int] | None = None,
    beside: Iterable[tuple[Source, str]] = (),
) -> tuple[str, list[tuple[int, ...]]]:
    """Return an extract, and the places of those of its lines that have any, in order.

    Places in `previous_lines` are negative, from the end.
    """
    places = range(len(messages)) if places is None else places
    earlier = previous_lines(previous or "")
    manner = manner_of(messages, earlier)
    draft = Draft(places[-1] + 1 if places else 0, max_chars, _share(messages), manner)
    _read_previous(draft, earlier)
    if not draft.talk:
        draft.add_day_heading(None, 0)
    _read_messages(draft, messages, places)
    if not draft.clauses:
        return "", []
    roomy = max_chars >= ROOMY_CHARS
    selection = Selection(draft, beside)
    text = _render(draft, roomy=roomy)
    spare = len(LATEST) + 1 if roomy else 0
    # The cost of a clause is an upper bound until it is kept, so the remaining ones are offered again.
    while selection.fill(max_chars - len(text) - spare):
        text = _render(draft, roomy=roomy)
    if not draft.kept_lines():
        best = max(draft.clauses, key=lambda clause: (selection.rate(clause), -clause.index))
        text = f"{text}\n{best.line.prefix}{best.group.lead}{best.text}"
        best.line.open = True
    return neutralize_markers(text)[: max(0, max_chars)], [line.sources() for line in draft.kept_lines()]


def _render(draft: Draft, *, roomy: bool) -> str:
    long = ENGLISH.extract_of_talk if draft.speakers is INITIALS else ENGLISH.extract
    out = [long if roomy else ENGLISH.short_extract]
    headed = not roomy
    heading = None
    for line in draft.kept_lines():
        if not headed and line.place >= max(0, draft.end - _LATEST_MESSAGES):
            headed = True
            if len(out) > 1:
                out.append(LATEST)
        if line.heading is not heading:
            heading = line.heading
            if heading is not None:
                out.append(heading.text())
        out.append(line.text())
    return "\n".join(out)


class Selection:
    """Selects the clauses of a draft with the highest gain for each character."""

    def __init__(self, draft: Draft, beside: Iterable[tuple[Source, str]] = ()) -> None:
        self._draft = draft
        # Values that occur in results only are not counted as said: the extract may be the last place with them.
        self._covered = {
            value: 1
            for source, text in beside
            for value in values(text)
            if source != "result" or not draft.weights.is_spoken(value)
        }
        self._heap: list[tuple[float, int]] = []

    def rate(self, clause: Clause) -> float:
        """Return the gain of `clause` for each character, 0 if it adds nothing."""
        gain = 0.0
        for value in _values(clause):
            times = self._covered.get(value, 0)
            if times < _TWICE:
                gain += self._draft.weights[value] * (_AGAIN if times else 1.0)
        if not clause.telling:
            return (gain * clause.bound + clause.worth) / clause.cost()
        talk, said = self._draft.talk, self._draft.vocabulary.gain(clause.words)
        gain *= 1.0 - (1.0 - _VALUES_IN_TALK) * talk
        return (gain * clause.bound + clause.worth + clause.telling * said) / (clause.cost() + _SHORT_CHARS * talk)

    def fill(self, room: int) -> int:
        """Keep the clauses with the highest rates within `room` characters. Return the number of kept clauses."""
        self._heap = []
        self._offer(clause for clause in self._draft.clauses if len(clause.text) < room)
        kept = 0
        while self._heap:
            offered, index = heapq.heappop(self._heap)
            clause = self._draft.clauses[index]
            if clause.kept or clause.cost() > room:
                continue
            rate = self.rate(clause)
            if rate < -offered - _NOISE:
                # Clauses kept since the offer may contain part of it.
                if rate > 0:
                    heapq.heappush(self._heap, (-rate, index))
                continue
            room -= clause.cost()
            kept += 1
            self._keep(clause)
        return kept

    def _offer(self, clauses: Iterable[Clause]) -> None:
        for clause in clauses:
            if not clause.kept and (rate := self.rate(clause)) > 0:
                heapq.heappush(self._heap, (-rate, clause.index))

    def _keep(self, clause: Clause) -> None:
        for value in _values(clause):
            self._covered[value] = self._covered.get(value, 0) + 1
        self._draft.vocabulary.mark_kept(clause.words)
        line, group = clause.line, clause.group
        cheaper: list[Clause] = []
        if not line.open:
            cheaper = line.clauses()
        elif not group.open:
            cheaper = group.clauses
        clause.kept = group.open = line.open = True
        if line.heading is not None:
            line.heading.open = True
        self._offer(cheaper)


def _values(clause: Clause) -> Iterable[str]:
    # Sorted for determinism: sums of floats depend on the order, and sets of strings have no fixed one.
    clause_values = clause.values if clause.group.open else clause.values | clause.group.values
    return sorted(clause_values)


def _share(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the characters read of one block."""
    return read_share((chars_in(block) for message in messages for block in blocks(message.get("content"))), READ_CHARS)


def previous_lines(previous: str) -> list[str]:
    """Return the lines of an earlier summary that compete with new ones. Headings of a model are omitted."""
    lines = [line.strip() for line in clean(previous).split("\n")]
    return [
        line
        for line in lines
        if line and line != LATEST and line.lower() not in SAYS_NOTHING and not HEADING.match(line)
    ]


def _read_previous(draft: Draft, lines: Sequence[str]) -> None:
    for number, text in enumerate(lines):
        place = number - len(lines)
        day, rest = split_stamp(text)
        if day is not None and not rest:
            draft.add_day_heading(day, place)
            continue
        if match := _CALL_LINE.fullmatch(text):
            name, arguments, outcome = match.groups(default="")
            draft.add_carried_call(name, arguments, outcome, place)
            continue
        speaker, name, said = split_attribution(text.removeprefix("- "))
        source = _SOURCES.get(speaker)
        if source is None:
            draft.add_speech("note", text, place)
        else:
            draft.add_speech(source, said, place, name)


def _read_messages(draft: Draft, messages: Sequence[Mapping[str, Any]], places: Sequence[int]) -> None:
    calls: dict[str, Line] = {}
    for place, message in zip(places, messages, strict=True):
        source: Source = "user" if message.get("role") == "user" else "assistant"
        content = message.get("content")
        for block in blocks(content) if isinstance(content, (str, list)) else ():
            kind = str(block.get("type"))
            if kind == "text":
                draft.add_speech(source, str(block.get("text") or ""), place, str(message.get("name") or ""))
            elif kind.endswith("tool_use"):
                calls[str(block.get("id"))] = draft.add_call(str(block.get("name")), block.get("input"), place)
            elif kind.endswith("tool_result"):
                line = calls.get(str(block.get("tool_use_id")))
                draft.add_result(line, _plain_text(block.get("content")), place, failed=bool(block.get("is_error")))
            elif kind not in THINKING:
                draft.add_attachment(source, kind, _plain_text(block), place)


def _plain_text(content: Any, depth: int = 0) -> str:
    """Return the text in the content of a result or of an unknown block, without encoded data."""
    if isinstance(content, str):
        return content
    if depth > _MAX_NESTING:
        return ""
    if isinstance(content, list):
        return "\n".join(_plain_text(part, depth + 1) for part in content)
    if not isinstance(content, Mapping):
        return ""
    if content.get("type") == "image" and depth:
        return "(image)"
    texts = [_plain_text(content.get(key), depth + 1) for key in _TEXT_FIELDS]
    source = content.get("source")
    if isinstance(source, Mapping):
        if source.get("type") == "text":
            texts.append(_plain_text(source.get("data"), depth + 1))
        texts += [_plain_text(source.get(key), depth + 1) for key in _SOURCE_FIELDS]
    return "\n".join(part for part in texts if part)
