"""An identifier has one spelling outside the database."""

from __future__ import annotations

import pytest

from runtime import ids


def test_an_identifier_is_read_as_it_was_written() -> None:
    identifier = ids.new_id()
    assert ids.parse("conv", ids.external("conv", identifier)) == identifier


DIGITS = "01a204d1f8597501b2dc928417ff5d47"


@pytest.mark.parametrize(
    "digits",
    [
        DIGITS.upper(),
        f"0x{DIGITS[2:]}",
        f"+{DIGITS[1:]}",
        f"{DIGITS[:8]}_{DIGITS[9:]}",
        f" {DIGITS[1:]}",
        f"{DIGITS[1:]}\n",
        f"{DIGITS}\n",
        f"{{{DIGITS[2:]}}}",
        f"{DIGITS[:8]}-{DIGITS[9:]}",
        f"{DIGITS[:-1]}\N{ARABIC-INDIC DIGIT THREE}",
        DIGITS[1:],
        "",
    ],
)
def test_no_other_spelling_is_taken(digits: str) -> None:
    assert ids.parse("conv", f"conv_{DIGITS}") is not None
    assert ids.parse("conv", f"conv_{digits}") is None


@pytest.mark.parametrize("text", [f"run_{DIGITS}", f"conv{DIGITS}", f"conv-{DIGITS}", DIGITS])
def test_the_prefix_says_of_what_kind_it_is(text: str) -> None:
    assert ids.parse("conv", text) is None
