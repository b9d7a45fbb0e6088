"""Breakpoints of the prompt cache in a context's answer: opt-in, at most four, and stable from call to call."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from compaction.cache_marks import without_marks
from compaction.messages import count_marks
from compaction.view import ViewMessage
from tests.api.conversations.test_cache_marks import SYSTEM, marked
from tests.support import talk
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem

if TYPE_CHECKING:
    from runtime.settings import Settings
    from tests.support.blocks import Message
    from tests.support.service.running_api import Service

Answer = dict[str, Any]
BLOCK = {"source": "doc", "title": "Doc", "text": "# Part\nAll of it."}
CUTS = {"input_token_budget": 3_000, "compaction_threshold_tokens": 100_000, "min_savings_tokens": 100}


def context(service: Service, path: str, room: int = 3, **query: Any) -> Answer:
    answer = service.client.get(f"{path}/context", params={"cache_breakpoints": room, **query})
    assert answer.status_code == 200, answer.text
    document: Answer = answer.json()
    return document


def payload(service: Service, path: str, **body: Any) -> Answer:
    answer = service.client.post(f"{path}/context", json={"cache_breakpoints": 4, **body})
    assert answer.status_code == 200, answer.text
    document: Answer = answer.json()
    return document


def places(answer: Answer) -> list[tuple[str, int | None]]:
    return [(each["field"], each["message"]) for each in answer["cache_breakpoints"]]


def prefixes(answer: Answer) -> list[str]:
    """Return what stands up to each breakpoint in the messages; as the API hashes it, without marks."""
    found = []
    for each in answer["cache_breakpoints"]:
        if each["field"] == "messages":
            *before, last = answer["messages"][: each["message"] + 1]
            content = last["content"] if each["block"] is None else last["content"][: each["block"] + 1]
            found.append(json.dumps([*before, last | {"content": content}])[:-3])
    return found


def as_sent(answer: Answer) -> list[Message]:
    """Return the messages with the marks where the answer says that they belong."""
    messages: list[Message] = json.loads(json.dumps(answer["messages"]))
    for each in answer["cache_breakpoints"]:
        if each["field"] == "messages":
            message = messages[each["message"]]
            if each["block"] is None:
                message["content"] = [{"type": "text", "text": message["content"]}]
            message["content"][each["block"] or 0]["cache_control"] = each["cache_control"]
    return messages


def test_nothing_is_said_of_them_unasked(service: Service) -> None:
    path = service.conversation()
    service.append(path, *talk.exchanges(2, 20))
    assert "cache_breakpoints" not in service.client.get(f"{path}/context").json()
    assert "cache_breakpoints" not in service.client.post(f"{path}/context", json={}).json()


def test_consecutive_contexts_have_the_same_bytes_before_each_until_the_head_moves(
    service: Service, module_settings: Settings
) -> None:
    path = service.conversation(policy=CUTS)
    service.append(path, talk.request("find it"))
    before = context(service, path)
    moves = 0
    for number in range(14):
        service.append(path, talk.call(number), talk.result(number, 400))
        work(module_settings, path.rsplit("/", 1)[-1])
        now = context(service, path)
        assert problems(as_sent(now)) == []
        assert len(now["cache_breakpoints"]) <= 3
        assert sum(count_marks(each["content"]) for each in as_sent(now)) == len(now["cache_breakpoints"])
        text = json.dumps(now["messages"])
        if now["snapshot"] == before["snapshot"]:
            assert all(text.startswith(prefix) for prefix in prefixes(before))
            # The newest of the last call is read in this one, and so is the end of the head.
            assert places(before)[-1] in places(now)
            assert now["snapshot"] is None or places(now)[0] == places(before)[0]
        else:
            moves += 1
        before = now
    assert moves >= 1
    assert len(places(before)) == 3


def test_marks_that_are_stored_give_way_to_those_that_belong(service: Service) -> None:
    path = service.conversation(system=SYSTEM)
    messages = [marked(("user", "assistant")[number % 2], f"message {number}") for number in range(7)]
    service.append(path, *messages)
    answer = context(service, path, room=3)
    plain = without_marks([ViewMessage(each["role"], each["content"]) for each in messages])
    assert answer["messages"] == [each.as_message() for each in plain]
    assert places(answer) == [("messages", 4), ("messages", 6)]
    assert places(context(service, path, room=1)) == [("messages", 6)]
    whole = payload(service, path)
    # The system prompt's own mark is one of the four.
    assert whole["system"] == SYSTEM
    assert places(whole) == [("messages", 4), ("messages", 6)]


def test_a_payloads_first_ends_the_system_prompt_and_context_blocks_are_left_out(service: Service) -> None:
    path = service.conversation(system="Be brief.")
    service.append(path, *talk.exchanges(3, 20))
    first = payload(service, path, user_message="And now?")
    assert places(first) == [("system", None), ("messages", 4), ("messages", 6)]
    assert first["cache_breakpoints"][0] == {
        "field": "system",
        "message": None,
        "block": None,
        "cache_control": {"type": "ephemeral"},
    }
    asked = payload(service, path, user_message="And now?", turn_context=[BLOCK])
    assert places(asked) == [("system", None), ("messages", 3), ("messages", 5)]
    service.append(path, {"role": "user", "content": "And now?"}, talk.answer("a"))
    later = payload(service, path, user_message="Then?")
    assert all(json.dumps(later["messages"]).startswith(prefix) for prefix in prefixes(first))
    assert all(json.dumps(later["messages"]).startswith(prefix) for prefix in prefixes(asked))


def test_what_the_guard_left_out_changes_with_each_call(service: Service) -> None:
    path = service.conversation(policy={"total_token_budget": 2_000, "reserved_output_tokens": 100}, system="Be brief.")
    service.append(path, *talk.exchanges(12, 200))
    assert context(service, path)["cache_breakpoints"] == []
    assert places(payload(service, path)) == [("system", None)]


@pytest.mark.parametrize(("seconds", "expected"), [(0, None), (300, {}), (3_600, {"ttl": "1h"})])
def test_the_mark_is_that_of_the_cache_that_the_policy_names(
    service: Service, seconds: int, expected: dict[str, str] | None
) -> None:
    path = service.conversation(policy={"prompt_cache_seconds": seconds})
    service.append(path, *talk.exchanges(1, 20))
    marks = [each["cache_control"] for each in context(service, path)["cache_breakpoints"]]
    assert marks == ([] if expected is None else [{"type": "ephemeral"} | expected])
    assert len(payload(service, path)["cache_breakpoints"]) == len(marks)


@pytest.mark.parametrize("shape", ["chat", "responses"])
def test_a_shape_without_breakpoints_says_that_it_has_none(service: Service, shape: str) -> None:
    path = service.conversation()
    service.append(path, *talk.exchanges(1, 20))
    assert context(service, path, shape=shape)["cache_breakpoints"] is None
    assert payload(service, path, shape=shape)["cache_breakpoints"] is None


def test_an_entity_tag_stands_for_the_answer_with_breakpoints(service: Service) -> None:
    path = service.conversation()
    service.append(path, *talk.exchanges(1, 20))
    plain = service.client.get(f"{path}/context").headers["etag"]
    query = {"cache_breakpoints": 3}
    tag = service.client.get(f"{path}/context", params=query).headers["etag"]
    assert tag != plain
    statuses = [
        service.client.get(f"{path}/context", params=asked, headers={"if-none-match": given}).status_code
        for asked, given in ((query, tag), ({}, plain), (query, plain), ({}, tag), ({"cache_breakpoints": 2}, tag))
    ]
    assert statuses == [304, 304, 200, 200, 200]


@pytest.mark.parametrize("given", ["0", "5", "-1", "three", "1.0", ""])
def test_a_number_that_is_none_is_refused(service: Service, given: str) -> None:
    path = service.conversation()
    answer = service.client.get(f"{path}/context", params={"cache_breakpoints": given})
    assert problem(answer, 422, "invalid", "cache_breakpoints")["status"] == 422
    if given.lstrip("-").isdigit():
        answer = service.client.post(f"{path}/context", json={"cache_breakpoints": int(given)})
        assert problem(answer, 422, "invalid", "/cache_breakpoints")["status"] == 422
