"""POST …/context: the whole payload over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cli.local.embedded import free_port
from compaction.policy import reserved_output
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import running_api
from tests.support.talk import chat

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.service.running_api import Service

BLOCK = {"source": "doc", "title": "Doc", "text": "# Part\n" + "word " * 800}


def policy(budget: int) -> dict[str, Any]:
    return {"total_token_budget": budget, "reserved_output_tokens": 100, "input_token_budget": 0}


def payload(service: Service, path: str, **body: Any) -> dict[str, Any]:
    answer = service.client.post(f"{path}/context", json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    if document["messages"]:
        assert problems(document["messages"]) == []
    assert sum(document["layers"].values()) == document["total"]
    return document


def test_everything_is_there_while_it_fits(service: Service) -> None:
    path = service.conversation(system="Be brief.", policy=policy(20_000))
    sent = chat(10, 400)
    service.append(path, *sent)
    served = payload(service, path, turn_context=[BLOCK], user_message="And now?")
    assert served["system"] == "Be brief."
    assert served["messages"][:-1] == sent
    context, question = served["messages"][-1]["content"]
    assert BLOCK["text"] in context["text"]
    assert question == {"type": "text", "text": "And now?"}
    assert served["warnings"] == []
    assert served["history"] == {
        "exchanges_total": 10,
        "exchanges_kept": 10,
        "exchanges_dropped": 0,
        "responses_truncated": 0,
    }


def test_output_that_the_call_asks_for_is_reserved(service: Service) -> None:
    path = service.conversation(policy=policy(6_000))
    service.append(path, *chat(20, 400))
    served = payload(service, path, user_message="And now?", max_output_tokens=3_000)
    assert served["reserved_output"] == 3_000
    assert served["total"] <= 3_000
    more = payload(service, path, user_message="And now?")
    assert more["total"] > served["total"]
    # More than the whole budget takes nothing away from the history.
    for asked in (6_000, 262_144):
        wished = payload(service, path, user_message="And now?", max_output_tokens=asked)
        assert (wished["messages"], wished["reserved_output"]) == (more["messages"], 100)
        assert any(
            warning.startswith(f"max_output_tokens ({asked:,}) leaves nothing") for warning in wished["warnings"]
        )


def test_output_that_the_newest_turn_asked_for_is_reserved(service: Service) -> None:
    path = service.conversation(policy=policy(6_000))
    service.append(path, *chat(20, 400))
    before = payload(service, path, user_message="And now?")

    def served_after(asked: int) -> tuple[int, int]:
        turn = {"messages": [{"role": "user", "content": "More."}, {"role": "assistant", "content": "Yes."}]}
        answer = service.client.post(f"{path}/turns", json={**turn, "max_output_tokens": asked})
        assert answer.status_code == 201
        made = payload(service, path, user_message="And now?")
        context = service.client.get(f"{path}/context").json()["messages"]
        return made["reserved_output"], sum(len(str(each["content"])) for each in context) // 4

    reserved, large = served_after(2_500)
    assert (reserved, large <= 3_500) == (2_500, True)
    reserved, small = served_after(1_000)
    assert (reserved, large < small <= 5_000) == (1_000, True)
    # A turn that does not say changes nothing, and what the call itself says counts.
    service.append(path, *chat(1, 10))
    assert payload(service, path)["reserved_output"] == 1_000
    assert payload(service, path, max_output_tokens=2_000)["reserved_output"] == 2_000
    # All that a model can write is no wish for so long an answer.
    reserved, whole = served_after(262_144)
    assert (reserved, whole >= before["layers"]["history"] - 400) == (before["reserved_output"], True)


@pytest.mark.parametrize(
    ("asked", "budget", "default"),
    [
        (None, 6_000, 100),
        (1, 6_000, 100),
        (3_000, 6_000, 100),
        (3_001, 6_000, 100),
        (2_500, 5_001, 7),
        (2_501, 5_001, 7),
    ],
)
def test_database_and_domain_reserve_the_same(service: Service, asked: int | None, budget: int, default: int) -> None:
    with psycopg.connect(service.settings.database_url.get_secret_value()) as connection:
        (there,) = connection.execute("select reserved_output(%s, %s, %s)", (asked, budget, default)).fetchone() or ()
    assert there == reserved_output(asked, budget, default)


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
    served = payload(service, path, user_message={"role": "user", "content": "And now?"})
    assert served["total"] + served["reserved_output"] <= budget == served["budget"]
    kept = served["history"]["exchanges_kept"]
    assert served["messages"][:-1] == sent[-2 * kept :]
    assert served["history"]["exchanges_dropped"] == 40 - kept > 0
    assert served["warnings"] == [
        f"the oldest {40 - kept} of 40 exchanges were left out to fit the token budget",
        f"left out to fit the token budget: messages 0-{2 * (40 - kept) - 1}",
    ]
    assert served["total"] + served["reserved_output"] + 210 > budget - 210


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


def agent_round(number: int, chars: int) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": f"t{number}", "name": "run", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"{number} " + "o" * chars}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def context(service: Service, path: str) -> dict[str, Any]:
    body: dict[str, Any] = service.client.get(f"{path}/context").json()
    assert problems(body["messages"]) == []
    return body


@pytest.mark.requirement("P7")
def test_a_loops_request_is_there_though_a_snapshot_covers_it_and_the_rounds_after_it_are_too_many(
    service: Service, module_settings: Settings
) -> None:
    compacting = {"input_token_budget": 300, "min_savings_tokens": 10}
    path = service.conversation(policy={**compacting, "compaction_enabled": False})
    request = {"role": "user", "content": "Fix the bug."}
    service.append(path, {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}, request)
    for number in range(6):
        service.append(path, *agent_round(number, 2_000))
    work(module_settings, path)
    covered = service.client.get(f"{path}/snapshots/1").json()
    assert covered["covers_through"] > 2
    service.client.patch(path, json={"policy": policy(4_000)})
    for number in range(6, 30):
        service.append(path, *agent_round(number, 2_000))
    for found in (payload(service, path), context(service, path)):
        assert found["messages"][0] == request
        assert found["messages"][-1]["content"][0]["tool_use_id"] == "t29"
        assert 3 <= len(found["messages"]) < 20
        assert any("older tool rounds" in warning for warning in found["warnings"])
        assert any("the oldest 1 of 2 exchanges" in warning for warning in found["warnings"])


@pytest.mark.requirement("P9", "P13")
@pytest.mark.parametrize("compactors", ["off", "away", "at work"])
def test_the_guard_is_the_last_net_whatever_the_other_compactors_do(
    service: Service, module_settings: Settings, compactors: str
) -> None:
    """Off in the policy; on, but no worker comes; done, and still over the total."""
    off = {"input_token_budget": 0, "compaction_enabled": False, "compaction_threshold_tokens": 10**8}
    on = {"input_token_budget": 500, "compaction_threshold_tokens": 1_500, "min_savings_tokens": 10}
    limits = {"total_token_budget": 1_500, "reserved_output_tokens": 100}
    path = service.conversation(system="s" * 400, policy={**limits, **(off if compactors == "off" else on)})
    for number in range(12):
        service.append(path, *chat(2, 600), *chat(1, 20)[:1], *agent_round(number, 1_200))
        if compactors == "at work":
            work(module_settings, path)
    last = chat(1, 20)[0]
    service.append(path, last)
    head = service.client.get(path).json()["head_version"]
    assert (head > 0) == (compactors == "at work")
    for found, tokens in (
        (assembled := payload(service, path), assembled["total"]),
        (read := context(service, path), read["tokens"]["context"]),
    ):
        assert tokens <= 1_400
        assert found["messages"][-1] == last
        assert not any("over the budget" in warning for warning in found["warnings"])


@pytest.mark.requirement("P12")
def test_no_broker_no_worker_and_no_model_has_a_part_in_it(
    make_settings: Callable[..., Settings], tenant: Tenant
) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    settings = make_settings(
        broker_url=f"redis://{nowhere}/0",
        summarizer="anthropic",
        anthropic_api_key="sk-nobody",
        anthropic_base_url=f"http://{nowhere}",
    )
    with running_api(settings) as api, api.client(tenant.key) as client:
        assert client.get("/readyz").json()["services"]["broker"] != "ok"
        body = client.post("/v1/conversations", json={"system": "s" * 400, "policy": policy(4_000)}).json()
        path = f"/v1/conversations/{body['id']}"
        appended = client.post(f"{path}/turns", json={"messages": chat(40, 400)})
        assert (appended.status_code, appended.json()["check"]) == (201, "deferred")
        block = {"source": "doc", "title": "Doc", "text": "# Part\n" + "word " * 20_000}
        document = client.post(f"{path}/context", json={"turn_context": [block], "user_message": "And now?"}).json()
        assert problems(document["messages"]) == []
        assert document["total"] + document["reserved_output"] <= 4_000
        assert document["history"]["exchanges_dropped"] > 0
        read = client.get(f"{path}/context").json()
        assert problems(read["messages"]) == []
        assert read["tokens"]["context"] <= 3_900


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"user_message": {"role": "assistant", "content": "x"}}, "/user_message"),
        ({"user_message": "  "}, "/user_message"),
        ({"user_message": [{"type": "text"}]}, "/user_message/0/text"),
        (
            {"user_message": {"role": "user", "content": [{"type": "tool_result"}]}},
            "/user_message/content/0/tool_use_id",
        ),
        ({"user_message": {"role": "user", "content": []}}, "/user_message/content"),
        ({"max_output_tokens": 0}, "/max_output_tokens"),
        ({"turn_context": [{"source": "a"}]}, "/turn_context/0/text"),
        ({"other": 1}, "/other"),
    ],
)
def test_a_body_that_cannot_be_taken(service: Service, body: dict[str, Any], pointer: str) -> None:
    answer = service.client.post(f"{service.conversation()}/context", json=body)
    assert (answer.status_code, answer.json()["pointer"]) == (422, pointer)


ORPHAN = {"type": "tool_result", "tool_use_id": "x", "content": "y"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
HISTORIES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "answered": chat(1, 10),
    "asked": chat(1, 10)[:1],
    "an open call": [*chat(1, 10)[:1], agent_round(0, 10)[0]],
    "an answered call": [*chat(1, 10)[:1], *agent_round(0, 10)],
}


@pytest.mark.parametrize("block", [ORPHAN, THOUGHT], ids=["result", "thinking"])
@pytest.mark.parametrize("history", HISTORIES)
def test_a_message_of_which_nothing_can_follow_the_history_is_refused(
    service: Service, history: str, block: dict[str, Any]
) -> None:
    path = service.conversation()
    if sent := HISTORIES[history]:
        service.append(path, *sent)
    problem(service.client.post(f"{path}/context", json={"user_message": [block]}), 422, "invalid", "/user_message")
    said = {"type": "text", "text": "And now?"}
    for given in ([block, said], [said, block]):
        last = payload(service, path, user_message=given)["messages"][-1]
        assert last["role"] == "user"
        assert last["content"][-1] == said
        assert block not in last["content"]


def test_a_result_that_is_awaited_is_the_users_message(service: Service) -> None:
    path = service.conversation()
    service.append(path, *HISTORIES["an open call"])
    result = agent_round(0, 10)[1]
    assert payload(service, path, user_message=result)["messages"] == [*HISTORIES["an open call"], result]
