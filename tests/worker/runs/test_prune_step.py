"""Pruning as a step of a run: old tool results that take too much of the window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from compaction.policy import Policy, merge
from compaction.steps.catalogue import PRUNE, STEPS, SUMMARY, TOOL_RESULTS, Result, Step
from compaction.steps.ladder import Load, decide
from compaction.steps.plan import Progress, RunContext, next_step
from store.conversations import conversations
from tests.support.service.in_process import Chat, Workers, check_state, head, view_of
from tests.support.talk import answer, request, result, results_of, rounds

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.blocks import Message

PRUNING: dict[str, Any] = {
    "input_token_budget": 0,
    "compaction_threshold_tokens": 100_000,
    "prune_head_chars": 100,
    "prune_tail_chars": 50,
    "prune_min_freed_tokens": 500,
}
"""With the window of 16,000 tokens: soft over 4,800, hard over 8,000."""


def begin(chat: Chat, messages: list[Message], **policy: Any) -> UUID:
    conversation = chat.begin(PRUNING | policy)
    chat.append(conversation, messages)
    return conversation


@pytest.mark.requirement("O7")
def test_old_results_over_the_share_keep_head_and_tail(chat: Chat) -> None:
    sent = [request("find me a job"), *rounds(6, 1_000)]
    conversation = begin(chat, sent)
    before = chat.context(conversation)["tokens"]["context"]
    with capture_logs() as events:
        Workers(chat).settle(conversation)

    run = chat.run(conversation)
    (step,) = chat.steps(run.id)
    assert (run.state, run.queue, step.name, step.state, step.results_cut) == (
        "committed",
        "checks",
        "prune",
        "committed",
        5,
    )
    freed = step.tokens_before - step.tokens_after
    assert step.detail.startswith("Pruned 5 old tool result(s): 5 softened to head and tail, 0 cleared, ")
    assert f"{freed // 100}" in step.detail.replace(",", "")
    assert step.tokens_before == before
    assert step.tokens_after == chat.context(conversation)["tokens"]["context"]
    assert (step.model, step.model_calls) == (None, 0)
    served = chat.valid_context(conversation)
    for text, original in zip(results_of(served)[:-1], results_of(sent)[:-1], strict=True):
        assert text.startswith(original[:100])
        assert text.endswith(original[-50:])
        assert "are stored but not shown" in text
    assert served[-1] == sent[-1]
    assert [event["results"] for event in events if event["event"] == "tool_results.pruned"] == [5]
    fates = {tuple(span[:3]) for span in chat.snapshot(conversation, 1).coverage if span[2] != "kept"}
    assert fates == {(seq, seq, "truncated") for seq in (2, 4, 6, 8, 10)}
    assert [seq for seq, _ in view_of(chat, conversation, 1)] == list(range(11))


@pytest.mark.requirement("O7")
def test_where_that_is_not_enough_the_oldest_give_way_to_a_line(chat: Chat) -> None:
    conversation = begin(
        chat,
        [request("find me a job"), *rounds(12, 1_000)],
        prune_head_chars=3_000,
        prune_tail_chars=200,
        prune_hard_share=0.4,
    )
    Workers(chat).settle(conversation)
    (step,) = chat.steps(chat.run(conversation).id)
    assert step.state == "committed"
    texts = results_of(chat.valid_context(conversation))
    cleared = [text for text in texts if text.startswith("[cleared: result of fetch, 4,000 characters")]
    assert f"{len(cleared)} cleared" in step.detail
    assert cleared == texts[: len(cleared)]
    assert 0 < len(cleared) < 11
    assert "message 2 of the originals" in cleared[0]


@pytest.mark.requirement("O7")
def test_a_second_look_changes_nothing(chat: Chat) -> None:
    conversation = begin(chat, [request("find me a job"), *rounds(6, 1_000)])
    workers = Workers(chat)
    workers.settle(conversation)
    served = chat.context(conversation)
    chat.query("update conversations set tool_results_hold = 0, results_cut_through = -1 where id = :c", c=conversation)
    chat.append(conversation, [answer("long", 6_000)])
    workers.settle(conversation)
    second = chat.runs(conversation)[-1]
    assert (second.state, second.reason) == ("skipped", "nothing_to_prune")
    assert head(chat, conversation).version == 1
    assert chat.context(conversation)["messages"][:-1] == served["messages"]


def test_too_little_to_be_worth_it_is_said_and_held_back(chat: Chat) -> None:
    conversation = begin(chat, [request("find me a job"), *rounds(6, 1_000)], prune_min_freed_tokens=8_000)
    workers = Workers(chat)
    workers.settle(conversation)
    run = chat.run(conversation)
    (step,) = chat.steps(run.id)
    assert (run.state, run.reason, step.name) == ("skipped", "not_smaller", "prune")
    assert "at least 8,000 are worth it" in step.detail
    assert head(chat, conversation) == (0, -1, None)
    assert chat.row(conversation).results_cut_through == 12
    assert chat.row(conversation).tool_results_hold > step.tokens_before
    chat.append(conversation, rounds(1, 300, start=6))
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1  # it has to grow first
    assert check_state(chat, conversation) is None


def test_results_under_their_share_are_left_alone(chat: Chat) -> None:
    conversation = begin(chat, [request("a long brief", 5_000), *rounds(3, 400)])
    workers = Workers(chat)
    workers.settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.reason) == ("skipped", "nothing_to_prune")
    chat.append(conversation, [answer("done")])
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1


@pytest.mark.requirement("O7")
def test_tools_may_be_exempt(chat: Chat) -> None:
    conversation = begin(chat, [request("find me a job"), *rounds(6, 1_000)], prune_deny=["fe*"])
    Workers(chat).settle(conversation)
    assert chat.run(conversation).reason == "nothing_to_prune"


def test_it_comes_after_the_cutting_and_only_where_that_left_too_much(chat: Chat) -> None:
    conversation = begin(chat, [request("go"), *rounds(9, 1_000)], input_token_budget=2_000)
    Workers(chat).settle(conversation)
    (step,) = chat.steps(chat.run(conversation).id)
    assert step.name == "tool_results"  # under the share from here on
    many = begin(chat, [request("go"), *rounds(60, 1_000)], input_token_budget=2_000, min_savings_tokens=0)
    Workers(chat).settle(many)
    first, second = chat.steps(chat.run(many).id)
    assert (first.name, first.state) == ("tool_results", "committed")
    assert (second.name, second.state) == ("prune", "committed")
    assert second.tokens_before == first.tokens_after
    assert chat.run(many).snapshot_version == 2
    chat.valid_context(many)


def test_a_running_loop_with_signed_thinking_holds_it_back(chat: Chat) -> None:
    conversation = begin(chat, [request("go"), *rounds(6, 1_000, thinking=True)])
    Workers(chat).settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.reason, head(chat, conversation)) == ("committed", "waits_for_tool_loop", (0, -1, 1))
    chat.append(conversation, [answer("done")])
    assert head(chat, conversation).version == 1
    assert "are stored but not shown" in str(chat.valid_context(conversation))


def test_two_workers_prune_once(chat: Chat) -> None:
    conversation = begin(chat, [request("find me a job"), *rounds(6, 1_000)])
    first, second = Workers(chat), Workers(chat)
    lease = first.begin(conversation)
    chat.append(conversation, rounds(1, 1_000, start=6))  # a result that was the newest is old when the run reads
    second.check(conversation)
    first.dispatcher.execute(lease)
    second.settle(conversation)
    assert [run.state for run in chat.runs(conversation)] == ["committed"]
    texts = results_of(chat.valid_context(conversation))
    assert ["not shown" in text for text in texts] == [True] * 6 + [False]
    assert texts[-1] == results_of([result(6, 1_000)])[0]


@pytest.mark.parametrize(
    ("tokens", "hold", "old", "due"),
    [
        (60_000, 0, True, False),
        (60_001, 0, True, True),
        (60_001, 0, False, False),
        (70_000, 70_000, True, False),
        (70_001, 70_000, True, True),
    ],
)
def test_when_it_is_due(tokens: int, hold: int, old: bool, due: bool) -> None:
    load = Load(tokens, None, has_old_results=old, tool_results_hold=hold)
    assert decide(load, Policy(input_token_budget=0)).prune is due


def test_its_place_in_the_ladder() -> None:
    context, load = RunContext(Policy(), can_summarize=True), Load(90_000, None)

    def after(load: Load, **results: Result) -> Step | None:
        return next_step(context, Progress({STEPS[name]: done for name, done in results.items()}), load, 20)

    assert after(load) is TOOL_RESULTS
    assert after(load, tool_results="skipped") is PRUNE
    assert after(load, tool_results="skipped", prune="committed") is SUMMARY
    assert after(Load(50_000, None), tool_results="skipped", prune="committed") is None
    assert after(load, prune="pending") is None


def test_a_hold_of_one_step_counts_for_the_other(chat: Chat) -> None:
    """Both look at the same results: what was looked at is not looked at again for the other's sake."""
    conversation = begin(chat, [request("find me a job"), *rounds(6, 1_000)], input_token_budget=2_000)
    Workers(chat).settle(conversation)
    state = chat.row(conversation)
    with chat.database.transaction(chat.tenant_id) as connection:
        conversations.mark_due(connection, conversation)
    seen = check_state(chat, conversation)
    assert seen is not None
    assert not decide(seen.load, merge(state.policy))
