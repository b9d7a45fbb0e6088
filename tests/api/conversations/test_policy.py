"""Policies over HTTP: presets, tenants, windows, contradictions, and what a change does to contexts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from compaction.media.limits import limits_for_model
from compaction.policy import Policy, merge
from compaction.presets import preset
from tests.conftest import make_tenant
from tests.support.blocks import text_block
from tests.support.messages_api import problems
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import Service, running_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from runtime.settings import Settings

HELLO = {"role": "user", "content": "Hello."}


@pytest.fixture(scope="module")
def other(service: Service) -> Iterator[Service]:
    """The same service, its client another tenant's whose policy tests may change."""
    tenant = make_tenant(service.database_url, "changing")
    with service.api.client(tenant.key) as client:
        yield service._replace(tenant_id=tenant.id, client=client)


@pytest.fixture
def changing(other: Service) -> Service:
    """That tenant, with no policy of its own."""
    assert other.client.patch("/v1/tenant", json={"policy": None}).status_code == 200
    return other


def call(identifier: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": identifier, "name": "look", "input": {}}]}


def result(identifier: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": identifier, "content": text}]}


def set_tenant(service: Service, **body: Any) -> dict[str, Any]:
    answer = service.client.patch("/v1/tenant", json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def stored_tokens(service: Service, path: str) -> int:
    with psycopg.connect(service.database_url, autocommit=True) as connection:
        row = connection.execute(
            "select context_tokens from conversations where id = %s", (path.rpartition("_")[2],)
        ).fetchone()
    assert row is not None
    return int(row[0])


# Presets


@pytest.mark.parametrize(
    ("name", "window"), [("claude-sonnet-5", 1_000_000), ("200000", 200_000), ("1m", 1_000_000), ("16k", 16_000)]
)
def test_a_preset_is_shown(service: Service, name: str, window: int) -> None:
    answer = service.client.get(f"/v1/policy-presets/{name}")
    assert answer.status_code == 200
    assert answer.json() == {"window": window, "policy": preset(window)}


def test_a_preset_that_there_is_not(service: Service) -> None:
    assert "tokens" in problem(service.client.get("/v1/policy-presets/gpt-9"), 404, "not_found")["detail"]
    refusal = problem(service.client.get("/v1/policy-presets/15999"), 422, "invalid", "window_or_model")
    assert "16,000" in refusal["detail"]


@pytest.mark.parametrize(
    ("body", "window"),
    [
        ({"policy_preset": "1m"}, 1_000_000),
        ({"policy_preset": 64_000}, 64_000),
        ({"policy_preset": "claude-opus-4-6", "model": "claude-opus-4-5"}, 1_000_000),
        ({"policy_preset": "auto", "model": "claude-opus-4-6"}, 1_000_000),
        ({"policy_preset": "auto", "model": "nobody-knows"}, 200_000),
        ({"policy_preset": "auto"}, 200_000),
        ({"policy_preset": "auto", "policy": {"model_context_tokens": 50_000}}, 50_000),
    ],
)
def test_a_preset_becomes_the_overrides_of_a_conversation(service: Service, body: dict[str, Any], window: int) -> None:
    document = service.client.post("/v1/conversations", json=body).json()
    assert document["policy_overrides"] == preset(window) | body.get("policy", {})
    assert merge(document["policy"]) == merge({**limits_for_model(document["model"]), **preset(window)})
    assert document["warnings"] == []


def test_what_is_named_wins_over_the_preset(service: Service) -> None:
    policy = {"input_token_budget": 7, "prune_deny": ["Read"]}
    path = service.conversation(policy_preset="1m", policy=policy)
    document = service.client.get(path).json()
    assert document["policy_overrides"] == preset(1_000_000) | policy
    changed = service.client.patch(path, json={"policy_preset": "auto"}).json()
    assert changed["policy_overrides"] == preset(200_000) | {"prune_deny": ["Read"]}
    body = {"policy_preset": "auto", "policy": {"input_token_budget": None}}
    expected = {key: value for key, value in changed["policy_overrides"].items() if key != "input_token_budget"}
    assert service.client.patch(path, json=body).json()["policy_overrides"] == expected
    reset = service.client.patch(path, json={"policy_preset": "auto", "policy": None})
    assert reset.status_code == 200
    assert service.client.patch(path, json={"policy": None}).json()["policy_overrides"] == {}


def test_auto_goes_by_the_model_there_will_be(service: Service) -> None:
    path = service.conversation(model="claude-opus-4-6")
    assert service.client.patch(path, json={"policy_preset": "auto"}).json()["policy"]["total_token_budget"] == 640_000
    body = {"policy_preset": "auto", "model": "claude-opus-4-5"}
    assert service.client.patch(path, json=body).json()["policy"]["total_token_budget"] == 128_000


@pytest.mark.parametrize("wanted", ["gpt-9", "", "15k", 15_999, 0, -1, 1.5, None, ["1m"], "200000000"])
def test_a_preset_that_cannot_be_taken_is_pointed_at(service: Service, wanted: Any) -> None:
    if wanted is not None:
        response = service.client.post("/v1/conversations", json={"policy_preset": wanted})
        assert problem(response, 422, "invalid", "/policy_preset")
    changed = service.client.patch(service.conversation(), json={"policy_preset": wanted})
    assert problem(changed, 422, "invalid", "/policy_preset")
    assert problem(service.client.patch("/v1/tenant", json={"policy_preset": wanted}), 422, "invalid", "/policy_preset")


# Windows


@pytest.mark.requirement("O5", "P3")
def test_the_window_follows_the_model_and_the_budget_does_not_O5_P3(service: Service) -> None:
    path = service.conversation(model="claude-opus-4-6")

    def policy(**change: Any) -> tuple[int, int]:
        response = service.client.patch(path, json=change).json()["policy"]
        return response["model_context_tokens"], response["total_token_budget"]

    assert policy() == (1_000_000, 128_000)
    assert policy(model="claude-opus-4-5") == (200_000, 128_000)
    assert policy(policy={"total_token_budget": 90_000}) == (200_000, 90_000)
    assert policy(model="claude-opus-4-6") == (1_000_000, 90_000)
    assert policy(policy={"model_context_tokens": 300_000, "total_token_budget": None}) == (300_000, 128_000)
    assert policy(model="nobody-knows", policy=None) == (200_000, 128_000)


@pytest.mark.requirement("O5")
def test_a_small_window_is_warned_of_and_one_too_small_is_refused_O5(service: Service) -> None:
    path = service.conversation(policy={"model_context_tokens": 32_000, "total_token_budget": 32_000})
    assert service.client.get(path).json()["warnings"] == []
    body = {"policy": {"model_context_tokens": 31_999, "total_token_budget": 20_000}}
    (warning,) = service.client.patch(path, json=body).json()["warnings"]
    assert "31,999" in warning
    assert service.client.get(f"{path}/context").json()["warnings"] == []
    document = service.client.post("/v1/conversations", json={"model": "mine:16k"}).json()
    assert document["policy"]["model_context_tokens"] == 16_000
    assert len(document["warnings"]) == 2  # small, and smaller than the budget
    problem(service.client.post("/v1/conversations", json={"model": "mine:8k"}), 422, "invalid", "/model")
    problem(service.client.patch(path, json={"model": "mine:8k", "policy": None}), 422, "invalid", "/model")
    stated = {"model": "mine:8k", "policy": {"model_context_tokens": 20_000}}
    assert service.client.post("/v1/conversations", json=stated).status_code == 201


def test_a_model_with_another_window_has_the_conversation_checked(service: Service) -> None:
    path = service.conversation(model="claude-opus-4-6")
    assert service.client.patch(path, json={"model": "claude-sonnet-5"}).json()["check_due_at"] is None
    assert service.client.patch(path, json={"model": "claude-opus-4-5"}).json()["check_due_at"] is not None


# The count of turns


@pytest.mark.requirement("P10")
def test_no_count_of_turns_drops_any_P10(service: Service) -> None:
    path = service.conversation()
    for number in range(500):
        service.append(path, {"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": f"{number}!"})
    work(service.settings, path)
    body = service.client.get(f"{path}/context").json()
    assert body["snapshot"] is None
    assert body["warnings"] == []
    assert [message["content"] for message in body["messages"][::2]] == [f"{number}?" for number in range(500)]
    payload = service.client.post(f"{path}/context", json={"user_message": "And?"}).json()
    assert payload["history"]["exchanges_kept"] == payload["history"]["exchanges_total"] == 500
    assert payload["history"]["exchanges_dropped"] == 0
    assert service.client.get(f"{path}/runs").json()["data"] == []


# Validation

BAD: list[tuple[dict[str, Any], str]] = [
    ({"prune_by_moonlight": True}, "/policy/prune_by_moonlight"),
    ({"carried_context_max_tokens": -1}, "/policy/carried_context_max_tokens"),
    ({"inline_tool_tags": "readNote"}, "/policy/inline_tool_tags"),
    ({"inline_tool_tags": ["readNote", "a b"]}, "/policy/inline_tool_tags/1"),
    ({"inline_tool_tags": ["x"] * 101}, "/policy/inline_tool_tags"),
    ({"prune_allow": [""]}, "/policy/prune_allow/0"),
    ({"prune_deny": ["a", "b", 3]}, "/policy/prune_deny/2"),
    ({"prune_soft_share": 0}, "/policy/prune_soft_share"),
    ({"prune_soft_share": 0.6}, "/policy/prune_soft_share"),
    ({"prune_hard_share": 0.2}, "/policy/prune_soft_share"),
    ({"reserved_output_tokens": 128_000}, "/policy/reserved_output_tokens"),
    ({"total_token_budget": 4_096}, "/policy/reserved_output_tokens"),
    ({"model_context_tokens": 15_999}, "/policy/model_context_tokens"),
]


@pytest.mark.parametrize(("policy", "pointer"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_key_that_cannot_be_taken_is_pointed_at(changing: Service, policy: dict[str, Any], pointer: str) -> None:
    problem(changing.client.post("/v1/conversations", json={"policy": policy}), 422, "invalid", pointer)
    problem(changing.client.patch(changing.conversation(), json={"policy": policy}), 422, "invalid", pointer)
    problem(changing.client.patch("/v1/tenant", json={"policy": policy}), 422, "invalid", pointer)
    assert changing.client.get("/v1/tenant").json()["policy_overrides"] == {}


# Tenants


def test_a_tenant_has_a_policy_that_its_conversations_begin_from(changing: Service) -> None:
    before = changing.client.get("/v1/tenant").json()
    assert before["id"] == f"ten_{changing.tenant_id.hex}"
    assert (before["name"], before["policy_overrides"], before["warnings"]) == ("changing", {}, [])
    assert merge(before["policy"]) == Policy()
    policy = {"input_token_budget": 5_000, "prune_deny": ["Read"]}
    after = set_tenant(changing, policy=policy)
    assert after == {**before, "policy": {**before["policy"], **policy}, "policy_overrides": policy}
    assert set_tenant(changing) == after
    assert changing.client.get("/v1/tenant").json() == after
    path = changing.conversation(policy={"prune_deny": []})
    body = changing.client.get(path).json()
    assert (body["policy"]["input_token_budget"], body["policy"]["prune_deny"]) == (5_000, [])
    assert body["policy_overrides"] == {"prune_deny": []}
    assert changing.stranger.get("/v1/tenant").json()["policy_overrides"] == {}


def test_a_tenant_takes_a_preset(changing: Service) -> None:
    after = set_tenant(changing, policy_preset="claude-opus-4-6", policy={"total_token_budget": 300_000})
    assert after["policy_overrides"] == {**preset(1_000_000), "total_token_budget": 300_000}
    # The tenant states the window now, so no model does.
    body = changing.client.post("/v1/conversations", json={"model": "claude-opus-4-5"}).json()
    assert body["policy"]["model_context_tokens"] == 1_000_000


def test_a_body_that_cannot_be_taken(changing: Service) -> None:
    assert problem(changing.client.patch("/v1/tenant", json={"name": "mine"}), 422, "invalid", "/name")
    assert problem(changing.client.patch("/v1/tenant", json={"policy": []}), 422, "invalid", "/policy")
    assert problem(changing.client.patch("/v1/tenant", content=b"{"), 400, "malformed_json")


def test_defaults_of_the_installation_stand_below_the_tenants(module_settings: Settings, service: Service) -> None:
    settings = module_settings.model_copy(update={"policy": {"reserved_output_tokens": 9_000, "min_savings_tokens": 3}})
    tenant = make_tenant(service.database_url, "elsewhere")
    with running_api(settings) as api, api.client(tenant.key) as client:
        problem(
            client.patch("/v1/tenant", json={"policy": {"total_token_budget": 9_000}}),
            422,
            "invalid",
            "/policy/reserved_output_tokens",
        )
        body = client.patch("/v1/tenant", json={"policy": {"total_token_budget": 10_000}}).json()
        assert (body["policy"]["reserved_output_tokens"], body["policy"]["min_savings_tokens"]) == (9_000, 3)


# Layers that came to contradict each other


def test_a_tenants_change_that_contradicts_a_conversation_is_told_and_fails_nothing(changing: Service) -> None:
    path = changing.conversation(policy={"total_token_budget": 6_000, "input_token_budget": 3_000})
    sent = [{"role": role, "content": f"{role} {n} " + "x" * 2_000} for n in range(5) for role in ("user", "assistant")]
    changing.append(path, *sent)
    assert changing.client.get(f"{path}/context").json()["messages"] != sent  # over 1,904 tokens
    set_tenant(changing, policy={"reserved_output_tokens": 7_000})
    body = changing.client.get(path).json()
    assert (body["policy"]["total_token_budget"], body["policy"]["input_token_budget"]) == (128_000, 3_000)
    (reason,) = body["warnings"]
    assert reason.startswith("the override of total_token_budget is not in force")
    context = changing.client.get(f"{path}/context").json()
    assert (context["warnings"], context["tokens"]["budget"]) == ([reason], 128_000)
    assert context["messages"] == sent
    payload = changing.client.post(f"{path}/context", json={"user_message": "And?"}).json()
    assert payload["warnings"] == [reason]
    assert payload["budget"] == 128_000
    changing.append(path, HELLO)
    assert changing.client.get("/v1/conversations").status_code == 200
    assert changing.client.patch(path, json={"metadata": {"k": 1}}).json()["warnings"] == [reason]
    work(changing.settings, path)  # 5,000 characters and more: over 3,000 tokens, and nothing to cut
    runs = changing.client.get(f"{path}/runs").json()["data"]
    assert {run["policy"]["total_token_budget"] for run in runs} <= {128_000}
    assert changing.client.patch(path, json={"policy": None}).json()["warnings"] == []


def test_a_tenants_stored_policy_of_another_version_fails_nothing(changing: Service) -> None:
    stored = {"prune_by_moonlight": True, "min_savings_tokens": 7, "input_token_budget": "x"}
    with psycopg.connect(changing.database_url, autocommit=True) as connection:
        connection.execute("update tenants set policy = %s where id = %s", (json.dumps(stored), changing.tenant_id))
    fresh = make_tenant(changing.database_url, "changing")  # the API has not seen this key yet
    with changing.api.client(fresh.key) as client:
        document = client.get("/v1/tenant").json()
        assert len(document["warnings"]) == 2
        assert document["policy"]["min_savings_tokens"] == 7
        body = client.post("/v1/conversations", json={"policy": {"prune_head_chars": 5}}).json()
    assert (body["policy"]["min_savings_tokens"], body["policy"]["prune_head_chars"]) == (7, 5)
    assert body["warnings"] == []


# What a change does to contexts


def fetch(service: Service, path: str, etag: str | None = None) -> httpx2.Response:
    return service.client.get(f"{path}/context", headers={"if-none-match": etag} if etag else {})


def test_an_etag_ends_with_the_tenants_policy(changing: Service) -> None:
    path = changing.conversation()
    changing.append(path, HELLO, {"role": "assistant", "content": "<readNote>" + "n" * 900 + "</readNote>"})
    etags: list[str] = []
    for policy in ({}, {"inline_tool_tags": ["readNote"]}, {"total_token_budget": 5_000}, {"max_tool_result_chars": 9}):
        set_tenant(changing, policy=policy)
        answer = fetch(changing, path, etags[-1] if etags else None)
        assert answer.status_code == 200
        assert answer.headers["etag"] not in etags
        etags.append(answer.headers["etag"])
        assert fetch(changing, path, etags[-1]).status_code == 304
    set_tenant(changing, policy=None)
    assert fetch(changing, path, etags[0]).status_code == 304  # what it stands for is what there was


def test_a_new_cap_is_counted_at_once(service: Service) -> None:
    path = service.conversation()
    service.append(path, HELLO, call("a"), result("a", "x" * 20_000), call("b"), result("b", "y" * 8_000))
    whole = stored_tokens(service, path)
    assert service.client.patch(path, json={"policy": {"max_tool_result_chars": 4_000}}).status_code == 200
    assert stored_tokens(service, path) == whole - 4_000 - 1_000
    body = service.client.get(f"{path}/context").json()
    # The notes of what is not shown count in the view alone.
    assert 0 < body["tokens"]["context"] - stored_tokens(service, path) < 50
    assert "16,000 more characters" in str(body["messages"][2])
    # What comes later, and what a compaction counts, agree with it.
    service.append(path, call("c"), result("c", "z" * 6_000), {"role": "assistant", "content": "Done."})
    assert stored_tokens(service, path) == whole - 5_000 + 1_000 + 4
    assert service.client.patch(path, json={"policy": None}).status_code == 200
    assert stored_tokens(service, path) == whole + 1_500 + 4
    assert service.client.get(f"{path}/context").json()["messages"][2] == result("a", "x" * 20_000)


def test_behind_a_moved_head_the_cap_in_force_counts(service: Service) -> None:
    path = service.conversation(policy={"max_tool_result_chars": 4_000, "min_savings_tokens": 100})
    service.append(path, HELLO, call("a"), result("a", "x" * 20_000), call("b"), result("b", "y" * 20_000))
    raised = {"max_tool_result_chars": 10_000, "min_savings_tokens": 100, "input_token_budget": 1_000}
    assert service.client.patch(path, json={"policy": raised}).status_code == 200
    before = stored_tokens(service, path)
    work(service.settings, path)
    body = service.client.get(f"{path}/context").json()
    assert body["snapshot"] == {"version": 1, "covers_through": 2}
    assert problems(body["messages"]) == []
    assert stored_tokens(service, path) < before
    assert stored_tokens(service, path) > 2_500  # the newest result has 10,000 characters in the view, not 4,000


def test_a_cap_that_was_taken_off_does_not_come_back_with_a_restore(service: Service) -> None:
    path = service.conversation(policy={"max_tool_result_chars": 400})
    service.append(path, HELLO, call("a"), result("a", "x" * 8_000), {"role": "assistant", "content": "So."})
    assert service.client.patch(path, json={"policy": None}).status_code == 200
    whole = stored_tokens(service, path)
    assert service.client.post(f"{path}/restore", json={"version": 0}).status_code == 200
    assert stored_tokens(service, path) == whole
    assert service.client.get(f"{path}/context").json()["tokens"]["context"] == whole


def test_a_cap_of_the_tenant_is_counted_by_the_next_check(changing: Service) -> None:
    path = changing.conversation()
    changing.append(path, HELLO, call("a"), result("a", "x" * 8_000))
    whole = stored_tokens(changing, path)
    set_tenant(changing, policy={"max_tool_result_chars": 400})
    changing.append(path, {"role": "assistant", "content": "So."})
    work(changing.settings, path)
    capped = stored_tokens(changing, path)
    assert capped == whole + 1 - (8_000 - 400) // 4
    work(changing.settings, path)
    assert stored_tokens(changing, path) == capped
    set_tenant(changing, policy=None)
    changing.append(path, {"role": "user", "content": "Go on."})
    work(changing.settings, path)
    assert stored_tokens(changing, path) == whole + 1 + 2


def test_a_change_of_the_view_makes_what_was_measured_and_signed_stale(service: Service) -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    path = service.conversation()
    service.append(
        path,
        HELLO,
        call("a"),
        result("a", "x" * 20_000),
        {"role": "assistant", "content": [thinking, text_block("So.")]},
        usage={"input_tokens": 9_000, "output_tokens": 5},
    )
    assert service.client.get(f"{path}/context").json()["tokens"]["measured"] == 9_000
    assert service.client.patch(path, json={"policy": {"min_savings_tokens": 5}}).status_code == 200
    assert "signature" in service.client.get(f"{path}/context").text
    assert service.client.get(f"{path}/context").json()["tokens"]["measured"] == 9_000
    assert service.client.patch(path, json={"policy": {"max_tool_result_chars": 100}}).status_code == 200
    body = service.client.get(f"{path}/context").json()
    assert body["tokens"]["measured"] is None
    assert "signature" not in str(body["messages"])
    assert body["messages"][-1] == {"role": "assistant", "content": [text_block("So.")]}


def test_a_tenants_policy_is_merged_key_by_key(changing: Service) -> None:
    set_tenant(changing, policy={"min_savings_tokens": 5, "input_token_budget": 9})
    found = set_tenant(changing, policy={"min_savings_tokens": None, "pinned_max_tokens": 7})
    assert found["policy_overrides"] == {"input_token_budget": 9, "pinned_max_tokens": 7}
    # A conversation's override that the tenant contradicts since is no reason to refuse another.
    path = changing.conversation(policy={"total_token_budget": 9_000, "reserved_output_tokens": 8_000})
    wrong = {"policy": {"total_token_budget": None, "min_savings_tokens": -1}}
    problem(changing.client.patch(path, json=wrong), 422, "invalid", "/policy/min_savings_tokens")
    assert changing.client.patch(path, json={"policy": {"total_token_budget": None}}).status_code == 200
    set_tenant(changing, policy={"total_token_budget": 5_000})
    changed = changing.client.patch(path, json={"policy": {"min_savings_tokens": 3}})
    assert changed.json()["policy_overrides"] == {"reserved_output_tokens": 8_000, "min_savings_tokens": 3}
    assert any("reserved_output_tokens is not in force" in warning for warning in changed.json()["warnings"])


def test_a_model_that_the_installation_does_not_ask_is_refused_where_it_is_set(
    service: Service, module_settings: Settings
) -> None:
    allowing = {"summarizer": "openai", "summarizer_model": "own", "summarizer_models": ["other"]}
    settings = module_settings.model_copy(update=allowing)
    own = service.conversation()
    with running_api(settings) as api, api.client(str(service.client.headers["authorization"]).split()[1]) as client:
        for name in ("own", "other", ""):
            assert client.patch(own, json={"policy": {"summarizer_model": name}}).status_code == 200
        foreign = {"policy": {"summarizer_model": "foreign"}}
        for refused in (
            client.patch(own, json=foreign),
            client.post("/v1/conversations", json=foreign),
            client.patch("/v1/tenant", json=foreign),
            client.post(f"{own}/compactions", json=foreign),
            client.post(f"{own}/compactions", json=foreign | {"dry_run": True}),
        ):
            problem(refused, 422, "invalid", "/policy/summarizer_model")
    # Where the API does not know who summarizes, the run says so.
    assert service.client.patch(own, json=foreign).status_code == 200
