"""The plan of a summary: which messages each request to the model holds, and how the parts become one text.

Everything is sized against the summarizer's own window: rules, record, room for the answer and a margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.frames.wordings import in_english
from compaction.private_fields import without_fields
from compaction.summary.frames import WORDS, cut_lines, fit_text, quote_lines
from compaction.summary.prompts import MARGIN, Place, Prompt, Wishes, merge_prompt, part_prompt
from compaction.summary.transcript import (
    NOTHING_KNOWN,
    SECTIONS,
    Entry,
    canary,
    entries,
    entry_size,
    left_out,
    transcript_hash,
)
from compaction.summary.zone import call_positions
from compaction.text.dates import TIME_UNKNOWN
from compaction.tokens import CHARS_PER_TOKEN, text_weight

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from compaction.policy import Policy
    from compaction.view import ViewMessage

BASE_RATIO: Final = 0.4
"""Share of the window's room for a record that one of several parts takes. OpenClaw's figure, there of the window."""
MINIMUM_RATIO: Final = 0.15
"""The same where single messages are large. OpenClaw's figure."""
ANSWER_SHARE: Final = 4
"""The answer gets at most this part of the window: a policy that allows more leaves nothing to read."""

_LARGE_SHARE: Final = 0.1
"""Messages of more than this share of the window on average make parts smaller. OpenClaw's figure."""
_LEAST_ROOM: Final = 1_000
"""Weight; with less for the record, a window is too small to summarize in."""
_SLACK: Final = 1_200
"""Weight kept free for places, times and the wish for a shorter answer."""
_FRAME_WEIGHT: Final = 300
"""Of the tags around a text that is merged, and its place."""
_WISHES_CHARS: Final = 2_000
_PINS_CHARS: Final = 4_000


class WindowTooSmallError(ValueError):
    """The window has no room for the rules, an answer and anything to summarize."""


class OversizedMessage(NamedTuple):
    """A message too large by itself."""

    seq: int
    name: str
    """What it is and how large, in words."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a record may have: characters and weight (see `tokens.text_weight`)."""

    chars: int
    weight: int

    def less(self, text: str | None) -> Room:
        """Return what is left besides `text`."""
        return self if text is None else Room(self.chars - len(text) - 1, self.weight - text_weight(text) - 1)

    def load(self, text: str, weight: int) -> float:
        """Return the share of it that a text of `weight` takes, its line break included."""
        return max((len(text) + 1) / self.chars, (weight + 1) / self.weight) if text else 0.0

    def half(self) -> Room:
        """Return half of it."""
        return Room(self.chars // 2, self.weight // 2)

    def fit(self, text: str) -> str:
        """Return encoded text cut in the middle to what it has room for."""
        return fit_text(text, self.chars, self.weight, cut_lines)


@dataclass(frozen=True, slots=True)
class Part:
    """The messages of one request: `start` inclusive, `stop` exclusive indices of the zone."""

    number: int
    start: int
    stop: int
    entries: tuple[Entry, ...]
    room: Room
    previous: str | None
    oversized: tuple[OversizedMessage, ...]
    left_out: tuple[OversizedMessage, ...] = ()
    """Messages that are named in it and not shown."""

    @property
    def body(self) -> str:
        """The record: its messages as encoded text, cut in the middle where one piece alone has no room."""
        text = "\n".join(entry.text for entry in self.entries if entry.text)
        return self.room.fit(text)

    @property
    def place(self) -> str:
        """The messages that it covers, and when they were sent if that is known."""
        return describe(self.entries)

    def lighter(self) -> Part:
        """Return the part with its oversized messages named instead of shown."""
        large = {each.seq for each in self.oversized}
        entries = tuple(left_out(entry) if entry.seq in large else entry for entry in self.entries)
        return replace(self, entries=entries, oversized=(), left_out=(*self.left_out, *self.oversized))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a zone is summarized."""

    parts: tuple[Part, ...]
    window: int
    """Tokens of the window that it is sized against."""
    answer_tokens: int
    """Tokens that each answer may have."""
    available: Room
    """What one request may hold besides rules and frames."""
    previous: str | None
    wishes: Wishes
    secret: str
    """The canary of this summary."""
    fixed_weight: int
    """Of rules, wishes and frames."""

    @property
    def oversized(self) -> tuple[OversizedMessage, ...]:
        """Every message that is too large by itself and still shown."""
        return tuple(each for part in self.parts for each in part.oversized)

    def ask(self, part: Part) -> Prompt:
        """Return the request for a part."""
        place = Place(part.number, len(self.parts), part.place, self.place(0, len(self.parts)))
        return part_prompt(
            self.secret,
            part.body,
            place,
            previous=part.previous,
            wishes=self.wishes,
            answer_tokens=self.answer_tokens,
        )

    def merge(self, texts: Sequence[str], places: Sequence[str], *, final: bool) -> Prompt:
        """Return the request that makes one summary of several; the last one has the earlier summary too."""
        previous = self.previous if final else None
        room = self.available.weight
        if previous is not None:
            previous = fit_text(previous, len(previous), room // 3, cut_lines)
            room -= text_weight(previous)
        summaries = [quote_lines(text, WORDS) for text in texts]
        if sum(map(_framed_weight, summaries)) > room:
            each = room // len(texts) - _FRAME_WEIGHT
            summaries = [fit_text(text, len(text), each, cut_lines) for text in summaries]
        return merge_prompt(
            self.secret, summaries, places, previous=previous, wishes=self.wishes, answer_tokens=self.answer_tokens
        )

    def with_window(self, window: int) -> Plan:
        """Return the plan with another window for what is still to be asked; raises WindowTooSmallError."""
        answer = min(self.answer_tokens, window // ANSWER_SHARE)
        room = _available(window, answer, self.fixed_weight, self.available.chars)
        earlier = self.previous and (room.half().fit(self.previous) or None)
        return replace(self, window=window, answer_tokens=answer, available=room, previous=earlier)

    def place(self, start: int, stop: int) -> str:
        """Return which messages the parts from `start` until `stop` cover."""
        return describe([entry for part in self.parts[start:stop] for entry in part.entries])

    def groups(self, texts: Sequence[str]) -> list[tuple[int, int]]:
        """Return which neighbours are merged in one request: one group at the last level, fewer texts at each."""
        weights = [_framed_weight(quote_lines(text, WORDS)) for text in texts]
        earlier = min(text_weight(self.previous or ""), self.available.weight // 3)
        if len(texts) <= 2 or sum(weights) + earlier <= self.available.weight:  # noqa: PLR2004 - a pair is always merged
            return [(0, len(texts))]
        groups = [[0, 1, weights[0]]]
        for index, weight in enumerate(weights[1:], start=1):
            last = groups[-1]
            # Pairs at least, cut to fit if they have to be: otherwise no level would have fewer texts.
            if last[2] + weight <= self.available.weight or last[1] - last[0] == 1:
                last[1:] = [index + 1, last[2] + weight]
            else:
                groups.append([index, index + 1, weight])
        return [(start, stop) for start, stop, _ in groups]


def plan(
    zone: Sequence[ViewMessage],
    previous: str | None,
    policy: Policy,
    window: int,
    *,
    times: Mapping[int, str] = NOTHING_KNOWN,
    names: Mapping[int, str] = NOTHING_KNOWN,
    instructions: str | None = None,
    pins: Sequence[str] = (),
    strip_fields: Collection[str] = (),
    without_oversized: bool = False,
    language: str = "english",
) -> Plan:
    """Return how to summarize `zone` with a model of `window` tokens, under headings in `language`.

    Parts cover the zone in order, each index once, and part no call from its result. Raises WindowTooSmallError.
    """
    secret = canary(transcript_hash(zone, previous))
    answer = min(policy.summary_max_tokens, window // ANSWER_SHARE)
    # A result may be pinned as well.
    kept = "\n".join(without_fields(text, strip_fields) for text in pins)
    wishes = Wishes(
        _format_focus(instructions or "", _WISHES_CHARS, window), _format_focus(kept, _PINS_CHARS, window), language
    )
    fixed = _fixed_weight(secret, wishes, answer)
    available = _available(window, answer, fixed, policy.summary_input_max_chars)
    earlier = available.half().fit(quote_lines(previous or "", WORDS)) or None
    units = _units(zone, entries(zone, policy, times=times, names=names, strip_fields=strip_fields))
    room = available
    if not _is_whole(units, available, earlier):
        ratio = _ratio([entry.weight for unit in units for entry in unit if entry.text], window)
        # Of the room, not of the window: in a small one the rules would take the whole share, and parts be tiny.
        room = Room(available.chars, min(available.weight, max(_LEAST_ROOM, int(available.weight * ratio))))
    large = [entry for unit in units for entry in unit if room.half().load(entry.text, entry.weight) > 1]
    named = {entry.seq: OversizedMessage(entry.seq, _name(entry)) for entry in large}
    if without_oversized:
        units = [[left_out(entry) if entry.seq in named else entry for entry in unit] for unit in units]
    if _is_whole(units, available, earlier):
        runs, room, first = [[entry for unit in units for entry in unit]], available, earlier
    else:
        first = earlier and room.half().fit(earlier)
        runs = _split(units, room, first)
    parts = tuple(
        _part(number, run, room.less(first) if number == 1 else room, first if number == 1 else None, named)
        for number, run in enumerate(runs, start=1)
    )
    if without_oversized:
        parts = tuple(replace(part, oversized=(), left_out=part.oversized) for part in parts)
    return Plan(parts, window, answer, available, earlier, wishes, secret, fixed)


def join_summaries(texts: Sequence[str]) -> str:
    """Return summaries of consecutive parts as one, heading by heading, without a model."""
    by_heading: dict[str, list[str]] = {}
    for text in texts:
        heading = ""
        for line in in_english(text).split("\n"):
            known = next((each for each in SECTIONS if line.strip().rstrip(":").lower() == each.lower()), None)
            if known is not None:
                heading = known
            by_heading.setdefault(heading, []).append("" if known is not None else line)
    pieces = []
    for heading in ("", *SECTIONS):
        lines = "\n".join(line for line in by_heading.get(heading, []) if line.strip() not in {"", "None."})
        if lines or heading:
            pieces.append(f"{heading}\n{lines or 'None.'}" if heading else lines)
    return "\n\n".join(pieces)


def describe(entries: Sequence[Entry]) -> str:
    """Return which messages these are, and when they were sent if that is known."""
    seqs = [entry.seq for entry in entries if entry.text]
    if not seqs:
        return "no messages"
    times = [entry.time for entry in entries if entry.time and entry.time != TIME_UNKNOWN]
    name = f"messages {seqs[0]}\u2013{seqs[-1]}" if len(seqs) > 1 else f"message {seqs[0]}"
    return f"{name}, {times[0]} to {times[-1]}" if times else name


def _name(entry: Entry) -> str:
    return f"message {entry.seq} ({entry.speaker}, {entry_size(entry)})"


def _format_focus(text: str, chars: int, window: int) -> str:
    """Return what people want, of no more than a sixteenth of the window."""
    return fit_text(quote_lines(text, WORDS), chars, window * CHARS_PER_TOKEN // 16, cut_lines)


def _available(window: int, answer_tokens: int, fixed_weight: int, chars: int) -> Room:
    room = Room(chars, int((window - answer_tokens) * CHARS_PER_TOKEN / MARGIN) - fixed_weight)
    if room.weight < _LEAST_ROOM:
        raise WindowTooSmallError(f"{window:,} tokens leave no room beside the rules and the answer")
    return room


def _fixed_weight(secret: str, wishes: Wishes, answer_tokens: int) -> int:
    """Return what a request weighs without what is to be summarized."""
    place = Place(1, 2, "", "")
    part = part_prompt(secret, "", place, previous="", wishes=wishes, answer_tokens=answer_tokens)
    merge = merge_prompt(secret, [""], [""], previous="", wishes=wishes, answer_tokens=answer_tokens)
    return max(part.weight, merge.weight) + _SLACK


def _ratio(weights: Sequence[int], window: int) -> float:
    share = sum(weights) / max(1, len(weights)) / CHARS_PER_TOKEN * MARGIN / window
    return BASE_RATIO if share <= _LARGE_SHARE else max(MINIMUM_RATIO, BASE_RATIO - 2 * share)


def _units(zone: Sequence[ViewMessage], entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return the messages in pieces that are never divided: calls with everything up to their last result."""
    joined = [False] * len(entries)
    for answered, asked in call_positions(zone):
        if answered < len(entries):
            joined[asked + 1 : answered + 1] = [True] * (answered - asked)
    units: list[list[Entry]] = []
    for entry, belongs in zip(entries, joined, strict=True):
        if belongs:
            units[-1].append(entry)
        else:
            units.append([entry])
    return units


def _is_whole(units: Sequence[Sequence[Entry]], room: Room, previous: str | None) -> bool:
    """Return whether everything fits in one request."""
    entries = [entry for unit in units for entry in unit if entry.text]
    left = room.less(previous)
    return (
        sum(len(entry.text) + 1 for entry in entries) <= left.chars
        and sum(entry.weight + 1 for entry in entries) <= left.weight
    )


def _split(units: Sequence[Sequence[Entry]], room: Room, previous: str | None) -> list[list[Entry]]:
    """Return the units in runs of about equal size that fit in `room`, the earlier summary counted with the first."""
    used = room.load(previous or "", text_weight(previous or ""))
    loads = [sum(room.load(entry.text, entry.weight) for entry in unit) for unit in units]
    total = used + sum(loads)
    target = total / max(1, math.ceil(total))
    runs: list[list[Entry]] = [[]]
    for unit, load in zip(units, loads, strict=True):
        begun = any(entry.text for entry in runs[-1])
        if load and begun and (used + load > 1 or used >= target):
            runs.append([])
            used = 0.0
        runs[-1] += unit
        used += load
    return runs


def _part(
    number: int, run: Sequence[Entry], room: Room, previous: str | None, named: Mapping[int, OversizedMessage]
) -> Part:
    stop = run[-1].position + 1 if run else 0
    large = tuple(named[entry.seq] for entry in run if entry.seq in named)
    return Part(number, run[0].position if run else 0, stop, tuple(run), room, previous, large)


def _framed_weight(text: str) -> int:
    return text_weight(text) + _FRAME_WEIGHT
