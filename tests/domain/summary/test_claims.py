"""Citations read, lines held against what they cite, and what can never be: a claim outside its zone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.claims.citations import add_citations, format_seqs, parse_lines, remove_empty_headings, strip_citations
from compaction.claims.claim import MOST_CITED, Claim, ClaimCounts
from compaction.claims.extracted import claims_of_extract
from compaction.claims.packing import pack_claims, unpack_claims
from compaction.claims.proof import Handling, prove
from compaction.extract.extractive import extract_placed
from compaction.messages import blocks
from compaction.originals import with_originals
from compaction.policy import merge
from compaction.view import WRITTEN, ViewMessage
from tests.support.strategies import any_conversations
from worker.summarizers import SummaryError, SummaryRequest
from worker.summarizers.extractive import ExtractiveSummarizer

ZONE = (
    ViewMessage("user", "I'd like to go to Lisbon in May, budget is 5,000 EUR for Anna and me.", 3),
    ViewMessage("assistant", "Flight TP-4471 of TAP costs 820 EUR.", 4),
    ViewMessage("user", "Actually make it 6000.", 5),
    ViewMessage("assistant", "Done, the budget is raised. Hotel Memmo Alfama is booked, reference QX77-19A.", 6),
    ViewMessage("user", "Breakfast should be gluten-free, three mornings of it.", 9),
)


def only(line: str, zone: tuple[ViewMessage, ...] = ZONE, **given_: object) -> Claim:
    (claim,) = prove(line, zone, **given_).claims  # type: ignore[arg-type]
    return claim


@pytest.mark.parametrize(
    ("line", "text", "places"),
    [
        ("Budget 6000 EUR [m12].", "Budget 6000 EUR.", [(12, 12)]),
        ("A [m12-15]", "A", [(12, 15)]),
        ("A [m12\u201315]", "A", [(12, 15)]),
        ("A [m12\u2013m15][m20]", "A", [(12, 15), (20, 20)]),
        ("A [m1, 3-5; m9] then B [m7], C", "A then B, C", [(1, 1), (3, 5), (9, 9), (7, 7)]),
        ("glued[m5]", "glued", [(5, 5)]),
        ("A block [m12.1]", "A block", [(12, 12)]),
        ("cut [m12", "cut", []),
        ("cut [m12-", "cut", []),
        ("cut [m12, m", "cut", [(12, 12)]),
        ("cut [m4-6, m7; m1", "cut", [(4, 6), (7, 7)]),
        ("cut [m", "cut", []),
        ("elsewhere [conv_ab12:m3]", "elsewhere", []),
        ("rows[m12] are read first", "rows[m12] are read first", []),
        ("- [x] done", "- [x] done", []),
        ("see [12] and [M3]", "see [12] and [M3]", []),
    ],
)
def test_citations_are_read_and_taken_out(line: str, text: str, places: list[tuple[int, int]]) -> None:
    (parsed,) = parse_lines(line)
    assert (parsed.text, list(parsed.places or ())) == (text, places)
    assert strip_citations(strip_citations(line)) == strip_citations(line) == text


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("पहले केवल पढ़ने वाली प्रतियाँ स्थानांतरित होंगी।", "केवल पढ़ने वाली प्रतियाँ पहले स्थानांतरित [m1]"),
        ("প্রথমে কেবল পড়ার অনুলিপিগুলি সরানো হবে।", "কেবল পড়ার অনুলিপিগুলি প্রথমে সরানো [m1]"),
        ("முதலில் படிக்க மட்டும் நகல்கள் மாற்றப்படும்.", "படிக்க மட்டும் நகல்கள் முதலில் மாற்றப்படும் [m1]"),
        ("អាន\u200bតែ\u200bច្បាប់ចម្លង\u200bជាមុន", "ច្បាប់ចម្លង អាន [m1]"),
    ],
    ids=["Hindi", "Bengali", "Tamil", "Khmer"],
)
def test_words_whose_vowels_are_marks_bear_a_line_out(said: str, line: str) -> None:
    zone = (ViewMessage("user", said, 1), ViewMessage("assistant", "OK.", 2))
    assert (only(line, zone).seqs, only(line, zone).support) == ((1,), "values")


def test_who_wrote_a_message_bears_a_line_out() -> None:
    zone = (ViewMessage("user", "I can spend 40 EUR.", 0), ViewMessage("user", "I can spend 90 EUR.", 1))
    names = {0: "anna", 1: "ben"}
    assert only("40 EUR is what Anna can spend [m0]", zone, names=names).support == "values"
    assert only("40 EUR is what Anna can spend [m0]", zone).support == "unsupported"
    # Cited wrongly: the one message that bears it out takes its place.
    assert only("90 EUR is what Ben can spend [m0]", zone, names=names).seqs == (1,)


def test_a_citation_on_a_line_of_its_own_belongs_to_the_line_before() -> None:
    assert [(line.text, line.places) for line in parse_lines("## Facts\nOne thing\n[m3]\nNone.")] == [
        ("## Facts", None),
        ("One thing", ((3, 3),)),
        ("None.", None),
    ]


@pytest.mark.parametrize(
    ("line", "seqs", "support"),
    [
        ("Trip to Lisbon in May with Anna [m3]", (3,), "values"),
        ("Budget raised to 6000 EUR [m3, m5]", (3, 5), "values"),
        ("Flight TP-4471 of TAP costs 820 EUR [m4]", (4,), "verbatim"),
        ("Flight TP-4471 costs 820 EUR [m3]", (4,), "values"),
        ("Hotel Memmo Alfama booked under QX77-19A", (6,), "values"),
        ("They want 3 mornings of gluten-free breakfast [m9]", (9,), "values"),
        ("They want 4 mornings of gluten-free breakfast [m9]", (), "unsupported"),
        ("Flight TP-4472 costs 820 EUR [m4]", (), "unsupported"),
        ("Flight TP-4471 to Madrid costs 820 EUR [m4]", (), "unsupported"),
        ("A rental car at 90 EUR a day [m4]", (), "unsupported"),
        ("They were delighted by the weather forecast [m6]", (), "unsupported"),
    ],
)
def test_a_line_is_held_against_what_it_cites(line: str, seqs: tuple[int, ...], support: str) -> None:
    claim = only(f"- {line}")
    assert (claim.seqs, claim.support) == (seqs, support)


OFFICES = (
    ViewMessage("user", "We open the Hamburg office. The budget is 99120 EUR.", 4),
    ViewMessage("assistant", "Noted: the ship leaves Rotterdam on 2031-05-04.", 5),
    ViewMessage("user", "Invoice 99120 goes to Hamburg, please file it.", 6),
    ViewMessage("assistant", "Filed under KL-20417 by Anna's team.", 7),
    ViewMessage("user", "Fine, and the pallets weigh 731 kilograms.", 8),
)


@pytest.mark.parametrize(
    ("line", "seqs"),
    [
        ("Invoice 9912 goes to filing [m6]", ()),
        ("The cost is 9912 [m4-7]", ()),
        ("The Ham office opens [m4]", ()),
        ("Hamburg's office opens [m4]", (4,)),
        ("Anna files under KL-20417 [m7]", (7,)),
        ("The ship leaves Rotterdam on May 4, 2031 [m5]", (5,)),
        ("The ship leaves Rotterdam on 4 May 2031 [m5]", (5,)),
        ("The ship leaves Rotterdam on May 5, 2031 [m5]", ()),
        ("The pallets weigh 731 kilograms [m0-2000]", (8,)),
        ("Everything is in order [m0-2000]", ()),
        ("The pallets weigh 731 kilograms [m8, m1", (8,)),
        ("The pallets weigh 731 kilograms [8].", (8,)),
        ("Hamburg has invoice 99120 [4, 6]", (4, 6)),
        ("Invoice 99120 stands in Hamburg as [9]", ()),
    ],
)
def test_parts_of_values_and_names_bear_nothing_out_and_dates_may_be_written_out(
    line: str, seqs: tuple[int, ...]
) -> None:
    assert only(line, OFFICES).seqs == seqs


def test_of_several_stretches_none_is_guessed() -> None:
    zone = (*ZONE, ViewMessage("assistant", "The flight TP-4471 leaves at noon, costs are unchanged: 820 EUR.", 20))
    assert only("The flight TP-4471 costs 820 EUR in all.", zone).support == "unsupported"
    assert only("The flight TP-4471 costs 820 EUR in all [m20].", zone).seqs == (20,)


def test_names_that_stay_in_the_context_need_no_source() -> None:
    line = "Flight TP-4471 to Madrid costs 820 EUR [m4]"
    assert only(line, beside=("We travel to Madrid.",)).seqs == (4,)


def test_whoever_cites_everything_names_no_source() -> None:
    zone = tuple(ViewMessage("user", f"Order number {900 + n} of {n} pieces is late.", n) for n in range(40))
    claim = only("The order numbers 903 and 931 are late [m0-m39]", zone)
    assert (claim.seqs, claim.support) == ((), "unsupported")


def test_lines_of_an_earlier_summary_rest_on_its_originals() -> None:
    earlier = (Claim("The gate code is 4471-B, says Marco.", (1, 2), "values"), Claim("The weather was bad."))
    kept = prove(
        "The gate code is 4471-B, says Marco.\nMarco has gate code 4471-B [m1].\nThe weather was bad.",
        ZONE,
        earlier=earlier,
    )
    assert [claim.seqs for claim in kept.claims] == [(1, 2), (1, 2), ()]


def test_what_a_summary_without_sources_said_is_marked_and_never_dropped() -> None:
    previous = "The gate code is 4471-B, says Marco."
    for handling in ("drop", "refuse"):
        proved = prove(previous, ZONE, unsourced=previous, handling=handling)
        assert (proved.text, proved.counts.unsupported, proved.refusable) == (previous, 1, 0)


_WORDS = ("Lisbon", "budget", "6000", "TP-4471", "hotel", "Anna", "820", "EUR", "breakfast", "None.", "\u6240", "##")
WORDS = st.sampled_from([*_WORDS, "[m3]", "[m4-6]", "[m0-99]", "[m7"])
LINES = st.lists(st.lists(WORDS, max_size=8).map(" ".join), max_size=8).map("\n".join)
CLAIMS = st.lists(
    st.builds(Claim, st.sampled_from(["Anna likes 6000 hotels.", "code 820"]), st.just((1, 2)), st.just("values")),
    max_size=2,
)


@given(LINES | st.text(max_size=200), CLAIMS, st.sampled_from(["mark", "drop", "refuse"]))
def test_no_claim_rests_on_what_is_outside(text: str, earlier: list[Claim], handling: Handling) -> None:
    proved = prove(text, ZONE, earlier=tuple(earlier), handling=handling)
    inside = {message.seq for message in ZONE} | {seq for claim in earlier for seq in claim.seqs}
    lines = [line.strip() for line in proved.text.split("\n")]
    for claim in proved.claims:
        assert inside.issuperset(claim.seqs)
        assert bool(claim.seqs) == (claim.support != "unsupported")
        assert len(claim.seqs) <= MOST_CITED
        assert claim.text in lines
        lines = lines[lines.index(claim.text) + 1 :]
    counts = proved.counts
    claimed = sum(line.places is not None for line in parse_lines(text))
    assert sum(counts) == claimed
    assert len(proved.claims) == claimed - counts.dropped
    assert counts.dropped == 0 or handling == "drop"
    assert handling != "drop" or counts.unsupported == 0
    for shown in (proved.text, add_citations(proved.text, proved.claims)):
        assert unpack_claims(pack_claims(proved.claims, shown), shown) == proved.claims


@given(st.lists(st.integers(0, 60), unique=True).map(sorted))
def test_seqs_are_named_as_they_are_read(seqs: list[int]) -> None:
    (line,) = parse_lines(f"A thing{f' [{format_seqs(seqs)}]' if seqs else ''}")
    assert [seq for place in line.places or () for seq in range(place.first, place.last + 1)] == seqs


@given(st.integers(60, 2_000))
def test_the_claims_of_an_extract_stand_word_for_word_in_their_messages(max_chars: int) -> None:
    said = [message.as_message() for message in ZONE]
    text, placed = extract_placed(said, max_chars=max_chars)
    claims = claims_of_extract(text, placed, {place: [message.seq] for place, message in enumerate(ZONE)})
    contents = {message.seq: str(message.content) for message in ZONE}
    for claim in claims[:-1]:
        assert claim.support == "verbatim"
        pieces = claim.text.partition(": ")[2].split("\u2026")
        assert all(piece.strip() in contents[claim.seqs[0]] for piece in pieces)


def test_what_compaction_wrote_is_no_source() -> None:
    zone = (ViewMessage("user", "The code is 4471-B.", WRITTEN), *ZONE)
    assert only("The code is 4471-B.", zone).support == "unsupported"
    assert prove("", ZONE).counts == ClaimCounts()


def test_what_quotes_a_line_that_has_values_alone_has_no_more() -> None:
    line = "The trip to Lisbon costs Anna 820 EUR by TAP"
    earlier = (
        Claim(line, (4,), "values"),
        Claim("Breakfast should be gluten-free, three mornings of it", (9,), "verbatim"),
    )
    assert only(f"- {line}.", (), earlier=earlier) == Claim(f"- {line}.", (4,), "values")
    assert only("* Breakfast should be gluten-free, three mornings of it.", (), earlier=earlier).support == "verbatim"


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["## A", None, "## B", "b"], ["## B", "b"]),
        (["## A", None, "a"], ["## A", "a"]),
        (["## A", "### B", None, "", "## C", "c"], ["## C", "c"]),
        (["## A", "a", "### B", None], ["## A", "a"]),
        (["## A", "They want:", None, "## C", None, "c"], ["## C", "c"]),
        (["## A", "None.", None], ["## A", "None."]),
        (["## A", "", "## B", "b"], ["## A", "", "## B", "b"]),
        ([None], []),
    ],
)
def test_a_heading_goes_with_the_last_line_under_it(lines: list[str | None], left: list[str]) -> None:
    assert remove_empty_headings(lines) == left


@given(st.lists(st.one_of(st.none(), st.sampled_from(["# A", "## B", "### C", "so:", "", "a", "- b"]))))
def test_no_line_goes_that_says_something(lines: list[str | None]) -> None:
    left = remove_empty_headings(lines)
    said = [line for line in lines if line in {"a", "- b"}]
    assert [line for line in left if line in {"a", "- b"}] == said
    assert left == [line for line in lines if line is not None] or None in lines


@given(st.builds(ClaimCounts, *([st.integers(0, 10_000)] * 5)), st.text())
def test_counts_are_read_as_they_are_written(counts: ClaimCounts, around: str) -> None:
    assert ClaimCounts.parse(f"Summarized 3 messages; {counts}; its messages alone") == counts
    assert ClaimCounts.parse(around) is None


@given(conversation=any_conversations(max_chars=700, max_faults=4), max_tokens=st.integers(64, 2_000))
def test_the_lines_of_an_extract_name_the_messages_that_they_quote(
    conversation: list[dict[str, Any]], max_tokens: int
) -> None:
    zone = tuple(ViewMessage(each["role"], each["content"], seq) for seq, each in enumerate(conversation))
    try:
        summary = ExtractiveSummarizer().summarize(
            SummaryRequest(zone, None, merge({"summary_max_tokens": max_tokens, "compaction_threshold_tokens": 10**6}))
        )
    except SummaryError:
        return
    calls = {
        message.seq: [
            str(block.get("name")) for block in blocks(message.content) if str(block.get("type")).endswith("tool_use")
        ]
        for message in zone
    }
    for claim in summary.claims or ():
        assert claim.support == "verbatim"
        if claim.text.startswith("Called "):
            name = claim.text.removeprefix("Called ").split("(")[0].split(" ")[0]
            assert any(name in called for seq in claim.seqs for called in calls[seq]), (claim, calls)


def test_a_line_of_a_call_with_two_results_names_the_call_and_those_that_it_quotes() -> None:
    zone = (
        ViewMessage("user", "Look it up.", 0),
        ViewMessage("assistant", [{"type": "tool_use", "id": "t", "name": "look", "input": {"q": "harbour"}}], 1),
        ViewMessage(
            "user", [{"type": "tool_result", "tool_use_id": "t", "content": "The harbour closes at 17:45."}], 2
        ),
        ViewMessage("assistant", "It closes then.", 3),
        ViewMessage(
            "user", [{"type": "tool_result", "tool_use_id": "t", "content": "Berth 12 is free on 2031-04-05."}], 4
        ),
    )
    summary = ExtractiveSummarizer().summarize(SummaryRequest(zone, None, merge({})))
    (claim,) = (each for each in summary.claims or () if each.text.startswith("Called look"))
    assert "17:45" in claim.text
    assert "Berth 12" in claim.text
    assert (claim.seqs, claim.support) == ((1, 2, 4), "verbatim")


def test_a_result_that_was_cut_is_read_again_as_it_stood_where_another_has_its_id() -> None:
    first, second = ({"type": "tool_result", "tool_use_id": "t", "content": text} for text in ("first", "second"))
    cut = ViewMessage("user", [{**first, "content": "fi"}], 2)
    (whole,) = with_originals([cut], {2: [first, second]})
    assert whole.content == [first]
