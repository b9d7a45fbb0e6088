"""What browsers and caches may do with an answer: nothing but what a page of ours needs."""

from __future__ import annotations

import re
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest
from litestar.routes import HTTPRoute

from api.app import create_app
from api.schema.docs_page import _FILES, _FOLDER
from runtime.http.security_headers import DATA_POLICY, PAGE_POLICY
from runtime.settings import Settings
from tests.browser.chromium import PROGRAM
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import httpx2

    from tests.support.service.running_api import Service

ORIGIN = {"origin": "https://elsewhere.example"}
PREFLIGHT = {**ORIGIN, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
UNKNOWN = f"conv_{'0' * 32}"


def routes() -> list[tuple[str, str]]:
    """Return a path and a method for each route there is."""
    return [
        (re.sub(r"\{[^}]*\}", "1", route.path_format), method)
        for route in create_app(Settings()).routes
        if isinstance(route, HTTPRoute)
        for method in sorted(route.methods)
    ]


def guarded(answer: httpx2.Response, *, cache: Iterable[str] = ("no-store",)) -> None:
    headers = answer.headers
    page = headers.get("content-type", "").startswith("text/html")
    assert headers.get_list("x-content-type-options") == ["nosniff"], answer.url
    (policy,), (referrer,) = headers.get_list("content-security-policy"), headers.get_list("referrer-policy")
    if answer.url.path.startswith("/console"):
        # Its forms need an origin, which browsers leave out with `no-referrer`.
        assert referrer in {"no-referrer", "same-origin"}
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy or not page
    else:
        assert referrer == "no-referrer"
        assert policy == (PAGE_POLICY if page else DATA_POLICY).decode()
    assert headers.get_list("cross-origin-resource-policy") == ["same-origin"]
    assert len(headers.get_list("cache-control")) == 1
    assert headers["cache-control"] in cache, f"{answer.url} {headers['cache-control']}"
    assert "strict-transport-security" not in headers
    assert [name for name in headers if name.startswith("access-control-")] == []


def test_both_policies_begin_with_nothing() -> None:
    for policy in (PAGE_POLICY.decode(), DATA_POLICY.decode()):
        assert policy.startswith("default-src 'none'; ")
        assert policy.endswith("frame-ancestors 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy


@pytest.mark.parametrize("key", [True, False])
def test_every_route_answers_with_them_whatever_it_answers(service: Service, key: bool) -> None:
    public = {"public, max-age=3600", "no-store", "no-cache", "private, no-cache"}
    statuses = set()
    with service.api.client() as nobody:
        client = service.client if key else nobody
        for path, method in routes():
            answer = client.request(method, path, headers=ORIGIN)
            guarded(answer, cache=("no-store",) if path.startswith("/v1") else public)
            if path.startswith("/v1"):
                statuses.add(answer.status_code)
    assert (401 in statuses, 404 in statuses) == (not key, key)


def test_errors_and_paths_without_a_route_have_them_too(service: Service) -> None:
    client, statuses = service.client, set()
    for answer in (
        client.get("/nowhere"),
        client.get("/v1/conversations/x/y/z"),
        client.get(f"/v1/conversations/{UNKNOWN}"),
        client.put("/v1/conversations"),
        client.request("BREW", "/v1/conversations"),
        client.post("/v1/conversations", content=b"{"),
        client.post("/v1/conversations", json={"user_ref": 5}),
        client.post("/v1/conversations", content=b"x" * (service.settings.max_body_bytes + 1)),
        client.head("/v1/conversations"),
        client.get("/v1/conversations", headers={"authorization": "Bearer nobody"}),
        client.get("/docs/assets/passwd"),
    ):
        guarded(answer)
        statuses.add(answer.status_code)
    assert statuses >= {200, 400, 401, 404, 405, 413, 422}


def test_what_is_no_http_has_them_too(service: Service) -> None:
    host, port = service.api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        answer = connection.makefile("rb").read().decode().lower()
    assert answer.startswith("http/1.1 400")
    for header in ("x-content-type-options: nosniff\r\n", "cache-control: no-store\r\n", "frame-ancestors 'none'\r\n"):
        assert answer.count(header) == 1


def test_a_context_may_be_kept_by_who_read_it_but_is_asked_for_each_time(service: Service) -> None:
    path = service.conversation()
    service.append(path, {"role": "user", "content": "Hello."})
    read = service.client.get(f"{path}/context")
    guarded(read, cache=("private, no-cache",))
    unchanged = service.client.get(f"{path}/context", headers={"if-none-match": read.headers["etag"]})
    assert unchanged.status_code == 304
    guarded(unchanged, cache=("private, no-cache",))
    guarded(service.client.get(f"{path}/messages"))


def test_no_other_origin_is_let_in(service: Service) -> None:
    for path, method in routes():
        answer = service.client.options(path, headers=PREFLIGHT | {"access-control-request-method": method})
        assert [name for name in answer.headers if name.startswith("access-control-")] == [], path
        assert "origin" not in answer.headers.get("vary", "").lower()


def test_browsers_are_told_to_keep_to_https_where_the_installation_says_so(service: Service) -> None:
    with running_api(service.settings.model_copy(update={"hsts_seconds": 86_400})) as api, api.client() as client:
        for path in ("/healthz", "/nowhere", "/docs"):
            assert client.get(path).headers["strict-transport-security"] == "max-age=86400"


# The page about the API


def test_the_page_about_the_api_has_nothing_from_elsewhere_and_nothing_inline(service: Service) -> None:
    with service.api.client() as client:
        page = client.get("/docs")
        assert re.findall(r"(?:src|href)=\"((?!data:,)[^\"]*)\"", page.text)
        for link in re.findall(r"(?:src|href)=\"((?!data:,)[^\"]*)\"", page.text):
            assert link.startswith("/")
            assert client.get(link).status_code == 200, link
        assert "style=" not in page.text
        assert re.findall(r"<script(?![^>]* src=)", page.text) == []
        assert re.findall(r"\son\w+=", page.text) == []
        for name, (_, kind) in _FILES.items():
            answer = client.get(f"/docs/assets/{name}")
            assert answer.headers["content-type"].split(";")[0] == kind
            assert answer.content == _FILES[name][0].read_bytes()


def test_what_comes_from_others_has_its_licence_beside_it() -> None:
    folder = _FOLDER / "swagger-ui"
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert "SmartBear" in (folder / "NOTICE").read_text()
    assert "MIT" in (folder / "swagger-ui-bundle.js.LICENSE.txt").read_text()


@pytest.mark.skipif(PROGRAM is None, reason="needs Debian's Chromium")
def test_a_browser_shows_the_page_under_its_policy(service: Service, tmp_path: Path) -> None:
    finished = subprocess.run(
        [
            str(PROGRAM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={tmp_path}",
            "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", f"{service.api.url}/docs",
        ],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert "/v1/conversations/{conversation_id}/context" in finished.stdout.replace("\u200b", "").replace("<wbr>", "")
    assert "Content Security Policy" not in finished.stderr, finished.stderr
    assert "Append a turn" in finished.stdout


def test_the_root_leads_to_the_console(service: Service) -> None:
    answer = service.client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/console")
    page = service.client.get("/console", headers={"accept": "text/html"}, follow_redirects=True)
    assert page.headers["content-type"].startswith("text/html")
