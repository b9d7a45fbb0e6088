"""One tenant's backlog is not another's delay, and a queue that nobody empties does not fill up.

What is measured is order and number, never time.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from actions.background.wakeups import Wakeups, by_turns
from actions.monitoring.metrics import Metrics
from compaction.steps.runs import RunState
from runtime import ids
from runtime.broker import BATCH, CHECKS, RUN_TASK, SHARE, SUMMARIES
from store.conversations import conversations
from store.runs import runs, summary_places
from store.runs import stranded as stranded_runs
from store.runs.runs import LeaseHolder
from store.runs.summary_places import Places
from tests.conftest import make_tenant
from tests.support.eventually import eventually
from tests.support.processes import Product, product
from tests.support.service.in_process import Chat, Workers
from tests.support.service.in_process import chat_alone as chat
from tests.support.service.in_process_worker import task_services
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import request, rounds
from tests.worker.checks.test_sweeper import Broker, age, broker, long_talk, make_sweeper
from worker import tasks
from worker.sweeping.resending import AGAIN_SECONDS, Sent
from worker.sweeping.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.settings import Settings
    from store.runs.runs import Lease
    from tests.support.servers.loopback_model import LoopbackModel

__all__ = ["broker", "chat", "make_sweeper", "product"]

MANY = 10_000
DUE = """
insert into conversations (id, tenant_id, check_due_at)
select gen_random_uuid(), :tenant, now() - make_interval(secs => 60 + number) from generate_series(1, :many) as number
"""


@pytest.fixture
def other(chat: Chat, database_url: str) -> Iterator[Chat]:
    """The conversations of another tenant, on the same database."""
    with Chat(chat.settings, make_tenant(database_url, "rival").id) as made:
        yield made


def overdue(chat: Chat, count: int = 1) -> list[UUID]:
    """Return conversations whose check has been due for ten seconds."""
    items = [chat.begin() for _ in range(count)]
    for conversation in items:
        chat.append(conversation, [request("hello")])
    age(chat, 10)
    return items


class TestChecks:
    @pytest.mark.fault("F31")
    def test_ten_thousand_due_checks_of_one_tenant_come_after_the_first_of_another(
        self, chat: Chat, other: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker
    ) -> None:
        chat.query(DUE, tenant=chat.tenant_id, many=MANY)
        (theirs,) = overdue(other)
        assert make_sweeper().sweep() == MANY
        messages = [batch for _, (batch,) in broker.take(CHECKS)]
        assert len(messages) == MANY // BATCH + 1  # the last of the urgent ones is not full
        assert str(theirs) in messages[0][:2]
        assert max(map(len, messages)) == BATCH

    def test_what_is_beyond_a_tenants_share_waits_for_wake_ups_that_come_later(
        self, chat: Chat, other: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker, broker_url: str
    ) -> None:
        """The sweep has sent everything by the time at which the other tenant's turn comes in."""
        chat.query(DUE, tenant=chat.tenant_id, many=500)
        assert make_sweeper().sweep() == 500
        settings = chat.settings.model_copy(update={"broker_url": type(chat.settings.broker_url)(broker_url)})
        theirs = uuid4()
        publish(settings, [(theirs, other.tenant_id)])
        order = [identifier for _, (batch,) in broker.take(CHECKS) for identifier in batch]
        assert order.index(str(theirs)) == SHARE
        assert len(order) == 501

    @pytest.mark.slow
    @pytest.mark.fault("F31")
    def test_the_order_in_which_a_worker_completes_them(self, product: Product, database_url: str) -> None:
        """One process, one check after the other; every conversation has something to compact."""
        product.env |= {"PALIMPSEST_SUMMARIZER": "extractive"}
        with Chat(product.chat.settings, make_tenant(database_url, "rival").id) as other:
            for _ in range(120):
                product.chat.append(product.chat.begin(), [request("go"), *rounds(4, 600)])
            theirs = [other.begin() for _ in range(3)]
            for conversation in theirs:
                other.append(conversation, [request("go"), *rounds(4, 600)])
            for each in (product.chat, other):
                age(each)
            sweeper = Sweeper(product.chat.settings, product.app)
            sweeper.sweep("checks")
            sweeper.close()
            done = "select count(*) from runs where finished_at is not null"
            with product.worker("checks", "--concurrency", "1") as worker:
                eventually(lambda: product.chat.query(done)[0][0] == 120, 120)
                assert worker.end() == 0
            times = [row.finished_at for row in product.chat.query("select finished_at from runs order by 1")]
            last = max(other.run(conversation).finished_at for conversation in theirs)
            assert sum(time < last for time in times) <= 3  # they took turns

    def test_one_batch_is_checked_in_its_order(self, chat: Chat) -> None:
        items = [chat.begin() for _ in range(8)]
        for conversation in items:
            chat.append(conversation, [request("go"), *rounds(6, 600)])
        wanted = items[::-1]
        seen: list[UUID] = []
        workers = Workers(chat)

        def execute(lease: Lease) -> None:
            seen.append(lease.conversation_id)
            workers.dispatcher.execute(lease)

        workers.checker.check(wanted, execute)
        assert seen == wanted


def publish(settings: Settings, waking: list[tuple[UUID, UUID]]) -> None:
    """Send what an API process sends after turns of these conversations, given with their tenants, in one batch."""

    async def send() -> None:
        wakeups = Wakeups(settings.model_copy(update={"wakeup_interval_seconds": 3_600}), Metrics())
        await wakeups.start()
        assert {wakeups.add(conversation, tenant) for conversation, tenant in waking} == {"queued"}
        await wakeups.stop()

    asyncio.run(send())


class TestWakeUps:
    def test_tenants_take_turns_in_a_batch_and_what_is_beyond_a_share_waits(
        self, make_settings: Callable[..., Settings], broker: Broker, broker_url: str
    ) -> None:
        many, few = uuid4(), uuid4()
        flood = [(uuid4(), many) for _ in range(500)]
        theirs = [(uuid4(), few) for _ in range(3)]
        publish(make_settings(broker_url=broker_url), [*flood, *theirs])
        messages = [batch for _, (batch,) in broker.take(CHECKS)]
        assert max(map(len, messages)) <= BATCH
        order = [UUID(identifier) for batch in messages for identifier in batch]
        assert [order.index(conversation) for conversation, _ in theirs] == [1, 3, 5]
        assert sorted(order) == sorted(conversation for conversation, _ in flood + theirs)
        urgent = {conversation for conversation, _ in flood[:SHARE] + theirs}
        assert set(order[: len(urgent)]) == urgent

    def test_a_conversation_that_is_woken_twice_is_sent_once(
        self, make_settings: Callable[..., Settings], broker: Broker, broker_url: str
    ) -> None:
        conversation, tenant = uuid4(), uuid4()
        publish(make_settings(broker_url=broker_url), [(conversation, tenant)] * 3)
        assert [batch for _, (batch,) in broker.take(CHECKS)] == [[str(conversation)]]

    def test_turns(self) -> None:
        a, b = uuid4(), uuid4()
        first, second, third, theirs = (uuid4() for _ in range(4))
        assert by_turns({first: a, second: a, third: a, theirs: b}) == [first, theirs, second, third]
        assert by_turns({}) == []


class TestPlaces:
    """Runs that ask a model: so many of a tenant, so many in all."""

    def queued(self, chat: Chat, count: int) -> list[UUID]:
        """Return runs that wait for a summary, oldest first."""
        workers = Workers(chat, StubSummarizer())
        for _ in range(count):
            workers.check(long_talk(chat))
        return list(workers.woken)

    def claim(self, chat: Chat, run_id: UUID, places: Places) -> Lease | None:
        with chat.database.transaction(chat.tenant_id) as connection:
            if not summary_places.is_free(connection, run_id, places):
                return None
            return runs.claim(connection, run_id, holder=LeaseHolder("test"), lease_seconds=60, max_attempts=5)

    def offer(self, chat: Chat, places: Places) -> tuple[UUID, UUID] | None:
        with chat.database.transaction(None) as connection:
            return summary_places.offer(connection, places)

    def test_a_tenant_at_its_bound_waits_and_another_does_not(self, chat: Chat, other: Chat) -> None:
        places = Places(per_tenant=2)
        first, second, third = self.queued(chat, 3)
        (theirs,) = self.queued(other, 1)
        lease = self.claim(chat, first, places)
        assert lease is not None
        assert self.claim(chat, second, places) is not None
        assert self.claim(chat, third, places) is None
        assert self.claim(other, theirs, places) is not None
        (row,) = chat.query("select state, attempts, lease_token from runs where id = :r", r=third)
        assert (row.state, row.attempts, row.lease_token) == ("queued", 0, None)
        with chat.database.transaction(chat.tenant_id) as connection:
            assert runs.end(connection, lease, RunState.SKIPPED, None, None)
        assert self.claim(chat, third, places) is not None

    def test_all_tenants_together(self, chat: Chat, other: Chat) -> None:
        places = Places(overall=2)
        first, second = self.queued(chat, 2)
        (theirs,) = self.queued(other, 1)
        assert self.claim(chat, first, places) is not None
        assert self.claim(other, theirs, places) is not None
        assert self.claim(chat, second, places) is None
        assert self.claim(chat, second, Places(overall=3)) is not None

    def test_a_run_of_the_checks_asks_no_model(self, chat: Chat) -> None:
        (waiting,) = self.queued(chat, 1)
        assert self.claim(chat, waiting, Places(1, 1)) is not None
        conversation = chat.begin()
        chat.append(conversation, [request("go"), *rounds(6, 600)])
        lease = Workers(chat).begin(conversation)
        chat.expire_lease(lease.run_id)
        assert self.claim(chat, lease.run_id, Places(1, 1)) is not None

    def test_a_worker_that_died_takes_up_no_place(self, chat: Chat) -> None:
        first, second = self.queued(chat, 2)
        lease = self.claim(chat, first, Places(1))
        assert lease is not None
        assert self.claim(chat, second, Places(1)) is None
        chat.expire_lease(lease.run_id)
        assert self.claim(chat, second, Places(1)) is not None

    @pytest.mark.parametrize("places", [Places(per_tenant=3), Places(overall=3)])
    def test_many_claims_at_once(self, chat: Chat, places: Places) -> None:
        waiting = self.queued(chat, 8)
        line, taken = threading.Barrier(len(waiting)), []

        def claim(run_id: UUID) -> None:
            line.wait()
            if self.claim(chat, run_id, places) is not None:
                taken.append(run_id)

        threads = [threading.Thread(target=claim, args=(run_id,)) for run_id in waiting]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 3

    def test_a_place_goes_to_the_tenant_with_the_fewest_under_way(self, chat: Chat, other: Chat) -> None:
        places = Places(per_tenant=2)
        first, second, third = self.queued(chat, 3)
        (theirs,) = self.queued(other, 1)
        assert self.offer(chat, places) == (first, chat.tenant_id)
        chat.query("update runs set queued_at = created_at")
        assert self.claim(chat, first, places) is not None
        assert self.offer(chat, places) == (theirs, other.tenant_id)
        assert self.claim(other, theirs, places) is not None
        assert self.offer(chat, places) == (second, chat.tenant_id)
        assert self.offer(chat, places) == (third, chat.tenant_id)  # the one before was offered just now
        assert self.claim(chat, second, places) is not None
        assert self.offer(chat, places) is None
        assert self.offer(chat, Places()) == (third, chat.tenant_id)

    def test_the_sweeper_offers_no_more_than_may_begin(self, chat: Chat, other: Chat) -> None:
        waiting = self.queued(chat, 4)
        theirs = self.queued(other, 2)
        assert self.claim(chat, waiting[0], Places()) is not None
        for each in (chat, other):
            age(each)

        def stranded(per_tenant: int) -> list[UUID]:
            with chat.database.transaction(None) as connection:
                return [run.run_id for run in stranded_runs.stranded(connection, 30, 100, per_tenant)]

        assert stranded(2) == [waiting[1], *theirs]
        assert stranded(1) == theirs[:1]
        assert stranded(0) == [waiting[1], theirs[0], waiting[2], theirs[1], waiting[3]]

    def test_the_task_leaves_what_has_to_wait_and_passes_its_place_on(
        self, chat: Chat, make_settings: Callable[..., Settings], broker: Broker, broker_url: str
    ) -> None:
        settings = make_settings(broker_url=broker_url, summaries_per_tenant=1)
        with task_services(settings):
            first, second, third = self.queued(chat, 3)
            held = self.claim(chat, first, Places())
            assert held is not None
            tasks.run(str(chat.tenant_id), str(second))
            assert broker.take(SUMMARIES) == []
            assert [row.state for row in chat.query("select state from runs order by id")] == [
                "running",
                "queued",
                "queued",
            ]
            chat.expire_lease(first)
            tasks.run(str(chat.tenant_id), str(second))
            assert [row.state for row in chat.query("select state from runs order by id")][1] == "committed"
            assert broker.take(SUMMARIES) == [(RUN_TASK, [str(chat.tenant_id), str(third)])]

    @pytest.mark.slow
    @pytest.mark.fault("F31")
    def test_real_workers_ask_no_more_than_they_may(
        self, product: Product, model: LoopbackModel, database_url: str
    ) -> None:
        """The first tenant's six runs are all queued before the other's one, and no sweeper helps."""
        product.env |= {"PALIMPSEST_SUMMARIES_PER_TENANT": "2"}
        model.hold()
        with (
            Chat(product.chat.settings, make_tenant(database_url, "rival").id) as other,
            product.worker("checks,summaries", "--concurrency", "8") as worker,
        ):
            mine = [long_talk(product.chat) for _ in range(6)]
            product.wake(*mine)
            queued = "select count(*) from runs where state = 'queued' and queue = 'summaries'"
            eventually(lambda: product.chat.query(queued)[0][0] == 4, 60)
            model.wait_for_requests(2)
            theirs = long_talk(other)
            product.wake(theirs)
            model.wait_for_requests(3)
            assert other.run(theirs).state == "running"
            assert product.chat.query(queued)[0][0] == 4
            model.release()
            open_ = "select count(*) from runs where finished_at is null"
            eventually(lambda: product.chat.query(open_)[0][0] == 0, 60)
            eventually(lambda: other.query(open_)[0][0] == 0, 60)
            assert worker.end() == 0
        assert {run.attempts for conversation in mine for run in product.chat.runs(conversation)} == {1}


class TestBoundedQueue:
    def test_a_queue_without_workers_does_not_grow(
        self, chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker, broker_url: str
    ) -> None:
        overdue(chat, 60)
        sweeper = make_sweeper()
        assert [sweeper.sweep() for _ in range(5)] == [60, 0, 0, 0, 0]
        assert len(broker.take(CHECKS)) == 2
        # Nothing of it is on its way any more.
        assert [sweeper.sweep() for _ in range(3)] == [60, 0, 0]
        later = chat.begin()
        chat.append(later, [request("hello")])
        chat.query("update conversations set check_due_at = now() - interval '9 s' where id = :c", c=later)
        assert sweeper.sweep() == 1
        assert broker.take(CHECKS)[-1][1] == [[str(later)]]

    def test_a_check_that_is_due_again_is_a_new_one(
        self, chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker
    ) -> None:
        first, second = overdue(chat, 2)
        sweeper = make_sweeper()
        assert sweeper.sweep() == 2
        Workers(chat).settle(first)
        chat.append(first, [request("more")])
        chat.query("update conversations set check_due_at = now() - interval '9 s' where id = :c", c=first)
        assert sweeper.sweep() == 1
        assert broker.take(CHECKS)[-1][1] == [[str(first)]]
        assert second != first

    def test_runs_and_their_offers(self, chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker) -> None:
        workers = Workers(chat, StubSummarizer())
        for _ in range(3):
            workers.check(long_talk(chat))
        sweeper = make_sweeper()
        items = []
        for _ in range(4):
            chat.query("update runs set queued_at = queued_at - interval '60 s'")
            items.append(sweeper.sweep())
        assert items == [3, 0, 0, 0]
        assert len(broker.take(SUMMARIES)) == 3
        assert sweeper.sweep() == 3

    def test_a_run_out_of_attempts_is_buried_however_full_the_queue_is(
        self, chat: Chat, make_sweeper: Callable[..., Sweeper], broker: Broker
    ) -> None:
        workers = Workers(chat, StubSummarizer())
        conversation = long_talk(chat)
        workers.check(conversation)
        age(chat)
        sweeper = make_sweeper(max_attempts=2)
        assert sweeper.sweep() == 1
        chat.query("update runs set attempts = 2, queued_at = now() - interval '60 s'")
        assert sweeper.sweep() == 1
        assert chat.run(conversation).state == "dead"
        assert len(broker.take(SUMMARIES)) == 1

    @pytest.mark.parametrize("absent_count", [False, True])
    def test_what_is_sent_grows_with_the_logarithm_of_the_time(self, absent_count: bool) -> None:
        now = [0.0]
        sent = Sent(lambda: now[0], absent_count=absent_count)
        due, times = [uuid4()], []

        def identify(each: UUID) -> tuple[UUID, None]:
            return each, None

        for second in range(0, 12 * 3_600, 5):
            now[0] = second
            if unsent := sent.unsent(due, identify, queue_is_empty=False):
                sent.remember(unsent, identify)
                times.append(second)
        assert times == [0, *(int(AGAIN_SECONDS) * (2**n - 1) for n in range(1, 10))]

    def test_what_was_done_is_forgotten(self) -> None:
        now = [0.0]

        def identify(each: UUID) -> tuple[UUID, None]:
            return each, None

        key = uuid4()
        for absent_count in (False, True):
            sent = Sent(lambda: now[0], absent_count=absent_count)
            sent.remember(sent.unsent([key], identify, queue_is_empty=False), identify)
            assert sent.unsent([], identify, queue_is_empty=False) == []
            again = sent.unsent([key], identify, queue_is_empty=False)
            assert again == ([] if absent_count else [key])
            now[0] += 3 * AGAIN_SECONDS
            sent.unsent([], identify, queue_is_empty=False)
            assert not sent._sent
            now[0] = 0


def test_a_tenants_conversations_are_found_by_turns(chat: Chat, other: Chat) -> None:
    mine, theirs = overdue(chat, 3), overdue(other, 1)
    with chat.database.transaction(None) as connection:
        found = conversations.overdue_checks(connection, 5, 3)
    assert [(check.conversation_id, check.tenant_id, check.nth) for check in found] == [
        (mine[0], chat.tenant_id, 1),
        (theirs[0], other.tenant_id, 1),
        (mine[1], chat.tenant_id, 2),
    ]
    assert ids.external("conv", mine[0])
