"""The draft of an extract: lines of speech and calls, in order, whose clauses are not chosen yet."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from compaction.extract.changes import StatementHistory, append_replaced
from compaction.extract.lines import DONE, ERROR_STATUS, GAP_MARK, OPEN, Clause, Group, Heading, Line
from compaction.extract.talk import Manner, split_statements
from compaction.extract.vocabulary import Vocabulary
from compaction.recall.words import NEUTRAL
from compaction.text.clauses import (
    FIELD_JOINT,
    GAP,
    READ_CHARS,
    ROW_JOINT,
    Record,
    clip_text,
    first_records,
    name_fields,
    one_line,
    pieces,
    prose,
    row_of,
    split_records,
)
from compaction.text.dates import add_dates, split_stamp
from compaction.text.names import attribution
from compaction.text.salience import BOUND_WORDS, Source, Weights, clean, content_words, fields, recency, values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

CALL: Final = "Called "
SPEAKERS: Final[Mapping[Source, str]] = {"user": "User", "assistant": "Assistant", "result": "Result"}
INITIALS: Final[Mapping[Source, str]] = {"user": "U", "assistant": "A", "result": "Result"}
"""Speakers in talk, if the extract has room for a first line that explains the initials."""
ROOMY_CHARS: Final = 1_500
"""Characters from which an extract has room for a first line that explains it."""

_FIRST_SHARE: Final = 0.1
_STANDING_SHARE: Final = 0.2
"""Shares of the extract reserved for the first request and for the user's standing instructions."""
_FIRST_WORTH: Final = 5.0
_RULE_WORTH: Final = 4.0
_REQUEST_WORTH: Final = 0.15
_REQUEST_FRESH: Final = 0.35
_LATEST_WORTH: Final = 2.0
_LATEST_HALF: Final = 4
_REMARK_WORTH: Final = 0.15
_DECISION_WORTH: Final = 0.4
_REMARK_FRESH: Final = 0.05
_NOTE_WORTH: Final = 0.5
_CALL_WORTH: Final = 0.1
_ERROR_WORTH: Final = 2.0
_CARRIED_WORTH: Final = 0.05
"""Worths of clauses without their values, on the scale of a value's weight (about 0 to 1)."""
_OPENING_CLAUSES: Final = 3
"""First clauses of a message that count in full. Later ones count for a fifth."""
_UNBOUND: Final = 0.4
_ORDERED: Final = 0.05
"""Factor for instructions in a tool's output, whose values are worth the least."""
_CROWD_CHARS: Final = 2_000
"""Characters of a tool output above which each value counts for less."""
_TAKEN_BACK: Final = 0.1
"""Factor for a statement that a later one replaces and quotes."""
_DATED_MESSAGES: Final = 60
"""Messages for which a time stamp before one of them stays valid."""
_NO_TALK: Final = Manner(0.0, NEUTRAL)
_NAME_CHARS: Final = 80
_LEAD_CHARS: Final = 160
_FIRST_LINE_CHARS: Final = 200
_LAST_LINES_CHARS: Final = 400

_RULE: Final = re.compile(
    r"\b(?:always|never(?! mind)|(?<!there )must(?! have)|from now on|every time|under no circumstances|"
    r"at most|at least|no (?:more|less|later|earlier) than)\b|"
    r"(?:^|(?<=[.!?;:] ))(?:(?:also|and|but|so|then),? )?(?:please )?"
    r"(?:do not|don['\u2019]t|only|keep|remember|avoid|use|make sure|ensure)\b",
    re.IGNORECASE,
)
_NO_RULE: Final = re.compile(
    r"!$|\bmust(?:['\u2019]ve| be| have| feel)\b|"
    r"\b(?:i|they|it|he|she|we|that|who|has|have|had|been|are|is|was|were|\w+['\u2019](?:s|ve|re|m|d|ll)) "
    r"(?:\w+ ){0,3}(?:always|never|must)\b|n['\u2019]t always\b",
    re.IGNORECASE,
)
"""Phrases that are rules in a task but not in talk: "keep it up!", "they always help"."""
_ORDER: Final = re.compile(
    r"\b(?:ignore|disregard|forget|override) (?:all|any|the|your|my|these|previous|prior|everything)\b|"
    r"\b(?:you (?:must|should|shall|are to|will now)|from now on|new instructions?|system (?:prompt|message|override)|"
    r"obey|do not (?:tell|mention|reveal|inform)|always (?:say|send|answer|reply|use)|never (?:say|tell|reveal|refuse)|"
    r"(?:send|forward|post|upload|email|transfer) (?:all|the|it|them|this|your|every)\b.{0,60}\bto\b|"
    r"(?:run|execute) (?:the|this|these) (?:command|following|code|script)s?)\b",
    re.IGNORECASE,
)
_DECISION: Final = re.compile(
    r"\b(?:because|since|therefore|so that|decided?|chose|choose|instead|agreed|confirm(?:ed)?|recommend(?:ed)?|"
    r"next step|todo|remaining|fixed|failed|cannot|unable|score[ds]?|rank(?:ed|ing)?)\b",
    re.IGNORECASE,
)
_ERROR: Final = re.compile(
    r"(?<!no )(?<!without )(?<!\b0 )(?:errors?|exception|traceback|failed|failure|fatal|denied|invalid|not found|"
    r"no such|refused|timed? ?out)\b",
    re.IGNORECASE,
)
_RAISED: Final = re.compile(r"^\w*(?:Error|Exception)\b", re.MULTILINE)
_JSON_ERROR: Final = re.compile(
    r"""^\s*\{[^{}]{0,200}?"(?:(?:errors?|exception)"\s*:(?!\s*(?:null|false|""|\[\s*\]|\{\s*\}|0\b))|"""
    r"""(?:success|ok)"\s*:\s*false|status"\s*:\s*"(?:error|fail))""",
    re.IGNORECASE,
)


class Draft:
    """The possible content of an extract.

    Places are message numbers before `end`. Those of an earlier summary are negative.
    """

    def __init__(self, end: int, max_chars: int, max_read: int = READ_CHARS, manner: Manner = _NO_TALK) -> None:
        self.lines: list[Line] = []
        self.clauses: list[Clause] = []
        self.weights = Weights(end)
        self.vocabulary = Vocabulary(manner.language)
        self.end = end
        self.talk = manner.talk
        """Degree to which the conversation is talk, 0 to 1."""
        self.speakers = INITIALS if max_chars >= ROOMY_CHARS and manner.talk else SPEAKERS
        """Labels of speakers."""
        self._manner = manner
        self._changes = StatementHistory()
        self._heading: Heading | None = None
        self._dated = 0
        self._max_read = max_read
        """Characters read of one text, input or result."""
        self._said: set[str] = set()
        self._told: set[str] = set()
        self._failures: set[str] = set()
        self._requests = 0
        self._first = max_chars * _FIRST_SHARE
        self._standing = max_chars * _STANDING_SHARE

    def kept_lines(self) -> list[Line]:
        """Return the lines with a kept clause, in order."""
        return [line for line in self.lines if line.open]

    def add_speech(self, source: Source, text: str, place: int, name: str = "") -> None:
        """Append a message by its author's `name`, if known, or a line of an earlier summary."""
        text = clean(clip_text(text, self._max_read))
        if self.talk:
            self._add_talk(source, text, place, name)
            return
        for record in prose(text):
            line = self._line(self._attribution(source, name), place)
            worths = [self._worth(source, clause, n, place) for n, clause in enumerate(record.clauses)]
            self._add(line, line.groups, [record], source, worths)
            self._requests += source == "user"

    def add_day_heading(self, day: date | None, place: int) -> None:
        """Start a heading for the day of message number `place`. None means that the day is unknown."""
        self._dated = place
        if day is None:
            self._heading = None
        elif self._heading is None or self._heading.day != day:
            self._heading = Heading(day)

    def _add_talk(self, source: Source, text: str, place: int, name: str) -> None:
        """Append the statements of a message. Relative days get their dates."""
        day, text = split_stamp(text)
        if day or place - self._dated > _DATED_MESSAGES:
            self.add_day_heading(day, place)
        # A line of an earlier extract is short even if its message was long.
        said = split_statements(text, self._manner, self._manner.crowds.get(source, 1.0) if place < 0 else None)
        if not said:
            return
        line = self._line(self._attribution(source, name), place)
        told = [(text, telling) for one, telling in said for text in pieces(self._expand_statement(one, line))]
        worths = [self._worth(source, text, n, place) for n, (text, _) in enumerate(told)]
        first = len(self.clauses)
        self._add(line, line.groups, [Record(clauses=[text for text, _ in told], joint=" ")], source, worths)
        for clause, (text, telling) in zip(self.clauses[first:], told, strict=True):
            clause.words = self.vocabulary.add_clause(text)
            clause.telling = 0.0 if text.lower() in self._told else telling * self.talk
            self._told.add(text.lower())
            self._changes.add(clause)
        self._requests += source == "user"

    def _expand_statement(self, text: str, line: Line) -> str:
        """Return a statement on one line, with its date and with the statement that it replaces."""
        text = one_line(clean(text))
        earlier = self._changes.find_replaced(text, line.place)
        if line.heading is not None:
            text = add_dates(text, line.heading.day)
        if earlier is None:
            return text
        earlier.telling *= _TAKEN_BACK
        # A line of an earlier extract already quotes the statement that it replaced.
        return text if line.place < 0 else append_replaced(text, earlier.text)

    def add_call(self, name: str, arguments: Any, place: int) -> Line:
        """Append a tool call without an outcome."""
        line = self._line(CALL + "_".join(name.replace("(", " ").split())[:_NAME_CHARS], place, is_call=True)
        self._add(
            line,
            line.groups,
            list(first_records(arguments, self._max_read)) or [Record(clauses=[""])],
            "call",
            [_CALL_WORTH],
        )
        return line

    def add_result(self, line: Line | None, text: str, place: int, *, failed: bool = False) -> None:
        """Append a tool result, to the line of its call if that is known."""
        text = clean(clip_text(text, self._max_read))
        failed = failed or reads_as_error(text)
        records = split_records(text)
        flat = [clause for record in records for clause in record.clauses]
        worths = [0.0] * len(flat)
        if failed and flat:
            telling = next((n for n, clause in enumerate(flat) if _ERROR.search(clause)), 0)
            worth = _CALL_WORTH if flat[telling] in self._failures else _ERROR_WORTH
            worths[telling] = worth * (_REMARK_FRESH + recency(place, self.end))
            self._failures.add(flat[telling])
        if line is None:
            line = self._line(self._attribution("result"), place)
            self._add(line, line.groups, records, "result", worths)
            return
        line.status = ERROR_STATUS if failed else DONE
        if not line.results:
            line.called_at = line.place
        line.place = place
        known = len(line.outcome)
        self._add(line, line.outcome, records, "result", worths)
        line.results.append((place, line.outcome[known:]))

    def add_attachment(self, source: Source, kind: str, text: str, place: int) -> None:
        """Append a block other than speech, such as a document or an image, by its kind and text."""
        line = self._line(f"{self._attribution(source)}({one_line(kind)[:_NAME_CHARS]}) ", place)
        self._add(
            line,
            line.groups,
            split_records(clean(clip_text(text, self._max_read))) or [Record(clauses=[""])],
            "result",
            [_CALL_WORTH],
        )

    def add_carried_call(self, name: str, arguments: str, outcome: str, place: int) -> None:
        """Append a call from a line of an earlier extract."""
        line = self._line(CALL + name, place, is_call=True)
        said = _parse_carried(arguments) or [Record(clauses=[""])]
        self._add(line, line.groups, said, "call", [_CALL_WORTH] + [_CARRIED_WORTH] * len(said))
        line.status = outcome if outcome in {ERROR_STATUS, OPEN} else DONE
        if outcome in {DONE, ERROR_STATUS, OPEN, ""}:
            return
        worth = _CARRIED_WORTH
        if outcome.lower().startswith(ERROR_STATUS):
            line.status, worth = ERROR_STATUS, _DECISION_WORTH
        records = _parse_carried(outcome.removeprefix(f"{ERROR_STATUS}: "))
        count = sum(len(record.clauses) for record in records)
        self._add(line, line.outcome, records, "result", [worth] + [_CARRIED_WORTH] * count)

    def _attribution(self, source: Source, name: str = "") -> str:
        return attribution(self.speakers.get(source, ""), name)

    def _line(self, prefix: str, place: int, *, is_call: bool = False) -> Line:
        line = Line(clean(prefix), place, is_call, heading=self._heading)
        self.lines.append(line)
        return line

    def _add(
        self, line: Line, groups: list[Group], records: Sequence[Record], source: Source, worths: Sequence[float]
    ) -> None:
        strength = 1.0
        if source == "result":
            size = 1 + sum(len(record.lead) + sum(map(len, record.clauses)) for record in records)
            strength = min(1.0, math.sqrt(_CROWD_CHARS / size))
        remaining = iter(worths)
        for record in records:
            lead = one_line(clean(record.lead))[:_LEAD_CHARS] + (" " if record.lead.endswith(" ") else "")
            label = record.label if lead.startswith(record.label) else ""
            group = Group(lead, self._count_values(lead, source, line.place, strength), record.joint, label)
            groups.append(group)
            words = content_words(lead)
            for raw in record.clauses:
                worth = next(remaining, 0.0)
                for text in list(pieces(one_line(clean(raw)))) or [""]:
                    bound = 1.0 if words + content_words(text) >= BOUND_WORDS else _UNBOUND
                    bound *= _ORDERED if source == "result" and _ORDER.search(text) else 1.0
                    mentioned = self._count_values(text, source, line.place, strength)
                    clause = Clause(len(self.clauses), text, mentioned, worth, bound, group, line)
                    if record.joint == ROW_JOINT and (row := row_of(text)):
                        clause.bare = row.bare
                    group.clauses.append(clause)
                    self.clauses.append(clause)
                    worth /= 2

    def _count_values(self, text: str, source: Source, place: int, strength: float) -> frozenset[str]:
        mentioned = values(text)
        names = fields(text) if source == "result" and mentioned else {}
        for value in mentioned:
            self.weights.mention(value, source, place, strength, name=names.get(value, ""))
        return frozenset(mentioned)

    def _worth(self, source: Source, text: str, position: int, place: int) -> float:
        """Return the worth of a sentence without its values. A repeated sentence is worth 0."""
        key = text.lower()
        if key in self._said:
            return 0.0
        self._said.add(key)
        fresh = recency(place, self.end)
        if source == "user":
            if standing := self._standing_worth(text):
                return standing
            worth = _REQUEST_WORTH * (fresh + _REQUEST_FRESH if self._requests else 1.0)
            worth /= 1 if position < _OPENING_CLAUSES else 5
        else:
            worth = _REMARK_WORTH + (_DECISION_WORTH if _DECISION.search(text) else 0.0)
            worth = worth * (fresh + _REMARK_FRESH) + (_NOTE_WORTH if source == "note" else 0.0)
        worth *= 1.0 - self.talk
        if source == "user":
            # In talk any message may be a request, but only the newest one is unanswered.
            worth += self.talk * _LATEST_WORTH * recency(place, self.end, _LATEST_HALF) ** 3
        return worth if content_words(text) >= BOUND_WORDS else worth / 3

    def _standing_worth(self, text: str) -> float:
        size = len(text) + len(GAP)
        if not self._requests and size <= self._first:
            self._first -= size
            return _FIRST_WORTH
        if self.talk and _NO_RULE.search(text):
            return 0.0
        if "?" not in text and size <= self._standing and _RULE.search(text.removeprefix(GAP_MARK).lstrip()):
            self._standing -= size
            return _RULE_WORTH
        return 0.0


def _parse_carried(text: str) -> list[Record]:
    """Return the records in a line of an earlier extract. Each row has the names of its fields."""
    records: list[Record] = []
    for part in text.split(ROW_JOINT):
        first = records[-1].clauses[0] if records else ""
        name, _, rest = first.partition(": ")
        label, first = (f"{name}: ", rest) if ": " in rest.split(FIELD_JOINT, 1)[0] else ("", first)
        if row := name_fields(part, first):
            if records[-1].joint != ROW_JOINT:
                records[-1] = Record(label, [first], ROW_JOINT, label)
            records[-1].clauses.append(row)
        elif part.strip():
            records.append(Record(clauses=list(pieces(part)), joint=" "))
    return records


def reads_as_error(text: str) -> bool:
    """Return whether a tool's output reports a failure in its first line, its last lines or its JSON fields."""
    text = text.strip()
    if text.startswith(("{", "[")):
        return bool(_JSON_ERROR.match(text[: _FIRST_LINE_CHARS * 2]))
    return bool(_ERROR.search(_first_line(text)) or _RAISED.search(text[-_LAST_LINES_CHARS:]))


def _first_line(text: str) -> str:
    return text[:_FIRST_LINE_CHARS].split("\n", 1)[0]
