"""Whose words a message has: a rule is what its writer states, not what is quoted, pasted or reported."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.pins.ledger import turn_entries
from compaction.pins.own_words import OTHERS, own_words
from compaction.pins.reporting import tells_of_others

SAMPLES: Final = Path(__file__).parent / "rules"
STATED: Final = (SAMPLES / "stated.txt").read_text().strip("\n").split("\n%%\n")
REPORTED: Final = (SAMPLES / "reported.txt").read_text().strip("\n").split("\n%%\n")
FOUND_OF_STATED: Final = 0.95
MARKS: Final = (
    "> ",
    "```",
    "<document>",
    "</document>",
    '"',
    "Bob: ",
    "he said: ",
    "\n",
    "\n\n",
    "Always knock. ",
    "    ",
    "?",
)


def rules_in(text: str, *, is_first: bool) -> list[str]:
    """Return the rules that a text states as a conversation's first message, or as a later one."""
    before = [] if is_first else [("user", "Hello."), ("assistant", "Hi.")]
    entries = turn_entries([*before, ("user", text)], may_be_first=is_first)
    return [entry.text for entry in entries if entry.source == "detected"]


@pytest.mark.parametrize("is_first", [True, False])
def test_what_people_state_themselves_is_found(*, is_first: bool) -> None:
    assert len(STATED) >= 100
    missed = [text for text in STATED if not rules_in(text, is_first=is_first)]
    assert len(missed) <= (1 - FOUND_OF_STATED) * len(STATED), missed


@pytest.mark.parametrize("is_first", [True, False])
def test_what_people_quote_paste_or_report_is_no_rule(*, is_first: bool) -> None:
    assert len(REPORTED) >= 100
    assert [(text, rules) for text in REPORTED if (rules := rules_in(text, is_first=is_first))] == []


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("> Never park here.\n\nFrom now on, answer in German.", ["From now on, answer in German."]),
        ("```\nalways()\n```\nFrom now on, comment my code.", ["From now on, comment my code."]),
        ("<doc>Never run.</doc>\nNever mention it to Bob.", ["Never mention it to Bob."]),
        ("Bob said: never run.\n\nNever mention it to Bob.", ["Never mention it to Bob."]),
        ('Never say "never" to a customer.', ['Never say "never" to a customer.']),
        ("[from Carol]: Never run.", ["Never run."]),
    ],
)
def test_a_rule_beside_a_quotation_is_a_rule(text: str, rules: list[str]) -> None:
    assert rules_in(text, is_first=False) == rules


def test_a_text_may_introduce_the_next_block() -> None:
    blocks = [{"type": "text", "text": text} for text in ("Summarize this mail:", "From now on, never be late.")]
    assert turn_entries([("user", blocks)]) == []
    turned = [blocks[1], blocks[0]]
    assert {entry.text for entry in turn_entries([("user", turned)])} == {"From now on, never be late."}


@pytest.mark.parametrize("text", ["I said it.", "As I told you.", "When a guest asked for it.", "Tell him.", "Say so."])
def test_a_writer_may_tell_what_he_said_himself(text: str) -> None:
    assert not tells_of_others(text)


@given(st.lists(st.sampled_from(MARKS) | st.text(max_size=8)).map("".join))
def test_blanking_leaves_every_place_where_it_was(text: str) -> None:
    own = own_words(text)
    assert len(own) == len(text)
    assert all(now in {was, OTHERS, "_", " "} for was, now in zip(text, own, strict=True))
    assert [at for at, letter in enumerate(text) if letter == "\n"] == [at for at, one in enumerate(own) if one == "\n"]


@pytest.mark.parametrize(
    "piece",
    ["<x>", "<a1><b2>", '"', "'", "> ", "```\n", "Bob: ", "said ", "is it ", "[m1,", "\u201c", ":", "a: b?\n", "- "],
)
def test_it_takes_time_in_proportion_to_the_text(piece: str) -> None:
    def seconds(chars: int) -> float:
        text = f"always {piece * (chars // len(piece))}"
        best = 9.0
        for _ in range(3):
            began = time.perf_counter()
            own_words(text)
            best = min(best, time.perf_counter() - began)
        return best

    assert seconds(160_000) < 10 * seconds(40_000) + 0.1
