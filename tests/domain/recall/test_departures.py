"""By which step a message had left the context, whatever became of it before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from compaction.coverage import Fate, Span, extend, find_span
from compaction.recall.departures import Departure, Link, find_departures

if TYPE_CHECKING:
    from compaction.coverage import Coverage

FATES: tuple[Fate, ...] = ("kept", "truncated", "summarized", "dropped")


def link(version: int, step: str, *spans: tuple[int, int, Fate, str | None]) -> Link:
    return Link(version, step, tuple(Span(*span) for span in spans))


def test_what_was_cut_and_summarized_later_left_when_it_was_cut() -> None:
    chain = [
        link(1, "tool_results", (0, 3, "kept", None), (4, 4, "truncated", "a"), (5, 6, "kept", None)),
        link(2, "summary", (0, 0, "kept", None), (1, 6, "summarized", "b"), (7, 9, "kept", None)),
    ]
    assert find_departures([0, 3, 4, 8, 12], chain) == {
        3: Departure("summary", "b", 2),
        4: Departure("tool_results", "a", 1),
    }


def test_what_a_restore_brought_back_left_the_last_time() -> None:
    chain = [
        link(1, "summary", (0, 0, "kept", None), (1, 4, "summarized", "a")),
        link(2, "restore", (0, 1, "kept", None)),
        link(3, "trim", (0, 4, "dropped", "c")),
    ]
    assert find_departures([1, 3], chain) == {1: Departure("trim", "c", 3), 3: Departure("trim", "c", 3)}
    assert find_departures([1, 3], chain[:2]) == {}


@given(st.lists(st.dictionaries(st.integers(0, 9), st.sampled_from(FATES[1:])), max_size=6))
def test_only_what_the_head_does_not_keep_has_left(steps: list[dict[int, Fate]]) -> None:
    coverage: Coverage = ()
    chain = []
    for version, fates in enumerate(steps, 1):
        coverage = extend(coverage, range(10) if version == 1 else (), fates, str(version))
        chain.append(Link(version, f"step {version}", coverage))
    left = find_departures(range(12), chain)
    gone = {seq for seq in range(12) if (span := find_span(coverage, seq)) and span.fate != "kept"}
    assert set(left) == gone
    for seq, departure in left.items():
        first = next(version for version, fates in enumerate(steps, 1) if seq in fates)
        assert departure == Departure(f"step {first}", str(first), first)
