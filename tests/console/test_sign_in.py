"""The console's doors: who gets in, for how long, and from where; what every page is sent with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from litestar._parsers import parse_cookie_string, parse_url_encoded_form_data

from runtime.ids import external
from tests.support.service.console_client import (
    COOKIE,
    CSP,
    key_of,
    make_key,
    make_ticket,
    query,
    sign_in,
    signed_in,
    text_of,
    visitor,
)

if TYPE_CHECKING:
    from tests.support.service.running_api import Service

PAGES = (
    "/console",
    "/console/conversations",
    "/console/runs",
    "/console/spending",
    "/console/operators",
    "/console/keys",
    "/console/webhooks",
)


def test_nobody_sees_anything_without_signing_in(service: Service) -> None:
    with visitor(service) as client:
        for path in (*PAGES, f"/console/conversations/{external('conv', service.tenant_id)}?x=1"):
            answer = client.get(path)
            assert answer.status_code == 303
            location = urlsplit(answer.headers["location"])
            assert location.path == "/console/sign-in"
            assert parse_qs(location.query)["next"] == [path]
            assert answer.content == b""


def test_signing_in_leads_back_and_sets_a_cookie_that_scripts_and_other_sites_cannot_use(service: Service) -> None:
    _, key = make_key(service)
    with visitor(service) as client:
        done = client.post("/console/sign-in", data={"key": f" {key} ", "next": "/console/runs?state=dead"})
        assert (done.status_code, done.headers["location"]) == (303, "/console/runs?state=dead")
        cookie = done.headers["set-cookie"]
        assert re.fullmatch(
            rf"{COOKIE}=[\w-]{{43}}; Path=/console; Max-Age=43200; HttpOnly; SameSite=Strict", cookie
        ), cookie
        assert client.get("/console/runs").status_code == 200
        assert client.get("/console/sign-in").headers["location"] == "/console"
        behind_tls = client.post(
            "/console/sign-in", data={"key": key}, headers={"origin": "https://console.example.org"}
        )
        assert behind_tls.headers["set-cookie"].endswith("; Secure")
    (stored,) = query(service, "select count(*) from console_sessions where token_hash = %s", cookie[19:62].encode())
    assert stored == (0,)


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example",
        "//evil.example/console",
        "/\\evil.example",
        "/consolex",
        "/v1/tenant",
        "javascript:0",
        "\n",
        "//[x",
        "http://[x/console",
    ],
)
def test_signing_in_leads_nowhere_else(service: Service, elsewhere: str) -> None:
    _, key = make_key(service)
    with visitor(service) as client:
        done = client.post("/console/sign-in", data={"key": key, "next": elsewhere})
        assert done.headers["location"] == "/console"


def test_signing_in_leads_to_a_page_in_any_script(service: Service) -> None:
    _, key = make_key(service)
    for asked, led in (
        ("/console/conversations?q=日本 1", "/console/conversations?q=%E6%97%A5%E6%9C%AC%201"),
        ("/console/runs?reason=a%20b&state=dead", "/console/runs?reason=a%20b&state=dead"),
    ):
        with visitor(service) as client:
            done = client.post("/console/sign-in", data={"key": key, "next": asked})
            assert (done.status_code, done.headers["location"]) == (303, led)
            assert client.get("/console/sign-in", params={"next": asked}).headers["location"] == led


@pytest.mark.parametrize("headers", [{"referer": "http://[x"}, {"hx-current-url": "//[x"}])
def test_where_somebody_was_need_not_be_readable(service: Service, headers: dict[str, str]) -> None:
    with visitor(service) as client:
        done = client.post("/console/sign-out", headers=headers)
        assert (done.status_code, done.headers["location"]) == (303, "/console/sign-in?next=%2Fconsole")


@pytest.mark.parametrize("key", ["", "nonsense", "key_" + "0" * 32 + ".secret", "\x00", "<script>alert(1)</script>"])
def test_a_key_that_opens_nothing(service: Service, key: str) -> None:
    with visitor(service) as client:
        answer = client.post("/console/sign-in", data={"key": key})
        assert answer.status_code == 401
        assert "not known" in text_of(answer.text)
        assert "set-cookie" not in answer.headers
        assert "<script>alert" not in answer.text


@pytest.mark.parametrize("charset", ["", "; charset=nonsense", "; charset=hex", "; charset=utf-7"])
def test_a_form_is_read_as_browsers_write_the_consoles_alone(service: Service, charset: str) -> None:
    """One in several parts would name the encoding of each."""
    _, key = make_key(service)
    kind = "multipart/form-data; boundary=b"
    head = f'--b\r\nContent-Disposition: form-data; name="%s"\r\nContent-Type: text/plain{charset}\r\n\r\n'
    values = [
        (head % "key").encode() + key.encode(),
        (head % "ticket").encode() + b"+2AA-",
        (head % "key").encode() + b"\xff",
    ]
    with visitor(service) as client:
        for value in values:
            body = value + b"\r\n--b--\r\n"
            answer = client.post("/console/sign-in", content=body, headers={"content-type": kind})
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


def test_no_form_and_no_cookies_are_kept(service: Service) -> None:
    """The framework keeps a thousand of each that it has parsed, whoever sent them."""
    caches = (parse_url_encoded_form_data, parse_cookie_string)
    before = [each.cache_info() for each in caches]
    with signed_in(service) as client:
        assert client.get("/console").status_code == 200
        assert client.post("/console/sign-out").status_code == 303
    with visitor(service) as client:
        assert client.get("/console", headers={"cookie": f"a=b; {COOKIE}=invented"}).status_code == 303
    assert [each.cache_info() for each in caches] == before


@pytest.mark.parametrize("scopes", [["context:read"], ["turns:write"], ["turns:write", "context:read"]])
def test_a_key_that_may_not_see_cannot_sign_in(service: Service, scopes: list[str]) -> None:
    _, key = make_key(service, scopes)
    with visitor(service) as client:
        answer = client.post("/console/sign-in", data={"key": key})
        assert answer.status_code == 401
        assert "audit:read" in answer.text
        assert "set-cookie" not in answer.headers


def test_a_ticket_signs_in_once(service: Service) -> None:
    key_id, _ = make_key(service)
    ticket = make_ticket(service, key_id)
    with visitor(service) as client:
        client.cookies.set(COOKIE, ticket, path="/console")
        assert client.get("/console").status_code == 303
        client.cookies.clear()
        for _ in range(2):  # what looks at links uses nothing up
            assert ticket in client.get("/console/sign-in", params={"ticket": ticket}).text
        assert client.post("/console/sign-in", data={"ticket": ticket}).status_code == 303
        assert client.get("/console").status_code == 200
    with visitor(service) as client:
        again = client.post("/console/sign-in", data={"ticket": ticket})
        assert again.status_code == 401
        assert "used before" in again.text


def test_a_ticket_of_a_revoked_key_and_one_whose_time_is_over(service: Service) -> None:
    key_id, _ = make_key(service)
    tickets = [make_ticket(service, key_id) for _ in range(2)]
    query(service, "update console_sessions set expires_at = now() where key_id = %s returning 1", key_id)
    tickets.append(make_ticket(service, key_id))
    query(service, "update api_keys set revoked_at = now() where id = %s returning 1", key_id)
    with visitor(service) as client:
        for ticket in tickets:
            assert client.post("/console/sign-in", data={"ticket": ticket}).status_code == 401


@pytest.mark.parametrize(
    "end",
    [
        "update api_keys set revoked_at = now() where id = %s returning 1",
        "update api_keys set expires_at = now() where id = %s returning 1",
        "update console_sessions set expires_at = now() where key_id = %s returning 1",
        "update console_sessions set ended_at = now() where key_id = %s returning 1",
    ],
)
def test_a_session_ends_with_its_key_and_its_time(service: Service, end: str) -> None:
    key_id, key = make_key(service)
    with sign_in(service, key) as client:
        assert client.get("/console").status_code == 200
        assert query(service, end, key_id) == [(1,)]
        assert client.get("/console").status_code == 303
        part = client.get(
            "/console/runs", headers={"hx-request": "true", "hx-current-url": "http://h/console/runs?a=b"}
        )
        assert part.status_code == 401
        assert part.headers["hx-redirect"] == "/console/sign-in?next=%2Fconsole%2Fruns%3Fa%3Db"


def test_signing_out(service: Service) -> None:
    with signed_in(service) as client:
        token = client.cookies[COOKIE]
        done = client.post("/console/sign-out")
        assert (done.status_code, done.headers["location"]) == (303, "/console/sign-in")
        assert "Max-Age=0" in done.headers["set-cookie"]
        client.cookies.set(COOKIE, token, path="/console")
        assert client.get("/console").status_code == 303


def test_old_sessions_are_removed_when_somebody_signs_in(service: Service) -> None:
    key_id, key = make_key(service)
    with sign_in(service, key):
        query(
            service,
            "update console_sessions set expires_at = now() - interval '2 days' where key_id = %s returning 1",
            key_id,
        )
    with signed_in(service):
        assert query(service, "select count(*) from console_sessions where key_id = %s", key_id) == [(0,)]


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://HOST"}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://HOST"}, False),
        ({}, False),
    ],
)
def test_forms_come_from_our_own_pages(service: Service, headers: dict[str, str], *, is_ours: bool) -> None:
    host = urlsplit(service.api.url).netloc
    sent = {name: value.replace("HOST", host) for name, value in headers.items()}
    _, key = make_key(service)
    path = service.conversation().removeprefix("/v1")
    with service.api.client() as client:
        begun = client.post("/console/sign-in", data={"key": key}, headers=sent)
        assert begun.status_code == (303 if is_ours else 403)
        assert ("set-cookie" in begun.headers) == is_ours
        with sign_in(service, key) as other:
            client.cookies.set(COOKIE, other.cookies[COOKIE], path="/console")
        for action, expected in (("restore", 303), ("compact", 303), ("export", 200), ("erase", 303)):
            done = client.post(f"/console{path}/{action}", data={"version": "0", "agreed": "yes"}, headers=sent)
            assert done.status_code == (expected if is_ours else 403)
        assert client.post("/console/sign-out", headers=sent).status_code == (303 if is_ours else 403)


def test_every_answer_is_sent_with_the_policy(service: Service) -> None:
    with signed_in(service) as client:
        for path in (*PAGES, "/console/nothing/here", "/console/conversations/x", "/console/runs?state=x"):
            answer = client.get(path)
            assert answer.headers["content-security-policy"] == CSP
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
            assert not re.search(
                r"<script(?! src=\"/console/static/)|<style|\son\w+=|\sstyle=|javascript:", answer.text
            )
            assert not re.search(r'(?:src|href|action)="(?:https?:)?//', answer.text)


def test_what_pages_load_is_there_and_may_be_kept(service: Service) -> None:
    with visitor(service) as client:
        page = client.get("/console/sign-in").text
        names = set(re.findall(r'(?:src|href)="(/console/static/[^"]+)"', page))
        assert {urlsplit(url).path.rpartition("/")[2] for url in names} == {
            "console.css",
            "console.js",
            "theme.js",
            "htmx.min.js",
            "icon.svg",
        }
        for url in names:
            asset = client.get(url)
            assert asset.status_code == 200
            assert "immutable" in asset.headers["cache-control"]
            assert client.get(urlsplit(url).path).headers["cache-control"] == "no-cache"
        for name in ("../pages.py", "..%2Fpages.py", "nothing.css", "%00"):
            assert client.get(f"/console/static/{name}").status_code == 404


def test_the_session_opens_nothing_but_the_console(service: Service) -> None:
    with signed_in(service) as client:
        assert client.get("/v1/runs").status_code == 401
    with visitor(service) as client:
        assert client.get("/console", headers={"authorization": f"Bearer {key_of(service.client)}"}).status_code == 303


def test_the_console_is_not_in_the_document(service: Service) -> None:
    document = service.client.get("/openapi.json").json()
    assert not [path for path in document["paths"] if path.startswith("/console")]


def test_an_empty_filter_is_none(service: Service) -> None:
    conversation = service.conversation().removeprefix("/v1")
    with signed_in(service) as client:
        for path in (
            "/console?days=",
            "/console/conversations?q=&sort=&page=",
            "/console/runs?state=&reason=&conversation=&after=",
            "/console/operators?after=",
            "/console/keys?after=",
            "/console/spending?days=",
            "/console/webhooks?state=&after=",
            "/console/runs/retry?reason=",
            "/console/find?q=",
            f"/console{conversation}/context?show=&from=",
            f"/console{conversation}/diff?from=&to=",
            f"/console{conversation}/snapshots?before=",
        ):
            assert client.get(path, follow_redirects=True).status_code == 200, path
        assert "<option selected>" not in client.get("/console/runs?state=&reason=lost").text
        assert "<option selected>dead" in client.get("/console/runs?state=dead&reason=").text
        assert 'value="a=b=" selected' in client.get("/console/runs?state=&reason=a=b=").text


def test_what_there_is_not_and_what_cannot_be_taken(service: Service) -> None:
    conversation = service.conversation().removeprefix("/v1")
    odd = {
        "/console/nothing": 404,
        "/console/conversations/conv_": 404,
        "/console/conversations/%00": 404,
        f"/console/conversations/{external('conv', service.tenant_id)}": 404,
        f"/console/runs/{external('run', service.tenant_id)}": 404,
        "/console/runs/%F0%9F%92%A9": 404,
        f"/console{conversation}/messages/0": 404,
        f"/console{conversation}/messages/99999999999999999999": 404,
        f"/console{conversation}/messages/x": 404,
        f"/console{conversation}/written/0": 404,
        f"/console{conversation}/diff?to=3": 404,
        "/console/conversations/conv_/setup": 404,
        f"/console/conversations/{external('conv', service.tenant_id)}/setup": 404,
        f"/console/conversations/{external('conv', service.tenant_id)}/erase": 404,
        f"/console/runs/retry?reason={'x' * 201}": 422,
        "/console/runs/retry?reason=%00": 422,
        "/console/runs?retried=101": 422,
        f"/console{conversation}/restore?version=7": 404,
        "/console/conversations?page=0": 422,
        "/console/conversations?page=201": 422,
        "/console/conversations?sort=size": 422,
        "/console/conversations?q=%00": 422,
        "/console/conversations?q=" + "x" * 513: 422,
        "/console/runs?state=lost": 422,
        "/console/runs?after=nonsense": 400,
        "/console/runs?conversation=nonsense": 400,
        "/console/operators?after=nonsense": 400,
        "/console/keys?after=nonsense": 400,
        "/console?days=2": 422,
        "/console/spending?days=8": 422,
        f"/console{conversation}/restore": 400,
        f"/console{conversation}/restore?version=-1": 422,
        f"/console{conversation}/context?from=-1": 422,
        f"/console{conversation}/compact?strategy=guess": 422,
        f"/console{conversation}/compact?strategy=auto&min_savings_tokens=many": 422,
        f"/console{conversation}/compact?strategy=auto&compaction_threshold_tokens=0": 422,
        f"/console{conversation}/compact?strategy=auto&compaction_threshold_tokens={'9' * 5_000}": 422,
        f"/console{conversation}/context?from={'9' * 5_000}": 422,
    }
    with signed_in(service) as client:
        assert {path: client.get(path).status_code for path in odd} == odd
        forms = {
            f"/console{conversation}/restore": ({"version": "x"}, 422),
            f"/console{conversation}/compact": ({"strategy": "drop", "instructions": "Be brief."}, 422),
            f"/console{conversation}/compact?": ({"strategy": "summary", "instructions": "Be\0brief."}, 422),
            f"/console{conversation}/restore?": ({"version": "9" * 5_000}, 422),
            f"/console{conversation}/restore?2": ({"version": "-1"}, 422),
            f"/console{conversation}/restore?3": ({}, 422),
            f"/console/runs/{external('run', service.tenant_id)}/retry": ({}, 404),
            "/console/runs/x/retry": ({}, 404),
            "/console/runs/retry": ({"reason": "\0"}, 422),
            "/console/deliveries/x/retry": ({}, 404),
            "/console/webhooks/x/remove": ({}, 404),
            "/console/conversations/x/export": ({}, 404),
            "/console/conversations/x/erase": ({"agreed": "yes"}, 404),
        }
        for path, (data, status) in forms.items():
            assert client.post(path, data=data).status_code == status, path
