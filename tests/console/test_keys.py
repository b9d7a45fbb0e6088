"""API keys in the console: listed without secrets, shown once, rotated, revoked, and written down with who did it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from runtime.ids import external
from store.tenants import api_keys
from tests.support.eventually import eventually
from tests.support.service.console_client import make_key, query, sign_in, signed_in, text_of, visitor

if TYPE_CHECKING:
    import httpx2

    from tests.support.service.running_api import Service

SECRET = re.compile(r"key_[0-9a-f]{32}\.[\w-]{43}")
HOSTILE = "<script>alert(1)</script> \"'>"


def new_key(client: httpx2.Client, **fields: Any) -> httpx2.Response:
    """Fill in and send the form for a new key."""
    response = re.search(r'name="newest" value="(key_[0-9a-f]{32})"', client.get("/console/keys/new").text)
    assert response
    form = {"newest": response[1], "name": "chat backend", "scopes": ["turns:write", "context:read"], "days": "90"}
    return client.post("/console/keys", data=form | fields)


def secret_of(answer: httpx2.Response) -> str:
    """Return the key that an answer shows, which nothing may keep."""
    assert answer.status_code == 201, text_of(answer.text)
    assert answer.headers["cache-control"] == "no-store"
    (secret,) = SECRET.findall(answer.text)
    return str(secret)


def done(service: Service, action: str) -> list[tuple[Any, ...]]:
    """Return (by which key, to which key) of what was written down last."""
    found = query(service, "select key_id, subject_key_id from operator_actions where action = %s order by id", action)
    return [(external("key", by), external("key", subject)) for by, subject in found]


def opens(service: Service, key: str) -> bool:
    with service.api.client(key) as client:
        return client.get("/v1/conversations").status_code != 401


def test_a_new_key_is_shown_once_and_written_down(service: Service) -> None:
    key_id, key = make_key(service)
    with sign_in(service, key) as client:
        answer = new_key(client, name=f"chat {HOSTILE}")
        secret = secret_of(answer)
        assert opens(service, secret)
        assert HOSTILE not in answer.text
        made = secret.partition(".")[0]
        assert done(service, "key_create")[-1] == (external("key", key_id), made)
        for path in ("/console/keys", "/console/operators"):
            page = client.get(path).text
            assert made in page or made[-8:] in page
            assert "chat &lt;script&gt;" in page
            assert secret.partition(".")[2] not in page
            assert not SECRET.search(page)
        row = re.search(rf'<tr id="{made}".*?</tr>', client.get("/console/keys").text, re.DOTALL)
        assert row
        written = r"turns:write context:read \d+ s ago by console in 89 d not yet Rotate… Revoke…"
        assert re.search(written, text_of(row[0]))


def test_the_same_form_makes_one_key(service: Service) -> None:
    with signed_in(service) as client:
        before = len(done(service, "key_create"))
        page = client.get("/console/keys/new").text
        newest = re.findall(r'name="newest" value="([^"]+)"', page)[0]
        form = {"newest": newest, "name": "twice", "scopes": "audit:read", "days": "0"}
        secret_of(client.post("/console/keys", data=form))
        again = client.post("/console/keys", data=form)
        assert again.status_code == 409
        assert not SECRET.search(again.text)
        assert len(done(service, "key_create")) == before + 1


def test_the_same_form_sent_twice_at_once_makes_one_key(service: Service) -> None:
    waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with (
        signed_in(service) as client,
        ThreadPoolExecutor(2) as pool,
        psycopg.connect(service.database_url) as connection,
        psycopg.connect(service.database_url, autocommit=True) as other,
    ):
        newest = re.findall(r'name="newest" value="([^"]+)"', client.get("/console/keys/new").text)[0]
        form = {"newest": newest, "name": "twice", "scopes": "audit:read", "days": "0"}
        # Keys can be read, and none made.
        connection.execute("lock table api_keys in share mode")
        sent = [pool.submit(client.post, "/console/keys", data=form) for _ in range(2)]
        eventually(lambda: len(other.execute(waiting).fetchall()) + sum(each.done() for each in sent) >= 2)
        connection.commit()
        assert sorted(each.result().status_code for each in sent) == [201, 409]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": " "},
        {"name": "x" * 201},
        {"name": "a\0b"},
        {"scopes": []},
        {"scopes": ["everything"]},
        {"days": "1"},
        {"days": "-1"},
        {"days": ""},
    ],
)
def test_what_cannot_be_taken(service: Service, fields: dict[str, Any]) -> None:
    with signed_in(service) as client:
        before = query(service, "select count(*) from api_keys")
        assert new_key(client, **fields).status_code == 422
        assert query(service, "select count(*) from api_keys") == before


def test_a_rotated_key_goes_on_for_a_while(service: Service) -> None:
    old_id, old = make_key(service, ["turns:write", "context:read"])
    path = f"/console/keys/{external('key', old_id)}"
    with signed_in(service) as client:
        assert "goes on working meanwhile" in text_of(client.get(f"{path}/rotate").text)
        new = secret_of(client.post(f"{path}/rotate", data={"overlap": "3600"}))
        assert opens(service, new)
        assert opens(service, old)
        assert done(service, "key_rotate")[-1][1] == new.partition(".")[0]
        assert "replaces it" in text_of(client.get(f"{path}/rotate").text)
        again = client.post(f"{path}/rotate", data={"overlap": "3600"})
        assert again.status_code == 409
        assert "rotated before" in text_of(again.text)
        listed = text_of(client.get("/console/keys").text)
        assert f"rotated by key_…{new.partition('.')[0][-8:]}" in listed
        assert client.post(f"{path}/rotate", data={"overlap": "5"}).status_code == 422


def test_a_revoked_key_opens_nothing(service: Service) -> None:
    other_id, other = make_key(service)
    path = f"/console/keys/{external('key', other_id)}"
    with signed_in(service) as client:
        assert opens(service, other)
        assert "cannot be undone" in text_of(client.get(f"{path}/revoke").text)
        answer = client.post(f"{path}/revoke")
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/keys")
        assert not opens(service, other)
        assert done(service, "key_revoke")[-1][1] == external("key", other_id)
        assert re.search(r"revoked \d+ s ago by console", text_of(client.get("/console/keys").text))
        for verb in ("revoke", "rotate"):
            assert client.get(f"{path}/{verb}").status_code == 404
            assert client.post(f"{path}/{verb}", data={"overlap": "0"}).status_code == 404


def test_nobody_locks_himself_out_unasked(service: Service) -> None:
    key_id, key = make_key(service)
    path = f"/console/keys/{external('key', key_id)}"
    with sign_in(service, key) as client:
        for verb, form in (("revoke", {}), ("rotate", {"overlap": "0"})):
            assert "You are signed in with this key" in text_of(client.get(f"{path}/{verb}").text)
            refused = client.post(f"{path}/{verb}", data=form)
            assert refused.status_code == 422
            assert "your session may end" in text_of(refused.text)
        assert client.get("/console/keys").status_code == 200
        answer = client.post(f"{path}/revoke", data={"ends_session": "yes"})
        assert answer.headers["location"] == "/console/sign-in"
        assert client.get("/console/keys").status_code == 303
    assert done(service, "key_revoke")[-1] == (external("key", key_id), external("key", key_id))


def test_what_fails_is_neither_done_nor_written_down(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "MAXIMUM", 0)
    with signed_in_before(service, monkeypatch) as client:
        before = done(service, "key_create")
        answer = new_key(client)
        assert answer.status_code == 409
        assert "in force" in text_of(answer.text)
        assert done(service, "key_create") == before


def signed_in_before(service: Service, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sign in with a key that is made while there is room."""
    with monkeypatch.context() as room:
        room.setattr(api_keys, "MAXIMUM", 1_000)
        key = make_key(service)[1]
    return sign_in(service, key)


def test_keys_are_for_admins_of_their_own_tenant_and_from_our_pages(service: Service) -> None:
    key_id, _ = make_key(service)
    path = f"/console/keys/{external('key', key_id)}"
    paths = ("/console/keys", "/console/keys/new", f"{path}/rotate", f"{path}/revoke")
    with signed_in(service, {"audit:read"}) as reader:
        assert [reader.get(each).status_code for each in paths] == [403] * 4
        assert [reader.post(each).status_code for each in (paths[0], *paths[2:])] == [403] * 3
        assert "/console/keys" not in reader.get("/console").text
    with visitor(service) as nobody:
        assert [nobody.get(each).status_code for each in paths] == [303] * 4
    with sign_in(service, service.stranger.headers["authorization"].removeprefix("Bearer ")) as stranger:
        assert external("key", key_id) not in stranger.get("/console/keys").text
        for each in paths[2:]:
            assert stranger.get(each).status_code == 404
            assert stranger.post(each, data={"overlap": "0"}).status_code == 404
    with signed_in(service) as client:
        for each in (paths[0], *paths[2:]):
            assert client.post(each, headers={"sec-fetch-site": "cross-site"}).status_code == 403
        assert client.get("/console/keys?after=nonsense").status_code == 400
        assert "Keys" in client.get("/console").text


def test_the_list_goes_on(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.console.routes.keys.ON_A_PAGE", 2)
    items = [external("key", make_key(service)[0]) for _ in range(3)]
    with signed_in(service) as client:
        page, seen = "/console/keys", []
        for _ in range(3):
            text = client.get(page).text
            seen += re.findall(r'<tr id="(key_[0-9a-f]{32})"', text)
            page = re.findall(r'rel="next" href="([^"]+)"', text)[0]
    assert seen[1:4] == items[::-1]
