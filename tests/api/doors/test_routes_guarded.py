"""Every route of the application: who is let in, and what everybody else is told."""

from __future__ import annotations

import re
import socket
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from runtime.http import bounded_http, unread_bodies
from runtime.settings import Settings
from store.engine import owner_engine
from store.tenants import api_keys
from store.tenants.api_keys import BY_NAME_ONLY, SCOPES
from tests.api.doors.test_hot_routes import raw
from tests.support.service import documented_answers
from tests.support.service.problem_documents import problem
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import httpx2

    from tests.support.service.running_api import Service

OPEN = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"}
"""What is answered to everybody."""
WITH_KEY = ("/v1/", "/mcp")
CONSOLE = "/console"
"""Pages for people, who sign in with a key."""
OPEN_CONSOLE = ("/console/sign-in", "/console/static/", "/console/1")
"""Where one signs in, what the pages look like, and what is said where there is no page."""
NEEDS = re.compile(r"This key has not the scope (?P<scope>[a-z:]+)\.")
LARGE = 64 * 1024 + 1
"""Bytes of a body that no form may have."""
ONLY_ADMIN = ("/v1/keys", "/v1/webhooks", "/v1/webhook-deliveries")


def routes_by_template() -> list[tuple[str, str]]:
    """Return (method, path) of all routes that take a key, parameters by their names."""
    return [(method, path) for method, path in documented_answers.routes() if path.startswith("/v1/")]


def routes() -> list[tuple[str, str]]:
    """Return (method, path) of all routes, with a value for every parameter."""
    return sorted((method, re.sub(r"\{\w+\}", "1", path)) for method, path in documented_answers.routes())


GUARDED = [(method, path) for method, path in routes() if path.startswith(WITH_KEY)]


def key_with(
    service: Service, scopes: Collection[str] = SCOPES, *, expired: bool = False, revoked: bool = False
) -> str:
    engine = owner_engine(service.database_url)
    expires_at = datetime.now(UTC) - timedelta(seconds=1) if expired else None
    with engine.begin() as connection:
        connection.exec_driver_sql("select set_config('app.tenant_id', %s, true)", (str(service.tenant_id),))
        row, key = api_keys.create(connection, service.tenant_id, "walker", scopes, expires_at)
        if revoked:
            assert api_keys.revoke(connection, service.tenant_id, row.id)
    engine.dispose()
    return key


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a moment only for bodies that nobody sends."""
    monkeypatch.setattr(unread_bodies, "IDLE_SECONDS", 0.05)


@pytest.fixture(scope="module")
def impostors(service: Service) -> Mapping[str, Mapping[str, str]]:
    """Headers of requests that present no valid key, by what is wrong with them."""
    valid = key_with(service)
    other = valid[:-1] + ("a" if valid[-1] != "a" else "b")

    def bearer(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    return {
        "no key": {},
        "empty": {"authorization": "Bearer"},
        "not a key": bearer("nonsense"),
        "another scheme": {"authorization": f"Basic {valid}"},
        "an id that does not exist": bearer(f"key_{uuid4().hex}.{valid.partition('.')[2]}"),
        "another secret": bearer(other),
        "another secret, in the other header": {"x-api-key": other},
        "no secret": bearer(valid.partition(".")[0]),
        "revoked": bearer(key_with(service, revoked=True)),
        "expired": bearer(key_with(service, expired=True)),
        "a token, which nobody set up": bearer("eyJhbGciOiJSUzI1NiJ9.e30.c2ln"),
    }


def test_the_walk_goes_everywhere() -> None:
    assert len(GUARDED) > 40
    assert {path for _, path in routes() if not path.startswith((*WITH_KEY, *OPEN, CONSOLE))} == {"/"}
    assert {("POST", "/v1/conversations/1/turns"), ("GET", "/v1/keys"), ("DELETE", "/v1/users/1")} <= set(GUARDED)


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_nothing_is_answered_without_a_key(
    service: Service, impostors: Mapping[str, Mapping[str, str]], method: str, path: str
) -> None:
    def refusal(answer: httpx2.Response) -> dict[str, Any]:
        document = problem(answer, 401, "unauthenticated")
        del document["request_id"]
        own = {"request-id", "date", "content-length"}
        return {"body": document, "headers": {k: v for k, v in answer.headers.items() if k not in own}}

    with service.api.client() as client:
        names = {what: refusal(client.request(method, path, headers=headers)) for what, headers in impostors.items()}
        if method == "GET":
            assert client.head(path).status_code == 401
    assert all(each == names["no key"] for each in names.values())
    assert names["no key"]["headers"]["www-authenticate"] == "Bearer"


def test_every_route_needs_its_scopes(service: Service) -> None:
    """Of keys with one scope or two, those that have the route's are let in, and `admin`."""
    weak = [scope for scope in SCOPES if scope != "admin"]
    keys = {scopes: key_with(service, scopes) for count in (1, 2) for scopes in combinations(weak, count)}
    admin = key_with(service, ["admin"])

    def ask(key: str, method: str, path: str) -> httpx2.Response:
        # What is let in stops at its body or parameters: nothing is changed.
        url, headers = f"{path}?nothing=like-this", {"authorization": f"Bearer {key}"}
        return service.client.request(method, url, headers=headers)

    for method, path in GUARDED:
        refused: dict[tuple[str, ...], str] = {}
        for scopes, key in keys.items():
            answer = ask(key, method, path)
            if answer.status_code != 422:
                found = NEEDS.fullmatch(problem(answer, 403, "forbidden")["detail"])
                assert found
                refused[scopes] = found["scope"]
        needed = set(refused.values())
        assert set(keys) - set(refused) == {scopes for scopes in keys if needed <= set(scopes)}, path
        if path.startswith(ONLY_ADMIN) or path == "/v1/tenant":
            assert needed == {"admin"}, path
        if path in {"/v1/recall", "/v1/users/1/recall"}:
            assert needed == {"recall:user"}, path
        if method in {"PATCH", "DELETE"}:
            assert needed & {"turns:write", "admin"}, path
        answer_to_admin = (403, "forbidden") if needed & set(BY_NAME_ONLY) else (422, "invalid", "nothing")
        problem(ask(admin, method, path), *answer_to_admin)


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_what_a_handler_is_given_is_no_parameter(service: Service, method: str, path: str) -> None:
    key = {"authorization": f"Bearer {key_with(service)}"}
    problem(service.client.request(method, f"{path}?request=1", headers=key), 422, "invalid", "request")


def test_pages_need_somebody_signed_in(service: Service) -> None:
    pages = [(method, path) for method, path in routes() if path.startswith(CONSOLE)]
    with service.api.client() as client:
        for method, path in pages:
            if path.startswith(OPEN_CONSOLE):
                continue
            for headers in ({}, {"cookie": "palimpsest_console=invented"}):
                answer = client.request(method, path, headers=headers)
                assert answer.status_code in {303, 401, 403}, (method, path)
                assert answer.status_code != 303 or answer.headers["location"].startswith("/console/sign-in")


def test_what_is_open_to_everybody(service: Service) -> None:
    with service.api.client() as client:
        for path in OPEN:
            assert client.get(path).status_code == 200, path


def test_metrics_with_a_token_of_their_own(service: Service) -> None:
    guarded = Settings(**{**service.settings.model_dump(), "metrics_token": "scrape-me"})
    with running_api(guarded) as api, api.client() as client:
        for headers in ({}, {"authorization": "Bearer other"}, dict(service.client.headers)):
            refused = client.get("/metrics", headers=headers)
            problem(refused, 401, "unauthenticated")
            assert refused.headers["www-authenticate"] == "Bearer"
        scraped = client.get("/metrics", headers={"authorization": "Bearer scrape-me"})
        assert scraped.status_code == 200
        assert "palimpsest_http_requests_total" in scraped.text
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(("method", "path"), routes())
def test_a_body_is_not_waited_for_before_it_is_known_who_sends_it(service: Service, method: str, path: str) -> None:
    """It is announced and never comes."""
    own_page = {"host": "palimpsest", "origin": "http://palimpsest"}
    for headers in ({}, own_page, {**own_page, "content-type": "application/x-www-form-urlencoded"}):
        text = raw(service.api, method, path, {**headers, "content-length": str(LARGE)}, b"")
        status = int(text[9:12])
        if path.startswith("/v1/"):
            assert status == 401
        elif path == "/console/sign-in" and method == "POST" and "content-type" in headers:
            assert status == 413
        else:
            assert status in {200, 303, 307, 401, 403, 404}, path


def test_a_form_ends_at_its_limit_however_it_is_sent(service: Service) -> None:
    form = "application/x-www-form-urlencoded"
    for kind in (form, f"{form}; charset=utf-8", "multipart/form-data; boundary=b", "text/plain"):
        headers = {"origin": "http://test", "content-type": kind, "transfer-encoding": "chunked"}
        # Neither chunk nor body has an end.
        text = raw(service.api, "POST", "/console/sign-in", headers, b"%x\r\n" % (1 << 30) + b"a=1&" * (LARGE // 4 + 1))
        assert int(text[9:12]) == (413 if kind.startswith(form) else 401), kind
    fits = b"key=" + b"k" * (LARGE - 5)
    headers = {"origin": "http://test", "content-type": form, "content-length": str(len(fits))}
    assert int(raw(service.api, "POST", "/console/sign-in", headers, fits)[9:12]) == 401


def test_a_body_without_an_end_is_cut_off_after_the_answer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_bodies, "DRAIN_BYTES", 1 << 20)
    url = urlsplit(service.api.url)
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=30) as connection:
        connection.sendall(b"POST /v1/conversations HTTP/1.1\r\nhost: test\r\ncontent-length: 99999999999\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(bytes(256 << 20))


def test_a_request_names_one_host(service: Service) -> None:
    text = raw(service.api, "GET", "/healthz", {"Host": "other"}, b"")
    assert text.startswith(b"HTTP/1.1 400 ")
    assert b"one Host header" in text


def test_requests_are_sent_ahead_of_their_answers_up_to_a_limit(service: Service) -> None:
    one = b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n"
    text = raw(service.api, "GET", "/healthz", {}, one * bounded_http.MAX_PIPELINED * 2, close=False)
    assert b"HTTP/1.1 400 " in text
    assert b"sent ahead of their answers" in text
    closing = b"GET /healthz HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"
    fits = bounded_http.MAX_PIPELINED - 1
    text = raw(service.api, "GET", "/healthz", {}, one * fits + closing, close=False)
    assert text.count(b"HTTP/1.1 200 ") == fits + 2


SPELLINGS: dict[str, Callable[[str], str]] = {
    "an empty segment before": lambda path: f"/{path}",
    "an empty segment within": lambda path: path.replace("/", "//", 2).removeprefix("/"),
    "a slash behind": lambda path: f"{path}/",
    "an encoded slash behind": lambda path: f"{path}%2f",
    "an encoded letter": lambda path: re.sub(r"[a-z](?=[^/]*$)", lambda found: f"%{ord(found[0]):x}", path, count=1),
    "an encoded digit": lambda path: path.replace("/v1", "/v%31"),
    "a dot": lambda path: f"/.{path}",
    "two dots": lambda path: f"/a/..{path}",
    "a dot behind": lambda path: f"{path}/.",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_path_is_answered_as_it_is_written_alone(service: Service, spelling: str) -> None:
    """A proxy that keeps one path inside compares it letter by letter."""
    key = {"authorization": service.client.headers["authorization"], "content-length": "0"}
    for method, path in routes():
        other = SPELLINGS[spelling](path)
        if other != path:
            text = raw(service.api, method, other, key, b"")
            assert int(text[9:12]) == 404, other


def test_a_users_name_may_be_encoded_where_it_has_to_be(service: Service) -> None:
    for name in ("Ann%20Lee", "ann%40example.org", "ann@example.org", "%C3%A9", "a%3Fb", "a%25b"):
        assert service.client.get(f"/v1/users/{name}/export").status_code == 200
