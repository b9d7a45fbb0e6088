"""Edits, forks, restores and overflows while something else is under way, each pair by name.

What is under way: a summary, a snapshot that waits for a tool loop, the hold of a restore, an overflow. Whatever comes
in between, the context never holds a replaced message and the audit holds them all: `Product.verify` is the judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

import pytest
from sqlalchemy import func, select, text

from compaction.policy import merge
from compaction.steps.runs import Queue
from store.conversations import branches, conversations, overflows, pins
from store.conversations.repinning import repin
from store.runs import requested, runs
from store.runs.requested import ManualRun
from tests.support.messages_api import ThinkingLedger, problems
from tests.support.service.in_process import Workers, check_state
from tests.support.service.stepped_workers import MAX_ATTEMPTS
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import call, result
from tests.support.truth.model import Product, Told, Usage, markings, marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from compaction.steps.ladder import Strategy
    from runtime.settings import Settings
    from store.conversations.overflows import Overflowed
    from tests.conftest import Tenant
    from tests.support.blocks import Message
    from worker.summarizers import SummaryRequest

POLICY: Final = {
    "input_token_budget": 0,
    "compaction_threshold_tokens": 1_000,
    "protected_tail_messages": 2,
    "min_savings_tokens": 20,
    "model_context_tokens": 100_000,
}


class Naming(StubSummarizer):
    """A summarizer whose summaries name what they are of."""

    def summarize(self, request: SummaryRequest) -> Any:
        self.text = f"They spoke of {markings([message.content for message in request.zone])}."
        return super().summarize(request)


@pytest.fixture
def product(make_settings: Callable[..., Settings], tenant: Tenant) -> Iterator[Product]:
    with Product(make_settings(), tenant.id) as made:
        yield made


def exchange(number: int, tokens: int = 100) -> list[Message]:
    filler = "lorem ipsum dolor sit amet " * (tokens * 4 // 27)
    return [
        {"role": "user", "content": f"mark-{number}0- asks {filler}"},
        {"role": "assistant", "content": f"mark-{number}1- answers {filler}"},
    ]


def exchanges(count: int, start: int = 1) -> list[Message]:
    return [message for number in range(start, start + count) for message in exchange(number)]


def say(product: Product, told: Told, messages: Sequence[Message], *, replace_from: int | None = None) -> None:
    done, _ = product.send(told, messages, Usage(), replace_from=replace_from)
    assert done.outcome == "appended"
    told.add(messages, replace_from=replace_from)


def begin(product: Product, messages: Sequence[Message] = (), **policy: Any) -> Told:
    told = product.begin_told({**POLICY, **policy}, strict=False)
    if messages:
        say(product, told, messages)
    return told


def restore(product: Product, told: Told, version: int = 0) -> int:
    with product.database.transaction(product.tenant_id) as connection:
        made = branches.restore(
            connection, product.tenant_id, told.id, version, product.policy_of(told), request_id=uuid4()
        )
    assert made is not None
    return made


def fork(product: Product, told: Told, through: int | None = None) -> Told:
    seq = told.next_seq - 1 if through is None else through
    with product.database.transaction(product.tenant_id) as connection:
        made = branches.fork(
            connection, product.tenant_id, told.id, seq, None, product.policy_of(told), request_id=uuid4()
        )
    assert made is not None
    return told.fork(made, seq)


def overflow(product: Product, told: Told, *, summarize: bool = True) -> Overflowed:
    with product.database.transaction(product.tenant_id) as connection:
        return overflows.overflow(
            connection,
            product.tenant_id,
            told.id,
            policy=product.policy_of(told),
            request_id=uuid4(),
            snapshot_version=None,
            refused=None,
            summarize=summarize,
        )


def by_hand(product: Product, told: Told, strategy: Strategy, **policy: int) -> UUID:
    with product.database.transaction(product.tenant_id) as connection:
        run, _ = requested.request(
            connection,
            product.tenant_id,
            told.id,
            ManualRun(strategy, None, merge(told.policy, policy)),
            queue=Queue.CHECKS,
            request_id=uuid4(),
        )
    return run


def rest(product: Product, *conversations_told: Told) -> None:
    """Let checks, summaries and sweeps come to their end, and verify what they left."""
    workers = Workers(product, Naming())
    for told in conversations_told:
        for run in product.query(
            "select id from runs where conversation_id = :c and state in ('queued', 'running')", c=told.id
        ):
            product.expire_lease(run.id)
            workers.woken.append(run.id)
        workers.summarize()
        workers.settle(told.id)
        assert check_state(product, told.id) is None
        assert all(run.state not in {"queued", "running"} for run in product.runs(told.id))
        product.verify(told)


def state(product: Product, told: Told) -> Any:
    return product.row(told.id)


# What comes in between


def edited(product: Product, told: Told) -> Told:
    say(product, told, exchange(900), replace_from=told.next_seq - 4)
    return told


def forked(product: Product, told: Told) -> Told:
    return fork(product, told, told.next_seq - 3)


def restored(product: Product, told: Told) -> Told:
    restore(product, told)
    return told


def overflowed(product: Product, told: Told) -> Told:
    assert overflow(product, told).outcome == "compacted"
    return told


Event: TypeAlias = "Callable[[Product, Told], Told]"
EVENTS: Final[list[Event]] = [edited, forked, restored, overflowed]


@pytest.mark.parametrize("event", EVENTS)
def test_while_a_summary_is_being_made(product: Product, event: Event) -> None:
    told = begin(product, exchanges(10))
    other: list[Told] = []
    workers = Workers(product, Naming(act=lambda: other.append(event(product, told)) if not other else None))
    workers.check(told.id)
    (run,) = workers.woken
    workers.summarize()
    product.verify(told)
    found = {each.id: each for each in product.runs(told.id)}[run]
    if event is forked:
        assert found.state == "committed"
        assert state(product, other[0]).head_version == 0
    else:
        assert (found.state, found.reason) == ("skipped", "head_moved")
        assert found.snapshot_version is None
    rest(product, told, other[0])


@pytest.mark.parametrize("event", EVENTS)
def test_while_a_run_is_queued(product: Product, event: Event) -> None:
    told = begin(product, exchanges(10))
    workers = Workers(product, Naming())
    workers.check(told.id)
    (run,) = workers.woken
    other = event(product, told)
    head = state(product, told).head_version
    workers.summarize()
    found = {each.id: each for each in product.runs(told.id)}[run]
    if event in {restored, overflowed}:
        assert (found.state, found.reason) == ("skipped", "head_moved")
        assert state(product, told).head_version == head
    else:
        assert found.state == "committed"
    rest(product, told, other)


def pending(product: Product) -> Told:
    """Return a conversation in a tool loop with signed thinking, for the end of which a snapshot waits."""
    told = begin(product, exchanges(10), prune_min_freed_tokens=1_000_000)
    say(product, told, exchange(50)[:1])
    for number in range(3):
        say(product, told, [call(number, thinking=True), result(number, 30)])
    Workers(product, Naming()).settle(told.id)
    assert state(product, told).pending_version is not None
    assert state(product, told).head_version == 0
    product.verify(told)
    return told


@pytest.mark.parametrize("event", EVENTS)
def test_while_a_snapshot_waits(product: Product, event: Event) -> None:
    told = pending(product)
    waiting = state(product, told).pending_version
    other = event(product, told)
    product.verify(told)
    product.verify(other)
    if event is forked:
        assert state(product, told).pending_version == waiting
        assert (state(product, other).pending_version, state(product, other).head_version) == (None, 0)
    else:
        assert state(product, told).pending_version is None
        assert state(product, told).head_version != waiting
    rest(product, told, other)
    for each in (told, other):
        say(product, each, [{"role": "assistant", "content": "mark-7000- done"}, *exchange(800)])
        product.verify(each)
    assert (state(product, told).head_version == waiting) == (event is forked)
    rest(product, told, other)


@pytest.mark.parametrize("event", EVENTS)
def test_while_a_restore_is_held(product: Product, event: Event) -> None:
    told = begin(product, exchanges(10), min_savings_tokens=100)
    rest(product, told)
    assert state(product, told).head_version > 0
    head = restore(product, told)
    rest(product, told)
    assert (state(product, told).head_version, state(product, told).held_by_restore) == (head, True)
    other = event(product, told)
    rest(product, told, other)
    if event is overflowed:
        assert not state(product, told).held_by_restore
    else:
        # An edit shows as much of the past as before, a fork has it too, and another restore holds anew.
        assert state(product, other).head_version == (head + 1 if event is restored else head)
        assert state(product, other).held_by_restore
        assert other.cut(2) == product.context(other.id)["messages"][:2]
    say(product, other, exchanges(30, start=100))
    rest(product, other)
    assert not state(product, other).held_by_restore
    assert len(product.context(other.id)["messages"]) < len(other.live)


@pytest.mark.parametrize("event", EVENTS)
def test_after_an_overflow(product: Product, event: Event) -> None:
    told = begin(product, exchanges(10), compaction_threshold_tokens=100_000)
    first = overflow(product, told)
    assert first.summary_run_id is not None
    other = event(product, told)
    product.verify(told)
    product.verify(other)
    row = state(product, told)
    run = {each.id: each for each in product.runs(told.id)}[first.summary_run_id]
    match event.__name__:
        case "edited":
            assert row.overflows == 0
        case "restored":
            assert (row.head_version, run.state) == (2, "skipped")
        case "overflowed":
            (second,) = [each for each in product.runs(told.id) if each.state == "queued"]
            assert (row.overflows, run.state) == (2, "skipped")
            assert (second.base_version, second.parent_version) == (0, 2)
        case "forked":
            assert state(product, other).head_version == 1
            assert state(product, other).overflows == 0
            assert {each.state for each in product.runs(other.id)} == {"committed"}
    rest(product, told, other)
    if event is not restored:
        summary = product.snapshot(told.id, state(product, told).head_version).summary
        assert summary is not None
        assert marks(summary) <= marks(told.messages)


# What a restore or a fork may show


def test_a_version_cannot_come_back_although_the_edit_began_before_it_was_made(product: Product) -> None:
    told = begin(product, exchanges(10))
    workers = Workers(product, Naming())
    with product.database.transaction(product.tenant_id) as connection:
        connection.execute(select(func.now()))
        workers.settle(told.id)
        version = state(product, told).head_version
        assert version > 0
        product.verify(told)
        connection.execute(text("select supersede(:c, 2)"), {"c": told.id})
    told.stored = [each._replace(live=each.seq < 2) for each in told.stored]
    assert told.stored[-1].live is False
    with pytest.raises(branches.SupersededError):
        restore(product, told, version)
    product.verify(told)


def test_a_fork_ends_with_its_newest_message_although_a_snapshot_left_it_out(product: Product) -> None:
    told = begin(product, exchanges(10), compaction_enabled=False, max_conversation_messages=4)
    rest(product, told)
    covers = state(product, told).covers_through
    assert covers == 15
    other = fork(product, told, covers)
    assert product.context(other.id)["messages"] == other.messages
    later = fork(product, told, covers + 1)
    assert product.context(later.id)["messages"] == later.messages[-1:]
    rest(product, other, later)


def test_a_fork_ends_with_its_newest_message_although_a_snapshot_cut_it(product: Product) -> None:
    rounds = [message for number in range(4) for message in (call(number), result(number, 100))]
    told = begin(product, [*exchange(1)[:1], *rounds], input_token_budget=200, tool_result_retention_chars=0)
    rest(product, told)
    assert state(product, told).head_version == 1
    other = fork(product, told, 4)
    assert product.context(other.id)["messages"] == other.messages
    same = fork(product, told)
    assert product.context(same.id) == product.context(told.id)
    rest(product, other, same)


def test_a_fork_has_no_version_that_tells_of_more_than_it(product: Product) -> None:
    told = begin(product, exchanges(10))
    rest(product, told)
    first = state(product, told).head_version
    say(product, told, exchanges(10, start=20))
    rest(product, told)
    second = state(product, told).head_version
    assert second > first
    restore(product, told)
    other = fork(product, told, 25)
    stored = product.query("select version, parent_version from snapshots where conversation_id = :c", c=other.id)
    assert sorted((row.version, row.parent_version) for row in stored) == [(first, 0), (second + 1, first)]
    rest(product, other)
    say(product, told, exchange(900), replace_from=2)
    again = fork(product, told)
    stored = product.query("select version, parent_version from snapshots where conversation_id = :c", c=again.id)
    assert [(row.version, row.parent_version) for row in stored] == [(second + 1, 0)]
    rest(product, told, again)


def test_a_fork_is_checked_by_itself(product: Product) -> None:
    told = begin(product, exchanges(10))
    other = fork(product, told)
    assert check_state(product, other.id) is not None
    rest(product, other)
    assert state(product, other).head_version > 0


def pin(product: Product, told: Told, seq: int, content: str) -> None:
    with product.database.transaction(product.tenant_id) as connection:
        pins.add(connection, product.tenant_id, told.id, seq, content, uuid4())
        repin(connection, product.tenant_id, told.id, policy=product.policy_of(told), request_id=uuid4())


def test_a_pin_goes_with_its_message_although_no_snapshot_covers_that(product: Product) -> None:
    lost = {"type": "tool_result", "tool_use_id": "toolu_unknown", "content": [{"type": "text", "text": "mark-990- x"}]}
    told = begin(product, [*exchange(1), {"role": "user", "content": [lost]}, *exchange(2)])
    pin(product, told, 2, "mark-990-")
    pinned = state(product, told)
    assert (pinned.head_version, pinned.covers_through) == (1, 0)
    assert "mark-990-" in marks(product.context(told.id)["messages"])
    product.verify(told)
    other = fork(product, told, 1)
    assert state(product, other).head_version == 0
    say(product, told, exchange(3), replace_from=2)
    assert state(product, told).head_version == 0
    with pytest.raises(branches.SupersededError):
        restore(product, told, 1)
    rest(product, told, other)


# Holds


def test_a_pin_leaves_a_restored_version_held_and_asks_for_a_check(product: Product) -> None:
    told = begin(product, exchanges(10), min_savings_tokens=100)
    rest(product, told)
    version = state(product, told).head_version
    head = restore(product, told, version)
    rest(product, told)
    held = state(product, told)
    pin(product, told, 3, "mark-21-")
    after = state(product, told)
    assert (after.head_version, after.held_by_restore, after.summary_hold) == (head + 1, True, held.summary_hold)
    assert check_state(product, told.id) is not None
    rest(product, told)
    assert state(product, told).head_version == head + 1


def test_a_run_by_hand_ends_the_hold_of_a_restore(product: Product) -> None:
    told = begin(product, exchanges(10), min_savings_tokens=100)
    restore(product, told)
    held = state(product, told).summary_hold
    assert held > 2_000
    workers = Workers(product, Naming())
    run = by_hand(product, told, "drop", max_conversation_messages=4)
    lease = workers.claim(run)
    assert lease is not None
    workers.dispatcher.execute(lease)
    row = state(product, told)
    assert (row.held_by_restore, row.tool_results_hold, row.summary_hold, row.trim_hold) == (False, 0, 0, 0)
    rest(product, told)


def test_a_new_policy_ends_the_hold_of_a_restore(product: Product) -> None:
    told = begin(product, exchanges(10))
    restore(product, told)
    with product.database.transaction(product.tenant_id) as connection:
        conversations.change(connection, product.tenant_id, told.id, {"policy": told.policy})
    row = state(product, told)
    assert (row.held_by_restore, row.summary_hold) == (False, 0)


# Checks that an active run stood for


@pytest.mark.parametrize("event", [restored, overflowed])
def test_a_check_that_was_left_to_a_run_is_due_when_that_is_overtaken(product: Product, event: Event) -> None:
    told = begin(product, exchanges(10))
    workers = Workers(product, Naming())
    workers.check(told.id)
    workers.check(told.id)
    assert check_state(product, told.id) is None
    event(product, told)
    assert check_state(product, told.id) is not None
    rest(product, told)


def bury(product: Product, run: UUID) -> None:
    product.query("update runs set attempts = :n where id = :r", n=MAX_ATTEMPTS, r=run)
    product.expire_lease(run)
    with product.database.transaction(product.tenant_id) as connection:
        assert runs.requeue(connection, run, MAX_ATTEMPTS) == "dead"


def test_a_check_that_was_left_to_a_run_is_due_when_that_dies(product: Product) -> None:
    told = begin(product, exchanges(2))
    rest(product, told)
    run = by_hand(product, told, "auto")
    say(product, told, exchanges(10, start=20))
    workers = Workers(product, Naming())
    workers.check(told.id)
    assert check_state(product, told.id) is None
    bury(product, run)
    assert check_state(product, told.id) is not None
    workers.settle(told.id)
    assert state(product, told).head_version > 0
    product.verify(told)


def test_what_killed_a_run_is_not_tried_again_at_once(product: Product) -> None:
    told = begin(product, exchanges(10), max_context_bytes=2_000)
    workers = Workers(product, Naming())
    bury(product, workers.begin(told.id).run_id)
    assert check_state(product, told.id) is not None
    workers.settle(told.id)
    assert [run.state for run in product.runs(told.id)] == ["dead"]
    assert check_state(product, told.id) is None
    say(product, told, exchanges(10, start=20))
    rest(product, told)
    assert state(product, told).head_version > 0


def test_an_overflow_is_followed_by_a_check(product: Product) -> None:
    told = begin(product, exchanges(2), compaction_enabled=False)
    rest(product, told)
    assert overflow(product, told, summarize=False).outcome == "compacted"
    assert check_state(product, told.id) is not None
    rest(product, told)


# Signed thinking


class Thinking:
    """A tool loop whose thinking is signed for what the model saw."""

    def __init__(self, product: Product, **policy: Any) -> None:
        self.product = product
        self.told = begin(product, **policy)
        self.ledger = ThinkingLedger()

    def say(self, *messages: Message) -> None:
        context = self.product.context(self.told.id)
        seen = context["messages"]
        signed = self.ledger.signed([*seen, *messages])[len(seen) :]
        version = context["snapshot"]["version"] if context["snapshot"] else 0
        done, _ = self.product.send(self.told, signed, Usage(None, version))
        assert done.outcome == "appended"
        self.told.add(signed)

    def served(self) -> list[Message]:
        found: list[Message] = self.product.context(self.told.id)["messages"]
        assert problems(found, ledger=self.ledger) == []
        return found

    def set(self, **policy: Any) -> None:
        self.told.policy |= policy
        with self.product.database.transaction(self.product.tenant_id) as connection:
            conversations.change(connection, self.product.tenant_id, self.told.id, {"policy": self.told.policy})


def thinks(message: Message) -> bool:
    return isinstance(message["content"], list) and any(block["type"] == "thinking" for block in message["content"])


def test_thinking_goes_when_the_database_left_out_what_was_before_it(product: Product) -> None:
    loop = Thinking(product, total_token_budget=1_000, reserved_output_tokens=100)
    loop.say(*exchange(1, 600))
    loop.say(*exchange(2)[:1])
    for number in range(3):
        loop.say(call(number, thinking=True), result(number, 100))
        assert marks(loop.served()[0]) == {"mark-20-"}
    assert not any(map(thinks, loop.served()))


def test_thinking_that_was_fitted_into_a_budget_goes_when_the_budget_grows(product: Product) -> None:
    loop = Thinking(product, total_token_budget=1_000, reserved_output_tokens=100)
    loop.say(*exchange(1, 600))
    loop.say(*exchange(2, 20)[:1])
    loop.say(call(0, thinking=True), result(0, 20))
    loop.set(total_token_budget=100_000)
    assert marks(loop.served()[0]) == {"mark-10-"}
    loop.say(call(1, thinking=True), result(1, 20))
    assert [thinks(message) for message in loop.served()] == [False] * 5 + [True, False]


def test_thinking_after_a_long_result_in_the_same_turn_goes(product: Product) -> None:
    loop = Thinking(product, max_tool_result_chars=200)
    loop.say(*exchange(1)[:1], call(0, thinking=True))
    loop.say(result(0, 300), call(1, thinking=True))
    assert not any(map(thinks, loop.served()))
    loop.say(result(1, 300))
    loop.say(call(2, thinking=True))
    assert [thinks(message) for message in loop.served()] == [False] * 5 + [True]
