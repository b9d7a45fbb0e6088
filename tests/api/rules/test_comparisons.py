"""Did compaction cause this? One turn under two versions, and the step that took a text out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.api.rules.test_pinned import Talk
from tests.support.messages_api import problems
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

RULE = "From now on, never book a flight before 09:00."
VALUE = "QX-48213"
SETTLED = {"role": "assistant", "content": "Understood."}


@pytest.fixture
def talk(service: Service) -> Talk:
    """Return a conversation whose value and rule a compaction drops and frames."""
    talk = Talk(service, {"compaction_enabled": False, "max_conversation_messages": 6})
    talk.say({"role": "user", "content": "Find me a flight."}, SETTLED)
    talk.say({"role": "user", "content": f"The booking is {VALUE}. {RULE}"}, SETTLED)
    talk.say(*exchanges(12, 200))
    talk.compact()
    return talk


def asked(talk: Talk, what: str, **body: Any) -> dict[str, Any]:
    answer = talk.service.client.post(f"{talk.path}/{what}", json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_one_turn_under_two_versions_and_what_differs(talk: Talk) -> None:
    last = talk.service.client.get(talk.path).json()["last_seq"]
    head = talk.head()["version"]
    told = asked(talk, "comparisons", versions=[0, head], seq=last)
    before, after = told["contexts"]
    assert (before["version"], before["covers_through"], after["version"]) == (0, -1, head)
    assert after["messages"] == talk.context()
    assert [len(before["messages"]), problems(before["messages"])] == [last + 1, []]
    assert before["tokens"] > after["tokens"]
    rule = talk.service.client.get(f"{talk.path}/rules").json()["data"][0]["id"]
    assert before["rules"] == after["rules"]
    assert before["rules"]["ids"] == [rule]
    apart = told["differences"]
    assert apart["messages"]["second"] == []
    assert {1, 2, 3} <= set(apart["messages"]["first"])
    assert VALUE.lower() in apart["values"]["first"]
    assert apart["rules"] == {"first": [], "second": []}


def test_a_rule_that_one_version_lacks_is_named(service: Service) -> None:
    policy = {"compaction_enabled": False, "max_conversation_messages": 6, "pinned_max_tokens": 0}
    talk = Talk(service, policy)
    talk.say({"role": "user", "content": "Hello."}, SETTLED)
    talk.say({"role": "user", "content": RULE}, SETTLED)
    talk.say(*exchanges(12, 200))
    talk.compact()
    head = talk.head()
    told = asked(talk, "comparisons", versions=[0, head["version"]], seq=head["covers_through"])
    (rule,) = talk.service.client.get(f"{talk.path}/rules").json()["data"]
    assert told["differences"]["rules"] == {"first": [rule["id"]], "second": []}


def test_rules_are_in_the_order_in_which_contexts_name_them(talk: Talk) -> None:
    last = talk.service.client.get(talk.path).json()["last_seq"]
    for seq in (last - 1, 0):  # the earlier message is pinned later
        assert talk.pin(seq).status_code == 201
    context = talk.service.client.get(f"{talk.path}/context").json()
    told = asked(talk, "comparisons", versions=[0, context["snapshot"]["version"]], seq=last)
    assert len(context["rules"]["ids"]) == 3
    assert [each["rules"] for each in told["contexts"]] == [context["rules"]] * 2


def test_thinking_stands_where_contexts_have_it(talk: Talk) -> None:
    thought = {"type": "thinking", "thinking": "It needs a look.", "signature": "sig"}
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    head = talk.head()["version"]
    turn = {
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [thought, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "seen"}]},
        ],
        "snapshot_version": head,
    }
    assert talk.service.client.post(f"{talk.path}/turns", json=turn).status_code == 201
    context = talk.context()
    assert thought in context[-2]["content"]
    last = talk.service.client.get(talk.path).json()["last_seq"]
    told = asked(talk, "comparisons", versions=[0, head], seq=last)
    assert told["contexts"][1]["messages"] == context


def test_a_frame_stays_where_the_budget_leaves_out_what_follows_it(service: Service) -> None:
    policy = {"compaction_enabled": False, "max_conversation_messages": 6, "total_token_budget": 2_000}
    talk = Talk(service, policy | {"reserved_output_tokens": 0})
    talk.say({"role": "user", "content": "Hello."}, SETTLED)
    talk.say({"role": "user", "content": RULE}, SETTLED)
    talk.say(*exchanges(12, 200))
    talk.compact()
    head = talk.head()
    assert (head["summary"], RULE in str(head["messages"][0])) == (None, True)
    talk.say(*exchanges(12, 200, start=12))
    last = talk.service.client.get(talk.path).json()["last_seq"]
    told = asked(talk, "comparisons", versions=[0, head["version"]], seq=last)
    context = talk.service.client.get(f"{talk.path}/context").json()
    assert any("left out to fit the token budget" in str(each) for each in context["warnings"])
    assert RULE in str(context["messages"][0])
    assert told["contexts"][1]["messages"] == context["messages"]
    assert told["contexts"][1]["tokens"] == context["tokens"]["context"]


def test_a_version_of_later_turns_is_refused(talk: Talk) -> None:
    head = talk.head()
    for body, pointer in (
        ({"versions": [0, head["version"]], "seq": head["covers_through"] - 1}, "/seq"),
        ({"versions": [0, 99], "seq": 0}, "/versions/1"),
        ({"versions": [0, 0], "seq": 10_000}, "/seq"),
        ({"versions": [0], "seq": 0}, "/versions"),
    ):
        refused = talk.service.client.post(f"{talk.path}/comparisons", json=body)
        assert (refused.status_code, refused.json()["pointer"]) == (422, pointer)


def test_the_step_that_took_a_text_out_is_found(talk: Talk) -> None:
    first = talk.head()
    talk.say(*exchanges(12, 200, start=12))
    talk.compact()
    told = asked(talk, "bisect", text=VALUE)
    assert (told["seqs"], told["in_context"]) == ([2], False)
    loss = told["loss"]
    runs = {run["id"]: run for run in talk.service.client.get(f"{talk.path}/runs").json()["data"]}
    (step,) = [each for each in runs[loss["run_id"]]["steps"] if each["snapshot_version"] == loss["version"]]
    assert (loss["step"], loss["detail"], loss["trigger"]) == (step["name"], step["detail"], "check")
    assert (loss["messages"], loss["back_in"]) == ([{"seq": 2, "fate": "dropped"}], None)
    assert loss["version"] <= first["version"]
    before = asked(talk, "comparisons", versions=[loss["parent_version"], loss["version"]], seq=first["covers_through"])
    assert VALUE.lower() in before["differences"]["values"]["first"]


def test_what_still_stands_was_taken_by_nothing(talk: Talk) -> None:
    assert asked(talk, "bisect", text=RULE)["loss"] is None
    assert asked(talk, "bisect", text=RULE)["in_context"] is True
    never = asked(talk, "bisect", text="nobody said this")
    assert never == {"seqs": [], "in_context": False, "searched_versions": [], "loss": None}


def test_what_a_pin_brought_back_is_in_the_context_again(talk: Talk) -> None:
    lost = asked(talk, "bisect", text=VALUE)["loss"]
    assert talk.pin(2, VALUE).status_code == 201
    told = asked(talk, "bisect", text=VALUE)
    assert told["in_context"] is True
    assert (told["loss"]["version"], told["loss"]["back_in"]) == (lost["version"], talk.head()["version"])


def test_what_was_said_again_later_is_in_the_context(talk: Talk) -> None:
    lost = asked(talk, "bisect", text=VALUE)["loss"]
    talk.say({"role": "user", "content": f"Is {VALUE} still valid?"}, SETTLED)
    told = asked(talk, "bisect", text=VALUE)
    assert told["in_context"] is True
    assert told["loss"]["version"] == lost["version"]
    assert len(told["seqs"]) == 2


def test_of_what_was_lost_again_the_last_loss_is_found(talk: Talk) -> None:
    first = asked(talk, "bisect", text=VALUE)["loss"]["version"]
    assert talk.service.client.post(f"{talk.path}/restore", json={"version": 0}).status_code == 200
    restored = talk.head()["version"]
    told = asked(talk, "bisect", text=VALUE)
    assert (told["in_context"], told["loss"]["version"], told["loss"]["back_in"]) == (True, first, restored)
    talk.say(*exchanges(20, 200, start=12))
    talk.compact()
    told = asked(talk, "bisect", text=VALUE)
    assert (told["in_context"], told["loss"]["back_in"]) == (False, None)
    assert told["loss"]["version"] > restored
    assert (told["loss"]["step"], told["loss"]["messages"]) == ("fallback", [{"seq": 2, "fate": "dropped"}])


def test_text_that_json_escapes_is_followed(service: Service) -> None:
    talk = Talk(service, {"compaction_enabled": False, "max_conversation_messages": 6})
    said = 'Das "Gr\u00fcne" \u2014 um 9\u00bd\nUhr'
    talk.say({"role": "user", "content": "Hello."}, SETTLED)
    talk.say({"role": "user", "content": said}, SETTLED)
    assert asked(talk, "bisect", text=said)["in_context"] is True
    talk.say(*exchanges(12, 200))
    talk.compact()
    assert asked(talk, "bisect", text=said)["loss"]["messages"] == [{"seq": 2, "fate": "dropped"}]


SPELLED = {
    "Go": r"See https://a.example/b?c=1\u0026d=\"é\" it's +1 \u003cb\u003e \u2028",
    "Gson": r"See https://a.example/b?c\u003d1\u0026d\u003d\"é\" it\u0027s +1 \u003cb\u003e \u2028",
    "PHP": r"See https:\/\/a.example\/b?c=1&d=\"\u00e9\" it's +1 <b> \u2028",
    "PHP, Unicode unescaped": r"See https:\/\/a.example\/b?c=1&d=\"é\" it's +1 <b> \u2028".replace(r"\u2028", "\u2028"),
    ".NET": r"See https://a.example/b?c=1\u0026d=\u0022\u00E9\u0022 it\u0027s \u002B1 \u003Cb\u003E \u2028",
}


@pytest.mark.parametrize("encoder", SPELLED)
def test_text_that_an_encoder_escapes_without_need_is_followed(service: Service, encoder: str) -> None:
    talk = Talk(service, {"compaction_enabled": False, "max_conversation_messages": 6})
    talk.say({"role": "user", "content": "Hello."}, SETTLED)
    body = f'{{"messages": [{{"role": "user", "content": "{SPELLED[encoder]}"}}]}}'.encode()
    assert service.client.post(f"{talk.path}/turns", content=body).status_code == 201
    said = 'See https://a.example/b?c=1&d="é" it\'s +1 <b> \u2028'
    for text in (said, said[4:], 'd="é"', "it's +1"):
        told = asked(talk, "bisect", text=text)
        assert (told["seqs"], told["in_context"]) == ([2], True), text
    talk.say(SETTLED, *exchanges(12, 200))
    talk.compact()
    assert asked(talk, "bisect", text=said)["loss"]["messages"] == [{"seq": 2, "fate": "dropped"}]


def test_claims_that_differ_are_named(service: Service) -> None:
    talk = Talk(service, {"input_token_budget": 0})
    for number in range(2):
        talk.say(*exchanges(12, 200, start=number * 12))
        talk.compact()
    first, second = (version for version in (1, talk.head()["version"]))
    covers = talk.head()["covers_through"]
    told = asked(talk, "comparisons", versions=[first, second], seq=covers)
    by_version = {
        version: talk.service.client.get(f"{talk.path}/snapshots/{version}/claims").json()["data"]
        for version in (first, second)
    }
    assert told["differences"]["claims"] == {
        "first": [claim for claim in by_version[first] if claim not in by_version[second]],
        "second": [claim for claim in by_version[second] if claim not in by_version[first]],
    }
    assert told["differences"]["claims"]["second"]
    none = asked(talk, "comparisons", versions=[second, second], seq=covers)["differences"]
    assert none["claims"] == {"first": [], "second": []}
