"""Summaries by message batches: asked for at the soft watermark, in place before the hard one, or overtaken by it."""

from __future__ import annotations

from decimal import Decimal
from threading import Barrier, Thread
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import pytest

from compaction.coverage import Coverage
from compaction.policy import PolicyError, merge
from compaction.steps.ladder import Load, batch_is_due, decide
from compaction.steps.runs import Queue
from compaction.steps.snapshot import Snapshot, Working
from compaction.steps.stage import Stage
from compaction.summary.transcript import SECTIONS
from compaction.summary.zone import CLOSES, REFERENCE
from compaction.view import ViewMessage
from store.conversations import branches
from store.runs import batches, requested
from tests.support.servers.loopback_batches import canceled, succeeded
from tests.support.service.batch_workers import BatchWorkers, batch_of, chat, near_threshold, provider
from tests.support.service.in_process import SMALL, check_state, head
from tests.support.talk import answer, exchanges, request, rounds
from worker.batches.ahead import find_again, fingerprint, side_by_side
from worker.summarizers.prices import BilledTokens, cost

if TYPE_CHECKING:
    from tests.support.servers.loopback_http import Answering
    from tests.support.servers.loopback_model import LoopbackModel
    from tests.support.service.in_process import Chat

__all__ = ["chat", "provider"]


def test_the_two_watermarks() -> None:
    policy = merge(SMALL)
    assert policy.batch_threshold_tokens == 3_000
    assert [batch_is_due(Load(tokens, None), policy) for tokens in (3_000, 3_001, 4_000, 4_001)] == [
        False,
        True,
        True,
        False,
    ]
    assert decide(Load(4_001, None), policy).summary
    assert not batch_is_due(Load(3_500, None, summary_hold=3_500), policy)
    assert not batch_is_due(Load(3_500, None), merge(SMALL | {"compaction_enabled": False}))
    assert not batch_is_due(Load(4_000, None), merge(SMALL | {"batch_threshold_ratio": 1.0}))


@pytest.mark.parametrize("ratio", [0, -0.5, 1.01, "much"])
def test_a_share_that_cannot_be_is_refused(ratio: object) -> None:
    with pytest.raises(PolicyError) as raised:
        merge({"batch_threshold_ratio": ratio})
    assert raised.value.path == ("batch_threshold_ratio",)


def test_what_a_batch_stands_for_is_found_again_or_not_at_all() -> None:
    view = tuple(ViewMessage("user" if seq % 2 == 0 else "assistant", f"{seq}", seq) for seq in range(8))

    def stage(*messages: ViewMessage, summary: str | None = None) -> Stage:
        return Stage(Working(messages, Snapshot(summary=summary), (), ()))

    known = fingerprint(view[1:5], None)
    assert find_again(stage(*view), 4, known) == (1, 5)
    assert find_again(stage(*view, *view), 4, known) == (1, 5)
    assert find_again(stage(*view[:5]), 4, known) is None  # nothing would be left after it
    assert find_again(stage(view[0], *view[2:]), 4, known) is None
    assert find_again(stage(*view, summary="An earlier summary"), 4, known) is None
    cut = (*view[:2], ViewMessage("user", "cut to a few words", 2), *view[3:])
    assert find_again(stage(*cut), 4, known) == (1, 5)


def test_parts_stand_side_by_side_as_far_as_there_is_room() -> None:
    texts = [f"{SECTIONS[0]}\nPart {number} {'x' * 300}" for number in range(4)]
    whole, used = side_by_side(texts, 4_096)
    assert used == 4
    assert whole.count(SECTIONS[0]) == 1
    text, used = side_by_side(texts, 200)
    assert used == 2
    assert "Part 1" in text
    assert "Part 2" not in text
    assert side_by_side(texts[:1], 1) == (texts[0], 1)


def test_a_batch_is_sent_once_below_the_threshold_and_committed_at_half_price(
    chat: Chat, provider: LoopbackModel
) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    assert workers.asked == [batch]
    assert chat.runs(conversation) == []
    assert check_state(chat, conversation) is None
    row = batch_of(chat, conversation)
    assert (row.state, row.provider_batch_id, row.first_seq, row.last_seq) == (
        "submitted",
        provider.batches.only.id,
        1,
        9,
    )
    assert provider.batches.only.custom_ids == [f"{batch.hex}-0"]
    params = provider.batches.only.requests[0]["params"]
    assert (params["model"], params["max_tokens"], params["temperature"]) == ("claude-haiku-4-5", 4_096, 0.0)
    assert "[9] assistant" in provider.batches.only.prompt()
    assert "[10] user" not in provider.batches.only.prompt()

    chat.append(conversation, [request("one more")])
    workers.check(conversation)
    workers.advance(batch)
    assert workers.asked == [batch]
    assert batch_of(chat, conversation).state == "submitted"

    provider.batches.end()
    workers.advance(batch)
    row, run = batch_of(chat, conversation), chat.run(conversation)
    assert (row.state, row.run_id, row.answers) == ("committed", run.id, None)
    assert (run.trigger, run.state, run.snapshot_version, run.reason) == ("batch", "committed", 1, None)
    (step,) = chat.steps(run.id)
    full = cost("claude-haiku-4-5", BilledTokens(step.model_input_tokens, step.model_output_tokens))
    assert full is not None
    assert abs(step.cost_usd - full / 2) <= Decimal("0.0000005")  # the column has six places
    assert (step.summarizer, step.model, step.model_calls) == ("anthropic-batch", "claude-haiku-4-5", 1)
    assert (row.cost_usd, row.model_input_tokens) == (step.cost_usd, step.model_input_tokens)
    assert provider.requests == []
    coverage = msgspec.convert(chat.snapshot(conversation, 1).coverage, Coverage)
    assert [(span.first, span.last, span.fate) for span in coverage] == [(0, 0, "kept"), (1, 9, "summarized")]
    context = chat.valid_context(conversation)
    assert REFERENCE in context[0]["content"]
    assert context[0]["content"].endswith(CLOSES)
    assert "one more" in context[-1]["content"]
    assert len(context) == 2 + 6 + 1  # the acknowledgement, too


def test_parts_are_put_together_in_their_own_order(chat: Chat, provider: LoopbackModel) -> None:
    small = chat.settings.model_copy(update={"summarizer_context_tokens": 4_000})
    conversation = near_threshold(chat, {"summary_max_tokens": 1_000})
    workers = BatchWorkers(chat, small)
    batch = workers.submit(conversation)
    parts = len(provider.batches.only.requests)
    assert parts > 1
    assert list(batch_of(chat, conversation).part_ends) == sorted(batch_of(chat, conversation).part_ends)
    texts = {number: succeeded(f"{SECTIONS[2]}\nThis is part {number}.") for number in range(parts)}
    provider.batches.end(outcomes=texts)
    workers.advance(batch)
    summary = chat.snapshot(conversation, 1).summary
    places = [summary.index(f"This is part {number}.") for number in range(parts)]
    assert places == sorted(places)
    assert "Note: its parts stand side by side." in summary
    (step,) = chat.steps(chat.run(conversation).id)
    assert step.model_calls == parts


def test_tool_results_may_be_cut_meanwhile(chat: Chat, provider: LoopbackModel) -> None:
    conversation = chat.begin({"input_token_budget": 3_400})
    chat.append(conversation, [request("start", 100), *rounds(1, 600), answer("read", 200), *exchanges(6, 200)])
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    chat.append(conversation, [request("one more page", 20), *rounds(1, 150, start=20), answer("read too", 20)])
    workers.check(conversation)
    assert [run.snapshot_version for run in chat.runs(conversation)] == [1]
    assert chat.steps(chat.run(conversation).id)[0].results_cut == 1
    provider.batches.end()
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "committed"
    assert head(chat, conversation).version == 2
    assert "read too" in chat.valid_context(conversation)[-1]["content"]
    coverage = msgspec.convert(chat.snapshot(conversation, 2).coverage, Coverage)
    assert (coverage[1].fate, coverage[-1].last) == ("summarized", head(chat, conversation).covers_through)


def test_the_threshold_overtakes_a_batch_and_what_it_has_cost_is_told(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    chat.append(conversation, exchanges(3, 200, start=20))
    workers.settle(conversation)
    run = chat.run(conversation)
    assert (run.trigger, run.state) == ("check", "committed")
    assert len(provider.requests) == 1
    assert [step.summarizer for step in chat.steps(run.id)] == ["anthropic"]
    assert batch_of(chat, conversation).state == "canceling"

    workers.advance(batch)
    assert provider.batches.calls[-1] == "POST cancel"
    assert batch_of(chat, conversation).state == "canceling"
    provider.batches.end(outcome=succeeded())
    workers.advance(batch)
    row = batch_of(chat, conversation)
    assert (row.state, row.reason) == ("superseded", "batch_superseded")
    told = chat.runs(conversation)[-1]
    assert (told.trigger, told.state, told.reason, told.snapshot_version) == (
        "batch",
        "skipped",
        "batch_superseded",
        None,
    )
    (step,) = chat.steps(told.id)
    assert step.cost_usd == row.cost_usd > 0
    assert head(chat, conversation).version == 1
    workers.advance(batch)
    assert len(chat.runs(conversation)) == 2


def test_a_canceled_batch_that_has_cost_nothing_leaves_no_run(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    chat.append(conversation, exchanges(3, 200, start=20))
    workers.settle(conversation)
    provider.batches.end(outcome=canceled())
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "superseded"
    assert chat.run(conversation).trigger == "check"


def test_one_that_was_only_wished_for_is_never_sent_once_the_threshold_is_reached(
    chat: Chat, provider: LoopbackModel
) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    workers.check(conversation)
    (batch,) = workers.asked
    chat.append(conversation, exchanges(3, 200, start=20))
    workers.settle(conversation)
    assert batch_of(chat, conversation).state == "superseded"
    workers.advance(batch)
    assert provider.batches.made == []
    assert len(provider.requests) == 1


def test_at_the_threshold_a_batch_that_has_ended_is_used_and_nothing_else_paid_for(
    chat: Chat, provider: LoopbackModel
) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    provider.batches.end()  # and nobody has looked
    chat.append(conversation, exchanges(3, 200, start=20))
    workers.settle(conversation)
    row, run = batch_of(chat, conversation), chat.run(conversation)
    assert (run.trigger, run.state, row.state, row.run_id) == ("check", "committed", "committed", run.id)
    assert provider.requests == []
    assert [(step.summarizer, step.cost_usd) for step in chat.steps(run.id)] == [("anthropic-batch", row.cost_usd)]
    assert head(chat, conversation).covers_through == 9
    workers.advance(batch)
    assert len(chat.runs(conversation)) == 1


def test_answers_that_come_in_that_very_moment_are_used_as_well(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers, others = BatchWorkers(chat), BatchWorkers(chat)
    batch = workers.submit(conversation)

    def a_moment_ago(answering: Answering) -> None:
        told = provider.batches.only.document(provider.url)
        provider.batches.end()
        others.advance(batch)
        answering.json(200, told)

    provider.batches.refuse(a_moment_ago)
    chat.append(conversation, exchanges(3, 200, start=20))
    workers.settle(conversation)
    assert batch_of(chat, conversation).run_id == chat.run(conversation).id
    assert provider.requests == []


def test_at_the_threshold_answers_of_no_use_give_way_to_a_call(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    workers.submit(conversation)
    provider.batches.end(outcome=succeeded("I'm sorry, but I cannot help with that request."))
    chat.append(conversation, exchanges(3, 200, start=20))
    workers.settle(conversation)
    run = chat.run(conversation)
    assert run.state == "committed"
    items = [(step.summarizer, step.state, step.reason) for step in chat.steps(run.id)]
    assert items == [("anthropic-batch", "failed", "summary_rejected"), ("anthropic", "committed", None)]
    assert batch_of(chat, conversation).state == "failed"
    assert len(provider.requests) == 1


def test_a_run_by_hand_does_not_wait_for_a_batch(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    wanted = requested.ManualRun("summary", "the figures", merge(SMALL))
    with chat.database.transaction(chat.tenant_id) as connection:
        run_id, _ = requested.request(
            connection, chat.tenant_id, conversation, wanted, queue=Queue.SUMMARIES, request_id=uuid4()
        )
    workers.woken.append(run_id)
    workers.summarize()
    assert head(chat, conversation).version == 1
    assert batch_of(chat, conversation).state == "canceling"
    provider.batches.end()
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "superseded"


def test_an_edit_of_what_was_summarized_discards_the_answer(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    chat.append(conversation, [request("said in another way", 100), *exchanges(3, 150, start=30)], replace_from=8)
    provider.batches.end()
    workers.advance(batch)
    row, run = batch_of(chat, conversation), chat.run(conversation)
    assert (row.state, row.reason) == ("discarded", "batch_outdated")
    assert (run.state, run.reason) == ("skipped", "batch_outdated")
    assert chat.steps(run.id)[0].cost_usd == row.cost_usd > 0
    assert head(chat, conversation).version == 0


def test_an_edit_after_it_does_not(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    chat.append(conversation, [answer("another answer", 200)], replace_from=15)
    provider.batches.end()
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "committed"
    assert "another answer" in chat.valid_context(conversation)[-1]["content"]


def test_a_restore_discards_the_answer(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    with chat.database.transaction(chat.tenant_id) as connection:
        assert branches.restore(connection, chat.tenant_id, conversation, 0, merge(SMALL), uuid4())
    provider.batches.end()
    workers.advance(batch)
    assert batch_of(chat, conversation).reason == "batch_outdated"
    assert head(chat, conversation).version == 1


def test_nothing_worth_it_is_not_sent_nor_wished_for_again_at_once(chat: Chat, provider: LoopbackModel) -> None:
    conversation = chat.begin({"protected_tail_messages": 20})
    chat.append(conversation, exchanges(8, 200))
    workers = BatchWorkers(chat)
    workers.submit(conversation)
    row = batch_of(chat, conversation)
    assert (row.state, row.reason) == ("discarded", "zone_too_small")
    assert (provider.batches.made, chat.runs(conversation)) == ([], [])
    chat.append(conversation, [request("hm", 20)])
    workers.check(conversation)
    assert len(workers.asked) == 1
    chat.append(conversation, exchanges(2, 150, start=40))
    workers.check(conversation)
    assert len(workers.asked) == 2
    assert chat.row(conversation).summary_hold <= 4_000


def test_compaction_switched_off_meanwhile(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    batch = workers.submit(conversation)
    chat.query(
        "update conversations set policy = policy || '{\"compaction_enabled\": false}' where id = :c", c=conversation
    )
    provider.batches.end()
    workers.advance(batch)
    row = batch_of(chat, conversation)
    assert (row.state, row.reason) == ("discarded", "summaries_disabled")
    assert chat.run(conversation).reason == "summaries_disabled"
    assert head(chat, conversation).version == 0


def test_a_later_compaction_has_a_batch_of_its_own(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    first = workers.submit(conversation)
    provider.batches.end()
    workers.advance(first)
    chat.append(conversation, exchanges(5, 200, start=50))
    second = workers.submit(conversation)
    assert second != first
    assert "earlier-summary" in provider.batches.made[-1].prompt()
    provider.batches.end()
    workers.advance(second)
    assert head(chat, conversation).version == 2
    assert len(chat.valid_context(conversation)[0]["content"].split("[CONTEXT SUMMARY]")) == 2


def test_two_at_once_send_once_and_commit_once(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = [BatchWorkers(chat), BatchWorkers(chat)]
    for each in workers:
        each.check(conversation)
    batch = batch_of(chat, conversation).id

    def at_once() -> None:
        chat.query("update model_batches set next_attempt_at = now() where id = :b", b=batch)
        together = Barrier(2)

        def advance(mine: BatchWorkers) -> None:
            together.wait()
            mine.ahead.advance(chat.tenant_id, batch, mine.dispatcher.execute)

        threads = [Thread(target=advance, args=(mine,)) for mine in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    at_once()
    assert len(provider.batches.made) == 1
    provider.batches.end()
    at_once()
    assert batch_of(chat, conversation).state == "committed"
    assert head(chat, conversation).version == 1
    assert [run.state for run in chat.runs(conversation)] == ["committed"]


def test_another_tenants_worker_finds_nothing(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    workers.check(conversation)
    batch = batch_of(chat, conversation)
    assert workers.ahead.advance(uuid4(), batch.id, workers.dispatcher.execute) is None
    assert provider.batches.made == []
    with chat.database.transaction(None) as connection:
        assert batch.id in {each for each, *_ in batches.due(connection, 1_000)}
