"""Budgets of models and message batches: what is not urgent waits for another day, and what is on its way is held."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from compaction.steps.runs import RunReason
from runtime import ids
from store.engine import owner_engine
from tests.support.service.batch_workers import BatchWorkers, batch_of, chat, near_threshold, provider
from tests.support.service.paid_workers import PaidWorkers, allow, counted, last_run, pass_a_day, recorded
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges
from worker.runs.budgets import Budgets

if TYPE_CHECKING:
    from tests.support.servers.loopback_model import LoopbackModel
    from tests.support.service.in_process import Chat

__all__ = ["chat", "provider"]

pytestmark = pytest.mark.usefixtures("within_a_day")


def spend(chat: Chat, tokens: int) -> None:
    """Have a step of some run say that it took so many tokens."""
    run_id = ids.new_id()
    chat.query(
        "insert into runs (id, tenant_id, conversation_id, trigger, state, queue, policy)"
        " values (:r, :t, :c, 'check', 'failed', 'summaries', '{}')",
        r=run_id,
        t=chat.tenant_id,
        c=chat.begin(),
    )
    chat.query(
        "insert into run_steps (tenant_id, run_id, step_no, name, state, attempt, tokens_before, tokens_after,"
        " messages_before, messages_after, duration_ms, model_calls, model_input_tokens)"
        " values (:t, :r, 1, 'summary', 'failed', 1, 0, 0, 0, 0, 0, 1, :n)",
        r=run_id,
        t=chat.tenant_id,
        n=tokens,
    )


def test_a_batch_waits_and_is_held_against_others(chat: Chat) -> None:
    allow(chat, daily_model_tokens=1_000)
    spend(chat, 1_000)
    workers = BatchWorkers(chat)
    workers.resources.budgets = Budgets(chat.database, chat.settings)
    conversation = near_threshold(chat)
    batch = workers.submit(conversation)
    found = batch_of(chat, conversation)
    assert (found.id, found.state, found.reserved_tokens) == (batch, "wanted", 0)
    assert found.next_attempt_at > datetime.now(UTC)
    pass_a_day(chat)
    workers.advance(batch)
    found = batch_of(chat, conversation)
    assert found.state == "submitted"
    assert found.reserved_tokens > 0
    # What it may cost is held against everybody else until it is over.
    allow(chat, daily_model_tokens=found.reserved_tokens)
    other = chat.begin()
    chat.append(other, exchanges(12, 200))
    PaidWorkers(chat, StubSummarizer()).settle(other)
    assert last_run(chat, other).reason == RunReason.BUDGET_SPENT
    assert counted(chat).tokens == 0


def test_a_batch_that_has_ended_is_used_whatever_is_left(chat: Chat, provider: LoopbackModel) -> None:
    workers = BatchWorkers(chat)
    workers.resources.budgets = Budgets(chat.database, chat.settings)
    conversation = near_threshold(chat)
    batch = workers.submit(conversation)
    allow(chat, daily_model_tokens=1_000)
    spend(chat, 1_000)
    provider.batches.end()
    workers.advance(batch)
    assert batch_of(chat, conversation).state == "committed"
    assert counted(chat) == recorded(chat)
    assert counted(chat).calls > 1


def test_a_batch_that_waited_for_two_days_is_given_up(chat: Chat) -> None:
    allow(chat, daily_model_tokens=1_000)
    spend(chat, 1_000)
    workers = BatchWorkers(chat)
    workers.resources.budgets = Budgets(chat.database, chat.settings)
    conversation = near_threshold(chat)
    batch = workers.submit(conversation)
    with owner_engine(chat.url).begin() as connection:
        connection.execute(text("update model_batches set created_at = created_at - interval '25 hours'"))
    workers.advance(batch)
    found = batch_of(chat, conversation)
    assert (found.state, found.reason) == ("discarded", RunReason.BUDGET_SPENT)
    assert chat.runs(conversation) == []
