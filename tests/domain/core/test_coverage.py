"""Coverage: every original exactly once, with its fate and the run that decided it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from compaction.coverage import Coverage, Fate, Span, changes, extend, find_span

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

FATES: tuple[Fate, ...] = ("kept", "truncated", "summarized", "dropped")


def flat(coverage: Coverage) -> list[tuple[int, Fate, str | None]]:
    return [(seq, span.fate, span.run_id) for span in coverage for seq in range(span.first, span.last + 1)]


@st.composite
def generations(draw: DrawFn) -> list[tuple[int, dict[int, Fate]]]:
    """How far each of some runs covers, and the fates it gives."""
    runs: list[tuple[int, dict[int, Fate]]] = []
    covers = -1
    for _ in range(draw(st.integers(1, 5))):
        covers += draw(st.integers(0, 12))
        fates = st.dictionaries(st.integers(0, max(0, covers)), st.sampled_from(FATES[1:]), max_size=12)
        runs.append((covers, draw(fates) if covers >= 0 else {}))
    return runs


@given(generations())
def test_a_chain_of_runs_accounts_for_every_original_once(runs: list[tuple[int, dict[int, Fate]]]) -> None:
    coverage: Coverage = ()
    expected: dict[int, tuple[Fate, str | None]] = {}
    covered = -1
    for number, (covers, fates) in enumerate(runs):
        parent, run_id = coverage, f"run-{number}"
        coverage = extend(parent, range(covered + 1, covers + 1), fates, run_id)
        for seq in range(covered + 1, covers + 1):
            expected[seq] = ("kept", None)
        before = {seq: fate for seq, (fate, _) in expected.items()}
        expected |= {seq: (fate, run_id) for seq, fate in fates.items()}
        assert flat(coverage) == [(seq, *expected[seq]) for seq in range(covers + 1)]
        assert all(find_span(coverage, seq) in coverage for seq in range(covers + 1))
        assert find_span(coverage, covers + 1) is None
        changed = {
            seq: (old, span) for first, last, old, span in changes(parent, coverage) for seq in range(first, last + 1)
        }
        assert changed == {
            seq: (before[seq], find_span(coverage, seq)) for seq, fate in fates.items() if fate != before[seq]
        }
        covered = covers
    assert msgspec.convert(msgspec.to_builtins(coverage), Coverage) == coverage


def test_neighbours_with_one_fate_and_one_run_are_one_span() -> None:
    coverage = extend((), range(6), {1: "dropped", 2: "dropped", 4: "truncated"}, "r")
    assert coverage == (
        Span(0, 0, "kept"),
        Span(1, 2, "dropped", "r"),
        Span(3, 3, "kept"),
        Span(4, 4, "truncated", "r"),
        Span(5, 5, "kept"),
    )


def test_one_fate_from_two_runs_stays_two_spans() -> None:
    first = extend((), range(2), {1: "dropped"}, "a")
    assert extend(first, range(2, 3), {2: "dropped"}, "b") == (
        Span(0, 0, "kept"),
        Span(1, 1, "dropped", "a"),
        Span(2, 2, "dropped", "b"),
    )


def test_seqs_that_are_not_there_part_spans() -> None:
    coverage = extend((), [0, 1, 4], {}, "r")
    assert coverage == (Span(0, 1, "kept"), Span(4, 4, "kept"))
    assert [find_span(coverage, seq) for seq in (-1, 2, 3, 5)] == [None] * 4


def test_what_a_long_conversation_has_lost_is_not_gone_through_again() -> None:
    gone = Span(0, 10**12, "dropped", "old")
    last = gone.last

    assert extend((gone,), range(last + 1, last + 4), {last: "summarized", last + 2: "truncated"}, "r") == (
        Span(0, last - 1, "dropped", "old"),
        Span(last, last, "summarized", "r"),
        Span(last + 1, last + 1, "kept"),
        Span(last + 2, last + 2, "truncated", "r"),
        Span(last + 3, last + 3, "kept"),
    )


def test_changes_name_what_was_and_what_is() -> None:
    parent = extend((), range(4), {2: "truncated"}, "a")
    child = extend(parent, range(4, 6), {1: "summarized", 2: "summarized", 4: "truncated"}, "b")
    assert changes(parent, child) == [
        (1, 1, "kept", Span(1, 2, "summarized", "b")),
        (2, 2, "truncated", Span(1, 2, "summarized", "b")),
        (4, 4, "kept", Span(4, 4, "truncated", "b")),
    ]
    assert changes(child, child) == []
