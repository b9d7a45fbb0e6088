"""Message batches when things go wrong: nothing is paid for twice, nothing waits for ever, and the reason is told."""

from __future__ import annotations

from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from compaction.policy import merge
from compaction.steps.runs import RunKind, RunReason, RunState, RunTrigger
from store.operations import housekeeping
from store.runs import runs
from store.runs.runs import LeaseHolder
from tests.support.eventually import eventually
from tests.support.processes import Product, ended, product
from tests.support.servers.loopback_batches import canceled, errored, expired, succeeded
from tests.support.servers.loopback_steps import hang_up, status
from tests.support.service.batch_workers import BatchWorkers, batch_of, chat, near_threshold, provider
from tests.support.service.fault_points import fault_points
from tests.support.service.in_process import SMALL, check_state, head
from tests.support.talk import call, exchanges, request, result
from worker.batches.lifecycle import LIFETIME_SECONDS, MAX_FAILURES
from worker.batches.provider import LISTED
from worker.summarizers.anthropic import AnthropicModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from runtime.settings import Settings
    from store.runs.runs import Lease
    from tests.support.servers.loopback_http import Answering
    from tests.support.servers.loopback_model import LoopbackModel
    from tests.support.servers.loopback_steps import Step
    from tests.support.service.fault_points import FaultPoints
    from tests.support.service.in_process import Chat

__all__ = ["chat", "product", "provider"]

SMALL_WINDOW = 4_000
PROCESS_SECONDS = 90  # a bound for a loaded machine


def submitted(chat: Chat, settings: Settings | None = None, **policy: Any) -> tuple[UUID, UUID]:
    """Return a conversation whose batch is on its way, and that batch."""
    conversation = near_threshold(chat, policy)
    return conversation, BatchWorkers(chat, settings).submit(conversation)


def begin_run(chat: Chat, conversation: UUID, kind: RunKind) -> Lease:
    with chat.database.transaction(chat.tenant_id) as connection:
        lease = runs.start(
            connection,
            chat.tenant_id,
            conversation,
            kind=kind,
            trigger=RunTrigger.BATCH if kind is RunKind.BATCH else RunTrigger.CHECK,
            policy=merge(SMALL),
            holder=LeaseHolder("w"),
            lease_seconds=60,
        )
    assert lease is not None
    return lease


def end_run(chat: Chat, lease: Lease) -> None:
    with chat.database.transaction(chat.tenant_id) as connection:
        assert runs.end(connection, lease, RunState.SKIPPED, None, None)


def test_every_step_may_be_another_processs(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    BatchWorkers(chat).check(conversation)
    batch = batch_of(chat, conversation).id
    BatchWorkers(chat).advance(batch)
    provider.batches.end()
    BatchWorkers(chat).advance(batch)
    assert batch_of(chat, conversation).state == "committed"
    assert provider.batches.calls.count("POST batches") == 1


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (expired(), "batch_expired"),
        (canceled(), "batch_canceled"),
        (errored("api_error"), "batch_errored"),
        (succeeded("cut off in the mid", stop_reason="max_tokens"), "summary_cut"),
        (succeeded(""), "empty_summary"),
        (succeeded(stop_reason="refusal"), "model_refused"),
        (lambda _: {"type": "succeeded", "message": "nothing"}, "model_garbage"),
        (lambda _: {"type": "unheard of"}, "model_garbage"),
    ],
)
def test_a_batch_that_brings_nothing_has_failed(chat: Chat, provider: LoopbackModel, outcome: Any, reason: str) -> None:
    conversation, batch = submitted(chat)
    provider.batches.end(outcome=outcome)
    workers = BatchWorkers(chat)
    workers.advance(batch)
    row, run = batch_of(chat, conversation), chat.run(conversation)
    assert (row.state, row.reason, row.answers) == ("failed", reason, None)
    assert (run.trigger, run.state, run.reason) == ("batch", "failed", "summary_failed_nothing_dropped")
    assert run.error.startswith(f"{reason}: ")
    (step,) = chat.steps(run.id)
    assert (step.state, step.reason, step.cost_usd) == ("failed", reason, row.cost_usd)
    assert head(chat, conversation).version == 0
    workers.check(conversation)
    assert workers.asked == []  # not again before it has grown
    chat.append(conversation, exchanges(3, 200, start=20))
    workers.settle(conversation)  # and the threshold holds as ever
    assert head(chat, conversation).version == 1
    assert len(provider.requests) == 1


def test_of_several_parts_all_have_to_be_there_and_what_they_cost_is_told(chat: Chat, provider: LoopbackModel) -> None:
    small = chat.settings.model_copy(update={"summarizer_context_tokens": SMALL_WINDOW})
    conversation, batch = submitted(chat, small, summary_max_tokens=1_000)
    parts = len(provider.batches.only.requests)
    assert parts > 1
    provider.batches.end(outcomes={1: errored("overloaded_error", "what the user wrote in confidence")})
    BatchWorkers(chat, small).advance(batch)
    row = batch_of(chat, conversation)
    assert (row.state, row.reason, row.error) == ("failed", "batch_errored", "overloaded_error")
    assert row.model_calls == parts - 1
    assert row.cost_usd > 0


def test_a_result_that_is_missing(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    provider.batches.end()
    provider.batches.only.results.clear()
    BatchWorkers(chat).advance(batch)
    assert batch_of(chat, conversation).reason == "model_garbage"


def test_the_guard_refuses_without_another_call(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    provider.batches.end(outcome=succeeded("I'm sorry, but I cannot help with that request."))
    BatchWorkers(chat).advance(batch)
    row, run = batch_of(chat, conversation), chat.run(conversation)
    assert (row.state, row.reason, row.run_id) == ("failed", "summary_rejected", run.id)
    assert (run.state, run.reason) == ("failed", "summary_failed_nothing_dropped")
    assert "summary_rejected" in run.error
    assert chat.steps(run.id)[0].cost_usd == row.cost_usd > 0
    assert provider.requests == []
    assert chat.row(conversation).summary_hold <= 4_000


@pytest.mark.parametrize("fault", [status(401), status(403), status(400, "no such model")])
def test_a_refusal_that_does_not_pass_is_given_up(chat: Chat, provider: LoopbackModel, fault: Step) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    workers.check(conversation)
    batch = batch_of(chat, conversation).id
    provider.batches.refuse(*[fault] * (MAX_FAILURES + 5))
    for _ in range(MAX_FAILURES):
        assert batch_of(chat, conversation).state == "wanted"
        workers.advance(batch)
    row, run = batch_of(chat, conversation), chat.run(conversation)
    assert row.state == "failed"
    assert row.reason in {"model_auth", "model_rejected"}
    assert (run.trigger, run.state, chat.steps(run.id)[0].cost_usd) == ("batch", "failed", None)
    assert len(provider.batches.calls) == MAX_FAILURES


def test_what_may_pass_is_waited_for(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    workers = BatchWorkers(chat)
    for _ in range(MAX_FAILURES + 1):
        provider.batches.refuse(status(500, headers={"x-should-retry": "false"}))
        workers.advance(batch)
    assert batch_of(chat, conversation).state == "submitted"
    provider.batches.end()
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "committed"


def test_but_not_for_ever(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    _age(chat, batch, LIFETIME_SECONDS + 60)
    BatchWorkers(chat).advance(batch)
    assert batch_of(chat, conversation).reason == "batch_lost"
    assert provider.batches.calls == ["POST batches"]


def test_workers_that_die_with_it_are_counted(chat: Chat) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    workers.check(conversation)
    batch = batch_of(chat, conversation).id
    chat.query("update model_batches set failures = :n where id = :b", n=MAX_FAILURES, b=batch)
    workers.advance(batch)
    assert batch_of(chat, conversation).reason == "batch_lost"


def test_one_that_was_taken_without_a_word_is_found_and_not_sent_again(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    provider.batches.lose()
    batch = workers.submit(conversation)
    assert batch_of(chat, conversation).state == "sending"
    workers.advance(batch)  # it may be this one: nobody can tell before it ends
    assert batch_of(chat, conversation).state == "sending"
    provider.batches.end()
    workers.advance(batch)
    assert batch_of(chat, conversation).provider_batch_id == provider.batches.only.id
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "committed"
    assert provider.batches.calls.count("POST batches") == 1


def test_one_that_many_were_made_after_is_found(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    provider.batches.lose()
    batch = workers.submit(conversation)
    provider.batches.end()
    ours = provider.batches.only
    for number in range(LISTED + 50):
        provider.batches.add(f"somebody-{number}").created_at += timedelta(hours=1)
    workers.advance(batch)
    assert batch_of(chat, conversation).provider_batch_id == ours.id
    assert provider.batches.calls.count("POST batches") == 1


def test_one_that_may_be_behind_too_many_is_not_sent_again(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    provider.batches.lose()
    batch = workers.submit(conversation)
    provider.batches.end()
    for number in range(LISTED):
        provider.batches.end(provider.batches.add(f"somebody-{number}"))
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "sending"
    workers.advance(batch)
    assert provider.batches.calls.count("POST batches") == 1


def test_one_that_never_got_there_is_sent_again(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    provider.batches.refuse(hang_up())
    batch = workers.submit(conversation)
    assert batch_of(chat, conversation).state == "sending"
    strange = provider.batches.add("somebody-0")
    provider.batches.end(strange)
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "wanted"
    workers.advance(batch)
    assert batch_of(chat, conversation).provider_batch_id not in {None, strange.id}
    assert len(provider.batches.made) == 2


def test_one_that_was_sent_twice_by_a_worker_that_stood_still_is_canceled(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    slow, other = BatchWorkers(chat), BatchWorkers(chat)
    slow.check(conversation)
    batch = batch_of(chat, conversation).id
    arrived, proceed = Event(), Event()

    def late(answering: Answering) -> None:
        arrived.set()
        answering.wait_on(proceed)
        provider.batches.create(answering)

    provider.batches.refuse(late)
    standing = Thread(target=slow.advance, args=(batch,))
    standing.start()
    assert arrived.wait(PROCESS_SECONDS)
    other.advance(batch)  # the claim has run out, and the provider knows nothing of it
    other.advance(batch)
    proceed.set()
    standing.join()
    first, second = provider.batches.made
    assert (first.processing_status, second.processing_status) == ("in_progress", "canceling")
    assert batch_of(chat, conversation).provider_batch_id == first.id


def test_one_that_is_overtaken_on_its_way_is_found_and_canceled(chat: Chat, provider: LoopbackModel) -> None:
    conversation = near_threshold(chat)
    workers = BatchWorkers(chat)
    provider.batches.lose()
    batch = workers.submit(conversation)
    chat.append(conversation, exchanges(3, 200, start=20))
    workers.settle(conversation)
    assert batch_of(chat, conversation).state == "canceling"
    provider.batches.end()
    workers.advance(batch)
    workers.advance(batch)
    row = batch_of(chat, conversation)
    assert (row.state, row.cost_usd > 0) == ("superseded", True)
    assert head(chat, conversation).version == 1


def test_the_rest_of_a_run_that_died_after_its_commit(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    provider.batches.end()
    workers = BatchWorkers(chat)
    workers.advance(batch)
    run = chat.run(conversation)
    chat.query(
        "update runs set state = 'running', finished_at = null, lease_expires_at = now() - interval '1 second',"
        " lease_token = gen_random_uuid() where id = :r",
        r=run.id,
    )
    lease = workers.claim(run.id)
    assert lease is not None
    workers.dispatcher.execute(lease)
    assert chat.run(conversation).state == "committed"
    assert len(chat.steps(run.id)) == 1
    assert head(chat, conversation).version == 1


def test_a_lost_lease_costs_nothing_twice(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    provider.batches.end()
    workers = BatchWorkers(chat)
    in_the_way = begin_run(chat, conversation, RunKind.LADDER)
    workers.advance(batch)
    end_run(chat, in_the_way)
    paused = begin_run(chat, conversation, RunKind.BATCH)
    chat.expire_lease(paused.run_id)
    taken_over = workers.claim(paused.run_id)
    assert taken_over is not None
    workers.dispatcher.execute(paused)
    assert batch_of(chat, conversation).state == "ended"
    workers.dispatcher.execute(taken_over)
    steps = chat.steps(paused.run_id)
    assert [(step.state, step.reason) for step in steps] == [("skipped", RunReason.LEASE_LOST), ("committed", None)]
    assert [step.cost_usd for step in steps] == [None, batch_of(chat, conversation).cost_usd]


def test_a_running_tool_loop_with_signed_thinking_keeps_its_prefix(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    chat.append(conversation, [request("look it up"), call(1, thinking=True)])
    provider.batches.end()
    BatchWorkers(chat).advance(batch)
    assert batch_of(chat, conversation).state == "committed"
    assert head(chat, conversation).pending == 1
    chat.append(conversation, [result(1, 20), {"role": "assistant", "content": "There."}, request("thanks")])
    assert head(chat, conversation) == (1, 9, None)


def test_answers_wait_for_a_run_that_is_under_way(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    workers = BatchWorkers(chat)
    lease = begin_run(chat, conversation, RunKind.LADDER)
    provider.batches.end()
    for _ in range(MAX_FAILURES + 1):
        workers.advance(batch)
        assert batch_of(chat, conversation).state == "ended"
    end_run(chat, lease)
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "committed"


def test_a_conversation_that_is_gone_takes_its_batch_along(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    with psycopg.connect(chat.url) as connection:
        connection.execute("select set_config('app.tenant_id', %s, true)", (str(chat.tenant_id),))
        connection.execute("delete from conversations where id = %s", (conversation,))
    provider.batches.end()
    BatchWorkers(chat).advance(batch)
    assert chat.query("select * from model_batches") == []
    assert chat.query("select * from runs") == []
    assert provider.batches.calls == ["POST batches"]


def test_a_run_that_is_removed_in_its_time_leaves_the_batch(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    provider.batches.end(outcome=succeeded("I'm sorry, but I cannot help with that request."))
    BatchWorkers(chat).advance(batch)
    assert batch_of(chat, conversation).run_id == chat.run(conversation).id
    chat.query("update runs set finished_at = now() - interval '1 day' where conversation_id = :c", c=conversation)
    with chat.database.transaction(None) as connection:
        housekeeping.expire_runs(connection, housekeeping.FIRST, 0.0, 1_000)
    assert chat.runs(conversation) == []
    row = batch_of(chat, conversation)
    assert (row.state, row.run_id) == ("failed", None)


def test_batches_that_are_left_when_nobody_is_asked_any_more(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    offline = chat.settings.model_copy(update={"summarizer": "extractive"})
    BatchWorkers(chat, offline).advance(batch)
    assert batch_of(chat, conversation).reason == "batches_off"
    assert provider.batches.calls == ["POST batches"]


def test_a_worker_that_stops_leaves_it_to_another(chat: Chat, provider: LoopbackModel) -> None:
    conversation, batch = submitted(chat)
    provider.batches.end()
    stopping = BatchWorkers(chat)
    stopping.resources.calls.stop()
    stopping.advance(batch)
    row = batch_of(chat, conversation)
    assert (row.state, row.failures) == ("submitted", 0)
    other = BatchWorkers(chat)
    assert other.ahead.advance(chat.tenant_id, batch, other.dispatcher.execute) == conversation


def test_a_model_that_refuses_a_temperature_is_asked_without_in_the_next_batch(
    chat: Chat, provider: LoopbackModel
) -> None:
    settings = chat.settings.model_copy(update={"summarizer_model": "claude-batched-without-temperature"})
    conversation, batch = submitted(chat, settings)
    provider.batches.end(outcome=errored(message="temperature: not supported by this model"))
    BatchWorkers(chat, settings).advance(batch)
    assert batch_of(chat, conversation).reason == "batch_errored"
    assert AnthropicModel(settings).extra == {}


@pytest.fixture
def points(tmp_path: Path) -> Iterator[FaultPoints]:
    with fault_points(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_a_worker_killed_when_the_provider_has_just_taken_it(
    product: Product, model: LoopbackModel, points: FaultPoints
) -> None:
    """With real processes: one dies before it can say under which id, others find it and commit what it answers."""
    product.env["PALIMPSEST_SUMMARIZER"] = "anthropic-batch"
    conversation = near_threshold(product.chat)
    points.hold("batch.sent")
    with product.worker("checks"), product.worker("sweeper"):
        with product.worker("summaries", env=points.env) as doomed:
            product.wake(conversation)
            held = points.arrival("batch.sent")
            assert batch_of(product.chat, conversation).state == "sending"
            held.kill()
            doomed.process.wait()
        model.batches.end()
        with product.worker("summaries"):
            _let_time_pass(product.chat, conversation)  # until its claim has run out
            eventually(lambda: batch_of(product.chat, conversation).state == "submitted", PROCESS_SECONDS)
            _let_time_pass(product.chat, conversation)  # until it is looked at
            eventually(ended(product, conversation), PROCESS_SECONDS)
            eventually(lambda: check_state(product.chat, conversation) is None, PROCESS_SECONDS)
    assert batch_of(product.chat, conversation).state == "committed"
    assert model.batches.calls.count("POST batches") == 1
    assert model.requests == []


def _let_time_pass(chat: Chat, conversation: UUID) -> None:
    chat.query("update model_batches set next_attempt_at = now() where conversation_id = :c", c=conversation)


def _age(chat: Chat, batch: UUID, seconds: float) -> None:
    with psycopg.connect(chat.url) as connection:
        connection.execute("select set_config('app.tenant_id', %s, true)", (str(chat.tenant_id),))
        connection.execute(
            "update model_batches set created_at = now() - make_interval(secs => %s) where id = %s", (seconds, batch)
        )
