"""POST …/context: the whole payload over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.messages_api import problems

if TYPE_CHECKING:
    from tests.running_api import Service

BLOCK = {"source": "doc", "title": "Doc", "text": "# Part\n" + "word " * 800}


def chat(count: int, chars: int) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": f"{role} {number} " + "x" * chars}
        for number in range(count)
        for role in ("user", "assistant")
    ]


def policy(budget: int) -> dict[str, Any]:
    return {"total_token_budget": budget, "reserved_output_tokens": 100, "input_token_budget": 0}


def payload(service: Service, path: str, **body: Any) -> dict[str, Any]:
    answer = service.client.post(f"{path}/context", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    if found["messages"]:
        assert problems(found["messages"]) == []
    assert sum(found["layers"].values()) == found["total"]
    return found


def test_everything_is_there_while_it_fits(service: Service) -> None:
    path = service.conversation(system="Be brief.", policy=policy(20_000))
    sent = chat(10, 400)
    service.append(path, *sent)
    found = payload(service, path, turn_context=[BLOCK], user_message="And now?")
    assert found["system"] == "Be brief."
    assert found["messages"][:-1] == sent
    context, question = found["messages"][-1]["content"]
    assert BLOCK["text"] in context["text"]
    assert question == {"type": "text", "text": "And now?"}
    assert found["warnings"] == []
    assert found["history"] == {
        "exchanges_total": 10,
        "exchanges_kept": 10,
        "exchanges_dropped": 0,
        "responses_truncated": 0,
    }


def test_a_conversation_without_messages(service: Service) -> None:
    path = service.conversation()
    assert payload(service, path)["messages"] == []
    assert payload(service, path, user_message="Hi")["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.requirement("P1", "P5", "P6", "P14")
@pytest.mark.parametrize("budget", [1_000, 1_500, 2_500, 4_000, 6_000])
def test_history_gives_way_by_whole_exchanges(service: Service, budget: int) -> None:
    path = service.conversation(system="s" * 400, policy=policy(budget))
    sent = chat(40, 400)
    service.append(path, *sent)
    found = payload(service, path, user_message={"role": "user", "content": "And now?"})
    assert found["total"] + found["reserved_output"] <= budget == found["budget"]
    kept = found["history"]["exchanges_kept"]
    assert found["messages"][:-1] == sent[-2 * kept :]
    assert found["history"]["exchanges_dropped"] == 40 - kept > 0
    assert found["warnings"] == [f"the oldest {40 - kept} of 40 exchanges were left out to fit the token budget"]
    assert found["total"] + found["reserved_output"] + 210 > budget - 210


def test_a_long_loop_keeps_its_request_and_its_newest_round(service: Service) -> None:
    path = service.conversation(policy=policy(4_000))
    service.append(path, {"role": "user", "content": "Fix the bug."})
    for number in range(30):
        call = {"type": "tool_use", "id": f"t{number}", "name": "run", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"{number} " + "o" * 2_000}
        service.append(path, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]})
    for messages in (payload(service, path)["messages"], service.client.get(f"{path}/context").json()["messages"]):
        assert problems(messages) == []
        assert messages[0] == {"role": "user", "content": "Fix the bug."}
        assert messages[-1] == {"role": "user", "content": [result]}
        assert 3 <= len(messages) < 20


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"user_message": {"role": "assistant", "content": "x"}}, "/user_message"),
        ({"user_message": "  "}, "/user_message"),
        ({"user_message": [{"type": "text"}]}, "/user_message/0/text"),
        ({"max_output_tokens": 0}, "/max_output_tokens"),
        ({"turn_context": [{"source": "a"}]}, "/turn_context/0/text"),
        ({"other": 1}, "/other"),
    ],
)
def test_a_body_that_cannot_be_taken(service: Service, body: dict[str, Any], pointer: str) -> None:
    answer = service.client.post(f"{service.conversation()}/context", json=body)
    assert (answer.status_code, answer.json()["pointer"]) == (422, pointer)


def test_anothers_conversation_is_not_there(service: Service) -> None:
    path = service.conversation()
    assert service.stranger.post(f"{path}/context", json={}).status_code == 404
