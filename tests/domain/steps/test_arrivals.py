"""Messages that arrive while a model is asked: whatever leaves the context was read before, or is named."""

from __future__ import annotations

import json
import re
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.coverage import Coverage
from tests.support.service.in_process import Chat, Workers, chat, module_chat
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from tests.support.blocks import Message
    from worker.summarizers import Summary, SummaryRequest

__all__ = ["chat", "module_chat"]

_NAMED = re.compile(r"(?:left out to fit the token budget|dropped without a summary): messages ([\d, -]+)")


class BusyChat(StubSummarizer):
    """A model that takes its time: with each call the next burst of messages arrives; it fails where told to."""

    def __init__(self, chat: Chat, bursts: Iterator[Sequence[Message]], fails: Iterator[bool]) -> None:
        super().__init__(text="They spoke of many things, and of some of them twice.")
        self._chat = chat
        self._bursts = bursts
        self._fails = fails
        self.conversation: UUID | None = None
        self.read: set[int] = set()

    def summarize(self, request: SummaryRequest) -> Summary:
        """Let the next burst arrive, and remember what was read."""
        assert self.conversation is not None
        if burst := next(self._bursts, None):
            self._chat.append(self.conversation, burst)
        self.error = RuntimeError("away") if next(self._fails, False) else None
        summary = super().summarize(request)
        self.read.update(message.seq for message in request.zone)
        return summary


def named(warnings: Sequence[str]) -> set[int]:
    """Return the seqs that warnings name as left out."""
    spans = [span.split("-") for text in warnings for seqs in _NAMED.findall(text) for span in seqs.split(", ")]
    return {seq for span in spans for seq in range(int(span[0]), int(span[-1]) + 1)}


def unread(chat: Chat, conversation: UUID, model: BusyChat) -> set[int]:
    """Return the seqs that are neither in the context nor read by what stands for them, nor named."""
    context = chat.context(conversation)
    stored = {seq: json.loads(text) for seq, _, text in chat.originals(conversation)}
    said = json.dumps(context["messages"])
    shown_seqs = {seq for seq, text in stored.items() if f"{text.partition(':')[0]}:" in said}
    version = context["snapshot"]["version"] if context["snapshot"] else 0
    coverage = msgspec.convert(chat.snapshot(conversation, version).coverage, Coverage) if version else ()
    extracts = {
        str(run.id)
        for run in chat.runs(conversation)
        for step in chat.steps(run.id)
        if (step.name, step.state) == ("extract", "committed")
    }
    read = {
        seq
        for span in coverage
        if span.fate == "summarized"
        for seq in range(span.first, span.last + 1)
        if seq in model.read or span.run_id in extracts
    }
    return stored.keys() - shown_seqs - read - named(context["warnings"])


def test_a_burst_while_a_model_is_asked_is_read_by_the_next_summary(chat: Chat) -> None:
    model = BusyChat(chat, iter([exchanges(60, 60, start=100)]), iter(()))
    model.conversation = conversation = chat.begin({"compaction_threshold_tokens": 5_000, "input_token_budget": 0})
    chat.append(conversation, exchanges(30, 100))
    workers = Workers(chat, model)
    workers.settle(conversation)
    assert unread(chat, conversation, model) == set()
    assert chat.context(conversation)["warnings"] == []
    assert len(model.requests) == 2
    assert [message.seq for message in model.requests[1].zone if message.seq >= 0] == list(range(54, 174))
    steps = [step.name for run in chat.runs(conversation) for step in chat.steps(run.id) if step.state == "committed"]
    assert steps == ["summary", "summary"]


def test_a_burst_while_an_extract_takes_the_place_of_a_summary_is_read_too(chat: Chat) -> None:
    model = BusyChat(chat, iter([exchanges(60, 60, start=100)]), repeat(True))
    model.conversation = conversation = chat.begin({"compaction_threshold_tokens": 5_000, "input_token_budget": 0})
    chat.append(conversation, exchanges(30, 100))
    Workers(chat, model).settle(conversation)
    assert unread(chat, conversation, model) == set()
    steps = [step.name for run in chat.runs(conversation) for step in chat.steps(run.id) if step.state == "committed"]
    assert steps == ["extract"]


def test_what_is_dropped_without_a_summary_is_named_until_something_stands_for_it(chat: Chat) -> None:
    conversation = chat.begin({"compaction_enabled": False, "max_conversation_messages": 8})
    chat.append(conversation, exchanges(20, 150))
    Workers(chat, None).settle(conversation)
    assert chat.context(conversation)["warnings"] == ["dropped without a summary: messages 0-31"]
    chat.append(conversation, exchanges(1, 150, start=20))
    assert chat.context(conversation)["warnings"] == ["dropped without a summary: messages 0-31"]


def test_a_message_that_compaction_wrote_is_not_named_as_left_out(chat: Chat) -> None:
    policy = {"max_conversation_messages": 14, "protected_tail_messages": 12, "total_token_budget": 6_000}
    model = BusyChat(chat, iter(()), iter(()))
    model.conversation = conversation = chat.begin({"input_token_budget": 0} | policy)
    chat.append(conversation, exchanges(15, 150))
    Workers(chat, model).settle(conversation)
    assert "left out to fit the token budget: messages 18" in chat.context(conversation)["warnings"]
    assert unread(chat, conversation, model) == set()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12, deadline=None)
@given(
    begins=st.integers(15, 40),
    bursts=st.lists(st.tuples(st.integers(0, 70), st.integers(20, 200)), max_size=4),
    fails=st.lists(st.booleans(), max_size=4),
    policy=st.fixed_dictionaries(
        {"max_conversation_messages": st.integers(4, 60), "protected_tail_messages": st.integers(1, 12)},
        optional={"max_context_bytes": st.sampled_from([20_000, 60_000]), "total_token_budget": st.just(6_000)},
    ),
)
def test_every_message_is_shown_or_read_or_named(
    chat: Chat, begins: int, bursts: list[tuple[int, int]], fails: list[bool], policy: dict[str, int]
) -> None:
    start = begins
    sent: list[list[Message]] = []
    for count, tokens in bursts:
        sent.append(exchanges(count, tokens, start=start))
        start += count
    model = BusyChat(chat, iter(sent), iter(fails))
    model.conversation = conversation = chat.begin({"input_token_budget": 0} | policy)
    chat.append(conversation, exchanges(begins, 150))
    workers = Workers(chat, model)
    workers.settle(conversation)
    assert unread(chat, conversation, model) == set()
    chat.valid_context(conversation)
