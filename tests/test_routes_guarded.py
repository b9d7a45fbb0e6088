"""Every route of the application: who is let in, and what everybody else is told."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from litestar.routes import HTTPRoute

from api.app import create_app
from store import api_keys
from store.api_keys import SCOPES
from store.engine import owner_engine
from store.settings import Settings
from tests.problem_documents import problem
from tests.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import httpx2

    from tests.running_api import Service

OPEN = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"}
"""What is answered to everybody."""
CONSOLE = "/console"
"""Pages for people, who sign in with a key."""
OPEN_CONSOLE = ("/console/sign-in", "/console/static/", "/console/1")
"""Where one signs in, what the pages look like, and what is said where there is no page."""
NEEDS = re.compile(r"This key has not the scope (?P<scope>[a-z:]+)\.")
ONLY_ADMIN = ("/v1/keys", "/v1/webhooks", "/v1/webhook-deliveries")


def routes() -> list[tuple[str, str]]:
    """Return (method, path) of all routes, with a value for every parameter."""
    return sorted(
        (method, re.sub(r"\{\w+\}", "1", route.path_format))
        for route in create_app(Settings()).routes
        if isinstance(route, HTTPRoute)
        for method in route.methods - {"OPTIONS"}
    )


GUARDED = [(method, path) for method, path in routes() if path.startswith("/v1/")]


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
    others = {path for _, path in routes() if not path.startswith("/v1/")}
    assert {path for path in others if not path.startswith((*OPEN, CONSOLE))} == set()
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
        told = {what: refusal(client.request(method, path, headers=headers)) for what, headers in impostors.items()}
        if method == "GET":
            assert client.head(path).status_code == 401
    assert all(each == told["no key"] for each in told.values())
    assert told["no key"]["headers"]["www-authenticate"] == "Bearer"


def test_every_route_needs_one_scope(service: Service) -> None:
    """Of four keys with one scope each, the route's own and `admin` are let in."""
    keys = {scope: key_with(service, [scope]) for scope in SCOPES if scope != "admin"}
    admin = key_with(service, ["admin"])
    for method, path in GUARDED:
        refused = {}
        for scope, key in keys.items():
            # What is let in stops at its body or parameters: nothing is changed.
            with service.api.client(key) as client:
                answer = client.request(method, f"{path}?nothing=like-this")
            if answer.status_code != 422:
                found = NEEDS.fullmatch(problem(answer, 403, "forbidden")["detail"])
                assert found
                refused[scope] = found["scope"]
        (needed,) = set(refused.values())
        assert set(keys) - set(refused) == {needed} - {"admin"}, path
        if path.startswith(ONLY_ADMIN) or path == "/v1/tenant":
            assert needed == "admin", path
        if method in {"PATCH", "DELETE"}:
            assert needed in {"turns:write", "admin"}, path
        with service.api.client(admin) as client:
            problem(client.request(method, f"{path}?nothing=like-this"), 422, "invalid", "nothing")


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
