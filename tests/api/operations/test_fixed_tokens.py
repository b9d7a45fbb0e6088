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
from tests.support.eventually import eventually
from tests.support.service.in_process import SMALL, Chat, Workers, chat, module_chat
from tests.support.service.running_api import conversation_at
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
    # The first counts are not believed: nobody can say yet what they have beside the messages.
    assert [(run.state, run.reason) for run in chat.runs(conversation)] == [
        ("skipped", OVER),
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
    sizes=st.lists(st.integers(200, 20_000), min_size=3, max_size=12),
)
def test_what_stays_the_same_from_turn_to_turn_is_learned(
    service: Service, unstored: int, ratio: float, sizes: list[int]
) -> None:
    """To within what the first three counts leave open; what is counted later, of more, never makes it worse."""
    learned: tuple[Any, ...] = ([1.0, 1.0], 1.0, 0, None)
    with psycopg.connect(service.database_url) as connection:
        for estimated in accumulate(sizes):
            count = unstored + round(ratio * estimated)
            found = connection.execute(LEARN, [count, estimated, *learned]).fetchone()
            assert found is not None
            learned = found
            assert 0.5 <= learned[1] <= 2
    assert abs(learned[2] - unstored) <= 1.5 * sum(sizes[:3]) + 1_000


@given(
    calls=st.integers(3, 12),
    sizes=st.lists(st.integers(200, 4_000), min_size=3, max_size=12),
    beside=st.integers(0, 3_000),
)
def test_counts_that_are_summed_over_calls_teach_nothing(
    service: Service, calls: int, sizes: list[int], beside: int
) -> None:
    learned: tuple[Any, ...] = ([1.0, 1.0], 1.0, 0, None)
    with psycopg.connect(service.database_url) as connection:
        for estimated in accumulate(sizes, initial=1_000):
            found = connection.execute(LEARN, [calls * (estimated + beside), estimated, *learned]).fetchone()
            assert found is not None
            learned = found
    assert learned[1:3] == (1.0, 0)


def test_a_summed_count_is_no_size_of_the_context(service: Service) -> None:
    path = service.conversation()
    for number in range(6):
        size = 1_200 * (number + 1)
        usage = {"input_tokens": 6 * (size + 3_000), "output_tokens": 600}
        service.append(path, request(f"{number}", 800), answer(f"{number}", 400), usage=usage)
    found = service.client.get(f"{path}/context").json()
    assert 7_000 <= found["tokens"]["context"] <= 30_000
    assert found["warnings"] == []
    assert service.client.post(f"{path}/context", json={}).json()["layers"]["system"] == 0


def test_the_last_of_several_counts_is_the_size_of_the_context(service: Service) -> None:
    path = service.conversation()
    usage = [{"input_tokens": count, "output_tokens": 50} for count in (1_000, 2_000, 3_000)]
    said = [request("go", 800), call(1), result(1, 500), call(2), result(2, 500), answer("done", 400)]
    turn = {"messages": said, "usage": usage}
    assert service.client.post(f"{path}/turns", json=turn).json()["context_tokens"] == 3_050
    assert service.client.get(f"{path}/context").json()["tokens"]["measured"] == 3_000
    wrong = service.client.post(f"{path}/turns", json={**turn, "usage": [*usage, {"input_tokens": -1}]})
    assert (wrong.status_code, wrong.json()["pointer"]) == (422, "/usage/3/input_tokens")


@pytest.mark.parametrize(("said", "rows"), [(4, [10, 20, 30]), (2, [30, 30])])
def test_all_calls_of_a_turn_count_for_cost(service: Service, said: int, rows: list[int]) -> None:
    path = service.conversation()
    usage = [{"input_tokens": count, "output_tokens": 1, "cache_read_input_tokens": 0} for count in (10, 20, 30)]
    turn = [*[request("go", 10), call(1), result(1, 10), answer("done", 10)][: said - 1], answer("so", 10)]
    service.append(path, *turn, usage=usage)
    counted = "select input_tokens from turn_usages where conversation_id = %s order by seq"
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        identifier = [conversation_at(path)]
        eventually(lambda: [row[0] for row in connection.execute(counted, identifier)] == rows)


MEDIA = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}


def test_what_media_are_counted_too_much_is_their_messages(service: Service, chat: Chat) -> None:
    path = service.conversation()
    service.append(path, request("hello", 100), answer("hi", 100), usage={"input_tokens": 120})
    asked = {"role": "user", "content": [MEDIA, {"type": "text", "text": "Read it."}]}
    service.append(path, asked, answer("read", 100), usage={"input_tokens": 90_000, "output_tokens": 100})
    found = service.client.get(f"{path}/context").json()
    assert found["tokens"] == {"context": 90_100, "measured": 90_000, "budget": 128_000}
    assert service.client.post(f"{path}/context", json={}).json()["layers"]["system"] == 0
    sizes = [message["tokens"] for message in service.client.get(f"{path}/messages?after=-1").json()["data"]]
    assert sizes[2] >= 89_000
    assert max(sizes[:2] + sizes[3:]) < 500
