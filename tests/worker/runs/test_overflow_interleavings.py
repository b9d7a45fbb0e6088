"""Property test: overflows and runs by hand between any two transactions of a worker, on a real database.

The world is that of tests/worker/runs/test_interleavings.py, with more that may happen in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.messages import is_request
from compaction.policy import merge
from compaction.steps.runs import Queue
from store.conversations import overflows
from store.runs import requested
from store.runs.requested import ManualRun
from tests.support.messages_api import alternates, problems
from tests.support.strategies import any_conversations, split_into_turns
from tests.worker.runs.test_interleavings import (
    ACTIONS,
    EXAMPLES,
    OUTCOMES,
    World,
    play,
    play_as_the_api_takes_them,
    small_policies,
    without_thinking,
)

if TYPE_CHECKING:
    from compaction.steps.ladder import Strategy
    from tests.support.service.in_process import Chat

BY_HAND: tuple[Strategy, ...] = ("auto", "tool_results", "prune", "summary", "extract", "drop", "trim")
PLANS = st.lists(
    st.lists(st.sampled_from([*ACTIONS, "overflow", "overflow", *BY_HAND]), max_size=8), min_size=1, max_size=6
)


class WiderWorld(World):
    """A world in which the model refuses prompts, and people ask for runs."""

    def act(self, action: str) -> None:
        if action == "overflow":
            self.overflow()
        elif action in BY_HAND:
            self.ask(action)
        else:
            super().act(action)

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

    def work(self) -> None:
        """Let the first worker also do what was asked for."""
        super().work()
        for run in self.active():
            lease = self.first.claim(run.id)
            if lease is not None:
                try:
                    self.first.dispatcher.execute(lease)
                except BaseException:  # noqa: BLE001 - the worker's death, which the plan wanted
                    self.first.woken.clear()

    def the_context_is_valid_and_fresh(self) -> None:
        """3 and 4; what the newest message says may be cut, but it is there."""
        if not self.sent:
            return
        context = self.chat.context(self.conversation)
        served = context["messages"]
        assert context["last_seq"] == len(self.sent) - 1
        whole = self.sound and alternates(self.sent)
        assert problems(served, ledger=self.ledger if whole else None) == [] or not served
        if self.sound and problems(self.sent) == []:
            assert served[-1]["role"] == self.sent[-1]["role"]
            shown = json.dumps(served)
            newest = without_thinking(self.sent[-1])
            for block in newest["content"]:
                # A call or a result by its id; a text by its beginning, which is never cut. A request loses the results
                # that it begins with together with the calls they answer.
                mark = block.get("tool_use_id") or block.get("id") or block.get("text", "")[:8]
                if block["type"] != "tool_result" or not is_request(newest["role"], newest["content"]):
                    assert json.dumps(mark)[1:-1] in shown


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_conversations_as_the_api_takes_them(chat: Chat, data: st.DataObject) -> None:
    play_as_the_api_takes_them(WiderWorld, PLANS, chat, data)


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_conversations_as_broken_clients_send_them(chat: Chat, data: st.DataObject) -> None:
    messages = data.draw(any_conversations(max_chars=3_000))
    policy, turns = data.draw(small_policies(capped=True)), data.draw(split_into_turns(messages))
    world = WiderWorld(chat, policy, turns, sound=False)
    play(world, data.draw(PLANS), data.draw(st.lists(st.sampled_from(OUTCOMES), max_size=5)))
