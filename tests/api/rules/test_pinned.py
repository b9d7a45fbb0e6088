"""Pins over HTTP and through compactions: what is pinned stays in the context word for word."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.eventually import eventually
from tests.support.messages_api import problems
from tests.support.service.in_process import SMALL, Chat, Workers
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import conversation_at
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges, request, rounds

if TYPE_CHECKING:
    from tests.support.blocks import Message
    from tests.support.service.running_api import Service


RULE = "Never book a flight before 09:00, and keep the code X-77/b."


class Talk:
    """One conversation over HTTP."""

    def __init__(self, service: Service, policy: dict[str, Any] | None = None) -> None:
        self.service = service
        response = service.client.post("/v1/conversations", json={"policy": SMALL | (policy or {})})
        self.path = f"/v1/conversations/{response.json()['id']}"

    def say(self, *messages: Message) -> None:
        assert self.service.client.post(f"{self.path}/turns", json={"messages": list(messages)}).status_code == 201

    def pin(self, seq: int, text: str | None = None) -> Any:
        return self.service.client.post(f"{self.path}/pins", json={"seq": seq} | ({"text": text} if text else {}))

    def compact(self) -> None:
        work(self.service.settings, self.path)

    def context(self) -> list[Message]:
        messages: list[Message] = self.service.client.get(f"{self.path}/context").json()["messages"]
        assert problems(messages) == []
        return messages

    def said(self) -> str:
        return str(self.context())

    def head(self) -> dict[str, Any]:
        version = self.service.client.get(self.path).json()["head_version"]
        body: dict[str, Any] = self.service.client.get(f"{self.path}/snapshots/{version}").json()
        return body


@pytest.fixture
def talk(service: Service) -> Talk:
    return Talk(service, {"input_token_budget": 0})


def long_talk(talk: Talk, start: int = 0) -> None:
    talk.say(*exchanges(12, 200, start=start))
    talk.compact()


def test_a_pinned_span_stays_through_ten_compactions_byte_for_byte(talk: Talk) -> None:
    talk.say(request("begin"), {"role": "assistant", "content": "Go on."})
    talk.say({"role": "user", "content": f"By the way: {RULE} Thanks."}, {"role": "assistant", "content": "Noted."})
    assert talk.pin(2, RULE).status_code == 201
    for number in range(10):
        long_talk(talk, start=number * 12)
        assert talk.said().count(RULE) >= 1, number
    shown = talk.head()
    assert RULE in {pin["text"] for pin in shown["pins"]}
    runs = talk.service.client.get(f"{talk.path}/runs").json()["data"]
    assert [run["state"] for run in runs].count("committed") >= 10


def test_standing_instructions_of_the_first_message_outlive_its_dropping(service: Service) -> None:
    rule = "Always answer in British English."
    talk = Talk(service, {"input_token_budget": 0, "compaction_enabled": False, "max_conversation_messages": 6})
    talk.say({"role": "user", "content": f"{rule} Now, hello."}, {"role": "assistant", "content": "Hello."})
    long_talk(talk)
    assert "Now, hello." not in talk.said()
    assert rule in talk.said()
    (pin,) = talk.head()["pins"]
    assert (pin["source"], pin["text"], pin["seq"]) == ("standing_instruction", rule, 0)


def test_the_request_under_way_stays_word_for_word(talk: Talk) -> None:
    talk.say(request("begin"), {"role": "assistant", "content": "Go on."})
    wish = "Find me the three cheapest trains to Ghent on 3 May, window seats only."
    talk.say({"role": "user", "content": wish}, *rounds(16, 300))
    talk.compact()
    assert wish in talk.said()
    assert [pin["source"] for pin in talk.head()["pins"]] == ["latest_request"]


def test_pinning_what_was_summarized_already_brings_it_back_at_once(talk: Talk) -> None:
    long_talk(talk)
    original = talk.service.client.get(f"{talk.path}/messages/4").json()["content"]
    assert original not in talk.said()
    made = talk.pin(4)
    assert made.status_code == 201
    assert made.json()["text"] == original
    assert original in talk.said()
    assert talk.pin(4).json() == made.json()  # twice is once
    (run, *_) = talk.service.client.get(f"{talk.path}/runs").json()["data"]
    assert (run["trigger"], run["steps"][0]["name"]) == ("pin", "pin")
    listed = talk.service.client.get(f"{talk.path}/pins").json()["data"]
    assert listed == [made.json()]
    assert talk.service.client.delete(f"{talk.path}/pins/{made.json()['id']}").status_code == 204
    assert original not in talk.said()
    assert talk.service.client.get(f"{talk.path}/pins").json()["data"] == []
    assert talk.service.client.delete(f"{talk.path}/pins/{made.json()['id']}").status_code == 404


def test_what_is_pinned_while_a_model_sums_it_up_stays(talk: Talk) -> None:
    """The run began without the pin, and its message is still shown: nothing else would bring the text back."""
    talk.say(*exchanges(12, 200))
    conversation = conversation_at(talk.path)
    with Chat(talk.service.settings, talk.service.tenant_id) as chat:
        pinned: list[Any] = []
        workers = Workers(chat, StubSummarizer(act=lambda: pinned.append(talk.pin(4) if not pinned else None)))
        workers.settle(conversation)
        assert pinned[0].status_code == 201
        assert chat.runs(conversation)[0].reason == "head_moved"
        assert pinned[0].json()["text"] in talk.said()
        workers.settle(conversation)
        assert pinned[0].json()["text"] in {pin["text"] for pin in talk.head()["pins"]}
        assert talk.head()["step"] == "summary"


def test_an_edit_takes_pins_of_replaced_messages_out(talk: Talk) -> None:
    talk.say(request("begin"), {"role": "assistant", "content": "Go on."})
    talk.say({"role": "user", "content": RULE}, {"role": "assistant", "content": "Noted."})
    talk.pin(2)
    long_talk(talk)
    body = {"messages": [{"role": "user", "content": "Another thing."}], "replace_from": 2}
    assert talk.service.client.post(f"{talk.path}/turns", json=body).status_code == 201
    assert RULE not in talk.said()
    long_talk(talk, start=12)
    assert RULE not in talk.said()
    assert talk.service.client.get(f"{talk.path}/pins").json()["data"] == []


def test_a_fork_keeps_its_pins_and_an_overflow_too(talk: Talk) -> None:
    talk.say(request("begin"), {"role": "assistant", "content": "Go on."})
    talk.say({"role": "user", "content": RULE}, {"role": "assistant", "content": "Noted."})
    talk.pin(2)
    long_talk(talk)
    through = talk.service.client.get(talk.path).json()["last_seq"]
    body = talk.service.client.post(f"{talk.path}/fork", json={"through_seq": through}).json()
    fork = Talk(talk.service)
    fork.path = f"/v1/conversations/{body['id']}"
    assert [pin["text"] for pin in talk.service.client.get(f"{fork.path}/pins").json()["data"]] == [RULE]
    for _ in range(3):
        before = talk.service.client.get(f"{fork.path}/context").json()["tokens"]["context"]
        answer = talk.service.client.post(f"{fork.path}/overflow", json={})
        if answer.status_code == 409:
            break
        assert answer.json()["tokens"]["context"] < before
        assert RULE in fork.said()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"seq": 99}, "/seq"),
        ({"seq": 0, "text": "not there"}, "/text"),
        ({"seq": 0, "text": ""}, "/text"),
        ({"seq": -1}, "/seq"),
        ({}, "/seq"),
    ],
)
def test_what_cannot_be_pinned_is_refused(talk: Talk, body: dict[str, Any], pointer: str) -> None:
    talk.say(request("begin"))
    assert problem(talk.service.client.post(f"{talk.path}/pins", json=body), 422, "invalid", pointer)


@pytest.mark.parametrize("seqs", [(0, 2), (0, 0)])
def test_pins_that_are_made_at_once_wait_for_one_another(talk: Talk, seqs: tuple[int, int]) -> None:
    talk.say(*exchanges(2, 20))
    conversation = conversation_at(talk.path)
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with psycopg.connect(talk.service.database_url, autocommit=True) as looking, ThreadPoolExecutor() as threads:
        with psycopg.connect(talk.service.database_url) as holding:
            # As an insert holds it: it lets others insert, and keeps them from changing the conversation.
            holding.execute("select from conversations where id = %s for key share", (conversation,))
            asked = [threads.submit(talk.pin, seq) for seq in seqs]
            eventually(lambda: looking.execute(waiting).fetchone() == (2,))
        answers = [each.result() for each in asked]
    assert [answer.status_code for answer in answers] == [201, 201]
    listed = talk.service.client.get(f"{talk.path}/pins").json()["data"]
    assert {pin["id"] for pin in listed} == {answer.json()["id"] for answer in answers}
    assert sorted(pin["seq"] for pin in listed) == sorted(set(seqs))


def test_pins_are_bounded_and_the_tenants_own(service: Service) -> None:
    talk = Talk(service, {"pinned_max_tokens": 50})
    talk.say(request("long", 200), {"role": "assistant", "content": "a" * 120}, request("c", 20))
    problem(talk.pin(0), 422, "invalid", "/text")
    assert talk.pin(1).status_code == 201
    path = f"{talk.path}/pins"
    assert service.stranger.get(path).status_code == 404
    assert service.stranger.post(path, json={"seq": 1}).status_code == 404
    assert service.client.get(path).json()["data"][0]["seq"] == 1


def test_who_has_as_many_pins_as_there_may_be_still_has_each_once(talk: Talk) -> None:
    talk.say({"role": "user", "content": "".join(f"<{number:03}>" for number in range(101))})
    made = [talk.pin(0, f"<{number:03}>") for number in range(100)]
    assert [each.status_code for each in made] == [201] * 100
    problem(talk.pin(0, "<100>"), 409, "too_many_pins")
    assert talk.pin(0, "<007>").json() == made[7].json()
