"""Every error is a problem document, whoever raised it, and every answer carries its request's id."""

from __future__ import annotations

import gzip
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urljoin, urlsplit

import httpx2
import msgspec
import psycopg
import pytest
from sqlalchemy import make_url

from actions.auth import principals
from actions.errors import from_msgspec
from actions.monitoring import installation
from actions.types.keys import Scope
from runtime import ids
from runtime.http.problem_types import PROBLEM_TYPES, problem_type
from store import engine as store_engine
from store import hot_path
from store.engine import owner_engine
from store.tenants import api_keys
from store.tenants.webhooks import EVENTS
from tests.support.eventually import eventually
from tests.support.servers.tcp_gate import gate
from tests.support.service.problem_documents import REQUEST_ID, problem
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from runtime.settings import Settings
    from tests.conftest import Tenant
    from tests.support.servers.tcp_gate import Gate
    from tests.support.service.running_api import RunningApi, Service

HELLO = {"messages": [{"role": "user", "content": "Hello."}]}
MISSING = "0123456789abcdef0123456789abcdef"


def test_malformed_json(service: Service) -> None:
    assert problem(service.client.post("/v1/conversations", content=b"{"), 400, "malformed_json")
    packed = gzip.compress(b"{}")
    headers = {"content-encoding": "gzip"}
    for path in ("/v1/conversations", f"{service.conversation()}/turns"):
        found = problem(service.client.post(path, content=packed, headers=headers), 400, "malformed_json")
        assert "compressed" in found["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Basic YTpi"},
        {"authorization": "Bearer nonsense"},
        {"authorization": b"Bearer \xff\xfe"},
        {"x-api-key": "key_.x"},
        {"x-api-key": f"key_{MISSING}.secret"},
    ],
)
def test_no_key_in_force(service: Service, headers: dict[str, Any]) -> None:
    with service.api.client() as client:
        for url in ("/v1/conversations", f"/v1/runs/run_{MISSING}"):
            refused = client.get(url, headers=headers)
            problem(refused, 401, "unauthenticated")
            assert refused.headers["www-authenticate"] == "Bearer"
        problem(client.post("/v1/conversations", content=b"{", headers=headers), 401, "unauthenticated")


def test_the_right_id_with_another_secret(service: Service) -> None:
    key = service.client.headers["authorization"].removeprefix("Bearer ")
    with service.api.client(key[:-1] + ("a" if key[-1] != "a" else "b")) as client:
        assert problem(client.get("/v1/conversations"), 401, "unauthenticated")


def key_with(service: Service, scopes: Sequence[str]) -> str:
    engine = owner_engine(service.database_url)
    with engine.begin() as connection:
        _, key = api_keys.create(connection, service.tenant_id, "narrow", scopes)
    engine.dispose()
    return key


def test_a_key_that_may_not(service: Service) -> None:
    path = service.conversation()
    may = {"turns:write": set[str](), "context:read": set[str](), "audit:read": set[str]()}
    calls: list[tuple[str, str]] = [
        ("POST", f"{path}/turns"),
        ("PATCH", path),
        ("GET", path),
        ("GET", f"{path}/context"),
        ("GET", f"{path}/messages"),
        ("GET", f"{path}/runs"),
        ("GET", f"{path}/snapshots"),
    ]
    for scope, allowed in may.items():
        with service.api.client(key_with(service, [scope])) as client:
            for method, url in calls:
                answer = client.request(method, url, json=HELLO if method == "POST" else {})
                if answer.is_success:
                    allowed.add(f"{method} {url.removeprefix(path)}")
                else:
                    assert scope not in problem(answer, 403, "forbidden")["detail"]
    assert may == {
        "turns:write": {"POST /turns", "PATCH "},
        "context:read": {"GET ", "GET /context"},
        "audit:read": {"GET /messages", "GET /runs", "GET /snapshots"},
    }
    with service.api.client(key_with(service, ["admin"])) as client:
        assert all(
            client.request(method, url, json=HELLO if method == "POST" else {}).is_success for method, url in calls
        )


@pytest.mark.parametrize("url", ["/v1", "/v2/conversations", "/v1/conversations/x/y/z", "/v1/%00", "/docs/x.json"])
def test_no_such_route(service: Service, url: str) -> None:
    assert problem(service.client.get(url), 404, "not_found")


def test_what_is_anothers_answers_like_what_is_not(service: Service) -> None:
    path = service.conversation(external_id="hidden")
    service.append(path, *HELLO["messages"])
    kinds = ("", "/context", "/messages", "/messages/0", "/runs", "/snapshots", "/snapshots/1", "/snapshots/1/diff")
    calls: list[tuple[str, str]] = [("GET", kind) for kind in kinds] + [("POST", "/turns"), ("PATCH", "")]
    for method, kind in calls:
        bodies = []
        for base in (path, f"/v1/conversations/conv_{MISSING}", "/v1/conversations/nonsense"):
            answer = service.stranger.request(method, base + kind, json=HELLO if method == "POST" else {})
            bodies.append({**problem(answer, 404, "not_found"), "request_id": ""})
        assert bodies[0] == bodies[1] == bodies[2]


def test_a_method_that_the_route_has_not(service: Service) -> None:
    path = service.conversation()
    for method, url in (("DELETE", f"{path}/context"), ("PUT", path), ("GET", f"{path}/turns"), ("POST", "/healthz")):
        refused = service.client.request(method, url)
        problem(refused, 405, "method_not_allowed")
        assert method not in refused.headers["allow"].split(", ")
    head = service.client.head(f"{path}/turns")
    assert (head.status_code, head.content) == (405, b"")


def test_options_names_every_method(service: Service) -> None:
    path = service.conversation()
    expected = {
        path: "DELETE, GET, HEAD, OPTIONS, PATCH",
        "/v1/conversations": "GET, HEAD, OPTIONS, POST",
        f"{path}/turns": "OPTIONS, POST",
        "/healthz": "GET, HEAD, OPTIONS",
    }
    for url, methods in expected.items():
        answer = service.client.options(url)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers.get_list("allow") == [methods]
        assert REQUEST_ID.fullmatch(answer.headers["request-id"])


def test_a_body_that_is_too_large(service: Service) -> None:
    path = service.conversation()
    large = b" " * (service.settings.max_body_bytes + 1)

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(large), 65_536):
            yield large[start : start + 65_536]

    for body in (large, chunks()):
        problem(service.client.post(f"{path}/turns", content=body), 413, "body_too_large")
    fitting = b'{"messages":[{"role":"user","content":"a"}]}'
    fitting += b" " * (service.settings.max_body_bytes - len(fitting))
    assert service.client.post(f"{path}/turns", content=fitting).status_code == 201
    assert service.client.get(path).json()["last_seq"] == 0


@pytest.mark.parametrize(
    ("method", "url", "body", "pointer", "detail"),
    [
        ("POST", "turns", {"messages": [{"role": "User", "content": "a"}]}, "/messages/0/role", "assistant, user"),
        ("POST", "turns", {**HELLO, "shape": "openai"}, "/shape", "messages, chat, responses"),
        ("POST", "turns", {**HELLO, "shape": 5}, "/shape", "messages, chat, responses"),
        ("POST", "context", {"shape": "openai"}, "/shape", "chat, messages, responses"),
        ("PATCH", "", {"policy": {"swap": "never"}}, "/policy/swap", "at_once, when_it_pays"),
        (
            "POST",
            "/v1/keys",
            {"name": "a", "scopes": ["admin", "read"]},
            "/scopes/1",
            ", ".join(sorted(get_args(Scope))),
        ),
        ("POST", "/v1/webhooks", {"url": "https://a.example", "events": ["failed"]}, "/events/0", ", ".join(EVENTS)),
        ("GET", "/v1/runs?state=done", None, "state", "queued, running, committed, skipped, degraded, failed, dead"),
    ],
)
def test_a_value_that_is_none_of_a_few_is_told_which_they_are(
    service: Service, method: str, url: str, body: Any, pointer: str, detail: str
) -> None:
    where = url if url.startswith("/v1") else f"{service.conversation()}/{url}".rstrip("/")
    found = problem(service.client.request(method, where, json=body), 422, "invalid", pointer)
    assert found["detail"].removeprefix(f"{pointer}: ") == f"Expected one of {detail}."


def test_a_policy_key_that_there_is_not_names_the_one_that_was_meant(service: Service) -> None:
    url = service.conversation()
    for method, where in (("PATCH", url), ("POST", "/v1/conversations")):
        mistyped = {"policy": {"input_token_budgt": 1000}}
        found = problem(
            service.client.request(method, where, json=mistyped), 422, "invalid", "/policy/input_token_budgt"
        )
        assert found["detail"] == "unknown policy key 'input_token_budgt'; did you mean input_token_budget?"
    found = problem(service.client.patch(url, json={"policy": {"colour": 1}}), 422, "invalid", "/policy/colour")
    assert found["detail"] == "unknown policy key 'colour'"


def test_every_answer_carries_an_id_of_its_own(service: Service) -> None:
    path = service.conversation()
    etag = service.client.get(f"{path}/context").headers["etag"]
    seen = set()
    for method, url, headers in (
        ("GET", path, {}),
        ("GET", f"{path}/context", {"if-none-match": etag}),
        ("HEAD", path, {}),
        ("OPTIONS", path, {}),
        ("DELETE", path, {}),
        ("GET", "/nothing", {}),
        ("GET", "/healthz", {}),
        ("GET", "/metrics", {}),
        ("GET", "/openapi.json", {"request-id": "chosen by the client"}),
    ):
        (name,) = service.client.request(method, url, headers=headers).headers.get_list("request-id")
        assert REQUEST_ID.fullmatch(name)
        seen.add(name)
    assert len(seen) == 9


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: int = 0


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inners: list[Inner] = []
    named: dict[str, Inner] = {}
    counts: dict[int, int] = {}


@pytest.mark.parametrize(
    ("kind", "body", "pointer"),
    [
        (Outer, b"[]", ""),
        (Outer, b'{"inners":5}', "/inners"),
        (Outer, b'{"inners":[{},{"number":"x"}]}', "/inners/1/number"),
        (list[Inner], b'[{},{"number":"x"}]', "/1/number"),
        (list[list[int]], b"[[1],[1,true]]", "/1/1"),
        (Outer, b'{"named":{"a":{"number":"x"}}}', "/named"),
        (Outer, b'{"counts":{"x":1}}', "/counts"),
        (Outer, b'{"x":1}', "/x"),
        (Outer, b'{"a/b~c":1}', "/a~1b~0c"),
        (Outer, b'{"":1}', "/"),
        (Outer, b'{"inners":[{"back`tick":1}]}', "/inners/0/back`tick"),
        (Outer, b'{"inners":[{"new\\nline":1}]}', "/inners/0/new\nline"),
        (Outer, b'{"inners":[{"x` - at `$.y":1}]}', "/inners/0/x` - at `$.y"),
    ],
)
def test_pointers_are_json_pointers(kind: Any, body: bytes, pointer: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(body, type=kind)
    found = from_msgspec(raised.value, kind)
    assert found.pointer == pointer
    assert not found.detail.endswith("`$`")


@pytest.fixture
def gated(make_settings: Callable[..., Settings], broker_url: str, tenant: Tenant) -> Iterator[tuple[Gate, Settings]]:
    """A gate before the database, and settings that lead through it."""
    settings = make_settings(broker_url=broker_url)
    url = make_url(settings.database_url.get_secret_value())
    assert url.port is not None
    with gate(url.port) as before:
        through = url.set(port=before.port).render_as_string(hide_password=False)
        yield before, make_settings(broker_url=broker_url, database_url=through, database_pool_size=2)


def unavailable(client: httpx2.Client, path: str) -> None:
    """See that every kind of call is answered, and how."""
    for method, url in (("POST", f"{path}/turns"), ("GET", f"{path}/context"), ("GET", path), ("PATCH", path)):
        answer = client.request(method, url, json=HELLO if method == "POST" else {})
        problem(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "1"


def serves(api: RunningApi, key: str, path: str) -> None:
    with api.client(key) as client:
        eventually(lambda: client.get(path).status_code == 200)
        eventually(lambda: client.get(f"{path}/context").status_code == 200)
        assert client.post(f"{path}/turns", json=HELLO).status_code == 201


def test_a_database_that_is_away(gated: tuple[Gate, Settings], tenant: Tenant) -> None:
    """Also for keys that were never seen, and for connections that were open when it went."""
    before, settings = gated
    with running_api(settings) as api, api.client(tenant.key) as client:
        path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
        serves(api, tenant.key, path)
        before.shut()
        unavailable(client, path)
        with api.client(f"key_{MISSING}.secret") as stranger:
            problem(stranger.get(path), 503, "unavailable")
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["services"]["database"]) == (503, "unavailable")
        assert client.get("/healthz").json() == {"status": "ok"}
        before.open()
        serves(api, tenant.key, path)
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["services"]["database"]) == (200, "ok")


def test_a_password_of_the_database_that_is_another_by_now(
    make_settings: Callable[..., Settings], database_url: str, broker_url: str, tenant: Tenant
) -> None:
    login = f"login_{ids.new_id().hex[:12]}"
    url = make_url(database_url).set(username=login, password="before")
    settings = make_settings(broker_url=broker_url, database_url=url.render_as_string(hide_password=False))
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(f"create role {login} login password 'before' in role palimpsest_service".encode())
        with running_api(settings) as api, api.client(tenant.key) as client:
            path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
            serves(api, tenant.key, path)
            owner.execute(f"alter role {login} password 'after'".encode())
            owner.execute("select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = %s", (login,))
            unavailable(client, path)
            owner.execute(f"alter role {login} password 'before'".encode())
            serves(api, tenant.key, path)
        owner.execute(f"drop role {login}".encode())


def test_a_database_that_is_not_up_yet(gated: tuple[Gate, Settings], tenant: Tenant) -> None:
    before, settings = gated
    before.shut()
    with running_api(settings) as api, api.client(tenant.key) as client:
        unavailable(client, f"/v1/conversations/conv_{MISSING}")
        before.open()
        assert client.post("/v1/conversations", json={}).status_code == 201


def test_a_database_that_does_not_answer(
    gated: tuple[Gate, Settings], tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_path, "COMMAND_SECONDS", 0.5)
    monkeypatch.setattr(store_engine, "COMMAND_SECONDS", 0.5)
    monkeypatch.setattr(store_engine, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(hot_path, "ACQUIRE_SECONDS", 1.0)
    monkeypatch.setattr(installation, "LOOK_SECONDS", 0.5)
    before, settings = gated
    with running_api(settings) as api, api.client(tenant.key) as client:
        path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
        serves(api, tenant.key, path)
        before.silence()
        unavailable(client, path)
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        before.open()
        serves(api, tenant.key, path)


def test_connections_that_are_all_in_use(
    gated: tuple[Gate, Settings], database_url: str, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls wait for a row that somebody has locked; whoever comes after them is told to come again.

    A turn leaves a connection of its pool to contexts.
    """
    _, settings = gated
    monkeypatch.setattr(store_engine, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(hot_path, "ACQUIRE_SECONDS", 1.0)
    with running_api(settings) as api, api.client(tenant.key) as client, ThreadPoolExecutor(4) as threads:
        path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
        with psycopg.connect(database_url) as connection:
            connection.execute("select from conversations for update")
            waiting = [threads.submit(client.post, f"{path}/turns", json=HELLO)]
            waiting += [threads.submit(client.patch, path, json={"model": "m"}) for _ in range(2)]
            eventually(lambda: blocked(database_url) == 3)
            for refused in (client.post(f"{path}/turns", json=HELLO), client.get(path)):
                problem(refused, 503, "unavailable")
                assert refused.headers["retry-after"] == "1"
            assert client.get(f"{path}/context").status_code == 200
        assert [done.result().status_code for done in waiting] == [201, 200, 200]
        assert client.get(path).json()["last_seq"] == 0


def test_an_erasure_may_take_longer_than_other_statements(
    gated: tuple[Gate, Settings], database_url: str, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that came later has been refused by the time that the erasure is let on; nobody else waits for it."""
    _, settings = gated
    monkeypatch.setattr(store_engine, "COMMAND_SECONDS", 0.5)
    settings = settings.model_copy(update={"database_pool_size": 1})
    with running_api(settings) as api, api.client(tenant.key) as client, ThreadPoolExecutor(1) as threads:
        path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
        with psycopg.connect(database_url) as connection:
            connection.execute("select from conversations for update")
            waiting = threads.submit(client.delete, path)
            eventually(lambda: blocked(database_url) == 1)
            assert client.get(path).status_code == 200
            problem(client.patch(path, json={"model": "m"}), 503, "unavailable")
            assert not waiting.done()
        assert waiting.result().status_code == 200
        problem(client.get(path), 404, "not_found")


def blocked(database_url: str) -> int:
    """Return how many connections wait for a lock."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_fault_of_ours_reveals_nothing(
    make_settings: Callable[..., Settings], broker_url: str, tenant: Tenant
) -> None:
    settings = make_settings(broker_url=broker_url)
    with running_api(settings) as api, api.client(tenant.key) as client:
        path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
        with psycopg.connect(settings.database_url.get_secret_value(), autocommit=True) as connection:
            for (function,) in connection.execute(
                "select oid::regprocedure::text from pg_proc where proname in ('read_context', 'append_turn')"
            ).fetchall():
                connection.execute(f"drop function {function}")
            connection.execute("alter table conversations rename column model to other")
        for method, url in (("GET", f"{path}/context"), ("POST", f"{path}/turns"), ("GET", path)):
            answer = client.request(method, url, json=HELLO if method == "POST" else {})
            refusal = problem(answer, 500, "internal")
            assert refusal["detail"] == "Something went wrong here; the log has the request's id."
            assert not {"read_context", "append_turn", "model", "sqlalchemy"} & set(answer.text.lower().split())


def test_a_revoked_key_is_forgotten_soon(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principals, "REMEMBERED_SECONDS", 0.3)
    key = key_with(service, ["context:read"])
    with service.api.client(key) as client:
        assert client.get("/v1/conversations").status_code == 200
        identifier = ids.parse("key", key.partition(".")[0])
        assert identifier is not None
        engine = owner_engine(service.database_url)
        with engine.begin() as connection:
            assert api_keys.revoke(connection, service.tenant_id, identifier)
        engine.dispose()
        eventually(lambda: client.get("/v1/conversations").status_code == 401)


def test_the_type_of_a_problem_leads_to_what_it_means(service: Service) -> None:
    problem = service.client.get("/v1/conversations/conv_nowhere").json()
    place = urljoin(f"{service.api.url}/v1/conversations/conv_nowhere", problem["type"])
    page = httpx2.get(place)  # without a key
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert f'<section id="{urlsplit(place).fragment}"><h2><code>not_found</code>, 404</h2>' in page.text
    assert {urlsplit(problem_type(code)).fragment for code in PROBLEM_TYPES} == set(
        re.findall(r'<section id="([\w-]+)">', page.text)
    )
