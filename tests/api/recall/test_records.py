"""What was asked back: written down as it was, counted, and added up to what compaction should have kept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from runtime import ids
from store.engine import service_engine, transaction
from store.operations.operator_actions import Operator
from store.recall import requests
from tests.support import talk
from tests.support.service.in_process import SMALL
from tests.support.service.in_process_worker import work
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import conversation_at, running_api

if TYPE_CHECKING:
    import httpx2

    from tests.support.service.running_api import Service

POLICY = SMALL | {
    "input_token_budget": 1_500,
    "compaction_threshold_tokens": 1_600,
    "compaction_enabled": False,
    "max_conversation_messages": 12,
}


def recall(client: httpx2.Client, path: str, **asked: Any) -> dict[str, Any]:
    answer = client.post(f"{path}/recall", json=asked)
    assert answer.status_code == 200, answer.text
    return {**answer.json(), "request_id": answer.headers["request-id"]}


def listed(service: Service, path: str, **query: Any) -> dict[str, Any]:
    answer = service.client.get(f"{path}/recalls", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def counted(client: httpx2.Client, name: str) -> dict[str, float]:
    """Return a counter's values by its labels."""
    lines = re.findall(rf"^palimpsest_{name}(?:{{(.*?)}})? ([\d.e+]+)$", client.get("/metrics").text, re.MULTILINE)
    return {labels: float(value) for labels, value in lines}


@pytest.fixture
def path(service: Service) -> str:
    """A conversation of which old results are cut, and old exchanges dropped."""
    path = service.conversation(policy=POLICY)
    for number in range(12):
        turn = [talk.request(f"zebra{number}", 20), talk.call(number), talk.result(number, 400), talk.answer("so", 20)]
        service.append(path, *turn)
        if number % 3 == 2:
            work(service.settings, path)
    return path


def test_each_recall_is_written_down_as_it_was_answered(service: Service, path: str) -> None:
    asked: list[dict[str, Any]] = [{"query": "zebra1 zebra11"}, {"ref": "m45-m47"}, {"pattern": "zebra[03]"}]
    answers = [recall(service.client, path, **each) for each in asked]
    rows = list(reversed(listed(service, path)["data"]))
    assert [(row["kind"], row["asked"]) for row in rows] == [item for each in asked for item in each.items()]
    for row, answer in zip(rows, answers, strict=True):
        assert [(ref["ref"], ref["in_context"]) for ref in row["refs"]] == [
            (passage["ref"], passage["in_context"]) for passage in answer["passages"]
        ]
        assert (row["searched"], row["tokens"]) == (answer["searched"], answer["tokens"])
        assert (row["request_id"], row["origin"], row["of_user"]) == (answer["request_id"], "api", False)
        assert row["key_id"].startswith("key_")
    names = {ref["in_context"] for row in rows for ref in row["refs"]}
    assert names == {True, False}


def test_what_is_regretted_is_what_lineage_tells(service: Service, path: str) -> None:
    before = counted(service.client, "recall_regret_messages_total")
    asked = [recall(service.client, path, ref=f"m{seq}") for seq in (0, 2, 2, 22, 34, 34, 34, 47)]
    found = listed(service, path)
    steps = {each["version"]: each["step"] for each in service.client.get(f"{path}/snapshots?limit=100").json()["data"]}
    expected: dict[str, int] = {}
    for answer in asked:
        seq = answer["passages"][0]["first_seq"]
        lineage = service.client.get(f"{path}/messages/{seq}").json()["lineage"]
        assert answer["passages"][0]["in_context"] == (not lineage)
        if lineage:
            step = steps[lineage[0]["version"]]
            expected[step] = expected.get(step, 0) + 1
    assert len(expected) > 1
    assert {each["step"]: each["messages"] for each in found["regret"]} == expected
    assert {each["step"]: each["recalls"] for each in found["regret"]} == expected
    assert all(each["strategy"] is None for each in found["regret"])
    assert all(each["policy"]["max_conversation_messages"] == 12 for each in found["regret"])
    assert all(each["policy"].items() <= POLICY.items() for each in found["regret"])
    after = counted(service.client, "recall_regret_messages_total")
    assert {step: after[f'step="{step}"'] - before.get(f'step="{step}"', 0) for step in expected} == expected
    assert [(each["ref"], each["times"]) for each in found["wanted"][:2]] == [("m34", 3), ("m2", 2)]
    assert found["wanted"][1]["times_out_of_context"] == 2
    assert {each["seq"]: each["left_by"] for each in found["wanted"]}[47] is None


def test_regret_is_told_apart_by_policy(service: Service, path: str) -> None:
    recall(service.client, path, ref="m0")
    changed = {"policy": {"max_conversation_messages": 8}}
    assert service.client.patch(path, json=changed).status_code == 200
    service.append(path, *talk.exchanges(12, 20))
    work(service.settings, path)
    recall(service.client, path, ref=f"m{listed(service, path)['wanted'][0]['seq'] + 48}")
    caps = {each["policy"]["max_conversation_messages"] for each in listed(service, path)["regret"]}
    assert caps == {12, 8}


def test_pages_are_those_of_every_list(service: Service, path: str) -> None:
    for number in range(5):
        recall(service.client, path, query=f"zebra{number}")
    first = listed(service, path, limit=2)
    assert [row["asked"] for row in first["data"]] == ["zebra4", "zebra3"]
    assert first["has_more"]
    second = listed(service, path, limit=2, after_id=first["last_id"])
    assert [row["asked"] for row in second["data"]] == ["zebra2", "zebra1"]
    assert listed(service, path, limit=2, before_id=second["first_id"])["data"] == first["data"]
    assert second["regret"] == first["regret"]
    problem(service.client.get(f"{path}/recalls?after_id=run_1"), 400, "bad_cursor", "after_id")
    problem(service.client.get(f"{path}/recalls?order=x"), 422, "invalid", "order")
    problem(service.stranger.get(f"{path}/recalls"), 404, "not_found")


def test_every_recall_is_counted_by_what_came_of_it(service: Service, path: str) -> None:
    before = counted(service.client, "recalls_total")
    recall(service.client, path, query="zebra3")
    recall(service.client, path, query="quagga")
    recall(service.client, path, pattern="quagga")
    for refused in ({"pattern": "("}, {"ref": "m99"}):
        assert service.client.post(f"{path}/recall", json=refused).status_code == 422
    after = counted(service.client, "recalls_total")
    new = {labels: value - before[labels] for labels, value in after.items() if value != before[labels]}
    assert new == {
        'kind="query",outcome="found"': 1,
        'kind="query",outcome="nothing"': 1,
        'kind="pattern",outcome="nothing"': 1,
        'kind="pattern",outcome="refused"': 1,
        'kind="ref",outcome="refused"': 1,
    }
    assert [row["asked"] for row in listed(service, path)["data"]] == ["quagga", "quagga", "zebra3"]


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.5, 1, 29)])
def test_a_share_of_them_is_written_down_and_all_are_counted(
    service: Service, path: str, ratio: float, least: int, most: int
) -> None:
    settings = service.settings.model_copy(update={"recall_audit_ratio": ratio})
    key = service.client.headers["authorization"].partition(" ")[2]
    with running_api(settings) as api, api.client(key) as client:
        for _ in range(30):
            recall(client, path, ref="m0")
        assert counted(client, "recalls_total")['kind="ref",outcome="found"'] == 30
        assert sum(counted(client, "recall_regret_messages_total").values()) == 30
        assert counted(client, "recalls_unrecorded_total") == {"": 0}
    found = listed(service, path, limit=100)["data"]
    assert least <= len(found) <= most


def test_what_was_asked_goes_with_its_conversation_and_is_not_written_down_after_it(service: Service) -> None:
    path = service.conversation()
    service.append(path, {"role": "user", "content": "The okapi sleeps."})
    recall(service.client, path, query="okapi")
    assert service.client.delete(path).status_code == 200
    engine = service_engine(service.settings, "test")
    who = Operator(service.tenant_id, ids.new_id(), ids.new_id())
    given = requests.RecalledPassages(conversation_at(path), ["m0"], [0], {}, 1, 2)
    with pytest.raises(DBAPIError), transaction(engine, service.tenant_id) as connection:
        requests.insert_recalls(connection, who, requests.Question("query", "okapi", "api"), [given])
    engine.dispose()
    with psycopg.connect(service.database_url) as connection:
        rows = connection.execute("select from recall_requests where conversation_id = %s", [conversation_at(path)])
        assert rows.fetchall() == []


def test_what_came_back_across_conversations_goes_with_any_of_them(service: Service) -> None:
    paths = [service.conversation() for _ in range(3)]
    engine = service_engine(service.settings, "test")
    who = Operator(service.tenant_id, ids.new_id(), ids.new_id())
    given = [requests.RecalledPassages(conversation_at(path), ["m0"], [0], {}, 1, 2) for path in paths]
    with transaction(engine, service.tenant_id) as connection:
        requests.insert_recalls(connection, who, requests.Question("query", "okapi", "api", of_user=True), given[:2])
        other = who._replace(request_id=ids.new_id())
        requests.insert_recalls(connection, other, requests.Question("query", "bongo", "api", of_user=True), given[1:])
    engine.dispose()
    assert service.client.delete(paths[0]).status_code == 200
    assert [row["asked"] for row in listed(service, paths[1])["data"]] == ["bongo"]
    assert [row["asked"] for row in listed(service, paths[2])["data"]] == ["bongo"]
