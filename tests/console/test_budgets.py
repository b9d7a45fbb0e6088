"""How full a context is shown to be: against the next threshold, whichever that is."""

from __future__ import annotations

import pytest

from api.console.formats import setting
from api.console.views.budgets import fill
from compaction.policy import Policy


@pytest.mark.parametrize(
    ("tokens", "limit", "label", "level"),
    [
        (5_000, 40_000, "tool results cut", "calm"),
        (39_000, 40_000, "tool results cut", "near"),
        (40_001, 80_000, "summary due", "calm"),
        (79_000, 80_000, "summary due", "near"),
        (90_000, 128_000, "total budget", "over"),
        (200_000, 128_000, "total budget", "over"),
    ],
)
def test_context_is_held_against_the_next_threshold(tokens: int, limit: int, label: str, level: str) -> None:
    found = fill(tokens, Policy())
    assert (found.limit, found.label, found.level) == (limit, label, level)
    assert [mark.tokens for mark in found.marks] == [each for each in (40_000, 80_000) if each < limit]


def test_threshold_that_is_off_is_none() -> None:
    assert fill(5_000, Policy(input_token_budget=0)).limit == 80_000


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (None, "null"), (40_000, "40000"), ("mask", "mask"), (["a"], '["a"]')]
)
def test_policy_values_are_written_as_requests_have_them(value: object, text: str) -> None:
    assert setting(value) == text
