"""References, times and patterns: what is asked for other than by words."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.recall import references
from compaction.recall.patterns import WINDOW_BYTES, BadPatternError, PatternSearch
from compaction.recall.references import BadReferenceError, Reference
from compaction.recall.times import MOST_RANGES, time_ranges

NOW = datetime(2026, 5, 20, 15, 30, tzinfo=UTC)  # a Wednesday


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m12", Reference(12, 12)),
        ("m12.1", Reference(12, 12, 1)),
        ("m12-m18", Reference(12, 18)),
        ("m12-18", Reference(12, 18)),
        (" [M12\N{EN DASH}m18] ", Reference(12, 18)),
        ("c12.0", Reference(12, 12, 0, is_context=True)),
        (" [C12.3]", Reference(12, 12, 3, is_context=True)),
    ],
)
def test_a_reference_is_read(text: str, expected: Reference) -> None:
    assert references.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "m",
        "m-1",
        "m1.1-m2",
        "m9-m3",
        "m0-m1000",
        "m0-m1000000",
        "m12 m13",
        "m1e3",
        "c12",
        "c1-c2",
        "c1.0-c1.2",
        "c.1",
        "m\uff11\uff12",
        "m1.\uff12",
        "m1-m\u0663",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(BadReferenceError):
        references.parse(text)


@given(st.integers(0, 10**6), st.integers(0, 900), st.integers(0, 50))
def test_what_is_named_is_read_again(first: int, more: int, block: int) -> None:
    assert references.parse(references.span(first, first + more)) == Reference(first, first + more)
    assert references.parse(references.block(first, block)) == Reference(first, first, block)
    assert references.parse(references.context_block(first, block)) == Reference(first, first, block, is_context=True)


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [
        ("what was said yesterday?", "2026-05-19", "2026-05-20"),
        ("last week we met", "2026-05-11", "2026-05-18"),
        ("last month", "2026-04-01", "2026-05-01"),
        ("this year", "2026-01-01", "2027-01-01"),
        ("on 2026-05-03", "2026-05-03", "2026-05-04"),
        ("on May 3, 2023, we", "2023-05-03", "2023-05-04"),
        ("the 3rd of June", "2025-06-03", "2025-06-04"),
        ("in April", "2026-04-01", "2026-05-01"),
        ("in May 2023", "2023-05-01", "2023-06-01"),
        ("three days ago", "2026-05-17", "2026-05-18"),
        ("last monday", "2026-05-18", "2026-05-19"),
        ("on wednesday", "2026-05-13", "2026-05-14"),
    ],
)
def test_a_time_is_read(query: str, first: str, last: str) -> None:
    days = {(start.date().isoformat(), end.date().isoformat()) for start, end in time_ranges(query, NOW)}
    assert (first, last) in days


@pytest.mark.parametrize("query", ["may I?", "the 45th", "2026-13-45", "31 April", "in a while", "m12"])
def test_what_names_no_time_has_none(query: str) -> None:
    assert time_ranges(query, NOW) == []


def test_only_so_many_times_are_looked_up() -> None:
    assert len(time_ranges(" ".join(f"{days} days ago" for days in range(1, 999)), NOW)) == MOST_RANGES
    assert len(time_ranges("today " * 1_000, NOW)) == 1


@given(st.text(max_size=80), st.datetimes(datetime(1, 1, 2), datetime(9000, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_any_text_is_read_for_times(text: str, now: datetime) -> None:
    assert all(start < end for start, end in time_ranges(text, now))


@given(st.sampled_from(["1 day ago", "999 years ago", "last year", "this month", "29 february", "in 1900"]))
def test_early_clocks_are_no_matter(query: str) -> None:
    assert all(start < end for start, end in time_ranges(query, datetime(2001, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize(
    "pattern", ["(", "a{1000}{1000}{1000}", r"(?=a)", r"\1", "*", "[z-a]", "(?:[a-z]{0,100}){0,60}Q", r"(?:\pL{9}){99}"]
)
def test_what_is_no_pattern_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadPatternError):
        PatternSearch(pattern)
    assert capfd.readouterr() == ("", "")


def test_a_pattern_that_explodes_elsewhere_takes_linear_time() -> None:
    assert PatternSearch(r"(a|aa)*(a*)*$z").find_places("a" * 100_000) == []


def test_a_search_ends_with_its_time_in_the_middle_of_a_text() -> None:
    looks = iter([False, False, False])
    text = ("x" * 999 + " plover ") * 40
    search = PatternSearch("plover", lambda: next(looks, True))
    matches = search.find_places(text)
    assert 0 < len(matches) < text.count("plover")
    assert search.is_cut
    assert search.find_places("plover") == ()
    assert search.find_places(text) is matches
    assert not PatternSearch("plover").is_cut


@given(st.integers(0, 3 * WINDOW_BYTES), st.sampled_from(["", "é", "🦜"]), st.sampled_from(["plover", "ünd🦜"]))
def test_what_stands_between_two_windows_is_found_once(before: int, filler: str, word: str) -> None:
    text = f"{filler or '.'}" * before + f" {word} " + "." * WINDOW_BYTES
    assert PatternSearch(rf"(?i)\b{word}|{word}\s").find_places(text) == [(text.index(word), 1.0)]
    assert PatternSearch(rf"^{word}").find_places(text) == []
    assert PatternSearch(rf"{word}$").find_places(text) == []


def test_a_single_byte_is_found_in_the_character_that_it_is_of() -> None:
    places = PatternSearch(r"\C").find_places("aé\U0001f600b")
    assert places == [(at, 1.0) for at in (0, 1, 1, 2, 2, 2, 2, 3)]
    assert PatternSearch(r"\Cb").find_places("é" * WINDOW_BYTES + "b") == [(WINDOW_BYTES - 1, 1.0)]


def test_only_so_many_places_of_a_text_are_told() -> None:
    matches = PatternSearch(r"\d").find_places("1" * WINDOW_BYTES)
    assert [at for at, _ in matches] == list(range(100))


@given(st.text(max_size=60))
def test_places_are_counted_in_characters(text: str) -> None:
    whole = f"{text} X-77/b ünd X-78/b"
    starts = [at for at, _ in PatternSearch(r"X-\d\d/b").find_places(whole)]
    assert starts[-2:] == [whole.index("X-77/b", len(text)), whole.rindex("X-78/b")]
    assert all(one < other for one, other in pairwise(starts))


def test_nothing_is_matched_by_what_matches_nothing() -> None:
    assert PatternSearch("x*").find_places("abc") == []
