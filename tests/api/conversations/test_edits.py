"""Edits, regenerated answers, forks and restores over HTTP: what the context shows, and what the audit keeps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from runtime import ids
from tests.support.eventually import eventually
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.talk import call, look_up, request, result

if TYPE_CHECKING:
    from runtime.settings import Settings
    from tests.support.service.running_api import Service

SMALL = {"input_token_budget": 300, "min_savings_tokens": 10}


def context(service: Service, path: str) -> dict[str, Any]:
    body: dict[str, Any] = service.client.get(f"{path}/context").json()
    assert problems(body["messages"]) == []
    return body


def test_an_edit_replaces_in_the_context_and_keeps_in_the_audit(service: Service) -> None:
    path = service.conversation()
    service.append(path, *look_up(0), *look_up(1))
    answer = service.client.post(
        f"{path}/turns", json={"messages": [{"role": "user", "content": "Edited"}], "replace_from": 4}
    )
    assert answer.status_code == 201
    assert (answer.json()["first_seq"], answer.json()["last_seq"]) == (8, 8)
    served = context(service, path)
    assert served["messages"] == [*look_up(0), {"role": "user", "content": "Edited"}]
    stored = service.client.get(f"{path}/messages").json()["data"]
    assert [row["content"] for row in stored[:8]] == [m["content"] for m in [*look_up(0), *look_up(1)]]
    assert [row["superseded_at"] is not None for row in stored] == [False] * 4 + [True] * 4 + [False]
    assert service.client.get(f"{path}/messages/5").json()["fate"] == "superseded"


def test_an_edit_before_a_snapshots_end_goes_back_to_a_snapshot_that_still_holds(
    service: Service, module_settings: Settings
) -> None:
    path = service.conversation(policy=SMALL)
    service.append(path, *look_up(0), *look_up(1))
    work(module_settings, path)
    first = context(service, path)["snapshot"]
    service.append(path, *look_up(2), *look_up(3))
    work(module_settings, path)
    second = context(service, path)["snapshot"]
    assert second["version"] > first["version"]
    answer = service.client.post(
        f"{path}/turns",
        json={"messages": [{"role": "user", "content": "Edited"}], "replace_from": 8},
    )
    assert answer.status_code == 201
    assert second["covers_through"] >= 8
    served = context(service, path)
    assert served["snapshot"] == first
    assert served["messages"][-1] == {"role": "user", "content": "Edited"}
    assert served["last_seq"] == 16


def test_replacing_beyond_the_end_is_refused_and_nothing_is_written(service: Service) -> None:
    path = service.conversation()
    service.append(path, *look_up(0))
    answer = service.client.post(
        f"{path}/turns", json={"messages": [{"role": "user", "content": "x"}], "replace_from": 5}
    )
    assert answer.status_code == 422
    assert answer.json()["pointer"] == "/replace_from"
    assert context(service, path)["last_seq"] == 3


def test_a_regenerated_answer_takes_the_place_of_the_old_one(service: Service) -> None:
    path = service.conversation()
    service.append(path, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "First"})
    again = {"messages": [{"role": "assistant", "content": "Second"}], "replace_from": 1}
    assert service.client.post(f"{path}/turns", json=again).status_code == 201
    assert [message["content"] for message in context(service, path)["messages"]] == ["Hi", "Second"]


def test_a_fork_has_the_same_past_and_its_own_future(service: Service, module_settings: Settings) -> None:
    path = service.conversation(policy=SMALL)
    service.append(path, *look_up(0), *look_up(1))
    work(module_settings, path)
    before = context(service, path)
    answer = service.client.post(f"{path}/fork", json={"through_seq": 7})
    assert answer.status_code == 201
    copy = f"/v1/conversations/{answer.json()['id']}"
    forked = context(service, copy)
    assert forked["messages"] == before["messages"]
    assert forked["snapshot"] == before["snapshot"]
    assert forked["tokens"] == before["tokens"]
    service.append(copy, {"role": "user", "content": "Only here"})
    assert context(service, path)["messages"] == before["messages"]
    shorter = service.client.post(f"{path}/fork", json={"through_seq": 3}).json()
    assert context(service, f"/v1/conversations/{shorter['id']}")["messages"] == before["messages"][:4]
    assert service.client.post(f"{path}/fork", json={"through_seq": 99}).status_code == 422


@pytest.mark.parametrize("compacted", [False, True])
def test_a_fork_has_the_thinking_that_nothing_has_changed_before(
    service: Service, module_settings: Settings, *, compacted: bool
) -> None:
    path = service.conversation(policy=SMALL)
    service.append(path, *look_up(0), *look_up(1))
    if compacted:
        work(module_settings, path)
    loop = [request("look"), call(2, thinking=True), result(2, 20), call(3, thinking=True)]
    service.append(path, *loop, result(3, 20), snapshot_version=int(compacted))
    before = context(service, path)
    assert str(before["messages"]).count("'thinking'") == 4
    for through, messages in ((12, before["messages"]), (10, before["messages"][:-2])):
        answer = service.client.post(f"{path}/fork", json={"through_seq": through})
        forked = context(service, f"/v1/conversations/{answer.json()['id']}")
        assert (forked["messages"], forked["warnings"]) == (messages, [])


def test_no_past_ends_at_a_message_that_was_replaced_and_none_is_pinned(service: Service) -> None:
    path = service.conversation()
    service.append(path, *look_up(0))
    service.append(path, {"role": "user", "content": "Anew"}, replace_from=0)
    *_, newest = service.client.get(f"{path}/messages", params={"after": -1}).json()["data"]
    for seq in range(newest["seq"]):
        forked = problem(service.client.post(f"{path}/fork", json={"through_seq": seq}), 422, "invalid", "/through_seq")
        pinned = problem(service.client.post(f"{path}/pins", json={"seq": seq}), 422, "invalid", "/seq")
        assert forked["detail"] == pinned["detail"]
    assert service.client.post(f"{path}/fork", json={"through_seq": newest["seq"]}).status_code == 201
    assert service.client.post(f"{path}/pins", json={"seq": newest["seq"]}).status_code == 201


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_fork_has_no_external_id_that_another_conversation_is_given_meanwhile(service: Service, outcome: str) -> None:
    path, name = service.conversation(), uuid4().hex
    service.append(path, *look_up(0))
    body = {"through_seq": 3, "external_id": name}
    waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with (
        psycopg.connect(service.database_url, autocommit=True) as watch,
        psycopg.connect(service.database_url) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("select set_config('app.tenant_id', %s, true)", [str(service.tenant_id)])
        other.execute(
            "insert into conversations (id, tenant_id, external_id) values (%s, %s, %s)",
            [ids.new_id(), service.tenant_id, name],
        )
        sent = pool.submit(service.client.post, f"{path}/fork", json=body)
        eventually(lambda: watch.execute(waiting).fetchone() is not None)
        getattr(other, outcome)()
        answer = sent.result()
    if outcome == "rollback":
        assert answer.status_code == 201
        answer = service.client.post(f"{path}/fork", json=body)
    problem(answer, 409, "external_id_taken", "/external_id")


def test_a_restore_shows_the_old_version_and_is_left_alone(service: Service, module_settings: Settings) -> None:
    path = service.conversation(policy=SMALL)
    service.append(path, *look_up(0), *look_up(1))
    original = [*look_up(0), *look_up(1)]
    work(module_settings, path)
    compacted = context(service, path)
    assert compacted["messages"] != original
    answer = service.client.post(f"{path}/restore", json={"version": 0})
    assert answer.status_code == 200
    assert context(service, path)["messages"] == original
    service.append(path, {"role": "user", "content": "Go on"})
    work(module_settings, path)
    assert context(service, path)["messages"] == [*original, {"role": "user", "content": "Go on"}]
    back = service.client.post(f"{path}/restore", json={"version": compacted["snapshot"]["version"]})
    assert back.status_code == 200
    assert context(service, path)["messages"][: len(compacted["messages"])] == compacted["messages"]
    runs = service.client.get(f"{path}/runs").json()["data"]
    assert [run["trigger"] for run in runs] == ["restore", "restore", "check"]
    for dry_run in (False, True):
        unknown = service.client.post(f"{path}/restore", json={"version": 77, "dry_run": dry_run})
        assert (unknown.status_code, unknown.json()["pointer"]) == (404, "/version")


@pytest.mark.parametrize("policy", [{}, SMALL])
def test_a_policy_that_is_sent_again_leaves_a_restore_alone(
    service: Service, module_settings: Settings, policy: dict[str, Any]
) -> None:
    path = service.conversation(policy=SMALL)
    service.append(path, *look_up(0), *look_up(1))
    work(module_settings, path)
    assert service.client.post(f"{path}/restore", json={"version": 0}).status_code == 200
    work(module_settings, path)
    before = context(service, path)
    assert service.client.patch(path, json={"policy": policy}).status_code == 200
    work(module_settings, path)
    assert context(service, path) == before
    assert service.client.patch(path, json={"policy": {"min_savings_tokens": 1}}).status_code == 200
    work(module_settings, path)
    assert context(service, path) != before


def test_a_version_that_shows_replaced_messages_cannot_come_back(service: Service, module_settings: Settings) -> None:
    path = service.conversation(policy=SMALL)
    service.append(path, *look_up(0), *look_up(1))
    work(module_settings, path)
    version = context(service, path)["snapshot"]["version"]
    edit = {"messages": [{"role": "user", "content": "Edited"}], "replace_from": 0}
    assert service.client.post(f"{path}/turns", json=edit).status_code == 201
    assert context(service, path)["messages"] == edit["messages"]
    answer = service.client.post(f"{path}/restore", json={"version": version})
    assert (answer.status_code, answer.json()["code"]) == (409, "superseded")
