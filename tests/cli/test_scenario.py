"""The demo's conversation: always the same, valid, and long enough for both kinds of compaction."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from api.console.demo.texts import is_shortlisted, ranked
from cli.demo.report import plain_text, survival
from cli.demo.scenario import Scenario, job_search
from cli.installation.accounting import Ledger, tokens_of
from compaction.policy import Policy
from compaction.tokens import content_tokens
from tests.support.messages_api import alternates, problems
from tests.support.shapes import chat_api, responses_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from compaction.shapes.inner import Shape

SCENARIO = job_search()


def decoded(scenario: Scenario) -> list[dict[str, Any]]:
    return [
        {"role": message.role, "content": json.loads(bytes(message.content))}
        for part in scenario.turns
        for message in part.turn.messages
    ]


MESSAGES = decoded(SCENARIO)


def tool_results(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        if isinstance(message["content"], list):
            yield from (block["content"] for block in message["content"] if block["type"] == "tool_result")


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert job_search() == SCENARIO
    assert decoded(job_search(7)) != MESSAGES


def test_every_prefix_that_is_sent_is_valid() -> None:
    assert problems(MESSAGES, tools=SCENARIO.tools) == []
    assert alternates(MESSAGES)
    assert MESSAGES[-1]["role"] == "assistant"
    for part in SCENARIO.turns:
        assert [message.role for message in part.turn.messages] == ["user", "assistant"]


@pytest.mark.parametrize(("shape", "problems_of"), [("chat", chat_api.problems), ("responses", responses_api.problems)])
def test_it_is_the_same_story_in_every_shape(shape: Shape, problems_of: Callable[[Any], list[str]]) -> None:
    turns = job_search(shape=shape).turns
    sent = [json.loads(bytes(message.original or b"")) for part in turns for message in part.turn.messages]
    assert problems_of(sent) == []
    assert [part.label for part in turns] == [part.label for part in SCENARIO.turns]
    assert survival(SCENARIO, decoded(job_search(shape=shape)), MESSAGES) == survival(SCENARIO, MESSAGES, MESSAGES)


def test_every_call_is_answered_in_the_next_message() -> None:
    for message, following in pairwise(MESSAGES):
        if message["role"] == "assistant":
            asked = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
            given = following["content"]
            answered = [] if isinstance(given, str) else [block["tool_use_id"] for block in given]
            assert answered == asked


def test_about_sixty_turns_in_several_rounds() -> None:
    assert 50 <= len(SCENARIO.turns) <= 70
    assert sum(isinstance(message["content"], str) for message in MESSAGES) >= 8
    long = [text for text in tool_results(MESSAGES) if len(text) > 10_000]
    assert len(long) >= 30
    assert all(text.startswith(("<!doctype html>", "From: ")) for text in long)


@pytest.mark.requirement("S14")
def test_default_policy_has_to_cut_results_and_to_summarize() -> None:
    policy = Policy()
    total = sum(content_tokens(message["content"]) for message in MESSAGES)
    assert total > 130_000
    assert total > policy.model_context_tokens
    assert sum(map(len, tool_results(MESSAGES))) / 4 > policy.input_token_budget

    # What is left once every older result is cut: the newest results alone take it over the threshold.
    left = []
    for end, message in enumerate(MESSAGES):
        stubs = sum(min(len(text), policy.tool_result_retention_chars) for text in tool_results(MESSAGES[:end]))
        newest = sum(min(len(text), policy.max_tool_result_chars) for text in tool_results([message]))
        said = sum(tokens_of(each) for each in MESSAGES[: end + 1]) - sum(
            len(text) // 4 for text in tool_results(MESSAGES[: end + 1])
        )
        left.append(said + (stubs + newest) // 4)
    assert max(left) > policy.compaction_threshold_tokens * 1.1
    assert max(left[:60]) < policy.input_token_budget


def test_a_result_over_the_view_cap() -> None:
    assert any(len(text) > Policy().max_tool_result_chars for text in tool_results(MESSAGES))


@pytest.mark.requirement("S14")
def test_criteria_and_scores_are_there_to_survive() -> None:
    whole = survival(SCENARIO, MESSAGES, MESSAGES)
    assert whole.first_criteria == (6, 6)
    assert whole.later_criteria == (4, 4)
    assert whole.scores == (len(SCENARIO.scored), len(SCENARIO.scored))
    assert whole.urls == whole.scores
    first = plain_text(MESSAGES[:1])
    assert all(phrase in first for phrase in SCENARIO.criteria)
    assert not any(phrase in first for phrase in SCENARIO.refined_criteria)
    assert survival(SCENARIO, MESSAGES[:1], MESSAGES).scores == (0, len(SCENARIO.scored))
    assert 3 <= sum(map(is_shortlisted, SCENARIO.scored)) < len(SCENARIO.scored)


def test_scores_follow_the_rubric_that_the_user_gave() -> None:
    limits = {"stack": 30, "rate": 25, "remote": 20, "length": 15, "sector": 10}
    for vacancy in SCENARIO.scored:
        assert vacancy.points.keys() == limits.keys()
        assert all(0 <= points <= limits[name] for name, points in vacancy.points.items())
        assert vacancy.score == sum(vacancy.points.values())
    scores = [vacancy.score for vacancy in ranked(SCENARIO.scored)]
    assert scores == sorted(scores, reverse=True)


def test_ledger_reads_from_the_cache_what_did_not_change() -> None:
    ledger = Ledger(fixed_tokens=10)
    first, second, third = ({"role": "user", "content": letter * 40} for letter in "abc")
    assert ledger.call([first]) == usage(read=0, written=20)
    assert ledger.call([first, second]) == usage(read=20, written=10)
    assert ledger.call([third, second]) == usage(read=10, written=20)
    assert (ledger.sent, ledger.read, ledger.largest) == (80, 30, 30)
    assert ledger.usd_uncached == Decimal("0.00024")
    assert ledger.usd_cached == Decimal("0.0001965")


def usage(*, read: int, written: int) -> dict[str, int]:
    return {"input_tokens": 0, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
