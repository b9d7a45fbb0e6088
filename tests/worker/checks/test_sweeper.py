"""The sweep: what Postgres says is left to do gets done, whatever became of the wake-ups."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from runtime.broker import CHECK_TASK, CHECKS, PERIODIC_TASKS, RUN_TASK, SUMMARIES, SWEEP_TASK, celery_app
from store import engine
from store.operations import periodic_locks
from tests.support.service.in_process import Chat, Workers, check_state, head
from tests.support.service.in_process import chat_alone as chat
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges, request, rounds
from worker.celery import app
from worker.sweeping.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from runtime.settings import Settings


__all__ = ["chat"]


class Broker:
    """The queues of a real Redis, as workers would find them."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self.app = Celery("reader", broker=url, set_as_current=False)

    def close(self) -> None:
        self._client.close()

    def take(self, queue: str) -> list[tuple[str, list[Any]]]:
        """Take every message off a queue; return task names and arguments."""
        items = []
        with self.app.connection_for_read() as connection:
            connection.transport_options = {"global_keyprefix": "palimpsest:"}
            channel = connection.channel()
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                arguments, _, _ = message.decode()
                items.append((message.headers["task"], arguments))
        return items


@pytest.fixture
def broker(broker_url: str) -> Iterator[Broker]:
    made = Broker(broker_url)
    yield made
    made.close()


@pytest.fixture
def make_sweeper(make_settings: Callable[..., Settings], broker_url: str) -> Iterator[Callable[..., Sweeper]]:
    items: list[tuple[Sweeper, Celery]] = []

    def make(**fields: Any) -> Sweeper:
        settings = make_settings(**{"broker_url": broker_url, "max_attempts": 2} | fields)
        sender = celery_app(settings, "beat")
        items.append((Sweeper(settings, sender), sender))
        return items[-1][0]

    yield make
    for sweeper, sender in items:
        sweeper.close()
        sender.close()


def age(chat: Chat, seconds: int = 60) -> None:
    """Let everything be that much older."""
    chat.query(f"update conversations set check_due_at = check_due_at - interval '{seconds} s'")  # noqa: S608
    chat.query(f"update runs set queued_at = queued_at - interval '{seconds} s'")  # noqa: S608


def long_talk(chat: Chat) -> UUID:
    conversation = chat.begin({"input_token_budget": 0})
    chat.append(conversation, exchanges(12, 200))
    return conversation


def test_a_lost_wake_up_is_found(chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker) -> None:
    lost, fresh = chat.begin(), chat.begin()
    chat.append(lost, [request("go"), *rounds(6, 600)])
    age(chat)
    chat.append(fresh, [request("hello")])
    assert make_sweeper().sweep() == 1
    ((task, (ids,)),) = broker.take(CHECKS)
    assert (task, ids) == (CHECK_TASK, [str(lost)])
    Workers(chat).settle(lost)
    assert chat.run(lost).state == "committed"
    assert make_sweeper().sweep() == 0


def test_many_lost_wake_ups_go_into_few_messages(
    chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker
) -> None:
    conversations = [chat.begin() for _ in range(60)]
    for conversation in conversations:
        chat.append(conversation, [request("hello")])
    age(chat)
    assert make_sweeper().sweep() == 60
    messages = broker.take(CHECKS)
    assert [len(ids) for _, (ids,) in messages] == [50, 10]
    assert {identifier for _, (ids,) in messages for identifier in ids} == set(map(str, conversations))


def test_a_run_that_nobody_came_for_is_offered_again(
    chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker
) -> None:
    conversation = long_talk(chat)
    Workers(chat, StubSummarizer()).check(conversation)
    sweeper = make_sweeper()
    assert sweeper.sweep() == 0  # it has only just been queued
    age(chat)
    assert sweeper.sweep() == 1
    run = chat.run(conversation)
    assert broker.take(SUMMARIES) == [(RUN_TASK, [str(chat.tenant_id), str(run.id)])]
    assert sweeper.sweep() == 0  # offered: it has its time again


@pytest.mark.fault("F46")
def test_a_run_whose_conversation_is_locked_holds_up_nothing_else(
    chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker
) -> None:
    locked, other, lost = long_talk(chat), long_talk(chat), chat.begin()
    workers = Workers(chat)
    for dead in (workers.begin(locked), workers.begin(other)):
        chat.expire_lease(dead.run_id)
    chat.append(lost, [request("hello")])
    age(chat)
    sweeper = make_sweeper()
    with chat.database.transaction(chat.tenant_id) as holding, capture_logs() as logs:
        holding.execute(text("select from conversations where id = :id for update"), {"id": locked})
        assert sweeper.sweep() == 2
    assert {message[0] for message in broker.take(CHECKS)} == {RUN_TASK, CHECK_TASK}
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["run.not_requeued"]
    assert [chat.run(each).state for each in (locked, other)] == ["running", "queued"]
    assert sweeper.sweep() == 1
    assert chat.run(locked).state == "queued"


@pytest.mark.fault("F46")
def test_a_process_that_stops_in_a_transaction_does_not_keep_its_locks(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = chat.begin()
    monkeypatch.setattr(engine, "IDLE_TIMEOUT", "100ms")

    def stop() -> None:
        with chat.database.transaction(chat.tenant_id) as stopped:
            stopped.execute(text("select from conversations where id = :id for update"), {"id": conversation})
            monkeypatch.undo()
            # Another waits for the lock, and nothing else ends the one that has it.
            chat.query("update conversations set metadata = '{}' where id = :id", id=conversation)
            stopped.execute(text("select 1"))

    with pytest.raises(OperationalError):
        stop()


@pytest.mark.parametrize("queue", [CHECKS, SUMMARIES])
def test_a_run_whose_worker_died_is_queued_where_it_was(
    chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker, queue: str
) -> None:
    conversation = long_talk(chat)
    workers = Workers(chat, StubSummarizer())
    dead = workers.begin(conversation) if queue == CHECKS else workers.hand_over(conversation)
    sweeper = make_sweeper()
    assert sweeper.sweep() == 0
    chat.expire_lease(dead.run_id)
    assert sweeper.sweep() == 1
    run = chat.run(conversation)
    assert (run.state, run.queue, run.attempts, run.lease_token) == ("queued", queue, 1, None)
    assert broker.take(queue) == [(RUN_TASK, [str(chat.tenant_id), str(run.id)])]

    lease = workers.claim(run.id)
    assert lease is not None
    workers.dispatcher.execute(lease)
    workers.summarize()
    run = chat.run(conversation)
    assert (run.state, head(chat, conversation).version) == ("committed", 1)
    # The dead worker comes back: it has nothing to say any more.
    workers.dispatcher.execute(dead)
    assert chat.run(conversation) == run
    assert head(chat, conversation).version == 1


def test_a_run_out_of_attempts_is_dead_and_its_conversation_is_left_alone_for_a_while(
    chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker
) -> None:
    conversation = long_talk(chat)
    before = chat.context(conversation)
    workers = Workers(chat, StubSummarizer(), max_attempts=2)
    sweeper = make_sweeper(max_attempts=2)
    lease = workers.hand_over(conversation)
    chat.expire_lease(lease.run_id)
    assert sweeper.sweep() == 1
    assert workers.claim(lease.run_id) is not None
    chat.expire_lease(lease.run_id)
    broker.take(SUMMARIES)
    with capture_logs() as events:
        assert sweeper.sweep() == 1
    assert [event["run_id"] for event in events if event["event"] == "run.dead"] == [str(lease.run_id)]
    assert broker.take(SUMMARIES) == []
    run = chat.run(conversation)
    assert (run.state, run.reason, run.attempts) == ("dead", "attempts_exhausted", 2)
    assert (run.error or "").startswith("worker_lost: ")
    assert run.finished_at is not None
    assert workers.claim(run.id) is None
    assert chat.context(conversation)["messages"] == before["messages"]

    chat.append(conversation, [request("small")])
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1
    chat.append(conversation, exchanges(4, 200, start=12))  # grown by a fifth of the threshold
    workers.settle(conversation)
    assert [each.state for each in chat.runs(conversation)] == ["dead", "committed"]


def test_a_dead_run_holds_back_what_the_api_counted_too(chat: Chat, make_sweeper: Callable[..., Sweeper]) -> None:
    conversation = long_talk(chat)
    chat.append(conversation, [request("more")])
    chat.append(conversation, exchanges(1, 20)[1:], input_tokens=9_000)
    workers = Workers(chat, StubSummarizer(), max_attempts=1)
    lease = workers.hand_over(conversation)
    chat.expire_lease(lease.run_id)
    make_sweeper(max_attempts=1).sweep()
    assert chat.run(conversation).state == "dead"
    chat.append(conversation, exchanges(1, 20)[1:], input_tokens=9_100)
    workers.settle(conversation)
    assert len(chat.runs(conversation)) == 1


@pytest.mark.fault("F28")
def test_two_sweepers_at_once_do_no_harm(chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker) -> None:
    conversations = [long_talk(chat) for _ in range(6)]
    workers = Workers(chat, StubSummarizer(), max_attempts=2)
    leases = [workers.hand_over(conversation) for conversation in conversations]
    for lease in leases[:3]:
        chat.query("update runs set attempts = 2 where id = :r", r=lease.run_id)
    for lease in leases:
        chat.expire_lease(lease.run_id)
    sweepers = [make_sweeper(max_attempts=2) for _ in range(4)]
    line = threading.Barrier(len(sweepers))

    def sweep(sweeper: Sweeper) -> None:
        line.wait()
        sweeper.sweep()

    threads = [threading.Thread(target=sweep, args=(sweeper,)) for sweeper in sweepers]
    with capture_logs() as events:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not [event for event in events if event["event"] == "sweep.failed"]
    dead = [event["run_id"] for event in events if event["event"] == "run.dead"]
    assert sorted(dead) == sorted(str(lease.run_id) for lease in leases[:3])  # each told of once
    states = [chat.run(conversation).state for conversation in conversations]
    assert states == ["dead"] * 3 + ["queued"] * 3
    workers.woken.extend(lease.run_id for lease in leases)
    workers.summarize()
    states = [chat.run(conversation).state for conversation in conversations]
    assert states == ["dead"] * 3 + ["committed"] * 3


def test_a_broker_that_is_away_is_complained_about_and_tried_again(
    chat: Chat, make_sweeper: Callable[..., Sweeper]
) -> None:
    lost, out_of_attempts = chat.begin(), long_talk(chat)
    lease = Workers(chat, StubSummarizer()).begin(out_of_attempts)
    chat.query("update runs set attempts = 2")
    chat.expire_lease(lease.run_id)
    chat.append(lost, [request("hello")])
    age(chat)
    sweeper = make_sweeper(broker_url="redis://127.0.0.1:1/0")
    with capture_logs() as events:
        sweeper.sweep()
        sweeper.sweep()
    assert {event["part"] for event in events if event["event"] == "sweep.failed"} == {"checks"}
    assert chat.run(out_of_attempts).state == "dead"  # which needs no broker
    assert check_state(chat, lost) is not None


class TestPeriodicTasks:
    def test_one_process_at_a_time_carries_out_a_task(
        self, chat: Chat, broker: Broker, make_sweeper: Callable[..., Sweeper]
    ) -> None:
        conversation = chat.begin()
        chat.append(conversation, [request("hello")])
        age(chat)
        with chat.database.transaction(None) as connection:
            assert periodic_locks.try_lock(connection, SWEEP_TASK)
            make_sweeper().carry_out(SWEEP_TASK)
            assert broker.take(CHECKS) == []
        make_sweeper().carry_out(SWEEP_TASK)
        assert broker.take(CHECKS) == [(CHECK_TASK, [[str(conversation)]])]

    def test_tasks_that_piled_up_are_done_once(
        self, chat: Chat, broker: Broker, make_sweeper: Callable[..., Sweeper]
    ) -> None:
        sweeper = make_sweeper(sweep_interval_seconds=60)
        for count in (1, 0):
            chat.append(chat.begin(), [request("hello")])
            age(chat)
            sweeper.carry_out(SWEEP_TASK)
            assert len(broker.take(CHECKS)) == count

    def test_beat_sends_each_periodic_task_and_workers_know_it(self) -> None:
        app.loader.import_default_modules()
        scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}
        assert scheduled == set(PERIODIC_TASKS)
        assert scheduled < set(app.tasks)
