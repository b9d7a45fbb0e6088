"""Property tests: turns, workers, lost leases, overflows, runs by hand and deaths in any order, on a real database.

Between any two transactions of a worker, and while it waits for a summary, something else may happen: turns arrive,
another worker looks, a lease runs out and somebody takes over, the worker dies, the model refuses the prompt, people
ask for runs. Whatever it is, the invariants of the design hold afterwards (the numbers are its own).
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.messages import is_request
from compaction.policy import merge
from compaction.steps.runs import Queue
from store.conversations import conversations, overflows
from store.runs import requested
from store.runs.requested import ManualRun
from tests.support.messages_api import ThinkingLedger, alternates, problems
from tests.support.service.in_process import Chat, Workers, head
from tests.support.service.stub_summarizer import SPENT, StubSummarizer
from tests.support.strategies import any_conversations, policies, split_into_turns, valid_conversations
from tests.support.truth.rows import STEPS, seqs, shrunk_wrongly
from worker.database import Database
from worker.summarizers import SummaryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.steps.ladder import Strategy
    from store.tables import AnyRow
    from tests.support.blocks import Message

ACTIONS: Final = ("nothing", "turn", "other check", "lease expires", "taken over", "death")
BY_HAND: Final[tuple[Strategy, ...]] = ("auto", "tool_results", "prune", "summary", "extract", "drop", "trim")
MORE_ACTIONS: Final = (*ACTIONS, "overflow", "overflow", *BY_HAND)
EXAMPLES: Final = settings().max_examples // 4
"""Each is a few dozen transactions on a real database."""
OUTCOMES: Final = ("short", "failure", "long", "bug", "blank")


class DeathError(BaseException):
    """The worker's process is gone, in the middle of whatever it did."""


class InterruptedDatabase(Database):
    """The worker's database; something happens before each of its transactions."""

    def __init__(self, chat: Chat, happen: Callable[[], None]) -> None:
        super().__init__(chat.settings, "interrupted")
        self._happen = happen

    @contextmanager
    def transaction(
        self, tenant_id: UUID | None, *, one_moment: bool = False, is_progress: bool = True
    ) -> Iterator[Connection]:
        self._happen()
        with super().transaction(tenant_id, one_moment=one_moment, is_progress=is_progress) as connection:
            yield connection


class World:
    """One conversation, what is still to be said in it, and the workers around it."""

    def __init__(
        self, chat: Chat, policy: dict[str, Any], turns: Sequence[list[Message]], *, sound: bool, wider: bool
    ) -> None:
        self.chat = chat
        self.sound = sound
        self.wider = wider
        """Whether people ask for more than turns: what the newest message says may then be cut, but it is there."""
        self.conversation = chat.begin(policy)
        self.turns = list(turns)
        self.sent: list[Message] = []
        self.ledger = ThinkingLedger()
        self.plan: list[str] = []
        self.outcomes: list[str] = []
        self._busy = False
        self._stub = StubSummarizer(act=self.at_the_model)
        self._database = InterruptedDatabase(chat, self.happen)
        self.first = Workers(chat, self._stub)
        self.second = Workers(chat, StubSummarizer("The other worker's summary."))
        self.first.resources.database = self._database
        self.first.checker._database = self._database

    def close(self) -> None:
        self._database.close()

    def happen(self) -> None:
        """Do what the plan says comes next, unless it is being done already."""
        if self._busy or not self.plan:
            return
        self._busy = True
        try:
            self.act(self.plan.pop(0))
        finally:
            self._busy = False

    def at_the_model(self) -> None:
        self.happen()
        match self.outcomes.pop(0) if self.outcomes else "short":
            case "failure":
                raise SummaryError("model_error", "status 500", SPENT)
            case "bug":
                raise KeyError("a bug")
            case "long":
                self._stub.text = "A summary longer than anything it could stand for. " * 2_000
            case "blank":
                self._stub.text = "[CONTEXT SUMMARY] <- as if it were its own marker"
            case _:
                self._stub.text = "A short summary."

    def act(self, action: str) -> None:
        match action:
            case "turn":
                self.say()
            case "other check":
                self.second.check(self.conversation)
                self.second.summarize()
            case "lease expires":
                self.expire()
            case "taken over":
                self.expire()
                self.take_over()
            case "death":
                raise DeathError
            case "overflow":
                self.overflow()
            case "auto" | "tool_results" | "prune" | "summary" | "extract" | "drop" | "trim":
                self.ask(action)

    def overflow(self) -> None:
        before = self.chat.row(self.conversation)
        with self.chat.database.transaction(self.chat.tenant_id) as connection:
            done = overflows.overflow(
                connection,
                self.chat.tenant_id,
                self.conversation,
                policy=merge(self.chat.settings.policy, before.policy),
                request_id=uuid4(),
                snapshot_version=None,
                refused=None,
                summarize=True,
            )
        after = self.chat.row(self.conversation)
        if done.outcome == "compacted":
            assert (after.head_version, after.pending_version) == (before.last_version + 1, None)
            assert after.overflows == before.overflows + 1 <= 3
        else:
            assert after.head_version == before.head_version

    def ask(self, strategy: Strategy) -> None:
        policy = merge(self.chat.settings.policy, self.chat.row(self.conversation).policy)
        with self.chat.database.transaction(self.chat.tenant_id) as connection:
            requested.request(
                connection,
                self.chat.tenant_id,
                self.conversation,
                ManualRun(strategy, None, policy),
                queue=Queue.SUMMARIES if strategy == "summary" else Queue.CHECKS,
                request_id=uuid4(),
            )

    def expire(self) -> None:
        self.chat.query(
            "update runs set lease_expires_at = now() - interval '1 s'"
            " where conversation_id = :c and state = 'running'",
            c=self.conversation,
        )

    def take_over(self) -> None:
        for run in self.active():
            lease = self.second.claim(run.id)
            if lease is not None:
                self.second.dispatcher.execute(lease)
                self.second.summarize()

    def active(self) -> Sequence[AnyRow]:
        return self.chat.query(
            "select id from runs where conversation_id = :c and state in ('queued', 'running')", c=self.conversation
        )

    def say(self) -> None:
        """Append the next turn as a client does: what it answers is signed for the context that it read before."""
        if not self.turns:
            return
        context = self.chat.context(self.conversation)
        version = context["snapshot"]["version"] if context["snapshot"] else 0
        seen = context["messages"]
        turn: list[Message] = []
        for message in self.turns.pop(0):
            if message["role"] == "assistant":
                turn.append(self.ledger.signed([*seen, *turn, message])[-1])
            else:
                turn.append(message)
        if self.plan and self.plan[0] == "other check":  # a compaction between the reading and the appending
            self.act(self.plan.pop(0))
        self.chat.append(self.conversation, turn, snapshot_version=version)
        self.sent += turn

    def work(self) -> None:
        """Let the first worker do what is due, then what was asked for; it may die over it."""
        try:
            self.first.check(self.conversation)
            self.first.summarize()
        except DeathError:
            self.first.woken.clear()
        if not self.wider:
            return
        for run in self.active():
            lease = self.first.claim(run.id)
            if lease is not None:
                try:
                    self.first.dispatcher.execute(lease)
                except BaseException:  # noqa: BLE001 - the worker's death, which the plan wanted
                    self.first.woken.clear()

    def settle(self) -> None:
        """Let everything come to its end, as sweeper and time would."""
        self.plan.clear()
        self.expire()
        self.take_over()
        self.second.settle(self.conversation)
        assert self.active() == []

    def check(self) -> None:
        self.nothing_is_lost()
        self.the_context_is_valid_and_fresh()
        self.what_was_committed_is_smaller()
        self.everything_is_covered()

    def nothing_is_lost(self) -> None:
        """1."""
        expected = [
            (seq, message["role"], json.dumps(message["content"], ensure_ascii=False))
            for seq, message in enumerate(self.sent)
        ]
        assert self.chat.originals(self.conversation) == expected

    def the_context_is_valid_and_fresh(self) -> None:
        """3 and 4."""
        if not self.sent:
            return
        context = self.chat.context(self.conversation)
        served = context["messages"]
        assert context["last_seq"] == len(self.sent) - 1
        if served:
            # A half of an answer is mended when it is served, so what follows it was signed for something else.
            whole = self.sound and alternates(self.sent)
            assert problems(served, ledger=self.ledger if whole else None) == []
        if self.sound and problems(self.sent) == []:  # half of a round's results, sent by themselves, are not sound
            newest = without_thinking(self.sent[-1])
            if self.wider:
                assert served[-1]["role"] == newest["role"]
                self._shows_newest(json.dumps(served), newest)
            elif any("were cut to their beginning and end" in warning for warning in context["warnings"]):
                # The guard may shorten what it keeps, and says so; it never leaves the newest out.
                assert served[-1]["role"] == newest["role"]
            else:
                assert without_thinking(served[-1]) == newest

    def _shows_newest(self, shown: str, newest: Message) -> None:
        for block in newest["content"]:
            # A call or a result by its id; a text by its beginning, which is never cut. A request loses the results
            # that it begins with together with the calls they answer.
            mark = block.get("tool_use_id") or block.get("id") or block.get("text", "")[:8]
            if block["type"] != "tool_result" or not is_request(newest["role"], newest["content"]):
                assert json.dumps(mark)[1:-1] in shown

    def what_was_committed_is_smaller(self) -> None:
        """6 and 7."""
        steps = self.chat.query(f"{STEPS}:c", c=self.conversation)
        assert not shrunk_wrongly([step._asdict() for step in steps])
        versions = [step.snapshot_version for step in steps if step.state == "committed"]
        stored = self.chat.query(
            "select version from snapshots where conversation_id = :c order by version", c=self.conversation
        )
        assert sorted(versions) == [row.version for row in stored]
        at = head(self.chat, self.conversation)
        assert at.version in {0, *versions}
        assert at.pending in {None, *versions}

    def everything_is_covered(self) -> None:
        """2."""
        runs = {str(run.id) for run in self.chat.runs(self.conversation)}
        for row in self.chat.query("select * from snapshots where conversation_id = :c", c=self.conversation):
            covered, gone = seqs(row._asdict()), set(seqs(row._asdict(), {"summarized", "dropped"}))
            assert covered == list(range(row.covers_through + 1))
            for _, _, fate, run in row.coverage:
                assert (run in runs) if fate != "kept" else (run is None)
            names = {seq for seq in row.seqs if seq >= 0}
            assert names.isdisjoint(gone)
            if self.sound:
                assert names | gone == set(covered)

    def nothing_changes_the_second_time(self) -> None:
        """8."""
        before = (len(self.chat.runs(self.conversation)), head(self.chat, self.conversation))
        context = self.chat.context(self.conversation)
        with self.chat.database.transaction(self.chat.tenant_id) as connection:
            conversations.mark_due(connection, self.conversation)
        self.second.settle(self.conversation)
        assert (len(self.chat.runs(self.conversation)), head(self.chat, self.conversation)) == before
        assert self.chat.context(self.conversation) == context


def without_thinking(message: Message) -> Message:
    """Return a message without what a compaction may take from the newest one, and without what tells its shape."""
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return {
        "role": message["role"],
        "content": [block for block in content if block["type"] not in {"thinking", "redacted_thinking"}],
    }


@st.composite
def small_policies(draw: st.DrawFn, *, capped: bool) -> dict[str, Any]:
    """Draw limits so low that short conversations reach them; without a view cap unless wanted."""
    low = {
        "input_token_budget": draw(st.sampled_from([50, 500, 0])),
        "compaction_threshold_tokens": draw(st.sampled_from([100, 500, 1_500])),
        "min_savings_tokens": draw(st.sampled_from([1, 20, 100, 0])),
    }
    given = draw(policies()) | low
    return given if capped else given | {"max_tool_result_chars": 100_000}


def play(world: World, data: st.DataObject) -> None:
    actions = st.lists(st.sampled_from(MORE_ACTIONS if world.wider else ACTIONS), max_size=8)
    plans = data.draw(st.lists(actions, min_size=1, max_size=6))
    world.outcomes = data.draw(st.lists(st.sampled_from(OUTCOMES), max_size=5))
    try:
        for plan in plans:
            world.plan.clear()
            world.say()
            world.plan = list(plan)
            world.work()
            world.check()
        while world.turns:
            world.plan.clear()
            world.say()
            world.work()
        world.settle()
        world.check()
        world.nothing_changes_the_second_time()
    finally:
        world.close()


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_conversations_as_the_api_takes_them(chat: Chat, data: st.DataObject) -> None:
    messages = data.draw(valid_conversations(max_chars=3_000))
    policy, turns = data.draw(small_policies(capped=False)), data.draw(split_into_turns(messages))
    play(World(chat, policy, turns, sound=problems(messages) == [], wider=data.draw(st.booleans())), data)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_conversations_as_broken_clients_send_them(chat: Chat, data: st.DataObject) -> None:
    messages = data.draw(any_conversations(max_chars=3_000))
    policy, turns = data.draw(small_policies(capped=True)), data.draw(split_into_turns(messages))
    play(World(chat, policy, turns, sound=False, wider=True), data)
