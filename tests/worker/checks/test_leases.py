"""Runs as jobs: attempts, leases, commits that came too late, and what goes on while a model is asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery.exceptions import Reject
from structlog.testing import capture_logs

from compaction.steps.runs import RunState
from runtime.broker import CHECKS, SUMMARIES
from runtime.queues import Queue
from store.conversations import conversations, snapshots
from store.runs import runs
from tests.support.eventually import PATIENCE_SECONDS, eventually
from tests.support.service.in_process import Chat, Workers, check_state, head
from tests.support.service.in_process_worker import task_services
from tests.support.service.stub_summarizer import SPENT, StubSummarizer
from tests.support.talk import exchanges, request, rounds
from worker import tasks
from worker.runs import execute
from worker.runs.resources import Calls, StoppingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from uuid import UUID

    from sqlalchemy import Connection

    from store.runs.runs import Lease
    from tests.support.servers.loopback_model import LoopbackModel


def long_talk(chat: Chat) -> UUID:
    conversation = chat.begin({"input_token_budget": 0})
    chat.append(conversation, exchanges(12, 200))
    return conversation


class TestAttempts:
    def test_they_are_counted_before_the_work(self, chat: Chat) -> None:
        conversation = long_talk(chat)
        counted: list[int] = []
        stub = StubSummarizer(act=lambda: counted.append(chat.run(conversation).attempts))
        Workers(chat, stub).settle(conversation)
        assert counted == [1]

    def test_a_fault_gives_the_run_back_until_its_attempts_are_used_up(
        self, chat: Chat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = "what the user said"
        monkeypatch.setattr(execute, "next_step_of_stage", lambda *_, **__: (_ for _ in ()).throw(RuntimeError(secret)))
        conversation = long_talk(chat)
        workers = Workers(chat, StubSummarizer(), max_attempts=3)
        with capture_logs() as events:
            workers.check(conversation)
        run = chat.run(conversation)
        assert (run.state, run.attempts, run.error) == ("queued", 1, "RuntimeError")
        assert [event["error"] for event in events if event["event"] == "run.failed"] == ["RuntimeError"]
        assert secret not in str(events)
        for attempt in (2, 3):
            lease = workers.claim(run.id)
            assert lease is not None
            assert lease.attempt == attempt
            workers.dispatcher.execute(lease)
        assert workers.claim(run.id) is None
        monkeypatch.undo()

    def test_only_one_worker_claims_a_run(self, chat: Chat) -> None:
        conversation = long_talk(chat)
        workers = Workers(chat, StubSummarizer())
        workers.check(conversation)
        run_id = workers.woken.popleft()
        with ThreadPoolExecutor(6) as threads:
            leases = [lease for lease in threads.map(workers.claim, [run_id] * 6) if lease is not None]
        assert len(leases) == 1
        assert chat.run(conversation).attempts == 1


class TestCommit:
    """Compare-and-swap on lease and head."""

    def test_what_was_made_from_an_old_head_is_discarded_and_recorded(self, chat: Chat) -> None:
        conversation = long_talk(chat)
        Workers(chat, StubSummarizer("FIRST")).settle(conversation)
        chat.append(conversation, exchanges(12, 200, start=12))

        def restore_nothing() -> None:
            if head(chat, conversation).version == 1:
                chat.query("select move_head(:c, 0)", c=conversation)

        stub = StubSummarizer("SECOND", act=restore_nothing)
        workers = Workers(chat, stub)
        workers.settle(conversation)
        _, lost, again = chat.runs(conversation)
        assert (lost.state, lost.reason, lost.snapshot_version) == ("skipped", "head_moved", None)
        step = chat.steps(lost.id)[-1]
        assert (step.state, step.reason, step.model_input_tokens) == ("skipped", "head_moved", SPENT.input_tokens)
        # Nothing is held against the conversation: it is tried on the head that it has now.
        assert (again.state, again.snapshot_version) == ("committed", 2)
        assert [asked.previous for asked in stub.requests] == ["FIRST", None]

    @pytest.mark.fault("F6")
    def test_a_worker_whose_lease_ran_out_is_refused_after_another_took_over(self, chat: Chat) -> None:
        conversation = long_talk(chat)
        others = Workers(chat, StubSummarizer("by the second worker"))
        taken: list[Lease | None] = []

        def be_slow() -> None:
            run = chat.run(conversation)
            chat.expire_lease(run.id)
            taken.append(others.claim(run.id))

        workers = Workers(chat, StubSummarizer("by the first worker", act=be_slow))
        lease = workers.hand_over(conversation)
        with capture_logs() as events:
            workers.dispatcher.execute(lease)
        assert [event["reason"] for event in events if event["event"] == "run.lost"] == ["lease_lost"]
        assert head(chat, conversation).version == 0
        (second,) = taken
        assert second is not None
        others.dispatcher.execute(second)
        run = chat.run(conversation)
        assert (run.state, run.attempts, run.snapshot_version) == ("committed", 2, 1)
        assert run.tokens_after < run.tokens_before
        assert chat.snapshot(conversation, 1).summary == "by the second worker"
        # What the first one cost is written down although it was for nothing.
        steps = [(step.attempt, step.state, step.reason, step.model_calls) for step in chat.steps(run.id)]
        assert steps == [(1, "skipped", "lease_lost", 1), (2, "committed", None, 1)]

    def test_a_lease_that_ran_out_but_was_not_taken_still_commits(self, chat: Chat) -> None:
        conversation = long_talk(chat)
        stub = StubSummarizer(act=lambda: chat.expire_lease(chat.run(conversation).id))
        Workers(chat, stub).settle(conversation)
        assert chat.run(conversation).state == "committed"

    def test_an_attempt_that_is_long_at_something_keeps_its_lease(self, chat: Chat) -> None:
        """At a lock here, as at what it computes: it waits for no model."""
        conversation = long_talk(chat)
        workers = Workers(chat, StubSummarizer())
        workers.resources.leases.lease_seconds = 0.3
        lease = workers.hand_over(conversation)
        claimed = chat.run(conversation)

        def is_another(expiry: datetime) -> bool:
            return bool(chat.run(conversation).lease_expires_at != expiry)

        with ThreadPoolExecutor(1) as threads:
            with chat.database.transaction(chat.tenant_id) as other:
                conversations.lock(other, conversation)
                attempt = threads.submit(workers.dispatcher.execute, lease)
                for _ in range(3):
                    extended_from = chat.run(conversation).lease_expires_at
                    eventually(partial(is_another, extended_from))
            attempt.result(PATIENCE_SECONDS)
        run = chat.run(conversation)
        assert (run.state, run.attempts, run.started_at) == ("committed", 1, claimed.started_at)

    @pytest.mark.parametrize(
        ("call", "answer_to_it"),
        [
            (lambda connection, lease: runs.heartbeat(connection, [lease], 60.0), set()),
            (lambda connection, lease: runs.hand_over(connection, lease, Queue.SUMMARIES), False),
            (lambda connection, lease: runs.give_back(connection, lease, "RuntimeError"), None),
            (runs.release, False),
            (lambda connection, lease: runs.end(connection, lease, RunState.FAILED, "internal", None), False),
        ],
        ids=["heartbeat", "hand_over", "give_back", "release", "end"],
    )
    def test_nothing_is_done_by_a_lease_that_another_took_over(
        self, chat: Chat, call: Callable[[Connection, Lease], object], answer_to_it: object
    ) -> None:
        conversation = long_talk(chat)
        workers = Workers(chat, StubSummarizer())
        lost = workers.hand_over(conversation)
        chat.expire_lease(lost.run_id)
        assert workers.claim(lost.run_id) is not None
        before = chat.run(conversation)
        with chat.database.transaction(chat.tenant_id) as connection:
            assert call(connection, lost) == answer_to_it
        assert chat.run(conversation) == before

    def test_what_was_made_beside_a_snapshot_that_waits_is_discarded(self, chat: Chat) -> None:
        """Else the one that waits would never be served, and what it covers be covered by two."""
        conversation = long_talk(chat)

        def let_one_wait() -> None:
            chat.query("update conversations set pending_version = 7 where id = :c", c=conversation)

        workers = Workers(chat, StubSummarizer(act=let_one_wait))
        workers.dispatcher.execute(workers.hand_over(conversation))
        run = chat.run(conversation)
        assert (run.state, run.reason, run.snapshot_version) == ("skipped", "head_moved", None)
        assert head(chat, conversation).version == 0

    def test_a_step_that_came_after_the_run_had_ended_changes_nothing(self, chat: Chat) -> None:
        conversation = long_talk(chat)
        others = Workers(chat, StubSummarizer("by the second worker"))

        def be_overtaken() -> None:
            run = chat.run(conversation)
            chat.expire_lease(run.id)
            lease = others.claim(run.id)
            assert lease is not None
            others.dispatcher.execute(lease)

        workers = Workers(chat, StubSummarizer("by the first worker", act=be_overtaken))
        workers.settle(conversation)
        run = chat.run(conversation)
        assert (run.state, head(chat, conversation).version) == ("committed", 1)
        assert chat.steps(run.id)[-1].reason == "lease_lost"
        assert check_state(chat, conversation) is None


@pytest.fixture
def asking(module_chat: Chat, model: LoopbackModel) -> Chat:
    return module_chat.renew(summarizer="anthropic", ANTHROPIC_API_KEY="sk-test", ANTHROPIC_BASE_URL=model.url)


class TestWhileTheModelIsAsked:
    def test_no_transaction_and_no_connection_is_held(self, asking: Chat, model: LoopbackModel) -> None:
        conversation = long_talk(asking)
        workers = Workers(asking)
        workers.check(conversation)
        model.hold()
        with ThreadPoolExecutor(1) as worker:
            done = worker.submit(workers.summarize)
            model.wait_for_requests(1)
            assert asking.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined] # a QueuePool
            open_ones = asking.query(
                "select query from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
                " and state <> 'idle'"
            )
            assert open_ones == []
            locks = asking.query(
                "select relation::regclass from pg_locks where pid <> pg_backend_pid() and relation is not null"
                " and database = (select oid from pg_database where datname = current_database())"
            )
            assert locks == []
            model.release()
            done.result(PATIENCE_SECONDS)
        assert asking.run(conversation).state == "committed"

    def test_the_lease_is_kept_alive(self, asking: Chat, model: LoopbackModel) -> None:
        conversation = long_talk(asking)
        workers = Workers(asking, lease_seconds=3)
        workers.check(conversation)
        model.hold()
        with ThreadPoolExecutor(1) as worker:
            done = worker.submit(workers.summarize)
            model.wait_for_requests(1)
            first = asking.run(conversation).lease_expires_at
            eventually(
                lambda: asking.query("select 1 from runs where lease_expires_at > :e + interval '1.5 seconds'", e=first)
            )
            assert workers.claim(asking.run(conversation).id) is None
            model.release()
            done.result(PATIENCE_SECONDS)
        run = asking.run(conversation)
        assert (run.state, run.attempts) == ("committed", 1)

    def test_a_worker_that_stops_lets_another_have_the_run_at_once(self, asking: Chat, model: LoopbackModel) -> None:
        conversation = long_talk(asking)
        workers = Workers(asking)
        lease = workers.hand_over(conversation)
        model.hold()
        with ThreadPoolExecutor(1) as worker:
            done = worker.submit(workers.dispatcher.execute, lease)
            model.wait_for_requests(1)
            workers.resources.calls.stop()
            done.result(PATIENCE_SECONDS)  # although the model has not answered
        run = asking.run(conversation)
        assert (run.state, run.attempts, run.lease_token) == ("queued", 0, None)
        assert list(workers.woken) == [run.id]
        model.release()
        another = Workers(asking)
        another.woken.extend(workers.woken)
        another.summarize()
        run = asking.run(conversation)
        assert (run.state, run.attempts) == ("committed", 1)
        assert [step.reason for step in asking.steps(run.id)] == ["worker_stopped", None]


class TestCalls:
    def test_an_answer_is_returned_and_an_error_raised(self) -> None:
        calls = Calls()
        assert calls.wait(lambda: 7) == 7
        with pytest.raises(TimeoutError, match="the call's own"):
            calls.wait(lambda: (_ for _ in ()).throw(TimeoutError("the call's own")))

    def test_nothing_begins_after_the_stop(self) -> None:
        calls = Calls()
        calls.stop()
        with pytest.raises(StoppingError):
            calls.wait(lambda: pytest.fail("it was stopped"))


class TestTasks:
    """The bodies of the Celery tasks, with a real broker behind them."""

    def test_a_run_is_handed_over_by_its_ids(self, chat: Chat, broker_url: str) -> None:
        with task_services(chat.renew(broker_url=broker_url).settings):
            conversation = long_talk(chat)
            tasks.check([str(conversation)])
            run = chat.run(conversation)
            assert (run.state, run.queue) == ("queued", SUMMARIES)
            with redis.Redis.from_url(broker_url, decode_responses=True) as client:
                (message,) = client.lrange(f"palimpsest:{SUMMARIES}", 0, -1)
                assert client.llen(f"palimpsest:{CHECKS}") == 0
            assert "lorem" not in message
            tasks.run(str(chat.tenant_id), str(run.id))
            run = chat.run(conversation)
            assert run.finished_at is not None
            tasks.run(str(chat.tenant_id), str(run.id))  # delivered once more: nobody's any more
            assert chat.run(conversation) == run

    def test_without_a_broker_the_run_is_queued_all_the_same(self, chat: Chat) -> None:
        with task_services(chat.renew(broker_url="redis://127.0.0.1:1/0").settings), capture_logs() as events:
            conversation = long_talk(chat)
            tasks.check([str(conversation)])
        assert [event["event"] for event in events if event["event"] == "wakeup.lost"]
        assert chat.run(conversation).state == "queued"

    def test_a_worker_that_stops_leaves_messages_to_others(self, chat: Chat, broker_url: str) -> None:
        with task_services(chat.renew(broker_url=broker_url).settings) as services:
            conversation = long_talk(chat)
            tasks.check([str(conversation)])
            services.resources.calls.stop()
            with pytest.raises(Reject):
                tasks.run(str(chat.tenant_id), str(chat.run(conversation).id))
        assert chat.run(conversation).attempts == 0


def test_rounds_that_came_while_the_head_was_cut_are_not_lost(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = chat.begin()
    chat.append(conversation, [request("go"), *rounds(6, 600)])
    commit = snapshots.commit
    late = iter([rounds(1, 600, start=6)])

    def append_first(*arguments: Any, **named: Any) -> snapshots.Outcome:
        for turn in late:
            chat.append(conversation, turn)
        return commit(*arguments, **named)

    monkeypatch.setattr(snapshots, "commit", append_first)
    Workers(chat).settle(conversation)
    assert chat.valid_context(conversation)[-2:] == rounds(1, 600, start=6)
    assert len(chat.originals(conversation)) == 15
