"""Edits, forks, restores and overflows while something else is under way, each pair by name.

What is under way: a summary, a snapshot that waits for a tool loop, the hold of a restore, an overflow. Whatever comes
in between, the context never holds a replaced message and the audit holds them all: `Product.verify` is the judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, text

from compaction.policy import merge
from compaction.view import MARKER
from runtime.queues import Queue
from store.conversations import branches, conversations, overflows, pins
from store.conversations.repinning import repin
from store.runs import requested, runs
from store.runs.requested import ManualRun
from tests.support.messages_api import ThinkingLedger, problems
from tests.support.service.in_process import Workers, check_state
from tests.support.service.stepped_workers import MAX_ATTEMPTS
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import answer, call, result
from tests.support.truth.model import Product, TrackedConversation, Usage, markings, marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from runtime.settings import Settings
    from store.conversations.overflows import Overflowed
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


@pytest.fixture(scope="module")
def product(module_settings: Settings) -> Iterator[Product]:
    with Product(module_settings, UUID(int=0)) as made:
        yield made.renew()


def exchange(number: int, tokens: int = 100) -> list[Message]:
    filler = "lorem ipsum dolor sit amet " * (tokens * 4 // 27)
    return [
        {"role": "user", "content": f"mark-{number}0- asks {filler}"},
        {"role": "assistant", "content": f"mark-{number}1- answers {filler}"},
    ]


def exchanges(count: int, start: int = 1) -> list[Message]:
    return [message for number in range(start, start + count) for message in exchange(number)]


def say(
    product: Product, tracked: TrackedConversation, messages: Sequence[Message], *, replace_from: int | None = None
) -> None:
    done, _ = product.send(tracked, messages, Usage(), replace_from=replace_from)
    assert done.outcome == "appended"
    tracked.add(messages, replace_from=replace_from)


def begin(product: Product, messages: Sequence[Message] = (), **policy: Any) -> TrackedConversation:
    tracked = product.begin_tracked({**POLICY, **policy}, strict=False)
    if messages:
        say(product, tracked, messages)
    return tracked


def restore(product: Product, tracked: TrackedConversation, version: int = 0) -> int:
    with product.database.transaction(product.tenant_id) as connection:
        made = branches.restore(
            connection, product.tenant_id, tracked.id, version, product.policy_of(tracked), request_id=uuid4()
        )
    assert made is not None
    return made


def fork(product: Product, tracked: TrackedConversation, through: int | None = None) -> TrackedConversation:
    seq = tracked.next_seq - 1 if through is None else through
    with product.database.transaction(product.tenant_id) as connection:
        made = branches.fork(
            connection, product.tenant_id, tracked.id, seq, None, product.policy_of(tracked), request_id=uuid4()
        )
    assert made is not None
    return tracked.fork(made, seq)


def overflow(product: Product, tracked: TrackedConversation, *, summarize: bool = True) -> Overflowed:
    with product.database.transaction(product.tenant_id) as connection:
        return overflows.overflow(
            connection,
            product.tenant_id,
            tracked.id,
            policy=product.policy_of(tracked),
            request_id=uuid4(),
            snapshot_version=None,
            refusal=None,
            summarize=summarize,
        )


def by_hand(product: Product, tracked: TrackedConversation, strategy: str, **policy: int) -> UUID:
    with product.database.transaction(product.tenant_id) as connection:
        run, _ = requested.request(
            connection,
            product.tenant_id,
            tracked.id,
            ManualRun(strategy, None, merge(tracked.policy, policy)),
            queue=Queue.CHECKS,
            request_id=uuid4(),
        )
    return run


def rest(product: Product, *conversations_tracked: TrackedConversation) -> None:
    """Let checks, summaries and sweeps come to their end, and verify what they left."""
    workers = Workers(product, Naming())
    for tracked in conversations_tracked:
        for run in product.query(
            "select id from runs where conversation_id = :c and state in ('queued', 'running')", c=tracked.id
        ):
            product.expire_lease(run.id)
            workers.woken.append(run.id)
        workers.summarize()
        workers.settle(tracked.id)
        assert check_state(product, tracked.id) is None
        assert all(run.state not in {"queued", "running"} for run in product.runs(tracked.id))
        product.verify(tracked)


def state(product: Product, tracked: TrackedConversation) -> Any:
    return product.row(tracked.id)


# What comes in between


def edited(product: Product, tracked: TrackedConversation) -> TrackedConversation:
    say(product, tracked, exchange(900), replace_from=tracked.next_seq - 4)
    return tracked


def regenerated(product: Product, tracked: TrackedConversation) -> TrackedConversation:
    """Put another answer in the place of the last one, which no summary covers."""
    last = max(each.seq for each in tracked.stored if each.live and each.message["role"] == "assistant")
    say(product, tracked, [{"role": "assistant", "content": "mark-9001- instead"}], replace_from=last)
    return tracked


def forked(product: Product, tracked: TrackedConversation) -> TrackedConversation:
    return fork(product, tracked, tracked.next_seq - 3)


def restored(product: Product, tracked: TrackedConversation) -> TrackedConversation:
    restore(product, tracked)
    return tracked


def overflowed(product: Product, tracked: TrackedConversation) -> TrackedConversation:
    assert overflow(product, tracked).outcome == "compacted"
    return tracked


Event: TypeAlias = "Callable[[Product, TrackedConversation], TrackedConversation]"
EVENTS: Final[list[Event]] = [edited, regenerated, forked, restored, overflowed]


@pytest.mark.parametrize("event", EVENTS)
def test_while_a_summary_is_being_made(product: Product, event: Event) -> None:
    tracked = begin(product, exchanges(10))
    other: list[TrackedConversation] = []
    workers = Workers(product, Naming(act=lambda: other.append(event(product, tracked)) if not other else None))
    workers.check(tracked.id)
    (run,) = workers.woken
    workers.summarize()
    product.verify(tracked)
    names = {each.id: each for each in product.runs(tracked.id)}[run]
    if event in {regenerated, forked}:
        assert names.state == "committed"
        assert state(product, other[0]).head_version == (1 if event is regenerated else 0)
    else:
        assert (names.state, names.reason) == ("skipped", "head_moved")
        assert names.snapshot_version is None
    rest(product, tracked, other[0])


@pytest.mark.parametrize("event", EVENTS)
def test_while_a_run_is_queued(product: Product, event: Event) -> None:
    tracked = begin(product, exchanges(10))
    workers = Workers(product, Naming())
    workers.check(tracked.id)
    (run,) = workers.woken
    other = event(product, tracked)
    head = state(product, tracked).head_version
    workers.summarize()
    names = {each.id: each for each in product.runs(tracked.id)}[run]
    if event in {restored, overflowed}:
        assert (names.state, names.reason) == ("skipped", "head_moved")
        assert state(product, tracked).head_version == head
    else:
        assert names.state == "committed"
    rest(product, tracked, other)


def pending(product: Product) -> TrackedConversation:
    """Return a conversation in a tool loop with signed thinking, for the end of which a snapshot waits."""
    tracked = begin(product, exchanges(10), prune_min_freed_tokens=1_000_000)
    say(product, tracked, exchange(50)[:1])
    for number in range(3):
        say(product, tracked, [call(number, thinking=True), result(number, 30)])
    Workers(product, Naming()).settle(tracked.id)
    assert state(product, tracked).pending_version is not None
    assert state(product, tracked).head_version == 0
    product.verify(tracked)
    return tracked


@pytest.mark.parametrize("event", EVENTS)
def test_while_a_snapshot_waits(product: Product, event: Event) -> None:
    tracked = pending(product)
    waiting = state(product, tracked).pending_version
    other = event(product, tracked)
    product.verify(tracked)
    product.verify(other)
    if event is forked:
        assert state(product, tracked).pending_version == waiting
        assert (state(product, other).pending_version, state(product, other).head_version) == (None, 0)
    else:
        assert state(product, tracked).pending_version is None
    if event is regenerated:
        # The loop is at its end.
        assert state(product, tracked).head_version == waiting
    elif event is not forked:
        assert state(product, tracked).head_version != waiting
    rest(product, tracked, other)
    for each in (tracked, other):
        say(product, each, [{"role": "assistant", "content": "mark-7000- done"}, *exchange(800)])
        product.verify(each)
    assert (state(product, tracked).head_version == waiting) == (event in {regenerated, forked})
    rest(product, tracked, other)


@pytest.mark.parametrize("event", EVENTS)
def test_while_a_restore_is_held(product: Product, event: Event) -> None:
    tracked = begin(product, exchanges(10), min_savings_tokens=100)
    rest(product, tracked)
    assert state(product, tracked).head_version > 0
    head = restore(product, tracked)
    rest(product, tracked)
    assert (state(product, tracked).head_version, state(product, tracked).held_by_restore) == (head, True)
    other = event(product, tracked)
    rest(product, tracked, other)
    if event is overflowed:
        assert not state(product, tracked).held_by_restore
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
    tracked = begin(product, exchanges(10), compaction_threshold_tokens=100_000)
    first = overflow(product, tracked)
    assert first.summary_run_id is not None
    other = event(product, tracked)
    product.verify(tracked)
    product.verify(other)
    row = state(product, tracked)
    run = {each.id: each for each in product.runs(tracked.id)}[first.summary_run_id]
    match event.__name__:
        case "edited":
            assert row.overflows == 0
        case "restored":
            assert (row.head_version, run.state) == (2, "skipped")
        case "overflowed":
            (second,) = [each for each in product.runs(tracked.id) if each.state == "queued"]
            assert (row.overflows, run.state) == (2, "skipped")
            assert (second.base_version, second.parent_version) == (0, 2)
        case "forked":
            assert state(product, other).head_version == 1
            assert state(product, other).overflows == 0
            assert {each.state for each in product.runs(other.id)} == {"committed"}
    rest(product, tracked, other)
    if event is not restored:
        summary = product.snapshot(tracked.id, state(product, tracked).head_version).summary
        assert summary is not None
        assert marks(summary) <= marks(tracked.messages)


# What a restore or a fork may show


def test_a_version_cannot_come_back_although_the_edit_began_before_it_was_made(product: Product) -> None:
    tracked = begin(product, exchanges(10))
    workers = Workers(product, Naming())
    with product.database.transaction(product.tenant_id) as connection:
        connection.execute(select(func.now()))
        workers.settle(tracked.id)
        version = state(product, tracked).head_version
        assert version > 0
        product.verify(tracked)
        connection.execute(text("select supersede(:c, 2)"), {"c": tracked.id})
    tracked.stored = [each._replace(live=each.seq < 2) for each in tracked.stored]
    assert tracked.stored[-1].live is False
    with pytest.raises(branches.SupersededError):
        restore(product, tracked, version)
    product.verify(tracked)


def test_a_fork_ends_with_its_newest_message_although_a_snapshot_left_it_out(product: Product) -> None:
    tracked = begin(product, exchanges(10), compaction_enabled=False, max_conversation_messages=4)
    rest(product, tracked)
    covers = state(product, tracked).covers_through
    assert covers == 15
    other = fork(product, tracked, covers)
    assert product.context(other.id)["messages"] == other.messages
    later = fork(product, tracked, covers + 1)
    assert product.context(later.id)["messages"] == later.messages[-1:]
    rest(product, other, later)


def test_a_fork_ends_with_its_newest_message_although_a_snapshot_cut_it(product: Product) -> None:
    rounds = [message for number in range(4) for message in (call(number), result(number, 100))]
    tracked = begin(product, [*exchange(1)[:1], *rounds], input_token_budget=200, tool_result_retention_chars=0)
    rest(product, tracked)
    assert state(product, tracked).head_version == 1
    other = fork(product, tracked, 4)
    assert product.context(other.id)["messages"] == other.messages
    same = fork(product, tracked)
    assert product.context(same.id) == product.context(tracked.id)
    rest(product, other, same)


def test_a_fork_has_no_version_that_tells_of_more_than_it(product: Product) -> None:
    tracked = begin(product, exchanges(10))
    rest(product, tracked)
    first = state(product, tracked).head_version
    say(product, tracked, exchanges(10, start=20))
    rest(product, tracked)
    second = state(product, tracked).head_version
    assert second > first
    restore(product, tracked)
    other = fork(product, tracked, 25)
    stored = product.query("select version, parent_version from snapshots where conversation_id = :c", c=other.id)
    assert sorted((row.version, row.parent_version) for row in stored) == [(first, 0), (second + 1, first)]
    rest(product, other)
    say(product, tracked, exchange(900), replace_from=2)
    again = fork(product, tracked)
    stored = product.query("select version, parent_version from snapshots where conversation_id = :c", c=again.id)
    assert [(row.version, row.parent_version) for row in stored] == [(second + 1, 0)]
    rest(product, tracked, again)


def test_a_fork_is_checked_by_itself(product: Product) -> None:
    tracked = begin(product, exchanges(10))
    other = fork(product, tracked)
    assert check_state(product, other.id) is not None
    rest(product, other)
    assert state(product, other).head_version > 0


def pin(product: Product, tracked: TrackedConversation, seq: int, content: str) -> None:
    with product.database.transaction(product.tenant_id) as connection:
        pins.add(connection, product.tenant_id, tracked.id, seq, content, uuid4())
        repin(connection, product.tenant_id, tracked.id, policy=product.policy_of(tracked), request_id=uuid4())


def test_a_pin_of_a_message_that_no_view_shows_goes_with_it(product: Product) -> None:
    lost = {"type": "tool_result", "tool_use_id": "toolu_unknown", "content": [{"type": "text", "text": "mark-990- x"}]}
    tracked = begin(product, [*exchange(1), {"role": "user", "content": [lost]}, *exchange(2)])
    pin(product, tracked, 2, "mark-990-")
    pinned = state(product, tracked)
    # The frame holds its text, so that the snapshot covers it.
    assert (pinned.head_version, pinned.covers_through) == (1, 2)
    assert "mark-990-" in marks(product.context(tracked.id)["messages"])
    product.verify(tracked)
    other = fork(product, tracked, 1)
    assert state(product, other).head_version == 0
    say(product, tracked, exchange(3), replace_from=2)
    assert state(product, tracked).head_version == 0
    with pytest.raises(branches.SupersededError):
        restore(product, tracked, 1)
    rest(product, tracked, other)


# Holds


def test_a_pin_leaves_a_restored_version_held_and_asks_for_a_check(product: Product) -> None:
    tracked = begin(product, exchanges(10), min_savings_tokens=100)
    rest(product, tracked)
    version = state(product, tracked).head_version
    head = restore(product, tracked, version)
    rest(product, tracked)
    held = state(product, tracked)
    pin(product, tracked, 3, "mark-21-")
    after = state(product, tracked)
    assert (after.head_version, after.held_by_restore, after.summary_hold) == (head + 1, True, held.summary_hold)
    assert check_state(product, tracked.id) is not None
    rest(product, tracked)
    assert state(product, tracked).head_version == head + 1


def test_a_run_by_hand_ends_the_hold_of_a_restore(product: Product) -> None:
    tracked = begin(product, exchanges(10), min_savings_tokens=100)
    restore(product, tracked)
    held = state(product, tracked).summary_hold
    assert held > 2_000
    workers = Workers(product, Naming())
    run = by_hand(product, tracked, "drop", max_conversation_messages=4)
    lease = workers.claim(run)
    assert lease is not None
    workers.dispatcher.execute(lease)
    row = state(product, tracked)
    assert (row.held_by_restore, row.tool_results_hold, row.summary_hold, row.trim_hold) == (False, 0, 0, 0)
    rest(product, tracked)


def test_a_new_policy_ends_the_hold_of_a_restore(product: Product) -> None:
    tracked = begin(product, exchanges(10))
    restore(product, tracked)
    with product.database.transaction(product.tenant_id) as connection:
        conversations.change(connection, product.tenant_id, tracked.id, {"policy": tracked.policy})
    row = state(product, tracked)
    assert (row.held_by_restore, row.summary_hold) == (False, 0)


# Results without a place: a summary reads them where they were stored


def second_result(number: int) -> Message:
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}_0", "content": "mark-990- said again"}],
    }


UNPLACED: Final = {
    "a second result": [call(1), result(1, 30), answer("noted"), second_result(1)],
    "a second result as part of a request": [
        call(1),
        result(1, 30),
        answer("noted"),
        {"role": "user", "content": [*second_result(1)["content"], {"type": "text", "text": " "}]},
    ],
    "the result of no call": [second_result(7)],
    "several of them": [second_result(7), second_result(8)],
}


@pytest.mark.parametrize("strategy", ["summary", "extract", "auto"])
@pytest.mark.parametrize("messages", UNPLACED.values(), ids=UNPLACED)
def test_an_edit_takes_a_result_without_a_place_out_of_the_summary(
    product: Product, messages: Sequence[Message], strategy: str
) -> None:
    tail = exchange(50)
    tracked = begin(product, [*exchanges(10), *messages, *tail])
    workers = Workers(product, Naming())
    lease = workers.claim(by_hand(product, tracked, strategy))
    assert lease is not None
    workers.dispatcher.execute(lease)
    workers.summarize()
    product.verify(tracked)
    unplaced = tracked.next_seq - len(tail) - 1
    assert "mark-990-" in product.query("select summary from snapshots where conversation_id = :c", c=tracked.id)[0][0]
    say(product, tracked, exchange(60), replace_from=unplaced)
    product.verify(tracked)
    rest(product, tracked)


# Checks that an active run stood for


@pytest.mark.parametrize("event", [restored, overflowed])
def test_a_check_that_was_left_to_a_run_is_due_when_that_is_overtaken(product: Product, event: Event) -> None:
    tracked = begin(product, exchanges(10))
    workers = Workers(product, Naming())
    workers.check(tracked.id)
    workers.check(tracked.id)
    assert check_state(product, tracked.id) is None
    event(product, tracked)
    assert check_state(product, tracked.id) is not None
    rest(product, tracked)


def bury(product: Product, run: UUID) -> None:
    product.query("update runs set attempts = :n where id = :r", n=MAX_ATTEMPTS, r=run)
    product.expire_lease(run)
    with product.database.transaction(product.tenant_id) as connection:
        assert runs.requeue(connection, run, MAX_ATTEMPTS) == "dead"


def test_a_check_that_was_left_to_a_run_is_due_when_that_dies(product: Product) -> None:
    tracked = begin(product, exchanges(2))
    rest(product, tracked)
    run = by_hand(product, tracked, "auto")
    say(product, tracked, exchanges(10, start=20))
    workers = Workers(product, Naming())
    workers.check(tracked.id)
    assert check_state(product, tracked.id) is None
    bury(product, run)
    assert check_state(product, tracked.id) is not None
    workers.settle(tracked.id)
    assert state(product, tracked).head_version > 0
    product.verify(tracked)


def test_what_killed_a_run_is_not_tried_again_at_once(product: Product) -> None:
    tracked = begin(product, exchanges(10), max_context_bytes=2_000)
    workers = Workers(product, Naming())
    bury(product, workers.begin(tracked.id).run_id)
    assert check_state(product, tracked.id) is not None
    workers.settle(tracked.id)
    assert [run.state for run in product.runs(tracked.id)] == ["dead"]
    assert check_state(product, tracked.id) is None
    say(product, tracked, exchanges(10, start=20))
    rest(product, tracked)
    assert state(product, tracked).head_version > 0


def test_an_overflow_is_followed_by_a_check(product: Product) -> None:
    tracked = begin(product, exchanges(2), compaction_enabled=False)
    rest(product, tracked)
    assert overflow(product, tracked, summarize=False).outcome == "compacted"
    assert check_state(product, tracked.id) is not None
    rest(product, tracked)


# Signed thinking


class Thinking:
    """A tool loop whose thinking is signed for what the model saw."""

    def __init__(self, product: Product, **policy: Any) -> None:
        self.product = product
        self.tracked = begin(product, **policy)
        self.ledger = ThinkingLedger()

    def say(self, *messages: Message) -> None:
        context = self.product.context(self.tracked.id)
        seen = context["messages"]
        signed = self.ledger.signed([*seen, *messages])[len(seen) :]
        version = context["snapshot"]["version"] if context["snapshot"] else 0
        done, _ = self.product.send(self.tracked, signed, Usage(None, version))
        assert done.outcome == "appended"
        self.tracked.add(signed)

    def served(self) -> list[Message]:
        found: list[Message] = self.product.context(self.tracked.id)["messages"]
        assert problems(found, ledger=self.ledger) == []
        return found

    def set(self, **policy: Any) -> None:
        self.tracked.policy |= policy
        with self.product.database.transaction(self.product.tenant_id) as connection:
            conversations.change(connection, self.product.tenant_id, self.tracked.id, {"policy": self.tracked.policy})


def thinks(message: Message) -> bool:
    return isinstance(message["content"], list) and any(block["type"] == "thinking" for block in message["content"])


def test_thinking_goes_when_the_database_left_out_what_was_before_it(product: Product) -> None:
    loop = Thinking(product, total_token_budget=1_000, reserved_output_tokens=100)
    loop.say(*exchange(1, 600))
    loop.say(*exchange(2)[:1])
    for number in range(3):
        loop.say(call(number, thinking=True), result(number, 100))
        served = loop.served()
        assert MARKER in str(served[0])
        assert "mark-20-" in marks(served)
    assert not any(map(thinks, served))


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
