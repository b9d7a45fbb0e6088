"""System prompt and tools that the client sends and does not store: learned from counts, and not paid for again."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.policy import Policy
from compaction.steps.ladder import growth_margin
from compaction.tokens import content_tokens
from tests.support.service.in_process import SMALL, Chat, Workers, chat, module_chat
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import answer, call, request, result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from tests.support.blocks import Message
    from tests.support.service.running_api import Service

__all__ = ["chat", "module_chat"]

DEFAULT: Final = {name: getattr(Policy(), name) for name in SMALL}
"""The thresholds that the product has by default, for a conversation in these tests."""
RATIO: Final = 1.12
"""Tokens that the model counts for each estimated one."""
OVER: Final = "fixed_tokens_over_threshold"


def tokens(messages: Sequence[Message]) -> int:
    return sum(content_tokens(message["content"]) for message in messages)


def counted(messages: Sequence[Message]) -> int:
    return round(tokens(messages) * RATIO)


class Caller:
    """A chat backend that sends `unstored` tokens beside the context that it reads."""

    def __init__(self, chat: Chat, conversation: UUID, unstored: int) -> None:
        self.chat = chat
        self.conversation = conversation
        self.unstored = unstored
        self.counts: list[int] = []
        self.warnings: list[str] = []

    def turn(self, asked: Sequence[Message], answered: Message, *then: Message) -> None:
        """Ask the model, and store what was asked, the answer and what follows it."""
        context = self.chat.context(self.conversation)
        self.warnings = context["warnings"]
        self.counts.append(self.unstored + counted([*context["messages"], *asked]))
        self.chat.append(
            self.conversation,
            [*asked, answered, *then],
            input_tokens=self.counts[-1],
            output_tokens=counted([answered]),
            snapshot_version=context["snapshot"]["version"] if context["snapshot"] else 0,
        )


def test_a_chat_beside_81000_unstored_tokens_is_summarized_as_seldom_as_one_that_stores_them(chat: Chat) -> None:
    conversation = chat.begin(DEFAULT)
    summarizer = StubSummarizer()
    workers = Workers(chat, summarizer)
    caller = Caller(chat, conversation, 81_000)
    for number in range(36):
        caller.turn([request(f"request {number}", 100)], answer(f"answer {number}", 900))
        workers.settle(conversation)
    row = chat.row(conversation)
    assert row.unstored_tokens == pytest.approx(81_000, rel=0.02)
    assert row.token_ratio == pytest.approx(RATIO, rel=0.05)
    assert len(summarizer.requests) == 2
    # Of the first count nobody can say yet what it has beside the two messages.
    assert [(run.state, run.reason) for run in chat.runs(conversation)] == [
        ("skipped", "zone_too_small"),
        ("committed", OVER),
        ("committed", OVER),
    ]
    said = r"system prompt and tools alone have 81,\d{3} tokens, over compaction_threshold_tokens \(80,000\)"
    assert any(re.match(said, warning) for warning in caller.warnings)


def test_an_agent_beside_45000_unstored_tokens_is_cut_each_time_it_has_grown_by_a_fifth(chat: Chat) -> None:
    conversation = chat.begin(DEFAULT)
    workers = Workers(chat)
    caller = Caller(chat, conversation, 45_000)
    chat.append(conversation, [request("go", 200)])
    grown = 0
    for number in range(60):
        caller.turn([], call(number), result(number, 1_500))
        grown += tokens([call(number), result(number, 1_500)])
        workers.settle(conversation)
    cuts = [run for run in chat.runs(conversation) if run.state == "committed"]
    assert {run.reason for run in cuts} == {OVER}
    assert 8 <= len(cuts) <= RATIO * grown / growth_margin(Policy().input_token_budget, Policy()) < 14
    assert any("input_token_budget (40,000)" in warning for warning in caller.warnings)


def test_what_is_stored_later_is_not_counted_twice(service: Service, chat: Chat) -> None:
    path = service.conversation()
    for number in range(3):
        service.append(path, request(f"{number}", 600), answer(f"{number}", 20), usage={"input_tokens": 30_000})
    service.append(path, request("and now?", 20))
    with_unstored = service.client.post(f"{path}/context", json={}).json()["layers"]["system"]
    assert 28_000 <= with_unstored <= 30_000
    # Given with the request it is the same tokens, not as many again.
    given = service.client.post(f"{path}/context", json={"system": "s" * 4 * 29_000}).json()["layers"]["system"]
    assert given == pytest.approx(29_000, rel=0.05)
    service.client.patch(path, json={"system": "s" * 4 * 29_000})
    stored = service.client.post(f"{path}/context", json={}).json()["layers"]["system"]
    assert stored == pytest.approx(29_000, rel=0.05)


def test_a_payload_leaves_room_for_what_is_sent_beside_it(service: Service) -> None:
    path = service.conversation(policy={"total_token_budget": 40_000})
    for number in range(12):
        count = 25_000 + 1_000 * (2 * number + 1)
        service.append(path, request(f"{number}", 1_000), answer(f"{number}", 1_000), usage={"input_tokens": count})
    for found in (
        service.client.get(f"{path}/context").json(),
        service.client.post(f"{path}/context", json={}).json(),
    ):
        assert 8_000 <= tokens(found["messages"]) <= 40_000 - 4_096 - 25_000


def test_one_absurd_count_teaches_nothing(service: Service, chat: Chat) -> None:
    path = service.conversation()
    for number, count in enumerate([1_100, 2_200, 100_000_000, 4_400, 5_500]):
        service.append(path, request(f"{number}", 600), answer(f"{number}", 500), usage={"input_tokens": count})
        body = service.client.post(f"{path}/context", json={}).json()
        assert body["layers"]["system"] == 0
    assert body["warnings"] == []


LEARN: Final = "select samples, ratio, unstored, last_count from learn_count(%s, %s, %s::real[], %s::real, %s, %s)"


@given(
    unstored=st.integers(0, 150_000),
    ratio=st.floats(0.6, 1.9),
    sizes=st.lists(st.integers(1, 20_000), min_size=2, max_size=12),
)
def test_what_stays_the_same_from_turn_to_turn_is_learned(
    service: Service, unstored: int, ratio: float, sizes: list[int]
) -> None:
    """To within what the first two counts leave open; what is counted later, of more, never makes it worse."""
    learned: tuple[Any, ...] = ([1.0, 1.0], 1.0, 0, None)
    with psycopg.connect(service.database_url) as connection:
        for estimated in accumulate(sizes):
            count = unstored + round(ratio * estimated)
            found = connection.execute(LEARN, [count, estimated, *learned]).fetchone()
            assert found is not None
            learned = found
            assert 0.5 <= learned[1] <= 2
    assert abs(learned[2] - unstored) <= 1.5 * sum(sizes[:2]) + 1_000
