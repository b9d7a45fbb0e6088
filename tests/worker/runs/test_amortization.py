"""Amortization: what compaction costs over a long conversation is bounded by what was said in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from compaction.policy import Policy, merge
from compaction.steps.ladder import growth_margin
from tests.support.long_conversation import Kind, PromptCache, play, turns
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.service.in_process import SMALL, Chat, Workers
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import answer, request, rounds
from worker.summarizers import SummaryError
from worker.summarizers.anthropic import AnthropicModel
from worker.summarizers.extractive import ExtractiveSummarizer
from worker.summarizers.staged import StagedSummarizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from runtime.settings import Settings
    from store.tables import AnyRow
    from tests.conftest import Tenant
    from tests.support.long_conversation import Played

TURNS: Final[Mapping[Kind, int]] = {"chat": 600, "agent": 240}
SPARING: Final = {"tool_results_growth_ratio": 0.6}
"""Tool results are cut when it is cheapest, not as soon as they are over the budget."""
DEFAULT: Final = {name: getattr(Policy(), name) for name in SMALL}
"""The thresholds that the product has by default, for a conversation in these tests."""
STORED: Final = """
select version, step, covers_through, tokens,
       pg_column_size(part) + pg_column_size(seqs) + pg_column_size(coverage) + pg_column_size(pins)
       + coalesce(pg_column_size(summary), 0) as stored
from snapshot_parts where conversation_id = :c order by version
"""
SUMMARIZED: Final = """
select coalesce(sum(s.model_input_tokens), 0) from run_steps as s join runs as r on r.id = s.run_id
where r.conversation_id = :c
"""


class Whole(NamedTuple):
    """A conversation that was played to its end."""

    conversation: UUID
    marks: list[Played]
    """After each half."""
    snapshots: list[AnyRow]
    breaks: list[int]
    """Turns after which the context began otherwise than before."""


def played(chat: Chat, workers: Workers, kind: Kind, count: int, policy: Mapping[str, Any] = DEFAULT) -> Whole:
    conversation = chat.begin(policy)
    marks: list[Played] = []
    breaks: list[int] = []
    heads: list[int] = []
    broken = 0
    for state in play(chat, workers, conversation, turns(kind, count)):
        if state.cache.breaks > broken:
            broken = state.cache.breaks
            breaks.append(state.turns)
            heads.append(chat.row(conversation).head_version)
        if state.turns in {count // 2, count}:
            marks.append(state)
    snapshots = list(chat.query(STORED, c=conversation))
    # Nothing but a new snapshot changes what a context begins with: byte for byte it is the same in between.
    assert len(set(heads)) == len(heads)
    assert heads[-1] == chat.row(conversation).head_version
    return Whole(conversation, marks, snapshots, breaks)


@pytest.mark.parametrize("kind", [pytest.param("chat", marks=pytest.mark.slow), "agent"])
def test_what_compaction_writes_is_bounded_by_what_was_appended(chat: Chat, kind: Kind) -> None:
    whole = played(chat, Workers(chat, ExtractiveSummarizer()), kind, TURNS[kind])
    last = whole.marks[-1]
    assert {run.state for run in chat.runs(whole.conversation)} == {"committed"}
    stored = sum(row.stored for row in whole.snapshots)
    # With the messages themselves, about once what was appended, that is within two and a half. Every cut of an agent's
    # results written whole would be three and more by itself.
    assert stored <= {"chat": 1.2, "agent": 0.8}[kind] * last.appended
    # As many compactions as the conversation has grown by what is left between two of them, and no more.
    growth = growth_margin(Policy().input_token_budget, Policy())
    assert 2 <= len(whole.snapshots) <= last.appended / 4 / growth
    # Of what is sent, nearly all is read from the cache; what is lost of it is about once what was said.
    assert last.cache.read > 0.85 * (last.cache.read + last.cache.written)
    assert last.cache.lost <= 1.5 * last.appended


@pytest.mark.slow
def test_it_does_not_grow_with_the_conversations_length(chat: Chat) -> None:
    whole = played(chat, Workers(chat, ExtractiveSummarizer()), "agent", 400, DEFAULT | SPARING)
    half, last = whole.marks
    through = [number for number, turn in enumerate(whole.breaks) if turn <= half.turns][-1] + 1
    first = sum(row.stored for row in whole.snapshots[:through]) / half.appended
    second = sum(row.stored for row in whole.snapshots[through:]) / (last.appended - half.appended)
    # Not one against the other: now and then a snapshot is stored whole, a few times in each half.
    assert max(first, second) <= 0.8
    assert len(whole.breaks) - through <= 1.25 * through + 1


def test_a_model_reads_what_was_said_once(
    make_settings: Callable[..., Settings], tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = TURNS["chat"] // 2
    thresholds = {name: limit // 2 for name, limit in DEFAULT.items()}
    spent: dict[int, int] = {}
    with LoopbackModel() as model:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url)
        settings = make_settings(summarizer="anthropic")
        with Chat(settings, tenant.id) as chat:
            # No guard: of words that mean nothing there is no good summary.
            workers = Workers(chat, StagedSummarizer(AnthropicModel(settings)))
            conversation = chat.begin(thresholds)
            for state in play(chat, workers, conversation, turns("chat", count)):
                if state.turns in {count // 2, count}:
                    spent[state.appended // 4] = chat.query(SUMMARIZED, c=conversation)[0][0]
    assert len(model.requests) >= 6
    (half, at_half), (whole, at_end) = spent.items()
    assert at_end <= 1.3 * whole
    assert (at_end - at_half) / (whole - half) <= 1.25 * at_half / half


@pytest.mark.parametrize("ratio", [0, 0.6])
def test_the_next_cut_waits_until_it_has_grown_by_a_share_of_what_the_last_one_left(chat: Chat, ratio: float) -> None:
    large = {"compaction_threshold_tokens": 100_000, "model_context_tokens": 200_000}
    conversation = chat.begin(large | {"tool_results_growth_ratio": ratio})
    workers = Workers(chat)
    chat.append(conversation, [request("go", 1_500), *rounds(6, 400)])
    workers.settle(conversation)
    left = chat.context(conversation)["tokens"]["context"]
    hold = chat.row(conversation).tool_results_hold
    margin = growth_margin(2_000, merge(SMALL))
    assert 0.6 * left > margin  # or the margin would be more than the share
    assert left + max(margin, ratio * left) - 1 <= hold <= left + max(margin, ratio * left)


def test_where_a_summary_is_due_a_cut_that_is_held_back_is_not_made_first(chat: Chat) -> None:
    conversation = chat.begin(SPARING)
    workers = Workers(chat, StubSummarizer())
    chat.append(conversation, [request("go", 1_500), *rounds(6, 400)])
    workers.settle(conversation)
    chat.append(conversation, [*rounds(2, 200, start=6), answer("so far", 1_500)])
    chat.query("update conversations set tool_results_hold = 9000 where id = :c", c=conversation)
    workers.settle(conversation)
    first, second = chat.runs(conversation)
    assert [step.name for step in chat.steps(first.id)] == ["tool_results"]
    assert [(step.name, step.state) for step in chat.steps(second.id)] == [("summary", "committed")]
    # What held back is gone with what it was measured by.
    row = chat.row(conversation)
    assert row.tool_results_hold == row.context_tokens + growth_margin(2_000, merge(SMALL))


def test_where_the_summary_then_fails_the_cut_comes_before_an_extract(chat: Chat) -> None:
    conversation = chat.begin(SPARING)
    workers = Workers(chat, StubSummarizer(error=SummaryError("model_error", "no")))
    chat.append(conversation, [request("go", 1_500), *rounds(6, 400)])
    workers.settle(conversation)
    chat.append(conversation, [*rounds(2, 200, start=6), answer("so far", 1_500)])
    chat.query("update conversations set tool_results_hold = 9000 where id = :c", c=conversation)
    workers.settle(conversation)
    _, second = chat.runs(conversation)
    assert [step.name for step in chat.steps(second.id)][:2] == ["summary", "tool_results"]


def test_a_run_that_was_handed_over_may_cut_once_more(chat: Chat) -> None:
    """It counts its attempts anew, so a step of the checks' attempt has the same number and name."""
    conversation = chat.begin(SPARING)
    workers = Workers(chat, StubSummarizer(error=SummaryError("model_error", "no")))
    chat.append(conversation, [request("go", 4_500), *rounds(6, 400)])
    lease = workers.hand_over(conversation)
    chat.append(conversation, [*rounds(6, 600, start=6), answer("so far", 100)])
    workers.dispatcher.execute(lease)
    cuts = [step for step in chat.steps(lease.run_id) if step.name == "tool_results"]
    assert [(step.attempt, step.state, step.snapshot_version) for step in cuts] == [
        (1, "committed", 1),
        (1, "committed", 2),
    ]


def test_where_there_are_no_summaries_it_is_made_all_the_same(chat: Chat) -> None:
    conversation = chat.begin(SPARING | {"compaction_enabled": False})
    workers = Workers(chat)
    chat.append(conversation, [request("go", 1_500), *rounds(6, 400)])
    workers.settle(conversation)
    chat.query("update conversations set tool_results_hold = 9000 where id = :c", c=conversation)
    chat.append(conversation, [*rounds(4, 400, start=6), answer("so far", 800)])
    workers.settle(conversation)
    (step, *_) = chat.steps(chat.runs(conversation)[-1].id)
    assert (step.name, step.state) == ("tool_results", "committed")


def test_the_simulated_cache_reads_what_is_alike_from_the_beginning() -> None:
    cache = PromptCache()
    for messages in (b'[{"a":1}]', b'[{"a":1},{"b":2}]', b'[{"x":1},{"b":2}]'):
        cache.call(messages)
    assert (cache.read, cache.written) == (8 + 3, 8 + 8 + 13)
    assert (cache.lost, cache.breaks) == (13, 1)
