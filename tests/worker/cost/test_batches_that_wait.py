"""A message batch's summary that came below the threshold: it waits for a pause, and is paid for once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import psycopg
import pytest

from compaction.policy import merge
from compaction.steps.runs import Queue
from store.runs import requested
from store.runs.runs import LeaseHolder
from tests.support.service.batch_workers import BatchWorkers, batch_of, chat, near_threshold, provider
from tests.support.service.in_process import SMALL, head
from tests.support.talk import answer, exchanges, request
from worker.checks import Checker
from worker.runs.pausing import Pausing
from worker.runs.swapping import Swapping
from worker.sweeping.cold import promote_cold

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.support.servers.loopback_model import LoopbackModel
    from tests.support.service.in_process import Chat

__all__ = ["chat", "provider"]

MODEL: Final = "claude-opus-5-5"


def workers_of(chat: Chat) -> BatchWorkers:
    workers = BatchWorkers(chat)
    workers.resources.swapping = Swapping(chat.settings, chat.database)
    workers.checker = Checker(
        chat.database,
        chat.settings.policy,
        holder=lambda: LeaseHolder("test"),
        lease_seconds=workers.lease_seconds,
        ahead=workers.ahead,
        pausing=Pausing(chat.settings),
    )
    return workers


@pytest.fixture
def goes_by(chat: Chat) -> Callable[[UUID], None]:
    """Return a function that makes what was said, and what waits, a thousand seconds older."""

    def goes_by(conversation: UUID) -> None:
        with psycopg.connect(chat.url) as connection:
            connection.execute("set session_replication_role = replica")
            for change in (
                "update messages set created_at = created_at - interval '1000 s' where conversation_id = %s",
                "update waiting_snapshots set cold_at = cold_at - interval '1000 s' where conversation_id = %s",
            ):
                connection.execute(change, (conversation,))

    return goes_by


def waiting_version(chat: Chat, conversation: UUID) -> int | None:
    rows = chat.query("select version from waiting_snapshots where conversation_id = :c", c=conversation)
    return rows[0].version if rows else None


def batches(chat: Chat, conversation: UUID) -> list[str]:
    rows = chat.query("select state from model_batches where conversation_id = :c order by id", c=conversation)
    return [row.state for row in rows]


def answered(chat: Chat, provider: LoopbackModel, model: str = MODEL, **policy: Any) -> tuple[UUID, BatchWorkers]:
    """Return a conversation whose batch has answered while its prompt cache is warm."""
    conversation = near_threshold(chat, {"swap": "when_it_pays", **policy})
    chat.query("update conversations set model = :m where id = :c", m=model, c=conversation)
    workers = workers_of(chat)
    batch = workers.submit(conversation)
    provider.batches.end()
    workers.advance(batch)
    return conversation, workers


def test_it_waits_and_becomes_the_head_in_the_next_pause(
    chat: Chat, provider: LoopbackModel, goes_by: Callable[[UUID], None]
) -> None:
    conversation, workers = answered(chat, provider)
    run = chat.run(conversation)
    assert (run.trigger, run.state, run.reason) == ("batch", "committed", "waits_until_it_pays")
    (step,) = chat.steps(run.id)
    assert "waits: cache warm until " in step.detail
    assert step.cost_usd > 0
    assert (batch_of(chat, conversation).state, batch_of(chat, conversation).run_id) == ("committed", run.id)
    assert (head(chat, conversation).version, waiting_version(chat, conversation)) == (0, 1)
    assert len(chat.valid_context(conversation)) == 16
    # What is ready is not asked for again, however much is said meanwhile below the threshold.
    for number in range(3):
        chat.append(conversation, [request(f"more {number}", 20), answer("so", 20)])
        workers.check(conversation)
    assert batches(chat, conversation) == ["committed"]
    assert promote_cold(chat.database) == 0
    goes_by(conversation)
    assert promote_cold(chat.database) == 1
    assert (head(chat, conversation).version, waiting_version(chat, conversation)) == (1, None)
    context = chat.valid_context(conversation)
    assert "more 2" in context[-2]["content"]
    workers.check(conversation)
    assert batches(chat, conversation) == ["committed"]
    assert (len(provider.batches.made), provider.requests) == (1, [])


def test_the_threshold_puts_it_in_force_without_another_question(chat: Chat, provider: LoopbackModel) -> None:
    conversation, workers = answered(chat, provider)
    chat.append(conversation, exchanges(3, 200, start=50))
    workers.check(conversation)
    assert (head(chat, conversation).version, waiting_version(chat, conversation)) == (1, None)
    assert (batches(chat, conversation), provider.requests) == (["committed"], [])


@pytest.mark.parametrize(
    ("policy", "model"),
    [({"swap": "at_once"}, MODEL), ({"prompt_cache_seconds": 0}, MODEL), ({}, "nobody-knows-1")],
    ids=["forbidden", "no cache", "no price"],
)
def test_a_policy_that_forbids_waiting_has_it_in_force_at_once(
    chat: Chat, provider: LoopbackModel, policy: dict[str, Any], model: str
) -> None:
    conversation, _ = answered(chat, provider, model, **policy)
    assert (head(chat, conversation).version, waiting_version(chat, conversation)) == (1, None)


def test_an_edit_of_what_it_stands_for_gives_it_up_and_what_it_cost_is_told(
    chat: Chat, provider: LoopbackModel, goes_by: Callable[[UUID], None]
) -> None:
    conversation, workers = answered(chat, provider)
    chat.append(conversation, [request("other", 20), answer("so", 20)], replace_from=4)
    workers.check(conversation)
    goes_by(conversation)
    assert promote_cold(chat.database) == 0
    assert (head(chat, conversation).version, waiting_version(chat, conversation)) == (0, None)
    assert chat.steps(chat.runs(conversation)[0].id)[0].cost_usd > 0


def test_a_run_by_hand_meanwhile_makes_it_outdated(
    chat: Chat, provider: LoopbackModel, goes_by: Callable[[UUID], None]
) -> None:
    conversation, workers = answered(chat, provider)
    wanted = requested.ManualRun("drop", None, merge(SMALL | {"max_conversation_messages": 4}))
    with chat.database.transaction(chat.tenant_id) as connection:
        run_id, _ = requested.request(
            connection, chat.tenant_id, conversation, wanted, queue=Queue.CHECKS, request_id=uuid4()
        )
    lease = workers.claim(run_id)
    assert lease is not None
    workers.dispatcher.execute(lease)
    assert head(chat, conversation).version == 2
    goes_by(conversation)
    assert promote_cold(chat.database) == 0
    assert (head(chat, conversation).version, waiting_version(chat, conversation)) == (2, None)
