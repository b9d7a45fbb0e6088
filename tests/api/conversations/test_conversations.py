"""Conversations over HTTP: made, found again, listed, changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from compaction.policy import FIELDS, Policy
from tests.support.eventually import eventually
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import conversation_at

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

TOOLS = [{"name": "look", "input_schema": {"type": "object", "properties": {"é": {"type": "number"}}}}]
SYSTEM = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]


def test_a_conversation_is_made_with_what_was_said(service: Service) -> None:
    wanted = {
        "external_id": uuid4().hex,
        "user_ref": "user/7",
        "model": "claude-opus-4-5",
        "system": SYSTEM,
        "tools": TOOLS,
        "metadata": {"plan": "pro", "n": 1.5, "none": None},
    }
    response = service.client.post("/v1/conversations", json={**wanted, "policy": {"input_token_budget": 20_000}})
    assert response.status_code == 201
    conversation = response.json()
    assert {name: conversation[name] for name in wanted} == wanted
    assert conversation["policy_overrides"] == {"input_token_budget": 20_000}
    assert list(conversation["policy"]) == list(FIELDS)
    assert conversation["policy"]["input_token_budget"] == 20_000
    assert conversation["policy"]["compaction_threshold_tokens"] == Policy().compaction_threshold_tokens
    assert conversation["created_at"].endswith("Z")
    counters = ("last_seq", "head_version", "pending_version", "context_tokens", "context_messages", "check_due_at")
    assert [conversation[name] for name in counters] == [-1, 0, None, 25, 0, None]  # the system prompt and the tools
    assert conversation["warnings"] == []
    body = service.client.get(f"/v1/conversations/{conversation['id']}").json()
    assert body == conversation | {"last_assembly": None}


def test_a_conversation_needs_nothing_said(service: Service) -> None:
    body = service.client.post("/v1/conversations", json={}).json()
    nothing = ("external_id", "user_ref", "model", "system", "tools")
    assert [body[name] for name in nothing] == [None] * 5
    assert body["metadata"] == body["policy_overrides"] == {}


def test_the_same_external_id_answers_with_the_one_there_is(service: Service) -> None:
    name = uuid4().hex
    first = service.client.post("/v1/conversations", json={"external_id": name, "model": "first"})
    again = service.client.post("/v1/conversations", json={"external_id": name, "model": "second"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    stranger = service.stranger.post("/v1/conversations", json={"external_id": name})
    assert stranger.status_code == 201
    assert stranger.json()["id"] != first.json()["id"]


def test_of_creations_at_once_one_makes_it(service: Service) -> None:
    name = uuid4().hex

    def create(number: int) -> Any:
        return service.client.post("/v1/conversations", json={"external_id": name, "metadata": {"n": number}})

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(create, range(24)))
    assert sorted(answer.status_code for answer in answers) == [200] * 23 + [201]
    (made,) = (answer.json() for answer in answers if answer.status_code == 201)
    assert all(answer.json() == made for answer in answers)


BAD: list[tuple[Any, str]] = [
    ([], ""),
    ({"externalid": "x"}, "/externalid"),
    ({"external_id": ""}, "/external_id"),
    ({"external_id": "x" * 513}, "/external_id"),
    ({"external_id": "a\x00"}, "/external_id"),
    ({"user_ref": 5}, "/user_ref"),
    ({"system": 5}, "/system"),
    ({"system": ["x"]}, "/system/0"),
    ({"tools": [{}, "x"]}, "/tools/1"),
    ({"tools": [{"name": "\x00"}]}, "/tools/0/name"),
    ({"metadata": []}, "/metadata"),
    ({"metadata": {"a/b": {"~": "\x00"}}}, "/metadata/a~1b/~0"),
    ({"policy": {"x/y": 1}}, "/policy/x~1y"),
    ({"policy": {"input_token_budget": -1}}, "/policy/input_token_budget"),
    ({"policy": {"input_token_budget": "1"}}, "/policy/input_token_budget"),
    ({"policy": {"trim_threshold_ratio": 0}}, "/policy/trim_threshold_ratio"),
    ({"policy": {"model_context_tokens": 1_000}}, "/policy/model_context_tokens"),
    (
        {"policy": {"total_token_budget": 5_000, "reserved_output_tokens": 5_000}},
        "/policy/reserved_output_tokens",
    ),
]


@pytest.mark.parametrize(("body", "pointer"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_that_cannot_be_taken_is_pointed_at(service: Service, body: Any, pointer: str) -> None:
    problem(service.client.post("/v1/conversations", json=body), 422, "invalid", pointer)
    if "external" in pointer:
        return
    path = service.conversation()
    before = service.client.get(path).json()
    assert service.client.patch(path, json=body).status_code == 422
    assert service.client.get(path).json() == before


def test_numbers_of_any_size_come_back(service: Service) -> None:
    big = {"n": 123456789012345678901234567890, "f": 1e300}
    path = service.conversation(metadata=big, system=[big])
    body = service.client.get(path).json()
    assert body["metadata"]["n"] == big["n"]
    assert float(body["metadata"]["f"]) == big["f"]  # kept as a decimal, so it comes back with all its digits
    assert body["system"] == [big]


def test_a_change_touches_what_is_named(service: Service) -> None:
    path = service.conversation(model="a", system="Be brief.", metadata={"k": 1}, policy={"min_savings_tokens": 5})
    before = service.client.get(path).json()
    assert before.pop("last_assembly") is None
    assert service.client.patch(path, json={}).json() == before
    after = service.client.patch(path, json={"model": None, "tools": TOOLS, "metadata": {"other": 2}}).json()
    assert (before["context_tokens"], after["context_tokens"]) == (3, 25)
    assert after == {**before, "model": None, "tools": TOOLS, "metadata": {"other": 2}, "context_tokens": 25}
    problem(service.client.patch(path, json={"external_id": "x"}), 422, "invalid", "/external_id")
    problem(service.client.patch(path, json={"policy": []}), 422, "invalid", "/policy")
    problem(service.stranger.patch(path, json={"model": "mine"}), 404, "not_found")
    assert service.client.get(path).json() == after | {"last_assembly": None}


def test_a_policy_is_merged_key_by_key_and_null_takes_an_override_away(service: Service) -> None:
    path = service.conversation(policy={"min_savings_tokens": 5})
    after = service.client.patch(path, json={"policy": {"input_token_budget": 1_000}}).json()
    assert after["policy_overrides"] == {"min_savings_tokens": 5, "input_token_budget": 1_000}
    assert after["check_due_at"] is not None
    after = service.client.patch(
        path, json={"policy": {"min_savings_tokens": None, "total_token_budget": 9_000}}
    ).json()
    assert after["policy_overrides"] == {"input_token_budget": 1_000, "total_token_budget": 9_000}
    assert after["policy"]["min_savings_tokens"] == Policy().min_savings_tokens
    for nothing in ({}, {"min_savings_tokens": None}):
        assert (
            service.client.patch(path, json={"policy": nothing}).json()["policy_overrides"] == after["policy_overrides"]
        )
    # What is new is held against what stays.
    response = service.client.patch(path, json={"policy": {"reserved_output_tokens": 9_000}})
    problem(response, 422, "invalid", "/policy/reserved_output_tokens")
    problem(service.client.patch(path, json={"policy": {"nonsense": None}}), 422, "invalid", "/policy/nonsense")
    assert service.client.get(path).json()["policy_overrides"] == after["policy_overrides"]
    assert service.client.patch(path, json={"policy": None}).json()["policy_overrides"] == {}


def test_lists_go_both_ways(service: Service) -> None:
    user = uuid4().hex
    items = [service.conversation(user_ref=user).rpartition("/")[2] for _ in range(5)]
    service.conversation(user_ref="somebody else")

    def page(**query: Any) -> tuple[list[str], bool]:
        answer = service.client.get("/v1/conversations", params={"user_ref": user, **query}).json()
        entries = [each["id"] for each in answer["data"]]
        assert (answer["first_id"], answer["last_id"]) == ((entries[0], entries[-1]) if entries else (None, None))
        return entries, answer["has_more"]

    newest = items[::-1]
    assert page() == (newest, False)
    assert page(limit=2) == (newest[:2], True)
    assert page(limit=2, after_id=newest[1]) == (newest[2:4], True)
    assert page(limit=2, after_id=newest[3]) == (newest[4:], False)
    assert page(limit=2, after_id=newest[4]) == ([], False)
    assert page(limit=2, before_id=newest[4]) == (newest[2:4], True)
    assert page(limit=2, before_id=newest[2]) == (newest[:2], False)
    assert service.stranger.get("/v1/conversations", params={"user_ref": user}).json()["data"] == []


def test_changes_at_once_do_not_undo_each_other(service: Service) -> None:
    path = service.conversation(model="claude-3-opus")
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    policy, model = {"total_token_budget": 50_000}, "claude-opus-4-6"
    with (
        psycopg.connect(service.database_url, autocommit=True) as watch,
        psycopg.connect(service.database_url) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        other.execute("select from conversations where id = %s for update", [conversation_at(path)])
        sent = []
        for body in ({"policy": policy}, {"model": model}):
            sent.append(pool.submit(service.client.patch, path, json=body))
            eventually(lambda: watch.execute(waiting).fetchone() == (len(sent),))
        other.rollback()
        assert [each.result().status_code for each in sent] == [200, 200]
    document = service.client.get(path).json()
    assert (document["policy_overrides"], document["model"]) == (policy, model)


def test_one_is_found_by_its_external_id(service: Service) -> None:
    name = f"chat/ü {uuid4().hex}"
    path = service.conversation(external_id=name, system="Be brief.")
    (found,) = service.client.get("/v1/conversations", params={"external_id": name}).json()["data"]
    assert path.endswith(found["id"])
    assert "system" not in found
    assert service.stranger.get("/v1/conversations", params={"external_id": name}).json()["data"] == []


@pytest.mark.parametrize(
    ("query", "status", "code", "pointer"),
    [
        ("limit=0", 422, "invalid", "limit"),
        ("limit=101", 422, "invalid", "limit"),
        ("limit=ten", 422, "invalid", "limit"),
        ("limit=", 422, "invalid", "limit"),
        ("user_ref=%00", 422, "invalid", "user_ref"),
        ("extenral_id=x", 422, "invalid", "extenral_id"),
        ("after_id=x", 400, "bad_cursor", "after_id"),
        ("before_id=run_0123456789abcdef0123456789abcdef", 400, "bad_cursor", "before_id"),
        ("after_id=a&before_id=b", 400, "bad_cursor", "before_id"),
    ],
)
def test_a_parameter_that_cannot_be_taken_is_named(
    service: Service, query: str, status: int, code: str, pointer: str
) -> None:
    assert problem(service.client.get(f"/v1/conversations?{query}"), status, code, pointer)
