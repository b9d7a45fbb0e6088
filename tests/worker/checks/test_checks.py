"""Checks, as a worker of the queue `checks` does them: what is due, what is not, and who may begin it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from compaction.steps.snapshot import STRIPPED
from compaction.view import MARKER
from store.conversations import conversations
from tests.support.service.in_process import Chat, Workers, check_state, head, view_of
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import answer, call, exchanges, request, result, results_of, rounds

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.blocks import Message


def agent(count: int, tokens: int = 600) -> list[Message]:
    """An agent's exchange so far: a request and `count` rounds."""
    return [request("find me a job"), *rounds(count, tokens)]


@pytest.mark.requirement("T1", "S3")
def test_a_conversation_under_every_threshold_is_never_touched(chat: Chat) -> None:
    conversation = chat.begin()
    workers = Workers(chat)
    sent = exchanges(60, 15)  # 120 messages: more than the count cap, which alone is no reason
    for start in range(0, len(sent), 2):
        chat.append(conversation, sent[start : start + 2])
        workers.settle(conversation)
    assert chat.row(conversation).context_tokens == 1_800
    assert chat.runs(conversation) == []
    assert head(chat, conversation) == (0, -1, None)
    assert chat.context(conversation)["messages"] == sent
    assert check_state(chat, conversation) is None


@pytest.mark.requirement("T1", "T2")
def test_the_budget_is_strict_and_0_turns_it_off(chat: Chat) -> None:
    workers = Workers(chat)
    exactly = chat.begin()
    off = chat.begin({"input_token_budget": 0})
    for conversation in (exactly, off):
        chat.append(conversation, agent(3))
    chat.append(exactly, [answer("done")], input_tokens=2_000)
    chat.append(off, [answer("done")], input_tokens=3_900)
    workers.settle(exactly, off)
    assert chat.context(exactly)["tokens"]["context"] == 2_000
    assert chat.runs(exactly) == chat.runs(off) == []
    chat.append(exactly, [request("more", 1)])  # without a count: the last one is carried on
    workers.settle(exactly)
    assert [run.state for run in chat.runs(exactly)] == ["committed"]


@pytest.mark.requirement("T4", "T5", "T6", "T7", "T8", "T9", "T10", "S13")
def test_older_tool_results_are_cut_without_a_model(chat: Chat) -> None:
    conversation = chat.begin()
    workers = Workers(chat)
    blocks_of_text = result(9, 300)
    blocks_of_text["content"][0]["content"] = [{"type": "text", "text": "x" * 1_200}]
    short = result(10, 100)
    sent = [*agent(4), call(9), blocks_of_text, call(10), short, call(11, names=2), result(11, 700, names=2)]
    chat.append(conversation, sent)
    before = chat.context(conversation)["tokens"]["context"]
    with capture_logs() as events:
        workers.settle(conversation)

    run = chat.run(conversation)
    assert (run.state, run.trigger, run.attempts, run.reason, run.error) == ("committed", "check", 1, None, None)
    (step,) = chat.steps(run.id)
    detail = f"Compacted 5 old tool result(s): input tokens ({before:,}) exceeded the budget (2,000)"
    assert (step.name, step.state, step.results_cut, step.detail) == ("tool_results", "committed", 5, detail)
    assert (step.summarizer, step.model, step.model_calls, step.cost_usd) == (None, None, 0, None)
    assert (step.tokens_before, step.tokens_after) == (before, chat.context(conversation)["tokens"]["context"])
    assert (run.tokens_before, run.tokens_after) == (step.tokens_before, step.tokens_after)
    (logged,) = [event for event in events if event["event"] == "tool_results.cut"]
    assert logged["note"] == detail
    assert (logged["results"], logged["tokens"], logged["budget"]) == (5, before, 2_000)

    served = chat.valid_context(conversation)
    texts = results_of(served)
    assert texts[-3:] == [short["content"][0]["content"], *results_of(sent)[-2:]]
    for text, original in zip(texts[:4], results_of(sent)[:4], strict=True):
        assert text == original[:500] + MARKER
    assert texts[4] == [{"type": "text", "text": "x" * 500 + MARKER}]
    assert len(served) == len(sent)

    # Over the budget still, but no tool result came since: there is nothing to look at again.
    chat.append(conversation, [answer("done")], input_tokens=3_900, snapshot_version=1)
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1
    assert results_of(chat.valid_context(conversation)) == texts


def test_a_saving_too_small_is_not_committed_and_not_tried_again_until_it_has_grown(chat: Chat) -> None:
    conversation = chat.begin({"min_savings_tokens": 1_000})
    workers = Workers(chat)
    chat.append(conversation, [request("go", 800), *rounds(3, 500)])  # two results to cut, 367 tokens each
    workers.settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.reason, run.snapshot_version) == ("skipped", "not_smaller", None)
    assert head(chat, conversation) == (0, -1, None)

    chat.append(conversation, [answer("a", 100)])
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1
    assert check_state(chat, conversation) is None  # looked at and found not due

    chat.append(conversation, rounds(2, 500, start=3))  # grown by more than min_savings_tokens
    workers.settle(conversation)
    assert [run.state for run in chat.runs(conversation)] == ["skipped", "committed"]


def test_another_answer_has_nothing_tried_again_and_another_conversation_has(chat: Chat) -> None:
    conversation = chat.begin({"min_savings_tokens": 1_000})
    workers = Workers(chat)
    chat.append(conversation, [request("go", 800), *rounds(3, 500), answer("a", 100)])
    workers.settle(conversation)
    assert [run.reason for run in chat.runs(conversation)] == ["not_smaller"]
    chat.append(conversation, [answer("b", 100)], replace_from=7)
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1
    chat.append(conversation, [*rounds(3, 500, start=3), answer("c", 100)], replace_from=1)
    workers.settle(conversation)
    assert [run.reason for run in chat.runs(conversation)] == ["not_smaller"] * 2


def test_a_run_that_finds_nothing_due_when_its_summary_comes_says_that(chat: Chat) -> None:
    conversation = chat.begin({"input_token_budget": 0, "compaction_threshold_tokens": 2_000})
    workers = Workers(chat, StubSummarizer())
    chat.append(conversation, [*exchanges(12, 200), request("go", 400), *rounds(3, 300)])
    workers.check(conversation)
    run = chat.run(conversation)
    assert (run.state, chat.steps(run.id)[-1].state) == ("queued", "skipped")
    chat.append(conversation, [request("from the beginning")], replace_from=1)
    workers.summarize()
    run = chat.run(conversation)
    assert (run.state, run.reason) == ("skipped", "under_budget")


def test_counters_that_promise_more_than_there_is_do_not_make_runs_for_ever(chat: Chat) -> None:
    # Results without calls are counted when they are stored, and left out of the view.
    conversation = chat.begin()
    workers = Workers(chat)
    chat.append(conversation, [request("hello"), result(1, 3_000)])
    workers.settle(conversation)
    run = chat.run(conversation)
    assert (run.state, run.reason) == ("skipped", "under_budget")
    assert chat.steps(run.id) == []
    assert check_state(chat, conversation) is None
    chat.append(conversation, [answer("hi")])
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1


def test_a_run_has_the_policy_of_its_conversation_over_the_tenants(chat: Chat) -> None:
    chat.query('update tenants set policy = \'{"tool_result_retention_chars": 7, "input_token_budget": 100}\'')
    conversation = chat.begin()
    chat.append(conversation, agent(6))
    Workers(chat).settle(conversation)
    policy = chat.run(conversation).policy
    assert (policy["tool_result_retention_chars"], policy["input_token_budget"]) == (7, 2_000)


def test_of_layers_that_contradict_each_other_the_keys_that_can_hold_are_in_force(chat: Chat) -> None:
    bad, good = chat.begin({"total_token_budget": 1_000}), chat.begin()  # the default reserve is larger
    for conversation in (bad, good):
        chat.append(conversation, agent(5))
    with capture_logs() as events:
        Workers(chat).settle(bad, good)
    ((reason,),) = [event["reasons"] for event in events if event["event"] == "policy.ignored"]
    assert "override of total_token_budget is not in force" in reason
    assert chat.run(bad).policy == chat.run(good).policy
    assert {chat.run(conversation).state for conversation in (bad, good)} == {"committed"}
    assert check_state(chat, bad) is None


def test_a_tenants_changed_policy_counts_from_the_next_check_on(chat: Chat) -> None:
    conversation = chat.begin({"input_token_budget": 0, "compaction_threshold_tokens": 50_000})
    chat.append(conversation, agent(6))
    Workers(chat).settle(conversation)
    assert chat.runs(conversation) == []
    chat.query("update conversations set policy = policy - 'input_token_budget'")
    chat.query("update tenants set policy = '{\"input_token_budget\": 500}'")
    chat.append(conversation, [answer("done")])
    Workers(chat).settle(conversation)
    assert chat.run(conversation).policy["input_token_budget"] == 500


@pytest.mark.requirement("O5", "P3")
def test_a_run_records_the_window_of_the_model_and_the_budget_that_was_set(chat: Chat) -> None:
    windows = {"claude-opus-4-6": 1_000_000, "claude-2.0": 100_000, "nobody-knows": 200_000, None: 200_000}
    for model, window in windows.items():
        conversation = chat.begin()
        chat.query("update conversations set policy = policy - 'model_context_tokens', model = :m", m=model)
        chat.append(conversation, agent(5))
        Workers(chat).settle(conversation)
        policy = chat.run(conversation).policy
        assert (policy["model_context_tokens"], policy["total_token_budget"]) == (window, 128_000)
    conversation = chat.begin()  # it states 16,000
    chat.query("update conversations set model = 'claude-opus-4-6' where id = :c", c=conversation)
    chat.append(conversation, agent(5))
    Workers(chat).settle(conversation)
    assert chat.run(conversation).policy["model_context_tokens"] == 16_000


def test_a_run_that_a_newer_version_began_is_taken_over(chat: Chat) -> None:
    conversation = chat.begin()
    workers = Workers(chat)
    chat.append(conversation, agent(6))
    begun = workers.begin(conversation)
    chat.query("update runs set policy = policy || '{\"prune_by_moonlight\": true}' where id = :r", r=begun.run_id)
    chat.expire_lease(begun.run_id)
    lease = workers.claim(begun.run_id)
    assert lease is not None
    assert (lease.attempt, lease.policy) == (2, begun.policy)
    workers.dispatcher.execute(lease)
    run = chat.run(conversation)
    assert (run.state, run.policy["prune_by_moonlight"]) == ("committed", True)


def test_concurrent_checks_begin_one_run(chat: Chat) -> None:
    conversation = chat.begin()
    workers = Workers(chat)
    chat.append(conversation, agent(6))
    line = threading.Barrier(8)

    def check() -> None:
        line.wait()
        workers.check(conversation)

    threads = [threading.Thread(target=check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chat.run(conversation).state == "committed"
    assert head(chat, conversation).version == 1


def test_an_active_run_keeps_others_from_beginning(chat: Chat) -> None:
    conversation = chat.begin()
    workers = Workers(chat)
    chat.append(conversation, agent(6))
    lease = workers.begin(conversation)
    chat.append(conversation, rounds(2, 600, start=6))
    workers.settle(conversation)
    assert [run.state for run in chat.runs(conversation)] == ["running"]
    assert check_state(chat, conversation) is None
    workers.dispatcher.execute(lease)
    assert chat.run(conversation).state == "committed"
    assert check_state(chat, conversation) is not None  # the end of a run asks for another look


def test_a_turn_between_reading_and_clearing_is_looked_at_again(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = chat.begin()
    workers = Workers(chat)
    chat.append(conversation, [request("hello")])
    clear = conversations.clear_checks
    late = iter([agent(6)[1:]])

    def append_first(*arguments: Any) -> set[UUID]:
        for turn in late:
            # Another thread has the loop; this one is in a transaction that holds no lock.
            chat.append(conversation, turn)
        return clear(*arguments)

    monkeypatch.setattr(conversations, "clear_checks", append_first)
    workers.settle(conversation)
    assert chat.run(conversation).state == "committed"


@pytest.mark.parametrize("replaces", [True, False])
def test_what_may_come_from_before_the_head_moved_is_not_taken_for_what_it_serves(
    chat: Chat, *, replaces: bool
) -> None:
    """A client read the context before, regenerates an answer or sends the next, and does not say which it read."""
    conversation = chat.begin()
    workers = Workers(chat)
    chat.append(conversation, [*agent(6), answer("done")])
    workers.settle(conversation)
    last = chat.row(conversation).next_seq - 1
    assert head(chat, conversation)[0] == 1
    told = {"type": "thinking", "thinking": "That was it.", "signature": "sig"}, {"type": "text", "text": "Done."}
    again = [{"role": "assistant", "content": list(told)}]
    turn = again if replaces else [request("and now?"), *again]
    chat.append(conversation, turn, input_tokens=900, replace_from=last if replaces else None)
    row = chat.row(conversation)
    assert row.measured_version is None
    assert row.strip_thinking_through == row.next_seq - 1


class TestRunningToolLoopWithSignedThinking:
    """Moving the prefix under it would make the API refuse the thinking: the snapshot waits."""

    def begin(self, chat: Chat, workers: Workers, policy: dict[str, int] | None = None) -> UUID:
        conversation = chat.begin(policy)
        chat.append(conversation, [*agent(4), *rounds(2, 600, start=4, thinking=True)])
        workers.settle(conversation)
        return conversation

    def test_the_snapshot_is_pending(self, chat: Chat) -> None:
        workers = Workers(chat)
        conversation = self.begin(chat, workers)
        run = chat.run(conversation)
        assert (run.state, run.reason, run.snapshot_version) == ("committed", "waits_for_tool_loop", 1)
        assert head(chat, conversation) == (0, -1, 1)
        context = chat.context(conversation)
        assert MARKER not in str(context["messages"])
        assert context["snapshot"] is None
        # Nothing begins while it waits.
        chat.append(conversation, rounds(1, 600, start=6, thinking=True))
        workers.settle(conversation)
        assert len(chat.runs(conversation)) == 1

    def test_the_append_that_ends_the_loop_promotes_it(self, chat: Chat) -> None:
        workers = Workers(chat)
        conversation = self.begin(chat, workers)
        chat.append(conversation, rounds(1, 600, start=6, thinking=True))
        chat.append(conversation, [answer("done")])
        assert head(chat, conversation).version == 1
        assert head(chat, conversation).pending is None
        served = chat.valid_context(conversation)
        assert served[-1] == answer("done")
        assert str(served).count(MARKER) == 5
        assert "signature" not in str(served)
        # What was held back while it waited is not held against it afterwards.
        workers.settle(conversation)
        chat.append(conversation, [request("next"), *rounds(3, 600, start=7)])
        workers.settle(conversation)
        assert chat.runs(conversation)[-1].state == "committed"
        assert head(chat, conversation).version > 1
        assert chat.context(conversation)["tokens"]["context"] < 2_400

    @pytest.mark.parametrize(
        "policy",
        [{}, {"model_context_tokens": 1_000_000, "total_token_budget": 10_500, "reserved_output_tokens": 900}],
        ids=["trim threshold", "budget, in a window that is far larger"],
    )
    def test_the_check_promotes_it_past_the_limit_with_a_warning(self, chat: Chat, policy: dict[str, int]) -> None:
        workers = Workers(chat)
        conversation = self.begin(chat, workers, policy)
        chat.append(conversation, rounds(9, 700, start=6, thinking=True))  # over 9,600 tokens now
        with capture_logs() as events:
            workers.check(conversation)
        assert [event["version"] for event in events if event["event"] == "snapshot.promoted_in_loop"] == [1]
        assert head(chat, conversation).version >= 1
        context = chat.context(conversation)
        assert STRIPPED in context["warnings"]
        assert "signature" not in str(chat.valid_context(conversation))

    def test_a_summary_waits_too_and_no_cap_is_laid_on_what_is_not_the_head(self, chat: Chat) -> None:
        workers = Workers(chat)
        conversation = chat.begin({"input_token_budget": 0, "max_conversation_messages": 4})
        chat.append(conversation, [*exchanges(9, 220), request("go"), *rounds(2, 200, thinking=True)])
        workers.settle(conversation)
        run = chat.run(conversation)
        assert (run.state, run.reason) == ("committed", "waits_for_tool_loop")
        assert [(step.name, step.state) for step in chat.steps(run.id)] == [("summary", "committed")]
        chat.append(conversation, [answer("done")])
        assert head(chat, conversation).version == 1
        assert chat.valid_context(conversation)[-1] == answer("done")

    def test_without_thinking_nothing_waits(self, chat: Chat) -> None:
        conversation = chat.begin()
        chat.append(conversation, agent(6))
        Workers(chat).settle(conversation)
        assert head(chat, conversation).version == 1
        assert [seq for seq, _ in view_of(chat, conversation, 1)] == list(range(11))
