"""GET …/context: what was stored, byte for byte where nothing stands in the way, and valid always."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from runtime import ids
from tests.support import talk
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work

if TYPE_CHECKING:
    from runtime.settings import Settings
    from tests.support.service.running_api import Service

HELLO = {"role": "user", "content": "Hello."}
ANSWER = {"role": "assistant", "content": [{"type": "text", "text": "Good day."}]}
ODD = [
    ("user", b'"plain"'),
    ("assistant", b'"\\u00e9\\ud83d\\ude00 \\/ \\u2028 \\" \xc3\xa9\xf0\x9f\x98\x80"'),
    ("user", b'[ { "type" : "text" ,\t"text":\n"spaced" } ]'),
    ("assistant", b'[{"type":"x_future","n":123456789012345678901234567890,"f":1.50e+2,"z":-0.0,"big":1e300}]'),
    ("user", b'[{"type":"text","text":"fir\\u0073t" , "cache_control":null}]'),
    ("assistant", b'[{"type":"tool_use","id":"t1","name":"look","input":{"b":1,"a":{"deep":[[],{}]}}}]'),
    ("user", b'[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"<r/>"}]}]'),
]


def as_stored(contents: list[tuple[str, bytes]]) -> bytes:
    return b",".join(b'{"role":"' + role.encode() + b'","content":' + text + b"}" for role, text in contents)


def call(identifier: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": identifier, "name": "look", "input": {}}]}


def result(identifier: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": identifier, "content": text}]}


def talk_rounds(start: int, end: int) -> list[dict[str, Any]]:
    return [message for number in range(start, end) for message in (talk.call(number), talk.result(number, 1_200))]


def counted(service: Service) -> dict[str, float]:
    """Return how many contexts were served, by path."""
    with service.api.client() as client:
        lines = client.get("/metrics").text.splitlines()
    found = (line.split() for line in lines if line.startswith("palimpsest_contexts_total{"))
    return {name.split('"')[1]: float(value) for name, value in found}


def test_the_context_of_an_empty_conversation(service: Service) -> None:
    answer = service.client.get(f"{service.conversation()}/context")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "messages": [],
        "snapshot": None,
        "last_seq": -1,
        "tokens": {"context": 0, "measured": None, "budget": 128_000},
        "rules": {"ids": [], "sha256": hashlib.sha256(b"").hexdigest()},
        "warnings": [],
    }


def test_what_was_stored_comes_back_byte_for_byte(service: Service) -> None:
    path = service.conversation()
    before = counted(service)
    for role, text in ODD:
        body = b' {"messages" : [ {"content": ' + text + b' , "role":"' + role.encode() + b'"} ] }'
        assert service.client.post(f"{path}/turns", content=body).status_code == 201
    answer = service.client.get(f"{path}/context")
    assert answer.content.startswith(b'{"messages":[' + as_stored(ODD) + b'],"snapshot":null,"last_seq":6,')
    assert counted(service)["plain"] == before["plain"] + 1
    assert answer.json()["warnings"] == []


def test_the_tail_behind_a_snapshot_comes_back_byte_for_byte(service: Service) -> None:
    path = service.conversation(policy={"input_token_budget": 1_000})
    service.append(path, HELLO, call("a"), result("a", "long " * 4_000), call("b"), result("b", "short"))
    work(service.settings, path)
    # Without signed thinking in it the tail needs no parsing.
    for role, text in [("assistant", b'"odd\\u0020"'), *ODD]:
        body = b'{"messages":[{"role":"' + role.encode() + b'","content":' + text + b"}]}"
        assert service.client.post(f"{path}/turns", content=body).status_code == 201
    before = counted(service)
    answer = service.client.get(f"{path}/context")
    document = answer.json()
    assert document["snapshot"] == {"version": 1, "covers_through": 2}
    assert b',{"role":"assistant","content":"odd\\u0020"},' + as_stored(ODD) + b"]," in answer.content
    assert document["messages"][2]["content"][0]["content"].endswith("[truncated for context management]")
    assert problems(document["messages"]) == []
    assert counted(service)["plain"] == before["plain"] + 1


def test_several_entity_tags_and_any_are_understood(service: Service) -> None:
    path = service.conversation()
    service.append(path, {"role": "user", "content": "Hello."})
    url = f"{path}/context"
    etag = service.client.get(url).headers["etag"]
    for known in ("*", f'"older", {etag}', f'W/"older",W/{etag} , "x"', f"{etag},"):
        again = service.client.get(url, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    twice = [("if-none-match", '"older"'), ("if-none-match", etag)]
    assert service.client.get(url, headers=twice).status_code == 304
    for unknown in ("", '"older"', '"older", "oldest"', '"*"', "W/", ","):
        answer = service.client.get(url, headers={"if-none-match": unknown})
        assert (answer.status_code, answer.headers["etag"]) == (200, etag)
    missing = f"/v1/conversations/{ids.external('conv', ids.new_id())}/context"
    assert service.client.get(missing, headers={"if-none-match": "*"}).status_code == 404


def test_an_etag_holds_until_something_changes(service: Service) -> None:
    path = service.conversation(policy={"input_token_budget": 1_000})
    seen: list[str] = []

    def changed() -> None:
        """See that the context is new once, and known from then on."""
        answer = service.client.get(f"{path}/context", headers={"if-none-match": seen[-1]} if seen else {})
        assert answer.status_code == 200
        etag = answer.headers["etag"]
        assert etag.startswith('"')
        assert etag not in seen
        assert answer.headers["cache-control"] == "private, no-cache"
        for known in (etag, f"W/{etag}"):
            again = service.client.get(f"{path}/context", headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
            assert "request-id" in again.headers
        seen.append(etag)

    changed()
    service.append(path, HELLO)
    changed()
    service.append(path, call("a"), result("a", "long " * 4_000), call("b"), result("b", "short"))
    changed()
    work(service.settings, path)
    changed()
    assert service.client.patch(path, json={"policy": {"max_tool_result_chars": 100}}).status_code == 200
    changed()
    before = counted(service)["not_modified"]
    service.client.get(f"{path}/context", headers={"if-none-match": seen[-1]})
    assert counted(service)["not_modified"] == before + 1


@pytest.mark.requirement("S15")
def test_a_capped_result_is_short_in_the_view_and_whole_in_the_store(service: Service) -> None:
    path = service.conversation(policy={"max_tool_result_chars": 1_000})
    page = "<li>A long page.</li>" * 1_000
    service.append(path, HELLO, call("a"), result("a", page), ANSWER)
    body = service.client.get(f"{path}/context").json()
    shown = body["messages"][2]["content"][0]["content"]
    assert shown.startswith(page[:1_000])
    assert "20,000 more characters" in shown
    assert len(shown) < 1_200
    assert body["warnings"] == []
    assert problems(body["messages"]) == []
    original = service.client.get(f"{path}/messages/2").json()
    assert original["content"][0]["content"] == page
    assert original["fate"] == "kept"


def test_the_default_cap_is_in_force_without_a_policy(service: Service) -> None:
    path = service.conversation()
    service.append(path, HELLO, call("a"), result("a", "x" * 40_200), call("b"), result("b", "y" * 40_000))
    messages = service.client.get(f"{path}/context").json()["messages"]
    assert messages[2]["content"][0]["content"].startswith("x" * 40_000 + "\n[200 more")
    assert messages[4]["content"][0]["content"] == "y" * 40_000


def test_what_was_stored_broken_is_served_mended_and_says_so(service: Service) -> None:
    path = service.conversation()
    service.append(path, ANSWER, call("a"), {"role": "user", "content": "Never mind."})
    picture = [{"type": "image", "source": {"type": "url", "url": "https://example.org/not-an-assistants.png"}}]
    service.append(path, {"role": "assistant", "content": picture}, result("orphan", "x"), HELLO)
    before = counted(service)
    body = service.client.get(f"{path}/context").json()
    assert counted(service)["mended"] == before["mended"] + 1
    assert problems(body["messages"]) == []
    assert body["messages"][0]["role"] == "user"
    assert len(body["warnings"]) == 3
    assert body["messages"][-1] == {"role": "user", "content": "Hello."}
    stored = service.client.get(f"{path}/messages").json()["data"]
    assert [message["content"] for message in stored][3:5] == [picture, result("orphan", "x")["content"]]


def test_an_open_call_at_the_end_waits_for_its_result(service: Service) -> None:
    path = service.conversation()
    service.append(path, HELLO, call("a"))
    body = service.client.get(f"{path}/context").json()
    assert body["messages"] == [HELLO, call("a")]
    assert body["warnings"] == []


def test_a_context_over_the_budget_says_by_how_much(service: Service) -> None:
    path = service.conversation(policy={"total_token_budget": 1_000, "reserved_output_tokens": 100})
    service.append(path, {"role": "user", "content": "x" * 3_600})
    assert service.client.get(f"{path}/context").json()["warnings"] == []
    service.append(path, {"role": "user", "content": "x" * 4_000})
    body = service.client.get(f"{path}/context").json()
    assert body["messages"] == [{"role": "user", "content": "x" * 4_000}]
    assert body["tokens"] == {"context": 1_000, "measured": None, "budget": 1_000}
    dropped, named, over = body["warnings"]
    assert "the oldest 1 of 2 exchanges" in dropped
    assert named == "left out to fit the token budget: messages 0"
    assert "1,000 tokens" in over
    assert "100 over" in over


@pytest.mark.parametrize("covered", [False, True], ids=["stored", "in a snapshot"])
def test_a_newest_message_that_speaks_keeps_the_results_it_brings(
    service: Service, module_settings: Settings, *, covered: bool
) -> None:
    room = {"total_token_budget": 16_000, "reserved_output_tokens": 12_000}
    path = service.conversation(policy=room | {"input_token_budget": 1_000, "min_savings_tokens": 0})
    asked = talk.request("what came second", 1_500)
    service.append(path, *talk.exchanges(1, 1_000), asked, *talk_rounds(0, 2))
    if covered:
        work(module_settings, path)
    service.append(path, *talk_rounds(2, 4))
    newest = [talk.call(9), talk.result(9, 1_000)]
    newest[1]["content"].append({"type": "text", "text": "and be quick"})
    newest[0]["content"].insert(0, {"type": "text", "text": talk.prose("thought", 1_000)})
    service.append(path, *newest)
    body = service.client.get(f"{path}/context").json()
    assert (body["snapshot"] is not None) is covered
    assert problems(body["messages"]) == []
    assert body["messages"][0] == asked
    assert body["messages"][-2:] == newest
    assert "older tool rounds of the last exchange were left out to fit the token budget" in body["warnings"]
    assert "the oldest 1 of 3 exchanges were left out to fit the token budget" in body["warnings"]


ANN = {"role": "user", "content": "My name is Ann. Write an essay."}
QUESTION = {"role": "user", "content": "What is my name?"}


def served(service: Service, path: str) -> list[dict[str, Any]]:
    """Return the context before and after the question is stored, which have to agree."""
    coming = service.client.post(f"{path}/context", json={"user_message": QUESTION}).json()
    service.append(path, QUESTION)
    stored = service.client.get(f"{path}/context").json()
    assert problems(stored["messages"]) == []
    assert stored["messages"] == coming["messages"]
    assert stored["messages"][-1] == QUESTION
    assert stored["tokens"]["context"] + coming["reserved_output"] <= coming["budget"]
    return [stored, coming]


@pytest.mark.parametrize("blocks", [False, True], ids=["plain", "needs parsing"])
def test_one_large_answer_before_a_question_leaves_what_was_said_before_it(service: Service, *, blocks: bool) -> None:
    path = service.conversation(policy={"total_token_budget": 20_000})
    service.append(path, ANN)
    essay = "It begins. " + "e" * 102_000 + " It ends."
    service.append(path, {"role": "assistant", "content": [{"type": "text", "text": essay}] if blocks else essay})
    stored, _ = served(service, path)
    assert stored["messages"][0] == ANN
    assert stored["tokens"]["context"] > 15_900
    assert "1 long text(s) were cut to their beginning and end" in stored["warnings"][0]


@pytest.mark.parametrize("roles", [["user"], ["user", "assistant"], ["assistant"]])
def test_a_paste_or_an_answer_larger_than_the_budget_is_shortened(service: Service, roles: list[str]) -> None:
    path = service.conversation()
    for role in roles:
        size = 600_000 if role == roles[0] else 40
        service.append(
            path, *([ANN] if role == "assistant" and size > 40 else []), {"role": role, "content": "p" * size}
        )
    stored, _ = served(service, path)
    assert 123_800 < stored["tokens"]["context"] <= 123_904


@pytest.mark.parametrize("covered", [False, True], ids=["stored", "in a snapshot"])
def test_an_agents_large_exchange_stays_but_for_its_oldest_rounds(
    service: Service, module_settings: Settings, *, covered: bool
) -> None:
    policy = {"total_token_budget": 30_000, "input_token_budget": 0, "min_savings_tokens": 1}
    path = service.conversation(policy=policy)
    service.append(path, *talk.exchanges(1, 500), talk.request("fix the bug"), *talk_rounds(0, 20))
    if covered:
        service.client.patch(path, json={"policy": policy | {"input_token_budget": 9_000}})
        work(module_settings, path)
    service.append(path, *talk_rounds(20, 42), talk.answer("done"))
    stored, _ = served(service, path)
    assert (stored["snapshot"] is not None) is covered
    assert stored["messages"][0] == talk.request("fix the bug")
    assert stored["tokens"]["context"] > 30_000 - 4_096 - 1_600
    assert "older tool rounds of the last exchange were left out to fit the token budget" in stored["warnings"]
    assert any("left out to fit the token budget: messages 0-1, 3-" in warning for warning in stored["warnings"])


def test_a_head_that_ends_within_an_exchange_gives_way_from_its_beginning(service: Service) -> None:
    policy = {"input_token_budget": 1_500, "min_savings_tokens": 100, "total_token_budget": 9_000}
    path = service.conversation(policy=policy | {"compaction_enabled": False, "max_conversation_messages": 1_000})
    service.append(path, *talk.exchanges(8, 200))
    service.append(path, talk.request("look"), talk.call(0), talk.result(0, 900), talk.call(1), talk.result(1, 300))
    work(service.settings, path)
    head = service.client.get(path).json()
    assert (head["head_version"], head["context_messages"]) == (1, 21)
    service.append(path, talk.answer("it is done", 50))
    room = 9_000 - 4_096
    for number in range(100, 116):
        before = service.client.get(f"{path}/context").json()
        service.append(path, *talk.exchanges(1, 100, start=number))
        after = service.client.get(f"{path}/context").json()
        assert problems(after["messages"]) == []
        # The oldest exchange has 400 tokens, and no more than what is needed goes.
        assert min(before["tokens"]["context"] + 200, room - 400) <= after["tokens"]["context"] <= room
    assert service.client.get(path).json()["head_version"] == 1


def test_many_messages_that_nobody_has_answered_fill_the_room_and_leave_the_last_answer(service: Service) -> None:
    path = service.conversation(policy={"total_token_budget": 20_000})
    service.append(path, ANN, {"role": "assistant", "content": "e" * 102_000})
    crowd = [{"role": "user", "content": f"{number}: " + "w" * 4_000} for number in range(300)]
    service.append(path, *crowd[:150])
    service.append(path, *crowd[150:])
    stored, _ = served(service, path)
    assert stored["messages"][0] == ANN
    assert stored["tokens"]["context"] > 15_600
    assert len(stored["messages"]) > 90
    kept = [each["content"].split(":")[0] for each in stored["messages"][2:-1]]
    assert kept == [str(number) for number in range(int(kept[0]), 300)]


def test_measured_tokens_are_shown_while_they_hold(service: Service) -> None:
    path = service.conversation()
    service.append(path, HELLO, ANSWER, usage={"input_tokens": 1_234, "output_tokens": 6})
    assert service.client.get(f"{path}/context").json()["tokens"] == {
        "context": 1_240,
        "measured": 1_234,
        "budget": 128_000,
    }
    service.append(path, HELLO)
    tokens = service.client.get(f"{path}/context").json()["tokens"]
    assert (tokens["context"], tokens["measured"]) == (1_240 + 2, 1_234)


def test_head_is_answered_like_get_without_the_body(service: Service) -> None:
    path = service.conversation()
    service.append(path, HELLO)
    full, head = service.client.get(f"{path}/context"), service.client.head(f"{path}/context")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "content-type", "content-length"):
        assert head.headers[name] == full.headers[name]
    assert json.loads(full.content)["messages"] == [HELLO]
