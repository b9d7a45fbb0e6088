"""Every answer that the OpenAPI document has is given by the running API, for every operation, and by code.

The other direction, that no answer is missing in it, is checked of every answer in every test: the client of a running
API does (`tests.support.service.documented_answers`).
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import httpx2
import psycopg
import pytest
import schemathesis
from pydantic import SecretStr

from actions import rules as pins
from actions.auth import rate_limits
from runtime import ids
from store.runs import runs
from store.tenants import api_keys, webhooks
from tests.conftest import make_tenant
from tests.support.service.documented_answers import PREFIXES, document, operation_of, operations, resolve
from tests.support.service.in_process import Chat, Workers
from tests.support.service.running_api import running_api
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings
    from tests.support.service.documented_answers import Documented
    from tests.support.service.running_api import Service

Answer = tuple[str, int, str]
"""An operation, a status, and the code of a problem."""
FAULTS: Final = {"internal", "body_incomplete", "body_too_slow"}
"""Codes that only a fault of the service, or of the connection, is answered with."""
NOBODY: Final = "0197f0c2a1b37c5d8e4f60718293a4b5"
PLACES: Final = {"seq": "0", "version": "0", "position": "0", "window_or_model": "nobody's"}
TURN: Final = {"messages": [{"role": "user", "content": "Find me a flight."}]}
ADMIN: Final = "admin"


class Recorder:
    """What was answered so far."""

    def __init__(self) -> None:
        self.seen: set[Answer] = set()

    @contextmanager
    def client(self, settings: Settings, key: str | None) -> Iterator[httpx2.Client]:
        """Serve an API, and give a client whose answers are recorded, and conform to their schemas."""
        with running_api(settings) as api, api.client(key) as client:
            client.event_hooks["response"].append(self._record)
            yield client

    def _record(self, response: httpx2.Response) -> None:
        operation = operation_of(response.request.method, response.url.raw_path.decode().partition("?")[0])
        assert operation is not None, response.url
        response.read()
        media = response.headers.get("content-type", "")
        code = response.json()["code"] if media == "application/problem+json" else ""
        self.seen.add((operation.name, response.status_code, code))
        conforms(operation, response)
        if media.endswith("json"):
            # No field that a client could not know of.
            schema = resolve(operation.answers[str(response.status_code)]["content"][media]["schema"])
            choices = [resolve(choice) for choice in schema.get("anyOf", [schema])]
            assert any(set(response.json()) <= set(choice["properties"]) for choice in choices), operation.name


@cache
def schema() -> schemathesis.schemas.BaseSchema:
    return schemathesis.openapi.from_dict(document())


def conforms(operation: Documented, response: httpx2.Response) -> None:
    """Assert that an answer's body is as its schema says."""
    schema()[operation.path][operation.method.upper()].validate_response(response)


class Doors(NamedTuple):
    """Clients of APIs of one database: as it is, of a smaller scope, limited, and of one that is away."""

    recorder: Recorder
    settings: Settings
    tenant_id: Any
    client: httpx2.Client
    scoped: dict[str, httpx2.Client]


@pytest.fixture(scope="module")
def doors(service: Service) -> Iterator[Doors]:
    recorder = Recorder()
    settings = service.settings.model_copy(
        update={"max_body_bytes": 65_536, "metrics_token": SecretStr("scrape"), "webhook_private_addresses": True}
    )
    tenant = make_tenant(service.database_url, "documented", api_keys.SCOPES)
    with recorder.client(settings, tenant.key) as client:
        scoped = {}
        for scope in api_keys.SCOPES:
            body = client.post("/v1/keys", json={"name": scope, "scopes": [scope]}).json()
            scoped[scope] = client.__class__(
                base_url=client.base_url,
                headers={"x-api-key": body["key"]},
                event_hooks=client.event_hooks,
                timeout=client.timeout,
            )
        yield Doors(recorder, settings, tenant.id, client, scoped)
        for each in scoped.values():
            each.close()


def path_of(operation: Documented, **named: str) -> str:
    """Return a path of an operation that leads to nothing, but for what is named."""
    names = {**PLACES, "user_ref": "u" * 513, **{name: f"{prefix}_{NOBODY}" for name, prefix in PREFIXES.items()}}
    return operation.path.format_map({**names, **named})


def example_of(operation: Documented) -> Any:
    body = document()["paths"][operation.path][operation.method].get("requestBody")
    return body["content"]["application/json"]["example"] if body else None


def ask(client: httpx2.Client, operation: Documented, path: str | None = None, **options: Any) -> httpx2.Response:
    example = example_of(operation)
    if example is not None and not {"json", "content"} & set(options):
        options["json"] = example
    return client.request(operation.method.upper(), path or path_of(operation), **options)


KEYED: Final = [operation for operation in operations() if operation.path.startswith("/v1/")]


def test_problems_of_every_call(doors: Doors) -> None:
    for operation in KEYED:
        assert ask(doors.client, operation, headers={"authorization": "Bearer none"}).status_code == 401
        weak = doors.scoped["audit:read" if "/runs" not in operation.path else "context:read"]
        refused = ask(weak, operation)
        if refused.status_code != 403:
            assert ask(doors.scoped["turns:write"], operation).status_code == 403
        assert ask(doors.client, operation, params={"no_such": "1"}).status_code == 422
        if "{" in operation.path:
            assert ask(doors.client, operation).status_code == 404


def test_problems_of_every_body(doors: Doors) -> None:
    for operation in KEYED:
        if example_of(operation) is None:
            continue
        path = path_of(operation, user_ref="anna")
        assert ask(doors.client, operation, path, content=b'{"').status_code == 400
        assert ask(doors.client, operation, path, content=b"[" * 65_537).status_code == 413


def test_problems_of_every_list(doors: Doors) -> None:
    for operation in KEYED:
        parameters = document()["paths"][operation.path][operation.method].get("parameters", ())
        if any(each["name"] == "after_id" for each in parameters):
            assert ask(doors.client, operation, params={"after_id": "nobody's"}).status_code == 400


def test_calls_too_many(service: Service, doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "REDIS_SECONDS", 10.0)
    key = make_tenant(service.database_url, "limited").key
    with doors.recorder.client(service.settings.model_copy(update={"rate_limit_key": "1/day"}), key) as client:
        assert "ratelimit-policy" in client.get("/v1/tenant").headers
        for operation in KEYED:
            assert ask(client, operation).status_code == 429


def test_a_database_that_is_away(doors: Doors) -> None:
    nowhere = SecretStr("postgresql://nobody@127.0.0.1:1/none")
    key = doors.client.headers["authorization"].removeprefix("Bearer ")
    with doors.recorder.client(doors.settings.model_copy(update={"database_url": nowhere}), key) as client:
        for operation in KEYED:
            assert ask(client, operation).status_code == 503
        assert client.get("/readyz").status_code == 503


def test_health(doors: Doors) -> None:
    assert doors.client.get("/healthz").status_code == 200
    assert doors.client.get("/readyz").status_code == 200
    assert doors.client.get("/metrics").status_code == 401
    assert doors.client.get("/metrics", headers={"authorization": "Bearer scrape"}).status_code == 200


def begin(client: httpx2.Client, **fields: Any) -> str:
    made = client.post("/v1/conversations", json=fields)
    assert made.status_code == 201, made.text
    return f"/v1/conversations/{made.json()['id']}"


def test_conversations_and_turns(doors: Doors) -> None:
    client = doors.client
    path = begin(client, external_id="one", user_ref="ana")
    assert client.post("/v1/conversations", json={"external_id": "one"}).status_code == 200
    assert client.get("/v1/conversations").status_code == 200
    assert client.get(path).status_code == 200
    assert client.patch(path, json={"metadata": {"team": "a"}}).status_code == 200
    keyed = {"idempotency-key": uuid4().hex}
    turn = {**TURN, "context": [{"source": "page", "text": "Lisbon"}]}
    assert "idempotency-replayed" not in client.post(f"{path}/turns", json=turn, headers=keyed).headers
    assert client.post(f"{path}/turns", json=turn, headers=keyed).headers["idempotency-replayed"] == "true"
    assert client.post(f"{path}/turns", json=TURN, headers=keyed).status_code == 422
    assert client.post(f"{path}/turns", json=TURN, headers={"idempotency-key": "k" * 256}).status_code == 400
    assert client.post(f"{path}/turns", json={**TURN, "expected_next_seq": 9}).json()["next_seq"] == 1
    context = client.get(f"{path}/context")
    assert client.get(f"{path}/context", headers={"if-none-match": context.headers["etag"]}).status_code == 304
    assert client.post(f"{path}/context", json={"user_message": "Go on."}).status_code == 200
    for rest in ("messages", "messages/0", "context-blocks", "context-blocks/0/0", "runs", "snapshots", "pins"):
        assert client.get(f"{path}/{rest}").status_code == 200
    assert client.post(f"{path}/fork", json={"through_seq": 0, "external_id": "two"}).status_code == 201
    assert client.post(f"{path}/fork", json={"through_seq": 0, "external_id": "two"}).status_code == 409


def test_pins(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    client = doors.client
    path = begin(client, policy={"pinned_max_tokens": 250})
    client.post(f"{path}/turns", json={"messages": exchanges(12, 180)})
    # What still stands in the context as it is needs no room.
    assert client.post(f"{path}/overflow").status_code == 200
    pinned = client.post(f"{path}/pins", json={"seq": 4})
    assert pinned.status_code == 201, pinned.text
    assert client.post(f"{path}/pins", json={"seq": 2}).json()["code"] == "pins_full"
    monkeypatch.setattr(pins, "MAXIMUM", 1)
    assert client.post(f"{path}/pins", json={"seq": 2}).json()["code"] == "too_many_pins"
    (rule,) = client.get(f"{path}/rules").json()["data"]
    for in_force in (False, True):
        assert client.patch(f"{path}/rules/{rule['id']}", json={"in_force": in_force}).status_code == 200
    small = client.patch(path, json={"policy": {"pinned_max_tokens": 0}})
    assert small.status_code == 200
    assert client.patch(f"{path}/rules/{rule['id']}", json={"in_force": True}).json()["code"] == "pins_full"
    assert client.delete(f"{path}/pins/{pinned.json()['id']}").status_code == 204
    assert client.post(f"{path}/comparisons", json={"versions": [0, 0], "seq": 1}).status_code == 200
    assert client.post(f"{path}/bisect", json={"text": "nobody said this"}).status_code == 200


def test_compaction_and_overflow(doors: Doors) -> None:
    client = doors.client
    path = begin(client)
    client.post(f"{path}/turns", json={"messages": exchanges(12, 500)})
    assert client.post(f"{path}/compactions", json={"dry_run": True}).status_code == 200
    for number in range(3):
        smaller = client.post(f"{path}/overflow", json={"snapshot_version": number})
        assert smaller.status_code == 200, smaller.text
    assert client.post(f"{path}/overflow").json()["code"] == "overflow_exhausted"
    refused = {"error": "max_tokens is too large: 99999. This model supports at most 4096 completion tokens."}
    assert client.post(f"{path}/overflow", json=refused).json()["code"] == "not_the_history"
    assert client.get(f"{path}/snapshots/1").status_code == 200
    assert client.get(f"{path}/snapshots/1/diff").status_code == 200
    assert client.get(f"{path}/snapshots/1/claims").status_code == 200
    client.post(f"{path}/turns", json={**TURN, "replace_from": 0})
    assert client.post(f"{path}/restore", json={"version": 1}).json()["code"] == "superseded"
    assert client.post(f"{path}/restore", json={"version": 0}).status_code == 200
    assert client.post(f"{path}/overflow").json()["code"] == "cannot_shrink"
    queued = client.post(f"{begin(client)}/compactions", json={"strategy": "summary"})
    assert queued.status_code == 202
    again = client.post(f"/v1/conversations/{conversation_of(client, queued)}/compactions", json={"strategy": "drop"})
    assert again.json()["code"] == "compaction_running"
    assert client.get(queued.headers["location"]).status_code == 200
    assert client.post(f"{queued.headers['location']}/retry").json()["code"] == "run_not_dead"


def conversation_of(client: httpx2.Client, queued: httpx2.Response) -> str:
    return str(client.get(queued.headers["location"]).json()["conversation_id"])


def test_dead_runs_and_deliveries(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    client = doors.client
    hook = client.post("/v1/webhooks", json={"url": "http://127.0.0.1:1/hooks"}).json()["id"]
    run = dead_run(doors)
    retried = client.post(f"/v1/runs/{run}/retry")
    assert retried.status_code == 202
    another = dead_run(doors)
    busy = conversation_of_run(client, another)
    assert client.post(f"/v1/conversations/{busy}/compactions", json={"strategy": "drop"}).status_code == 202
    assert client.post(f"/v1/runs/{another}/retry").json()["code"] == "run_active"
    assert client.get("/v1/runs").status_code == 200
    assert client.post("/v1/runs/retry", json={"state": "dead"}).status_code == 202
    delivery = client.get("/v1/webhook-deliveries").json()["data"][0]["id"]
    with psycopg.connect(doors.settings.database_url.get_secret_value(), autocommit=True) as connection:
        connection.execute("update webhook_deliveries set state = 'dead', finished_at = now()")
    assert client.post(f"/v1/webhook-deliveries/{delivery}/retry").status_code == 202
    monkeypatch.setattr(webhooks, "MAXIMUM", 1)
    assert client.post("/v1/webhooks", json={"url": "https://chat.example"}).json()["code"] == "too_many_webhooks"
    assert client.get("/v1/webhooks").status_code == 200
    assert client.delete(f"/v1/webhooks/{hook}").status_code == 204


def dead_run(doors: Doors) -> str:
    with Chat(doors.settings, doors.tenant_id) as chat:
        conversation = chat.begin({"input_token_budget": 0})
        chat.append(conversation, exchanges(12, 200))
        lease = Workers(chat, StubSummarizer()).hand_over(conversation)
        with chat.database.transaction(chat.tenant_id) as connection:
            runs.give_back(connection, lease, "OperationalError")
            assert runs.requeue(connection, lease.run_id, max_attempts=1) == "dead"
        return ids.external("run", lease.run_id)


def conversation_of_run(client: httpx2.Client, run: str) -> str:
    return str(client.get(f"/v1/runs/{run}").json()["conversation_id"])


def test_the_tenant_and_its_keys(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    client = doors.client
    assert client.get("/v1/tenant").status_code == 200
    assert client.patch("/v1/tenant", json={"policy": {}}).status_code == 200
    assert client.get("/v1/tenant/usage").status_code == 200
    assert client.get("/v1/policy-presets/200k").status_code == 200
    assert client.get("/v1/keys").status_code == 200
    made = client.post("/v1/keys", json={"name": "old", "scopes": ["audit:read"]}).json()["id"]
    assert client.post(f"/v1/keys/{made}/rotate", json={}).status_code == 201
    assert client.post(f"/v1/keys/{made}/rotate", json={}).json()["code"] == "already_rotated"
    other = client.post("/v1/keys", json={"name": "other", "scopes": ["audit:read"]}).json()["id"]
    monkeypatch.setattr(api_keys, "MAXIMUM", 1)
    assert client.post("/v1/keys", json={"name": "new", "scopes": [ADMIN]}).json()["code"] == "too_many_keys"
    assert client.post(f"/v1/keys/{other}/rotate", json={}).json()["code"] == "too_many_keys"
    assert client.delete(f"/v1/keys/{made}").status_code == 204


def test_users(doors: Doors) -> None:
    client = doors.client
    path = begin(client, user_ref="eve")
    assert client.get("/v1/users/eve/export").status_code == 200
    assert client.get("/v1/exports", params={"user_ref": "eve"}).status_code == 200
    assert client.delete(path).status_code == 200
    assert client.delete("/v1/users/eve").status_code == 200
    assert client.delete("/v1/users", params={"user_ref": "eve"}).status_code == 200
    assert client.get("/v1/erasures").status_code == 200


def test_every_body_has_an_example_and_they_are_taken(doors: Doors) -> None:
    assert all(
        example_of(each) is not None
        for each in operations()
        if "requestBody" in document()["paths"][each.path][each.method]
    )
    client = doors.client
    path = begin(client)
    client.post(f"{path}/turns", json=example_of(named("POST /v1/conversations/{conversation_id}/turns")))
    assert client.get("/v1/recall-tool").is_success
    for end in ("context", "recall", "pins", "fork", "restore", "compactions"):
        operation = named(f"POST /v1/conversations/{{conversation_id}}/{end}")
        taken = ask(client, operation, f"{path}/{end}")
        assert taken.is_success, (operation.name, taken.text)
    assert client.get(f"{path}/recalls").json()["data"]
    for where in ("/v1/users/anna/recall", "/v1/recall?user_ref=anna"):
        taken = client.post(where, json=example_of(named("POST /v1/recall")))
        assert taken.is_success, taken.text
    for method, end in (("POST", "conversations"), ("POST", "keys"), ("POST", "runs/retry"), ("PATCH", "tenant")):
        assert ask(client, named(f"{method} /v1/{end}")).is_success
    assert ask(client, named("PATCH /v1/conversations/{conversation_id}"), path).is_success


def named(name: str) -> Documented:
    return next(each for each in operations() if each.name == name)


def test_the_examples_of_answers_are_what_is_answered() -> None:
    examples = 0
    for operation in operations():
        for status, answer in operation.answers.items():
            for media, content in (answer.get("content") or {}).items():
                for example in map(resolve, content.get("examples", {}).values()):
                    answered = httpx2.Response(
                        int(status),
                        json=example["value"],
                        headers={"content-type": media},
                        request=httpx2.Request(operation.method, f"http://example{operation.path}"),
                    )
                    answered.elapsed = timedelta()
                    conforms(operation, answered)
                    examples += 1
    assert examples > 300


def test_every_documented_answer_was_given(doors: Doors) -> None:
    documented: set[Answer] = set()
    for operation in operations():
        for status, answer in operation.answers.items():
            problem = (answer.get("content") or {}).get("application/problem+json")
            codes = set(problem["examples"]) - FAULTS if problem else {""}
            documented |= {(operation.name, int(status), code) for code in codes}
    assert documented - doors.recorder.seen == set()
