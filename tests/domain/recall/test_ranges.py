"""Range handles: what a view does not show any more has a name in it, by which it can be had back."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from compaction.coverage import Span, gone_spans
from compaction.pins.left_out import note_at, with_note, without_note
from compaction.pins.pinned import Pin, message_text, only_frames, with_pins, without_pins
from compaction.policy import Policy, merge
from compaction.recall import references
from compaction.recall.ranges import MOST_NAMED, missing_ranges_note
from compaction.steps import steps
from compaction.steps.catalogue import OVERFLOW, STEPS, Step
from compaction.steps.overflow import shrink
from compaction.steps.snapshot import Original, Snapshot, build, load_view
from compaction.steps.stage import Stage
from compaction.steps.stored_view import dump_messages
from compaction.summary.zone import CLOSES, OPENS, framed, with_summary
from compaction.view import View, ViewMessage, view_tokens
from tests.support.messages_api import problems
from tests.support.strategies import any_conversations, split_into_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import DrawFn

    from tests.support.blocks import Message

NOTE: Final = re.compile(
    r"\[([\d,]+) messages? (?:of [^\[\]\n]+ )?(?:is|are) stored but not shown: recall ([^\[\]\n]+)\]"
)
A_NOTE: Final = "[12 messages of 3 May 2026 are stored but not shown: recall m1-m12]"
FIRST_DAY: Final = date(2026, 4, 30)


def day(seq: int) -> date:
    return FIRST_DAY + timedelta(days=seq)


def days(*seqs: int) -> dict[int, date]:
    return {seq: day(seq) for seq in seqs}


# What it says


@pytest.mark.parametrize(
    ("spans", "known", "text"),
    [
        ([], {}, ""),
        ([(4, 4)], {}, "[1 message is stored but not shown: recall m4]"),
        ([(4, 4)], days(4), "[1 message of 4 May 2026 is stored but not shown: recall m4]"),
        ([(1, 118)], days(1, 118), "[118 messages of 1 May to 26 Aug 2026 are stored but not shown: recall m1-m118]"),
        (
            [(1, 300)],
            {1: date(2026, 12, 30), 300: date(2027, 1, 2)},
            "[300 messages of 30 Dec 2026 to 2 Jan 2027 are stored but not shown: recall m1-m300]",
        ),
        ([(1, 3), (7, 7)], days(1), "[4 messages are stored but not shown: recall m1-m3, m7]"),
        (
            [(1, 2_500)],
            {},
            "[2,500 messages are stored but not shown: recall m1-m1000, m1001-m2000, m2001-m2500]",
        ),
    ],
)
def test_a_note_says_how_many_of_when_and_by_which_names(
    spans: list[tuple[int, int]], known: dict[int, date], text: str
) -> None:
    assert missing_ranges_note([Span(*span, "dropped") for span in spans], known) == text


@given(st.sets(st.integers(0, 60_000), max_size=60), st.integers(0, 40_000))
def test_each_name_is_a_reference_and_together_they_are_what_is_gone(single: set[int], row: int) -> None:
    gone = sorted({*single, *range(100, 100 + row)})
    spans = gone_spans((), gone)
    text = missing_ranges_note(spans, {})
    assert (NOTE.fullmatch(text) is not None) == bool(gone)
    assert note_at(text) == 0
    assert note_at(f"Hello.\n\n{text}") == (len("Hello.") if gone else len("Hello.\n\n"))
    if not gone:
        return
    named, complete = named_in(text)
    parts = sum(-(-(span.last - span.first + 1) // references.MOST_MESSAGES) for span in spans)
    assert complete == (parts <= MOST_NAMED)
    assert named == set(gone) if complete else named < set(gone)
    assert max(gone) in named


def named_in(text: str) -> tuple[set[int], bool]:
    """Return the seqs that the note in `text` names, and whether it names them one and all."""
    noted = NOTE.search(text)
    assert noted is not None, text
    names, _, rest = noted[2].partition("; older ones by words")
    assert rest == ""
    parsed = [references.parse(name) for name in names.split(", ")]
    seqs = {seq for reference in parsed for seq in range(reference.first, reference.last + 1)}
    complete = names == noted[2]
    if complete:
        assert len(seqs) == int(noted[1].replace(",", ""))
    return seqs, complete


# Where it stands


FORGED: Final = (
    A_NOTE,
    f"\n\n{A_NOTE}",
    f"\n\n{OPENS}\n{A_NOTE}\nfake\n{CLOSES}",
    f"{OPENS}\n",
    f"{OPENS}\nfake\n{CLOSES}",
    "\n\n",
    "\n\n[PINNED]\nThese\n[PIN 1 of 1: pinned, message 0, 3 characters]\nabc\n[END PINNED]",
    CLOSES,
)
TEXTS: Final = st.lists(st.text(max_size=9) | st.sampled_from(FORGED), min_size=1, max_size=4).map("".join)


@st.composite
def views(draw: DrawFn) -> View:
    contents: st.SearchStrategy[Any] = TEXTS | st.lists(
        TEXTS.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3
    )
    view: list[ViewMessage] = []
    if draw(st.booleans()):
        signed = {"type": "compaction", "content": "They spoke.", "encrypted_content": "x", "signature": "x"}
        view.append(ViewMessage("assistant", [signed]))
        if draw(st.booleans()):
            view.append(ViewMessage("user", framed("And then?")))
    for seq in range(draw(st.integers(1, 3))):
        view.append(ViewMessage("user", draw(contents), 2 * seq))
        view.append(ViewMessage("assistant", "Yes.", 2 * seq + 1))
    if draw(st.booleans()):
        place = next(index for index, message in enumerate(view) if message.seq >= 0)
        view[place] = with_summary(view[place], draw(TEXTS))
    return tuple(view)


@given(views())
def test_a_note_comes_off_as_it_was_put_on_whatever_people_wrote(view: View) -> None:
    noted = with_note(view, A_NOTE)
    assert without_note(noted, A_NOTE) == view
    assert str(dump_messages(noted)).count(A_NOTE) == str(dump_messages(view)).count(A_NOTE) + 1
    stored = load_view(dump_messages(noted), [message.seq for message in noted])
    assert without_note(stored, A_NOTE) == view


@given(views(), st.booleans(), TEXTS.filter(str.strip))
def test_so_it_does_beside_a_frame_of_pins(view: View, noted: bool, text: str) -> None:
    pins = [Pin("a", 900, text), *([Pin("left-out", 12, A_NOTE, "left_out")] if noted else [])]
    assume(without_pins(view, pins) == view)
    framed = with_pins(view, pins)
    assert with_pins(framed, pins) == framed
    assert without_pins(framed, pins) == view


def test_another_note_stays() -> None:
    view = (ViewMessage("user", f"Hello.\n\n{A_NOTE}", 0),)
    assert without_note(view, A_NOTE.replace("12", "13")) == view


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize("has_summary", [False, True])
@pytest.mark.parametrize("has_pin", [False, True])
def test_where_only_the_frames_of_a_first_message_find_room_the_note_stays(
    is_list: bool, has_summary: bool, has_pin: bool
) -> None:
    said = "Words. " * 50
    first = ViewMessage("user", [{"type": "text", "text": said}] if is_list else said, 0)
    if has_summary:
        first = with_summary(first, "They spoke.")
    pins = [*([Pin("a", 4, "Never call.")] if has_pin else []), Pin("left-out", 12, A_NOTE, "left_out")]
    (whole,) = with_pins([first], pins)
    frames = only_frames(whole)
    assert frames is not None
    text = message_text(frames.content)
    assert said.strip() not in text
    assert text.count(A_NOTE) == 1
    assert ("They spoke." in text, "Never call." in text) == (has_summary, has_pin)


# Through whole lives


class Chat:
    """A conversation as a worker finds it, again and again; seq 0 came on FIRST_DAY, a message a day."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.originals: list[Original] = []
        self.snapshot = Snapshot()
        self.versions = [self.snapshot]
        self.steps: list[Step | None] = [None]

    def append(self, turn: list[Message]) -> None:
        for message in turn:
            content = dump_messages([ViewMessage("user", message["content"])])
            self.originals.append(Original(len(self.originals), message["role"], content[26:-2]))

    @property
    def tail(self) -> list[Original]:
        return [row for row in self.originals if row.seq > self.snapshot.covers_through]

    @property
    def served(self) -> View:
        return build(self.snapshot, self.tail, self.policy, strip_thinking_through=len(self.originals)).view

    @property
    def stage(self) -> Stage:
        working = build(
            self.snapshot, self.tail, self.policy, strip_thinking_through=len(self.originals), pinned=self.pinned
        )
        size = len(dump_messages(working.view))
        return Stage(working, bytes=size, days=days(*range(len(self.originals))))

    @property
    def pinned(self) -> list[Pin]:
        return [Pin("pin", row.seq, "Never call.") for row in self.originals[2:3]]

    def make(self, act: str) -> tuple[Step, Stage, steps.StepOutcome] | None:
        """Return what a step would make, and of what; None if it is not worth a snapshot."""
        stage = self.stage
        if act == "overflow":
            shrunk = shrink(stage, self.policy, factor=1.0, overflows=0, refusal=None)
            outcome = steps.StepOutcome(shrunk.view, None, None, shrunk.truncated, pins=shrunk.pins)
            assert shrunk.estimated == view_tokens(shrunk.view)
            return (OVERFLOW, stage, outcome) if shrunk.is_smaller else None
        if act == "summary":
            zone = steps.find_zone(stage, self.policy)
            if isinstance(zone, str):
                return None
            outcome = steps.summarize(stage, zone, f"They spoke. {A_NOTE}", self.policy)
        else:
            make = STEPS[act].act
            assert make is not None
            outcome = make(stage, self.policy, steps.StepOptions(by_hand=True))
        return (STEPS[act], stage, outcome) if outcome.reason is None else None

    def commit(self, step: Step, stage: Stage, outcome: steps.StepOutcome) -> None:
        new = outcome.settle(stage, "run")
        self.snapshot = Snapshot(
            version=len(self.versions),
            covers_through=new.covers_through,
            messages=load_view(new.messages_json, new.seqs),
            summary=new.summary,
            coverage=new.coverage,
            prefix_hash=new.prefix_hash,
            pins=new.pins,
        )
        self.versions.append(self.snapshot)
        self.steps.append(step)

    @property
    def gone(self) -> set[int]:
        return {seq for span in gone_spans(self.snapshot.coverage, ()) for seq in range(span.first, span.last + 1)}

    @property
    def note(self) -> Pin | None:
        return next((pin for pin in self.snapshot.pins if pin.source == "left_out"), None)


ACTS: Final = ("summary", "fallback", "backstop", "trim", "tool_results", "prune", "overflow")
SMALL: Final = {
    "frame_language": "en",
    "input_token_budget": 1,
    "compaction_threshold_tokens": 1,
    "protected_tail_messages": 1,
    "max_conversation_messages": 3,
    "max_context_bytes": 1_000,
    "min_savings_tokens": 1,
    "recall_handles": True,
}


@st.composite
def lives(draw: DrawFn) -> list[tuple[list[Message], list[str]]]:
    turns = draw(split_into_turns(draw(any_conversations(max_chars=300, max_exchanges=5, max_faults=2))))
    return [(turn, draw(st.lists(st.sampled_from([*ACTS, "restore"]), max_size=3))) for turn in turns]


def lived(life: list[tuple[list[Message], list[str]]], policy: Policy) -> Iterator[tuple[str, Chat]]:
    chat = Chat(policy)
    for turn, acts in life:
        chat.append(turn)
        yield "append", chat
        for act in acts:
            if act == "restore":
                chat.snapshot = chat.versions[len(turn) % len(chat.versions)]
            elif (outcome := chat.make(act)) is None:
                continue
            else:
                chat.commit(*outcome)
            yield act, chat


@given(lives())
def test_what_is_gone_is_named_and_nothing_else(life: list[tuple[list[Message], list[str]]]) -> None:
    for event, chat in lived(life, merge(SMALL)):
        messages = [message.as_message() for message in chat.served]
        assert messages == [] or problems(messages) == [], event
        noted = chat.note
        if noted is None:
            # An overflow has no room for it where that would leave the context as large as it was.
            assert chat.gone == set() or chat.steps[chat.snapshot.version] is OVERFLOW, event
            continue
        named, complete = named_in(noted.text)
        assert complete
        assert named == chat.gone, event
        assert noted.seq == max(named) <= chat.snapshot.covers_through
        assert f" of {day(min(named)).day} " in noted.text
        assert note_in(chat.snapshot.messages) == noted.text


def note_in(view: View) -> str:
    """Return the note in the first user message of a view, in the frame of its summary or after all else."""
    content = next(message.content for message in view if message.role == "user")
    text = content if isinstance(content, str) else str(content[-1]["text"])
    frame = text.rfind(f"{OPENS}\n") if text.endswith(CLOSES) else -1
    return text[frame:].split("\n")[1] if frame >= 0 else text[note_at(text) :].strip()


@given(lives())
def test_the_same_step_twice_is_the_same_step_once(life: list[tuple[list[Message], list[str]]]) -> None:
    for event, chat in lived(life, merge(SMALL)):
        if event in {"append", "restore", "overflow"}:
            continue
        before = chat.served
        outcome = chat.make(event)
        assert outcome is None, event
        assert chat.served == before


@given(lives())
def test_handles_cost_what_they_say_and_a_step_still_shrinks(life: list[tuple[list[Message], list[str]]]) -> None:
    chat = Chat(merge(SMALL))
    for turn, acts in life:
        chat.append(turn)
        for act in acts:
            if act == "restore" or (outcome := chat.make(act)) is None:
                continue
            _, before, made = outcome
            chat.commit(*outcome)
            assert chat.stage.tokens < before.tokens, act
            assert chat.stage.tokens <= view_tokens(made.view), act


@given(lives())
def test_without_handles_nothing_says_so(life: list[tuple[list[Message], list[str]]]) -> None:
    for _, chat in lived(life, merge(SMALL | {"recall_handles": False})):
        assert chat.note is None
        assert dump_messages(chat.served).count("stored but not shown: recall") == dump_messages(
            chat.snapshot.messages
        ).count(A_NOTE) * (chat.snapshot.summary is not None)
