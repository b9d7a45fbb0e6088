"""Whatever happens to a conversation with message batches, in whatever order: each answer is paid for and told once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest

from compaction.policy import merge
from store.conversations import branches
from tests.support.servers.loopback_batches import canceled, errored, expired, succeeded
from tests.support.servers.loopback_steps import status
from tests.support.service.batch_workers import BatchWorkers, chat, near_threshold, provider
from tests.support.service.in_process import SMALL
from tests.support.talk import answer, exchanges, request

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.support.servers.loopback_model import LoopbackModel
    from tests.support.service.in_process import Chat

__all__ = ["chat", "provider"]

OPEN: Final = ("wanted", "sending", "submitted", "canceling", "ended")
STEPS: Final = 60
FINAL: Final = {"x-should-retry": "false"}
REFUSED: Final = "I'm sorry, but I cannot help with that request."


class Walk:
    """A conversation, its workers and its provider, and what may happen next."""

    def __init__(self, chat: Chat, provider: LoopbackModel, seed: int) -> None:
        self.chat, self.provider = chat, provider
        self.luck = random.Random(seed)  # noqa: S311 - no secret
        self.conversation: UUID = near_threshold(chat)
        self.workers = [BatchWorkers(chat), BatchWorkers(chat)]
        self.said = 100
        self.lost = 0

    @property
    def worker(self) -> BatchWorkers:
        return self.luck.choice(self.workers)

    def go(self) -> None:
        """Let something happen."""
        events: list[Callable[[], Any]] = [
            *[self.say, self.say],
            *[self.check, self.check, self.check],
            *[self.advance, self.advance, self.advance],
            *[self.end, self.end],
            self.edit,
            self.restore,
            self.fail,
        ]
        self.luck.choice(events)()

    def say(self) -> None:
        self.said += 10
        self.chat.append(self.conversation, exchanges(self.luck.randint(1, 2), 120, start=self.said))

    def check(self) -> None:
        self.worker.settle(self.conversation)

    def advance(self) -> None:
        for row in self.rows("state = any(:s)", s=list(OPEN)):
            self.worker.advance(row.id)

    def end(self) -> None:
        """Have the provider end the oldest batch that it is at."""
        under_way = [batch for batch in self.provider.batches.made if batch.processing_status != "ended"]
        if under_way:
            outcome = self.luck.choice([succeeded()] * 4 + [succeeded(REFUSED), expired(), errored(), canceled()])
            self.provider.batches.end(under_way[0], outcome=outcome)

    def edit(self) -> None:
        seq = self.chat.row(self.conversation).next_seq - self.luck.choice([1, 2, 6, 9])
        (row,) = self.chat.query(
            "select role, superseded_at from messages where conversation_id = :c and seq = :s",
            c=self.conversation,
            s=seq,
        )
        if row.superseded_at is None:
            said = request if row.role == "user" else answer
            self.chat.append(self.conversation, [said("in other words", 100)], replace_from=seq)

    def restore(self) -> None:
        if self.luck.random() < 0.1:
            with self.chat.database.transaction(self.chat.tenant_id) as connection:
                branches.restore(connection, self.chat.tenant_id, self.conversation, 0, merge(SMALL), uuid4())

    def fail(self) -> None:
        """Have the next call of the provider fail, or lose its answer."""
        if self.luck.random() < 0.5:
            self.provider.batches.refuse(self.luck.choice([status(401), status(404), status(500, headers=FINAL)]))
        else:
            self.provider.batches.lose()

    def rows(self, condition: str, **values: Any) -> Any:
        return self.chat.query(
            f"select * from model_batches where conversation_id = :c and {condition} order by id",  # noqa: S608 - a constant
            c=self.conversation,
            **values,
        )

    def finish(self) -> None:
        """Let everything that is on its way come to its end."""
        for _ in range(20):
            if not self.rows("state = any(:s)", s=list(OPEN)):
                return
            self.end()
            self.advance()
            self.worker.settle(self.conversation)

    def hold(self) -> None:
        """Check what has to hold at any time."""
        self.chat.valid_context(self.conversation)
        items = [
            step
            for run in self.chat.runs(self.conversation)
            for step in self.chat.steps(run.id)
            if step.summarizer == "anthropic-batch"
        ]
        closed = self.rows("not (state = any(:s))", s=list(OPEN))
        assert sum(step.cost_usd or 0 for step in items) == sum(row.cost_usd or 0 for row in closed)
        assert sum(step.model_calls for step in items) == sum(row.model_calls for row in closed)
        committed = [row for row in closed if row.state == "committed"]
        assert len([step for step in items if step.snapshot_version is not None]) == len(committed)
        assert all(row.answers is None for row in closed)
        sent = [batch.custom_ids for batch in self.provider.batches.made]
        assert len({tuple(each) for each in sent}) == len(sent)  # none was ever sent again that had been taken


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_any_walk(chat: Chat, provider: LoopbackModel, seed: int) -> None:
    walk = Walk(chat, provider, seed)
    for _ in range(STEPS):
        walk.go()
        walk.hold()
    walk.finish()
    walk.hold()
    assert walk.rows("state = any(:s)", s=list(OPEN)) == []
