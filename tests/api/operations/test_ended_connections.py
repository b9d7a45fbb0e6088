"""Connections that the database has ended, as long as nobody has told the API so."""

from __future__ import annotations

import contextlib
from socket import SHUT_RDWR
from threading import Event, Semaphore, Timer
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import make_url

from tests.support.eventually import eventually
from tests.support.servers.tcp_gate import Gate
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from runtime.settings import Settings
    from tests.conftest import Tenant

TERMINATE = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and application_name like 'palimpsest-%'"
)


class LastWords(Gate):
    """Passes on at once what a server says last, but only when it may that it has hung up."""

    def __init__(self, target: int) -> None:
        self.said = Semaphore(0)
        self.may_hang_up = Event()
        super().__init__(target)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
            self.said.release()
            self.may_hang_up.wait()
            sink.shutdown(SHUT_RDWR)


@pytest.mark.parametrize("call", ["/context", ""], ids=["hot", "other"])
def test_a_request_on_one_is_told_to_come_again(
    make_settings: Callable[..., Settings], broker_url: str, tenant: Tenant, call: str
) -> None:
    url = make_url(make_settings().database_url.get_secret_value())
    assert url.port is not None
    gate = LastWords(url.port)
    through = url.set(port=gate.port).render_as_string(hide_password=False)
    settings = make_settings(broker_url=broker_url, database_url=through, database_pool_size=1)
    try:
        with running_api(settings) as api, api.client(tenant.key) as client:
            path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
            assert client.get(path + call).status_code == 200
            with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
                ended = connection.execute(TERMINATE).fetchall()
            assert all(gate.said.acquire(timeout=20) for _ in ended)
            # The request meets the connection in between, or nearly always; whenever it comes it may not be a 500.
            Timer(0.3, gate.may_hang_up.set).start()
            assert client.get(path + call).status_code in {200, 503}
            gate.may_hang_up.wait()
            eventually(lambda: client.get(path + call).status_code == 200)
    finally:
        gate.may_hang_up.set()
        gate.shut()
