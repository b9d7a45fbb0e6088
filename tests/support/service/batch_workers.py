"""Workers in the test's own process that make summaries ahead of time, and a provider of message batches for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from store.runs.runs import LeaseHolder
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.service.in_process import Chat, Workers
from tests.support.talk import exchanges
from worker.checks import Checker
from worker.parts import choose_model, choose_summarizer, choose_ways, summaries_ahead
from worker.runs.dispatch import Dispatcher
from worker.runs.resources import RunResources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from runtime.settings import Settings
    from store.tables import AnyRow

NEAR: Final = 8
"""Exchanges of 200 tokens a message that take a conversation over the soft watermark of the small policy (3,000)."""


class BatchWorkers(Workers):
    """What the workers of one process do; another object is another process."""

    def __init__(self, chat: Chat, settings: Settings | None = None, *, lease_seconds: float = 60.0) -> None:
        super().__init__(chat, lease_seconds=lease_seconds)
        settings = settings or chat.settings
        self.asked: list[UUID] = []
        """Batches that a check has woken."""
        self.resources = RunResources(
            chat.database,
            choose_summarizer(settings),
            make_model=choose_model(settings),
            lease_seconds=lease_seconds,
            wake=lambda lease: self.woken.append(lease.run_id),
        )
        self.ahead = summaries_ahead(
            settings, self.resources, holder=lambda: LeaseHolder("test"), wake=lambda _, batch: self.asked.append(batch)
        )
        self.dispatcher = Dispatcher(self.resources, choose_ways(settings), ahead=self.ahead)
        self.checker = Checker(
            chat.database,
            settings.policy,
            holder=lambda: LeaseHolder("test"),
            lease_seconds=lease_seconds,
            ahead=self.ahead,
        )

    def advance(self, batch: UUID) -> None:
        """Do what the task of a batch does, at a time when something is due."""
        self.chat.query("update model_batches set next_attempt_at = now() where id = :b", b=batch)
        conversation = self.ahead.advance(self.chat.tenant_id, batch, self.dispatcher.execute)
        if conversation is not None:
            self.check(conversation)

    def submit(self, conversation: UUID) -> UUID:
        """Check a conversation that nears its threshold, and send the batch that this brings about."""
        self.check(conversation)
        batch: UUID = batch_of(self.chat, conversation).id
        self.advance(batch)
        return batch


def near_threshold(chat: Chat, policy: dict[str, Any] | None = None) -> UUID:
    """Make a conversation between the two watermarks."""
    conversation = chat.begin({"input_token_budget": 0, **(policy or {})})
    chat.append(conversation, exchanges(NEAR, 200))
    return conversation


def batch_of(chat: Chat, conversation: UUID) -> AnyRow:
    """Return the conversation's newest batch."""
    rows = chat.query("select * from model_batches where conversation_id = :c order by id", c=conversation)
    assert rows, "no batch was wished for"
    return rows[-1]


@pytest.fixture
def provider() -> Iterator[LoopbackModel]:
    """A provider that takes message batches."""
    with LoopbackModel() as server:
        yield server


@pytest.fixture
def chat(module_chat: Chat, provider: LoopbackModel) -> Chat:
    """A chat product whose summaries are made ahead of time, by the summarizer `anthropic-batch` at that provider."""
    return module_chat.renew(
        summarizer="anthropic-batch",
        summarizer_deadline_seconds=20,
        breaker_failures=0,
        ANTHROPIC_API_KEY="sk-test",
        ANTHROPIC_BASE_URL=provider.url,
    )
