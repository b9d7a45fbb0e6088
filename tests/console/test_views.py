"""What the console draws, from made-up rows: differences, the path of a run, the labels of messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import Match, SequenceMatcher
from itertools import groupby, pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.console.formats import ago, ahead, axis_money, compact, duration, money, short
from api.console.views.budgets import Line, fill
from api.console.views.content import SHOWN_CHARS, as_text, parts, preview, preview_of_beginning
from api.console.views.context import Head, entries, is_changed
from api.console.views.run_path import run_path
from api.console.views.timeline import plot
from api.console.views.versions.text_diff import compare
from compaction.coverage import Coverage, Span
from compaction.policy import Policy
from compaction.view import WRITTEN, ViewMessage
from store.console.timeline import Moment

if TYPE_CHECKING:
    from collections.abc import Iterator

START = datetime(2026, 1, 1, tzinfo=UTC)
LINES = st.lists(st.sampled_from(["one two three", "two", "", "  four\tfive", "six, seven."]), max_size=12).map(
    "\n".join
)
FATES = st.sampled_from(["kept", "truncated", "summarized", "dropped"])


@given(LINES, LINES)
def test_the_pieces_of_a_difference_are_both_texts(old: str, new: str) -> None:
    pieces = compare(old, new)
    if not any(piece.change == "skip" for piece in pieces):
        assert "".join(piece.text for piece in pieces if piece.change != "in") == old
        assert "".join(piece.text for piece in pieces if piece.change != "out") == new
    assert all(piece.text for piece in pieces)
    assert (old == new) == ({piece.change for piece in pieces} <= {"same", "skip"})


def test_what_is_the_same_for_long_is_left_out() -> None:
    same = "all of this is as it was\n" * 1_000
    pieces = compare(f"{same}old end", f"{same}new end")
    assert [piece.change for piece in pieces] == ["same", "skip", "same", "out", "in", "same"]
    assert sum(len(piece.text) for piece in pieces) < 500


@pytest.mark.parametrize("between", ["\n", " "])
def test_a_few_words_again_and_again_are_not_compared_with_each_other(
    between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    class Counting(SequenceMatcher[str]):
        def find_longest_match(self, alo: int = 0, ahi: int | None = None, *rest: Any) -> Match:
            nonlocal compared
            own: Any = self  # the stubs have no attributes
            compared += sum(len(own.b2j.get(word, ())) for word in own.a[alo:ahi])
            return super().find_longest_match(alo, ahi, *rest)

    monkeypatch.setattr("api.console.views.versions.text_diff.SequenceMatcher", Counting)
    old, new = (between.join("ab"[each * each % prime < 3] for each in range(700)) for prime in (7, 11))
    assert compare(old, new)
    assert compared < 10 * len(old)


def test_long_texts_that_differ_in_every_line_are_compared_by_lines() -> None:
    old, new = ("".join(f"{number} {word} {'so ' * 40}\n" for number in range(2_900)) for word in ("old", "new"))
    pieces = compare(old, new)
    assert old == "".join(piece.text for piece in pieces if piece.change in {"same", "out"})
    assert new == "".join(piece.text for piece in pieces if piece.change in {"same", "in"})


def test_texts_that_are_too_long_to_compare_are_shown_whole() -> None:
    old, new = "\n".join(map(str, range(5_000))), "\n".join(map(str, range(1, 5_001)))
    assert [piece.change for piece in compare(old, new)] == ["out", "in"]


@given(st.lists(st.tuples(st.integers(1, 4), FATES), max_size=8), st.integers(0, 5), st.data())
def test_the_list_has_every_message_once(spans: list[tuple[int, Any]], tail: int, data: st.DataObject) -> None:
    coverage: list[Span] = []
    seq = 0
    for length, fate in spans:
        coverage.append(Span(seq, seq + length - 1, fate))
        seq += length
    items = [
        each for span in coverage if span.fate in {"kept", "truncated"} for each in range(span.first, span.last + 1)
    ]
    view = [ViewMessage("user", "x", each) for each in items]
    places = data.draw(st.lists(st.integers(0, len(view)), max_size=2)) if view else []
    for place in sorted(places, reverse=True):
        view.insert(place, ViewMessage("assistant", "written", WRITTEN))
    superseded = data.draw(st.sets(st.integers(seq, max(seq, seq + tail - 1)), max_size=2)) if tail else set()
    head = Head(1, seq - 1, tuple(view), Coverage(coverage), None)

    whole = entries(head, seq + tail, superseded, "all")
    assert [entry.first for entry in whole if entry.kind == "message"] == list(range(seq + tail))
    seen = entries(head, seq + tail, superseded, "context")
    told = [each for entry in seen if entry.kind != "written" for each in range(entry.first, entry.last + 1)]
    assert told == [each for each in range(seq + tail) if each not in superseded]
    for found in (whole, seen):
        order = [
            view[entry.first].seq if entry.kind == "written" else entry.first
            for entry in found
            if entry.kind == "written" or entry.first in items
        ]
        assert order == [message.seq for message in view]


@given(st.lists(FATES, min_size=1, max_size=12), st.data())
def test_a_line_tells_whether_the_head_changed_it(before: list[Any], data: st.DataObject) -> None:
    after = [data.draw(st.sampled_from([fate, "summarized", "dropped"])) for fate in before]
    known = data.draw(st.integers(0, len(before)))

    def covered(fates: list[Any]) -> Coverage:
        return Coverage([Span(seq, seq + len(same) - 1, fate) for seq, fate, same in _stretches(fates)])

    head = Head(2, len(after) - 1, (), covered(after), None, [covered(before[:known])])
    was = [*before[:known], *["kept"] * (len(before) - known)]
    for entry in entries(head, len(after), set(), "all"):
        assert is_changed(head, entry) == (was[entry.first] != after[entry.first])
    for entry in entries(head, len(after), set(), "context"):
        reached = range(entry.first, entry.last + 1)
        assert is_changed(head, entry) == any(was[each] != after[each] for each in reached)


def _stretches(fates: list[Any]) -> Iterator[tuple[int, Any, list[Any]]]:
    seq = 0
    for fate, same in groupby(fates):
        items = list(same)
        yield seq, fate, items
        seq += len(items)


def run(**fields: Any) -> Any:
    values = {
        "state": "committed",
        "queue": "checks",
        "reason": None,
        "error": None,
        "attempts": 1,
        "created_at": START,
        "queued_at": START,
        "started_at": START + timedelta(seconds=2),
        "finished_at": START + timedelta(seconds=10),
    }
    return SimpleNamespace(**{**values, **fields})


def step(number: int, ended: float, lasted: float, **fields: Any) -> Any:
    values = {
        "step_no": number,
        "name": "summary",
        "state": "committed",
        "reason": None,
        "error": None,
        "detail": None,
        "attempt": 1,
        "model_calls": 0,
        "model_input_tokens": None,
        "model_output_tokens": None,
        "cost_usd": None,
        "tokens_before": 0,
        "tokens_after": 0,
    }
    at = START + timedelta(seconds=ended)
    return SimpleNamespace(**{**values, **fields}, created_at=at, duration_ms=round(lasted * 1000))


def test_a_run_that_was_handed_over_waits_twice() -> None:
    finished = run(
        queue="summaries",
        queued_at=START + timedelta(seconds=3),
        started_at=START + timedelta(seconds=8),
        finished_at=START + timedelta(seconds=20),
    )
    steps = [
        step(1, 3, 0.5, name="tool_results"),
        step(2, 12, 4, model_calls=1, state="failed", reason="model_overloaded", error="529", cost_usd=Decimal("0.1")),
        step(3, 19, 5, model_calls=1, cost_usd=Decimal("0.2"), attempt=2),
    ]
    path = run_path(finished, steps, START)
    assert [(state.name, state.detail, state.seconds) for state in path.states] == [
        ("running", "checks", 3.0),
        ("queued", "summaries", 5.0),
        ("running", "summaries", 12.0),
        ("committed", "", None),
    ]
    assert {time.kind: time.seconds for time in path.times} == {"wait": 5.0, "model": 9.0, "steps": 0.5, "rest": 5.5}
    assert sum(time.length for time in path.times) == pytest.approx(100)
    assert path.cost_usd == Decimal("0.3")
    assert path.failure is not None
    assert (path.failure.where, path.failure.reason) == ("step 2, summary, attempt 1", "model_overloaded")


def test_a_run_that_has_not_begun() -> None:
    finished = run(state="queued", started_at=None, finished_at=None)
    path = run_path(finished, [], START + timedelta(seconds=9))
    assert [(state.name, state.seconds) for state in path.states] == [("queued", 9.0)]
    assert path.is_active
    assert path.cost_usd is None
    assert path.failure is None


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=30))
def test_a_plot_stays_within_its_drawing(values: list[tuple[int, int]]) -> None:
    moments = [
        Moment(seq, held, shown, 0, seq if seq % 5 == 4 else None, "summary" if seq % 5 == 4 else None)
        for seq, (held, shown) in enumerate(values)
    ]
    drawn = plot(moments, [Line("a", "a", 80_000), Line("b", "b", 80_001)], ratio=1.0, fixed=10)
    for point in drawn.points:
        assert drawn.left <= point.x <= drawn.right
        assert drawn.top <= point.y <= drawn.bottom
    assert len(drawn.marks) == len(values) // 5
    labels = [line.label_y for line in drawn.thresholds]
    assert all(later - earlier >= 14 - 1e-9 for earlier, later in pairwise(labels))
    assert drawn.last is not None
    assert drawn.last.held == values[-1][0] + 10


def test_fill_levels() -> None:
    policy = Policy(compaction_threshold_tokens=1_000, input_token_budget=0)
    assert [fill(tokens, policy).level for tokens in (0, 849, 850, 1_000, 1_001)] == [
        "calm", "calm", "near", "near", "over",
    ]  # fmt: skip


def test_contents_of_every_kind() -> None:
    content = [
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "t", "name": "look", "input": {"a": [1]}},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "found"}, {"type": "image"}]},
        {"type": "tool_result", "tool_use_id": "t", "content": "broken", "is_error": True},
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 1_000}},
        {"type": "compaction", "content": "So far."},
        {"type": None},
        {"type": "instruction", "text": "Be brief.", "by": "system"},
        {"type": "opaque", "of": "input_audio", "text": "", "size": 9},
    ]
    shown = parts(content)
    assert [part.kind for part in shown] == [
        "text", "call", "result", "result", "result", "thinking", "thinking", "media", "other", "other",
        "other", "other",
    ]  # fmt: skip
    assert [part.title for part in shown[-2:]] == ["System message", "input_audio"]
    assert "AAAA" not in as_text(content)
    assert preview(content).startswith('Hello · Call of look: { "a": [ 1 ] } · Tool result: found')
    assert parts("x" * (SHOWN_CHARS + 7))[0].hidden == 7
    assert parts([]) == []
    assert preview("") == ""


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ('"It is \\"plain\\" \\u00e9 te', 'It is "plain" é te…'),
        ('[{"type":"tool_result","tool_use_id":"t","content":"<html>\\n<body \\ud83d', "Tool result: <html> <body ?…"),
        ('[{"type": "text", "text": "Hi"}, {"type": "image"', "Hi…"),
        ('[{"type":"tool_use","input":{"a":1', '[{"type":"tool_use","input":{"a":1…'),
    ],
)
def test_a_long_message_is_listed_by_how_it_begins(text: str, begins: str) -> None:
    assert preview_of_beginning(text) == begins


def test_formats() -> None:
    assert [compact(n) for n in (None, 0, 950, 1_000, 12_340, 128_000, 1_240_000)] == [
        "\u2013", "0", "950", "1k", "12.3k", "128k", "1.2M",
    ]  # fmt: skip
    assert [duration(s) for s in (None, 0.0123, 4.25, 61, 3_700, 200_000)] == [
        "\u2013", "12 ms", "4.2 s", "1 min 1 s", "1 h 1 min", "2.3 days",
    ]  # fmt: skip
    assert [money(n) for n in (None, Decimal(0), Decimal("0.0123"), Decimal("1234.5"))] == [
        "\u2013", "$0.00", "$0.0123", "$1,234.50",
    ]  # fmt: skip
    assert [axis_money(n) for n in (0, 0.005, 0.5, 1, 1_500)] == ["$0.00", "$0.0050", "$0.50", "$1.00", "$1,500.00"]
    assert ago(datetime.now(UTC) - timedelta(minutes=5)) == "5 min ago"
    assert ahead(datetime.now(UTC) - timedelta(hours=5)) == "5 h ago"
    assert ahead(datetime.now(UTC) + timedelta(days=2, minutes=1)) == "in 2 d"
    assert short("run_0123456789abcdef") == "run_…89abcdef"
