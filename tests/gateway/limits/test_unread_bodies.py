"""Refusals that come before a body has been sent: ordinary clients read them, of the API and of the gateway."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.conftest import make_tenant
from tests.gateway.conftest import room_on
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings

MB: Final = 1 << 20
MOST: Final = 2 * MB
SECONDS: Final = 30


@pytest.fixture(scope="module", params=["api", "api, another call", "gateway"])
def server(request: pytest.FixtureRequest, module_settings: Settings) -> Iterator[tuple[str, str, str]]:
    """The URL, a path that takes a body, and a key."""
    tenant = make_tenant(module_settings.database_url.get_secret_value(), f"unread {request.param}")
    if request.param == "gateway":
        with room_on(module_settings, tenant, gateway_max_body_bytes=MOST) as room:
            yield room.gateway.url, "/v1/messages", tenant.key
        return
    settings = module_settings.model_copy(update={"max_body_bytes": MOST})
    with running_api(settings) as api, api.client(tenant.key) as client:
        path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
        yield api.url, f"{path}/turns" if request.param == "api" else "/v1/conversations", tenant.key


def headers_of(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", "content-type": "application/json"}


@pytest.mark.parametrize("size", [MOST + 1, 20 * MB, 60 * MB])
def test_http_client_reads_413(server: tuple[str, str, str], size: int) -> None:
    url, path, key = server
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=SECONDS)
    connection.request("POST", path, body=b" " * size, headers=headers_of(key))
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read())
    # Chunked, so that nobody knows how long it is.
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=SECONDS)
    connection.request("POST", path, body=iter([b" " * MB] * (size // MB + 1)), headers=headers_of(key))
    assert connection.getresponse().status == 413


def test_urllib_reads_413(server: tuple[str, str, str]) -> None:
    # It has `Connection: close` in its request.
    url, path, key = server
    asked = urllib.request.Request(url + path, data=b" " * 20 * MB, headers=headers_of(key))  # noqa: S310 - on loopback
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(asked, timeout=SECONDS)  # noqa: S310 - on loopback
    assert raised.value.code == 413


def test_httpx_reads_413_and_401(server: tuple[str, str, str]) -> None:
    url, path, key = server
    with httpx2.Client(base_url=url, timeout=SECONDS) as client:
        assert client.post(path, content=b" " * 20 * MB, headers=headers_of(key)).status_code == 413
        assert client.post(path, content=b" " * 20 * MB, headers=headers_of("sk-none")).status_code == 401


def test_a_client_that_expects_leave_is_not_asked_for_its_body(server: tuple[str, str, str]) -> None:
    url, path, key = server
    place = urlsplit(url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=SECONDS) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nexpect: 100-continue\r\n"
        connection.sendall(f"{head}content-length: {20 * MB}\r\n\r\n".encode())
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close" in answer


def test_a_refused_head_is_read_by_a_client_that_still_sends(server: tuple[str, str, str]) -> None:
    url, path, key = server
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=SECONDS)
    given: dict[str, Any] = {**headers_of(key), "x-long": "a" * 200_000}
    connection.request("POST", path, body=b" " * 20 * MB, headers=given)
    assert connection.getresponse().status == 431


def test_small_refused_requests_keep_their_connection(server: tuple[str, str, str]) -> None:
    url, path, _ = server
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=SECONDS)
    connection.request("POST", path, body=b"{}", headers=headers_of("sk-none"))
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("connection")) == (401, None)
    answer.read()
    before = connection.sock
    connection.request("POST", path, body=b"{}", headers=headers_of("sk-none"))
    assert connection.getresponse().status == 401
    assert connection.sock is before
