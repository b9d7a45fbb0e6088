"""What is answered to a key is what it may read: every route, with keys of every scope and of every two."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import pytest

from store.tenants.api_keys import SCOPES
from tests.api.doors.test_foreign_ids import BODIES
from tests.api.doors.test_routes_guarded import key_with, routes_by_template
from tests.fuzz.planted import Planted
from tests.support.service.documented_answers import PREFIXES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

    from tests.support.service.running_api import Service

READING: Final = frozenset({"context:read", "audit:read", "recall:user"})
"""Whoever has one of these reads what was said: as it is served, as it is stored, as it is recalled."""
WEAK: Final = [scope for scope in SCOPES if scope != "admin"]
CONVERSATION: Final = "/v1/conversations/{conversation_id}"
OWN: Final[dict[tuple[str, str], list[Any]]] = {
    ("POST", "/v1/runs/retry"): [{"state": "dead"}],
    ("POST", f"{CONVERSATION}/pins"): [{"seq": 1}, {"seq": 0}, {"seq": 0, "text": "a guess"}, {"seq": 99}],
    ("PATCH", f"{CONVERSATION}/rules/{{rule_id}}"): [{"in_force": True}],
    ("PATCH", CONVERSATION): [{}, {"model": "claude-haiku-4-5"}],
    ("POST", "/v1/users/{user_ref}/recall"): [{"query": "plover"}, {"pattern": "(?i)[a-z]+"}],
    ("POST", f"{CONVERSATION}/turns"): [{"messages": [{"role": "user", "content": "Hello."}]}],
}
NUMBERS_TOLD: Final = {
    "id", "created_at", "last_seq", "head_version", "pending_version", "context_tokens", "context_messages",
    "check_due_at",
}  # fmt: skip


class Told(NamedTuple):
    """A tenant with something in everything, one word of which no context has any more, and keys of all kinds."""

    planted: Planted
    superseded: str
    ids: dict[str, str]
    clients: dict[frozenset[str], httpx2.Client]


@pytest.fixture(scope="module")
def told(service: Service) -> Iterator[Told]:
    planted = Planted(service.settings, service.tenant_id, service.client)
    external = f"external_id-{planted.canary}"
    (row,) = service.client.get("/v1/conversations", params={"external_id": external}).json()["data"]
    path = f"/v1/conversations/{row['id']}"
    superseded = f"plover{uuid4().hex}"
    turn = {"messages": [{"role": "user", "content": superseded}]}
    first = service.client.post(f"{path}/turns", json=turn).json()["first_seq"]
    again = {"messages": [{"role": "user", "content": "Another."}], "replace_from": first}
    assert service.client.post(f"{path}/turns", json=again).status_code == 201
    ids = {
        name: sorted(each for each in planted.ids if each.startswith(f"{prefix}_")) for name, prefix in PREFIXES.items()
    }
    named = {name: found[0] for name, found in ids.items()} | {"conversation_id": row["id"]}
    named |= {"seq": "0", "version": "1", "position": "0", "user_ref": planted.user_ref, "window_or_model": "200k"}
    clients = {
        frozenset(scopes): service.api.client(key_with(service, scopes))
        for count in (1, 2)
        for scopes in combinations(WEAK, count)
    }
    yield Told(planted, superseded, named, clients)
    for client in clients.values():
        client.close()


def requests(told: Told) -> Iterator[tuple[str, str, Any]]:
    for method, template in routes_by_template():
        path = template.format_map(told.ids)
        if template == "/v1/conversations" and method == "POST":
            yield method, path, {"external_id": f"external_id-{told.planted.canary}"}
        elif template in {"/v1/exports", "/v1/users", "/v1/recall"}:
            body = {"pattern": "(?i)[a-z]+"} if template == "/v1/recall" else None
            yield method, f"{path}?user_ref={told.planted.user_ref}", body
        else:
            bodies = OWN.get((method, template)) or BODIES.get((method, template)) or [{} if method == "POST" else None]
            for body in bodies:
                yield method, path, body


def test_no_answer_has_what_the_key_may_not_read(told: Told) -> None:
    seen: set[frozenset[str]] = set()
    for scopes, client in told.clients.items():
        for method, path, body in requests(told):
            answer = client.request(method, path, json=body)
            assert answer.status_code != 500, (method, path)
            where = (sorted(scopes), method, path, body, answer.status_code)
            # Paths are what the key asked for, and stand in `Location`; a key without `admin` reads no configuration.
            if told.planted.canary in answer.text:
                assert scopes & READING, where
                seen.add(scopes)
            if told.superseded in answer.text:
                assert "audit:read" in scopes, where
                seen.add(scopes | {"superseded"})
    assert {frozenset({scope}) for scope in READING} <= seen, "nothing was shown to those who may read"
    assert frozenset({"audit:read", "superseded"}) in seen


def test_whoever_only_writes_is_told_ids_and_numbers(told: Told, service: Service) -> None:
    writer, both = told.clients[frozenset({"turns:write"})], told.clients[frozenset({"turns:write", "context:read"})]
    path = f"/v1/conversations/{told.ids['conversation_id']}"
    for method, where, body in (
        ("POST", "/v1/conversations", {"external_id": f"external_id-{told.planted.canary}"}),
        ("POST", "/v1/conversations", {"metadata": {"a": "b"}}),
        ("PATCH", path, {}),
        ("POST", f"{path}/fork", {"through_seq": 1}),
        ("POST", f"{path}/restore", {"version": 1}),
    ):
        brief, whole = (client.request(method, where, json=body) for client in (writer, both))
        assert brief.is_success, brief.text
        assert set(brief.json()) == NUMBERS_TOLD, where
        assert set(whole.json()) > NUMBERS_TOLD | {"metadata", "policy", "external_id"}
    answers_with_content: list[tuple[str, Any]] = [
        ("pins", {"seq": 0}),
        ("overflow", {}),
        ("compactions", {"dry_run": True}),
    ]
    for where, body in answers_with_content:
        refused = writer.post(f"{path}/{where}", json=body)
        assert (refused.status_code, refused.json()["detail"]) == (403, "This key has not the scope context:read.")
    assert service.client.get(path).json()["external_id"] == f"external_id-{told.planted.canary}"


def test_a_pin_is_no_way_to_try_what_a_message_says(told: Told) -> None:
    """To be refused for a span that is no part of the text would tell, word by word, what is."""
    writer = told.clients[frozenset({"turns:write"})]
    path = f"/v1/conversations/{told.ids['conversation_id']}/pins"
    right, wrong = (writer.post(path, json={"seq": 0, "text": text}) for text in (told.planted.canary, "no such word"))

    def without_id(text: str) -> str:
        return re.sub(r"req_\w+", "", text)

    assert right.status_code == wrong.status_code == 403
    assert without_id(json.dumps(right.json())) == without_id(json.dumps(wrong.json()))
