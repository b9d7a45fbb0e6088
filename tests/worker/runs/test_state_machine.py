"""State machine test: everything that may happen to a conversation, in any order, on a real database.

People append, edit, fork, restore, overflow and ask for runs; workers stop at every transaction and at the model, die
there, lose their leases and go on as zombies. After each step the invariants of the design hold, and in the end the
service comes to rest. Conversations begin with made-up talk, with what the API takes, or with what broken clients send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import UUID, uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from compaction.pins.pinned import message_text
from compaction.policy import merge
from compaction.steps.refusal_wordings import Fault, Unit
from compaction.steps.refusals import Refusal
from compaction.tokens import content_tokens
from runtime.queues import Queue
from store.conversations import branches, conversations, overflows, pins
from store.conversations.repinning import repin
from store.runs import requested
from store.runs.requested import ManualRun
from tests.support.messages_api import problems
from tests.support.service.stepped_workers import Order, Process, sweep
from tests.support.strategies import any_conversations, split_into_turns, valid_conversations
from tests.support.strategies import policies as low_policies
from tests.support.truth.model import Product, TrackedConversation, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.blocks import Block, Message
    from tests.support.service.stepped_workers import Found, SteppedWorkers

SIZES: Final = (60, 300, 12, 1_200, 4_000)
"""Characters of a text."""
MOST_CONVERSATIONS: Final = 3
MOST_PROCESSES: Final = 2
MOST_ROUNDS: Final = 40
"""Rounds of sweeps and tasks after which a service that is not at rest never will be."""

STRATEGIES: Final[tuple[str, ...]] = ("auto", "summary", "extract", "drop", "tool_results", "prune", "trim")
ORDERS: Final[tuple[Order, ...]] = ("go", "die", "die before commit", "failure", "bug", "long", "blank")
BASE: Final = {
    "input_token_budget": 500,
    "compaction_threshold_tokens": 400,
    "protected_tail_messages": 2,
    "max_conversation_messages": 8,
    "min_savings_tokens": 20,
    "model_context_tokens": 16_000,
    "reserved_output_tokens": 100,
}
DEATHS: Final[tuple[Order, ...]] = ("go", "go", "die", "die before commit")
CHANGES: Final[dict[str, tuple[Any, ...]]] = {
    "input_token_budget": (200, 0, 1_000),
    "tool_result_retention_chars": (100, 0),
    "max_tool_result_chars": (40_000, 200),
    "compaction_enabled": (True, True, False),
    "compaction_threshold_tokens": (300, 100, 1_500),
    "protected_tail_messages": (1, 4),
    "max_conversation_messages": (4, 2, 12),
    "trim_threshold_ratio": (0.6, 0.02),
    "max_context_bytes": (737_280, 2_000, 6_000),
    "total_token_budget": (128_000, 1_000, 2_500),
    "min_savings_tokens": (20, 1, 100),
    "prune_soft_share": (0.3, 0.01),
    "prune_min_freed_tokens": (20, 4_000),
    "summary_max_tokens": (64, 4_096),
    "carried_context_max_tokens": (20_000, 30),
    "context_block_compact_chars": (200, 50_000),
}


class Opening(NamedTuple):
    """What a conversation begins with, turn by turn, and limits beside those of BASE."""

    turns: Sequence[Sequence[Message]] = ()
    limits: Mapping[str, Any] = {}


@st.composite
def openings(draw: st.DrawFn, conversations: st.SearchStrategy[list[Message]]) -> Opening:
    """Draw a beginning with limits so low that it reaches them."""
    low = {
        "input_token_budget": draw(st.sampled_from([50, 500, 0])),
        "compaction_threshold_tokens": draw(st.sampled_from([100, 500, 1_500])),
        "min_savings_tokens": draw(st.sampled_from([1, 20, 100, 0])),
    }
    return Opening(draw(split_into_turns(draw(conversations))), draw(low_policies()) | low)


class Part(NamedTuple):
    """A piece of talk; what exactly it becomes depends on what was said before."""

    kind: Literal["request", "answer", "call", "results", "rest"]
    size: int
    calls: int
    thinks: bool


def parts(*, least: int = 1, most: int = 4) -> st.SearchStrategy[list[Part]]:
    kinds = st.sampled_from(("request", "answer", "call", "results", "rest"))
    part = st.builds(Part, kinds, st.sampled_from(SIZES), st.integers(1, 3), st.booleans())
    return st.lists(part, min_size=least, max_size=most)


@st.composite
def rounds(draw: st.DrawFn, *, least: int = 0, most: int = 4) -> list[Part]:
    """Draw the rounds of an agent."""
    size, thinks = draw(st.sampled_from(SIZES)), draw(st.booleans())
    count = draw(st.integers(least, most))
    return [part for _ in range(count) for part in (Part("call", 60, 1, thinks), Part("results", size, 1, False))]


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=6, unique=True))
    return {key: draw(st.sampled_from(CHANGES[key])) for key in keys}


class Speaker:
    """Makes messages of parts; every text carries a mark of its own."""

    def __init__(self) -> None:
        self._count = 0

    def text(self, size: int) -> str:
        self._count += 1
        return (f"mark-{self._count}- " + "lorem ipsum dolor sit amet " * (size // 27 + 1))[: max(size, 12)]

    def say(self, tracked: TrackedConversation, before: Sequence[Message], given: Sequence[Part]) -> list[Message]:
        """Return messages that go on from what was said `before`."""
        said: list[Message] = []
        for part in given:
            message = self._message(part, [*before, *said], strict=tracked.strict)
            said.append(message)
        return said

    def _message(self, part: Part, before: Sequence[Message], *, strict: bool) -> Message:
        last = before[-1] if before else None
        asked = _asked(last)
        kind = part.kind
        if strict:
            if asked:
                kind = "results"
            elif last is None or last["role"] == "assistant":
                kind = "request"
            elif kind in {"request", "results"}:
                kind = "answer"
        match kind:
            case "request":
                return {"role": "user", "content": self.text(part.size)}
            case "results" | "rest" if kind == "results" or asked:
                wanted = asked[-1:] if kind == "rest" and not strict else asked or [f"toolu_{self._count}"]
                return {"role": "user", "content": [self._result(each, part.size) for each in wanted]}
            case "call":
                thought = [self._thought()] if part.thinks else []
                return {"role": "assistant", "content": [*thought, *(self._call() for _ in range(part.calls))]}
            case _:
                answer: list[Block] = [{"type": "text", "text": self.text(part.size)}]
                return {"role": "assistant", "content": [self._thought(), *answer] if part.thinks else answer}

    def _thought(self) -> Block:
        return {"type": "thinking", "thinking": self.text(40), "signature": "unsigned"}

    def _call(self) -> Block:
        page = self.text(20)
        return {"type": "tool_use", "id": f"toolu_{self._count}", "name": "fetch", "input": {"page": page}}

    def _result(self, identifier: str, size: int) -> Block:
        return {"type": "tool_result", "tool_use_id": identifier, "content": self.text(size)}


def _asked(message: Message | None) -> list[str]:
    if message is None or message["role"] != "assistant" or isinstance(message["content"], str):
        return []
    return [block["id"] for block in message["content"] if block["type"] == "tool_use"]


class ConversationMachine(RuleBasedStateMachine):
    """Some conversations, those who take part in them, and the workers around them."""

    def __init__(self, product: Product, opening: st.SearchStrategy[Opening]) -> None:
        super().__init__()
        self.product = product
        self.opening = opening
        self.speaker = Speaker()
        self.tracked: list[TrackedConversation] = []
        self.current = 0
        self.processes: list[Process] = []
        self.runs: list[UUID] = []
        """Wake-ups on their way."""

    # People

    @initialize(data=st.data(), policy=policies(), strict=st.booleans(), given=parts(least=4, most=12), loop=rounds())
    def begin(
        self, data: st.DataObject, policy: dict[str, Any], strict: bool, given: list[Part], loop: list[Part]
    ) -> None:
        opening = data.draw(self.opening)
        said = [message for turn in opening.turns for message in turn]
        strict = strict and (not said or problems(said, allow_open_tail=False) == [])
        self.tracked = [self.product.begin_tracked({**BASE, **opening.limits, **policy}, strict=strict)]
        for turn in opening.turns:
            self._say(list(turn), "none")
            if not strict or problems(self._tracked.messages) == []:  # half of an answer by itself is not sound
                self.product.verify(self._tracked)
            self._check(data.draw(st.integers(0, 12)), data.draw(st.sampled_from(ORDERS)))
        self._append([*given, *loop], "none")

    @rule(
        given=parts(most=6),
        usage=st.sampled_from(("none", "counted", "zero", "high", "low")),
        versioned=st.booleans(),
        blocks=st.sampled_from((0, 0, 0, 1, 2)),
        size=st.sampled_from(SIZES),
        keyed=st.booleans(),
        stops=st.integers(0, 12),
        order=st.sampled_from(DEATHS),
    )
    def append(
        self,
        given: list[Part],
        usage: str,
        versioned: bool,
        blocks: int,
        size: int,
        keyed: bool,
        stops: int,
        order: Order,
    ) -> None:
        context = [{"source": f"file{n}", "title": "A file", "text": self.speaker.text(size)} for n in range(blocks)]
        self._append(given, usage, versioned=versioned, context=context, keyed=keyed)
        self._check(stops, order)

    @rule(
        loop=rounds(least=1),
        usage=st.sampled_from(("none", "counted")),
        stops=st.integers(0, 12),
        order=st.sampled_from(DEATHS),
    )
    def append_round_by_round(self, loop: list[Part], usage: str, stops: int, order: Order) -> None:
        """An agent works, reading the context before each of its calls."""
        for start in range(0, len(loop), 2):
            self._append(loop[start : start + 2], usage)
        self._check(stops, order)

    @rule(what=st.sampled_from(("read", "send again", "reuse key", "turn to another", "lose")), pick=st.integers(0, 5))
    def do_little(self, what: str, pick: int) -> None:
        """Read the context that the next turn is made with, repeat a turn, look elsewhere, or lose wake-ups."""
        tracked = self._tracked
        if what == "read":
            tracked.read = self._read(tracked)
        elif what == "turn to another":
            self.current = (self.current + 1) % len(self.tracked)
        elif what == "lose":
            self.runs.clear()
        elif tracked.sent:
            key = sorted(tracked.sent)[pick % len(tracked.sent)]
            body, before = tracked.sent[key]
            body += b" " if what == "reuse key" else b""
            done, _ = self.product.send(tracked, [], Usage(), key=key, body=body)
            assert done.outcome == ("other_body" if what == "reuse key" else "replayed")
            assert (done.first_seq, done.last_seq) == (before.first_seq, before.last_seq)

    @rule(back=st.integers(0, 12), given=parts(most=3), usage=st.sampled_from(("none", "counted")))
    def edit(self, back: int, given: list[Part], usage: str) -> None:
        tracked = self._tracked
        seq = max(0, tracked.next_seq - back)
        self._append(given, usage, replace_from=seq)

    @rule(back=st.integers(0, 12), move=st.booleans())
    @precondition(lambda self: 0 < len(self.tracked) < MOST_CONVERSATIONS)
    def fork(self, back: int, move: bool) -> None:
        tracked = self._tracked
        through = tracked.next_seq - 1 - back
        with self.product.database.transaction(self.product.tenant_id) as connection:
            made = branches.fork(
                connection, self.product.tenant_id, tracked.id, through, None, self.product.policy_of(tracked), uuid4()
            )
        assert (made is None) == (through not in {each.seq for each in tracked.live})
        if made is not None:
            self.tracked.append(tracked.fork(made, through))
            self.product.verify(self.tracked[-1])
            if move:
                self.current = len(self.tracked) - 1

    @rule(pick=st.integers(0, 20))
    def restore(self, pick: int) -> None:
        tracked = self._tracked
        last = self.product.row(tracked.id).last_version
        version = pick % (last + 2)
        kept = {0, *(v for v in tracked.versions if self._still_holds(tracked, v))}
        try:
            with self.product.database.transaction(self.product.tenant_id) as connection:
                restored = branches.restore(
                    connection, self.product.tenant_id, tracked.id, version, self.product.policy_of(tracked), uuid4()
                )
        except branches.SupersededError:
            assert version in tracked.versions - kept
            return
        if restored is None:
            assert version not in {0, *tracked.versions}
            return
        assert version in kept
        assert restored == last + 1
        head = self.product.head_of(tracked)
        assert (head.version, head.pending) == (restored, None)
        tracked.restored = restored
        tracked.read = None

    @rule(
        summarize=st.booleans(),
        version=st.sampled_from(("none", "head", "older", "unknown")),
        share=st.sampled_from((None, 0.9, 0.3)),
    )
    def overflow(self, summarize: bool, version: str, share: float | None) -> None:
        tracked = self._tracked
        before, served = self.product.row(tracked.id), self._weight(tracked)
        policy = self.product.policy_of(tracked)
        given = {"none": None, "head": before.head_version, "older": before.head_version - 1}.get(
            version, before.last_version + 1
        )
        weight = max(10, round((before.context_tokens + before.fixed_tokens) * before.token_ratio))
        with self.product.database.transaction(self.product.tenant_id) as connection:
            done = overflows.overflow(
                connection,
                self.product.tenant_id,
                tracked.id,
                policy=policy,
                request_id=uuid4(),
                snapshot_version=given,
                refusal=Refusal(Fault.HISTORY, Unit.TOKENS, weight, max(1, int(weight * share))) if share else None,
                summarize=summarize and policy.compaction_enabled,
            )
        after = self.product.row(tracked.id)
        if done.outcome == "compacted":
            assert (after.head_version, after.pending_version) == (before.last_version + 1, None)
            assert after.overflows == before.overflows + 1 <= 3
            tracked.restored = tracked.read = None
            if tracked.strict:
                assert self._weight(tracked) < served
            if done.summary_run_id is not None:
                self.runs.append(done.summary_run_id)
        else:
            assert (after.head_version, after.overflows) == (before.head_version, before.overflows)
        if version == "unknown":
            assert done.outcome == "no_such_version"

    @rule(strategy=st.sampled_from(STRATEGIES))
    def ask_by_hand(self, strategy: str) -> None:
        tracked = self._tracked
        with self.product.database.transaction(self.product.tenant_id) as connection:
            run, _ = requested.request(
                connection,
                self.product.tenant_id,
                tracked.id,
                ManualRun(strategy, None, self.product.policy_of(tracked)),
                queue=Queue.SUMMARIES if strategy == "summary" else Queue.CHECKS,
                request_id=uuid4(),
            )
        self.runs.append(run)
        tracked.restored = None

    @rule(pick=st.integers(0, 40), take_off=st.booleans())
    def pin(self, pick: int, take_off: bool) -> None:
        tracked = self._tracked
        policy = self.product.policy_of(tracked)
        texts = [(each.seq, message_text(each.message["content"])) for each in tracked.live]
        texts = [(seq, text) for seq, text in texts if text]
        with self.product.database.transaction(self.product.tenant_id) as connection:
            there = pins.page(connection, self.product.tenant_id, tracked.id)
            if take_off and there:
                assert pins.remove(connection, self.product.tenant_id, tracked.id, there[pick % len(there)].id)
            elif texts:
                seq, whole = texts[pick % len(texts)]
                pins.add(connection, self.product.tenant_id, tracked.id, seq, whole[:80], uuid4())
            repin(connection, self.product.tenant_id, tracked.id, policy=policy, request_id=uuid4())
        head = self.product.head_of(tracked)
        tracked.restored = head.version if tracked.restored is not None else None
        tracked.read = None

    @rule(policy=policies())
    def change_policy(self, policy: dict[str, Any]) -> None:
        tracked = self._tracked
        changed = {**tracked.policy, **policy}
        with self.product.database.transaction(self.product.tenant_id) as connection:
            conversations.change(
                connection,
                self.product.tenant_id,
                tracked.id,
                {"policy": changed},
                result_cap=merge(changed).max_tool_result_chars,
            )
        tracked.policy = changed
        tracked.restored = tracked.read = None

    # Workers

    @rule(
        task=st.sampled_from(("check", "run", "run")),
        stops=st.integers(0, 12),
        order=st.sampled_from(ORDERS),
    )
    @precondition(lambda self: len(self.processes) < MOST_PROCESSES)
    def work(self, task: str, stops: int, order: Order) -> None:
        """A worker begins a task and gets as far as `stops` stops, where it does what `order` says."""
        self._start(self._begin(task), stops, order)

    @rule(which=st.integers(0, 1), stops=st.integers(0, 10), order=st.sampled_from(ORDERS))
    @precondition(lambda self: bool(self.processes))
    def work_on(self, which: int, stops: int, order: Order) -> None:
        self._proceed(self.processes[which % len(self.processes)], stops, order)

    @rule(
        then=st.sampled_from(("nothing", "sweep", "take over", "take over")),
        stops=st.integers(0, 12),
        order=st.sampled_from(ORDERS),
    )
    def expire_leases(self, then: str, stops: int, order: Order) -> None:
        """Leases run out; whoever held one goes on as a zombie."""
        self._expire_leases()
        if then != "nothing":
            self.runs += self._sweep().runs
        if then == "take over" and self.runs and len(self.processes) < MOST_PROCESSES:
            self._start(self._begin_run(self.runs.pop()), stops, order)

    @rule(broken=st.booleans())
    def come_to_rest(self, broken: bool) -> None:
        self._drain("failure" if broken else "go")

    # What has to hold

    @invariant()
    @precondition(lambda self: bool(self.tracked))
    def holds(self) -> None:
        self.product.verify(self._tracked)

    def teardown(self) -> None:
        try:
            if self.tracked:
                self._drain("go")
        finally:
            for process in self.processes:
                process.finish("die")

    # How it is done

    @property
    def _tracked(self) -> TrackedConversation:
        return self.tracked[self.current]

    def _append(
        self,
        given: Sequence[Part],
        usage: str,
        *,
        replace_from: int | None = None,
        **fields: Any,
    ) -> None:
        tracked = self._tracked
        before = tracked.messages if replace_from is None else tracked.cut(replace_from)
        if replace_from is not None:
            # Nobody knows what the context will be before the old messages are gone: no model was asked meanwhile.
            given = [part._replace(thinks=False) for part in given]
        messages = self.speaker.say(tracked, before, given)
        self._say(messages, usage, replace_from=replace_from, **fields)

    def _say(
        self,
        messages: list[Message],
        usage: str,
        *,
        versioned: bool = True,
        replace_from: int | None = None,
        context: Sequence[dict[str, str]] = (),
        keyed: bool = False,
    ) -> None:
        """Append as a client does: what it answers is signed for the context that it read before."""
        tracked = self._tracked
        version, seen = tracked.read or self._read(tracked)
        if tracked.strict:
            messages = tracked.ledger.signed([*seen, *messages])[len(seen) :]
        key = f"key{tracked.next_seq}" if keyed else None
        count = self._count(usage, seen)
        done, runs = self.product.send(
            tracked,
            messages,
            Usage(count, version if versioned else None),
            replace_from=replace_from,
            context=context,
            key=key,
        )
        assert done.outcome == "appended"
        assert (done.first_seq, done.last_seq) == (tracked.next_seq, tracked.next_seq + len(messages) - 1)
        tracked.add(messages, replace_from=replace_from)
        self.runs += runs

    def _read(self, tracked: TrackedConversation) -> tuple[int, list[Message]]:
        context = self.product.context(tracked.id)
        return (context["snapshot"]["version"] if context["snapshot"] else 0), context["messages"]

    def _count(self, usage: str, seen: Sequence[Message]) -> int | None:
        weight = sum(content_tokens(message["content"]) for message in seen)
        return {"none": None, "zero": 0, "counted": round(weight * 1.1) + 20, "high": weight * 4 + 900}.get(
            usage, weight // 8 + 1
        )

    def _weight(self, tracked: TrackedConversation) -> int:
        return sum(content_tokens(message["content"]) for message in self.product.context(tracked.id)["messages"])

    def _still_holds(self, tracked: TrackedConversation, version: int) -> bool:
        (row,) = self.product.query(
            "select coverage from snapshots where conversation_id = :c and version = :v", c=tracked.id, v=version
        )
        replaced = {each.seq for each in tracked.stored if not each.live}
        return not any(replaced & set(range(first, last + 1)) for first, last, _, _ in row.coverage)

    def _check(self, stops: int, order: Order) -> None:
        """Let a worker hear of a turn, and get as far as `stops` stops."""
        if stops and len(self.processes) < MOST_PROCESSES:
            self._start(self._begin("check"), stops, order)

    def _begin(self, task: str) -> Process | None:
        if task == "check":
            conversation = self._tracked.id
            return Process(self.product, lambda workers: workers.check(conversation))
        return self._begin_run(self.runs.pop(0)) if self.runs else None

    def _begin_run(self, run: UUID) -> Process:
        def carry_out(workers: SteppedWorkers) -> None:
            workers.carry_out(run)

        return Process(self.product, carry_out)

    def _start(self, process: Process | None, stops: int, order: Order = "go") -> None:
        if process is not None:
            self.processes.append(process)
            self._proceed(process, stops, order)

    def _expire_leases(self) -> None:
        self.product.query(
            "update runs set lease_expires_at = now() - interval '1 s' where conversation_id = any(:c)"
            " and state = 'running'",
            c=[tracked.id for tracked in self.tracked],
        )

    def _proceed(self, process: Process, stops: int, order: Order) -> None:
        for _ in range(stops):
            if not process.ended:
                process.step()
        if not process.ended and (order not in {"failure", "bug", "long", "blank"} or process.at_model):
            process.step(order)
        if process.ended:
            self.processes.remove(process)
            self.runs += process.woken

    def _sweep(self) -> Found:
        return sweep(self.product, [tracked.id for tracked in self.tracked])

    def _drain(self, order: Order) -> None:
        """Let everything come to its end, as sweeper and time would, and see that nothing is left to do."""
        for process in self.processes:
            process.finish()
            self.runs += process.woken
        self.processes.clear()
        for _ in range(MOST_ROUNDS):
            self._expire_leases()
            found = self._sweep()
            self.runs += found.runs
            if not (found.checks or self.runs):
                break
            self._do(found.checks, order)
        else:
            pytest.fail("the service does not come to rest")
        self._nothing_changes_the_second_time(order)

    def _do(self, checks: Sequence[UUID], order: Order) -> None:
        if checks:
            process = Process(self.product, lambda workers: workers.check(*checks))
            process.finish(order)
            self.runs += process.woken
        while self.runs:
            process = self._begin_run(self.runs.pop(0))
            process.finish(order)
            self.runs += process.woken

    def _nothing_changes_the_second_time(self, order: Order) -> None:
        """8; and a restore is left alone."""
        for tracked in self.tracked:
            self.product.verify(tracked)
            before = self._state(tracked)
            if tracked.restored is not None:
                assert before[0].version == tracked.restored
            with self.product.database.transaction(self.product.tenant_id) as connection:
                conversations.mark_due(connection, tracked.id)
            self._do([tracked.id], order)
            after = self._state(tracked)
            assert after == before, [
                (run.trigger, run.state, run.reason, [(step.name, step.reason) for step in self.product.steps(run.id)])
                for run in self.product.runs(tracked.id)[-3:]
            ]
            self.product.verify(tracked)

    def _state(self, tracked: TrackedConversation) -> tuple[Any, ...]:
        return (self.product.head_of(tracked), len(self.product.runs(tracked.id)), self.product.context(tracked.id))


@pytest.fixture
def product(make_settings: Callable[..., Settings], tenant: Tenant) -> Iterator[Product]:
    with Product(make_settings(), tenant.id) as made:
        yield made


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("opening", "share", "steps"),
    [
        pytest.param(st.just(Opening()), 3, 30, id="made up"),
        pytest.param(openings(valid_conversations(max_chars=3_000)), 4, 10, id="as the API takes it"),
        pytest.param(openings(any_conversations(max_chars=3_000)), 4, 10, id="as broken clients send it"),
    ],
)
def test_a_conversation_comes_through_whatever_happens(
    product: Product, opening: st.SearchStrategy[Opening], share: int, steps: int
) -> None:
    class Machine(ConversationMachine):
        def __init__(self) -> None:
            super().__init__(product, opening)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max(1, settings().max_examples // share), stateful_step_count=steps, report_multiple_bugs=False
        ),
    )
