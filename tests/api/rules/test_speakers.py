"""Who said what: rules, pins and the latest request name their speakers, in frames, answers and the console."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.api.rules.test_rules import Rules
from tests.support.talk import exchanges, rounds

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

RULE = "From now on, never paint the meeting room on a Friday."
ANSWER = {"role": "assistant", "content": "Noted."}
POLICY = {"input_token_budget": 0}


class Named(Rules):
    """A conversation in the shape of Chat Completions, whose messages may have names."""

    def say(self, *messages: Any) -> None:
        body = {"shape": "chat", "messages": list(messages)}
        assert self.service.client.post(f"{self.path}/turns", json=body).status_code == 201


def long_talk() -> list[Any]:
    return [{"role": message["role"], "content": str(message["content"])} for message in exchanges(12, 200)]


def test_a_rule_stands_under_its_speaker_and_not_under_another_one(service: Service) -> None:
    talk = Named(service, POLICY)
    first = {"role": "user", "name": "alice", "content": "Hello, I plan our meeting room."}
    talk.say(first, ANSWER, {"role": "user", "name": "carol", "content": RULE}, ANSWER)
    talk.say({"role": "system", "content": "The office closes at noon."}, *long_talk())
    talk.compact()
    assert [(rule["text"], rule["speaker"]) for rule in talk.ledger()] == [
        (RULE, "user (carol)"),
        ("The office closes at noon.", "system"),
    ]
    context = service.client.get(f"{talk.path}/context").json()["messages"]
    assert context[0] == first
    assert "name" not in context[1]
    assert f"standing instruction, by user (carol), message 2, {len(RULE)} characters]\n{RULE}" in context[1]["content"]
    assert "standing instruction, by system, message 4" in context[1]["content"]
    assert {(pin["seq"], pin["speaker"]) for pin in talk.head()["pins"]} >= {(2, "user (carol)"), (4, "system")}


def test_a_name_that_an_application_writes_before_a_text_is_the_speaker(service: Service) -> None:
    talk = Rules(service, POLICY)
    talk.say({"role": "user", "content": "[from Alice]: Hello."}, ANSWER)
    talk.say({"role": "user", "content": f"[from Carol]: We talked. {RULE}"}, ANSWER, *exchanges(12, 200))
    talk.compact()
    assert [(rule["text"], rule["speaker"]) for rule in talk.ledger()] == [(RULE, "user (Carol)")]
    assert f"by user (Carol), message 2, {len(RULE)} characters]\n{RULE}" in talk.context()[0]["content"]


def test_a_rule_that_the_budget_leaves_out_comes_back_under_its_speaker(service: Service) -> None:
    talk = Named(service, POLICY | {"compaction_enabled": False, "total_token_budget": 9_000})
    talk.say({"role": "user", "name": "alice", "content": "Hello."}, ANSWER)
    talk.say({"role": "user", "name": "carol", "content": RULE}, ANSWER, *long_talk(), *long_talk(), *long_talk())
    context = service.client.get(f"{talk.path}/context").json()
    said = str(context["messages"])
    assert len(context["rules"]["ids"]) == 1
    assert "by user (carol), message 2" in said


def test_the_latest_request_says_whether_it_is_answered(service: Service) -> None:
    talk = Rules(service, POLICY)
    wish = "Migrate the table of orders and deploy it to production."
    talk.say({"role": "user", "content": "Hello."}, ANSWER)
    talk.say({"role": "user", "content": wish}, *rounds(16, 300))
    talk.compact()
    assert "not answered yet, by user, message 2" in talk.said()
    assert [pin["answered"] for pin in talk.head()["pins"]] == [False]
    done = {"role": "assistant", "content": "It is migrated and deployed."}
    talk.say(done, {"role": "user", "content": "Thanks!"}, *rounds(16, 300, start=16))
    talk.compact()
    assert "answered since, by user, message 2" in talk.said()
    assert wish in talk.said()
    assert [(pin["seq"], pin["answered"]) for pin in talk.head()["pins"]] == [(2, True)]
