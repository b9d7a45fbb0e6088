"""What processes finish when they are told to stop. Workers: tests/worker/checks/test_worker_processes.py."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx2
import psycopg
import pytest
import redis

from runtime.broker import CHECKS, queue_keys
from tests.support.eventually import eventually
from tests.support.processes import Product, product
from tests.support.talk import request

if TYPE_CHECKING:
    from tests.conftest import Tenant

__all__ = ["product"]

STOP_SECONDS = 60.0  # twice what the product may take


def waiting(product: Product) -> int:
    """Return how many connections of the test's database wait for a lock."""
    return int(
        product.chat.query(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
        )[0][0]
    )


def messages(product: Product) -> int:
    with redis.Redis.from_url(product.env["PALIMPSEST_BROKER_URL"]) as client:
        return sum(int(client.llen(key)) for key in queue_keys(CHECKS))


@pytest.mark.fault("F5")
def test_the_api_finishes_its_requests_and_what_it_has_collected(product: Product, tenant: Tenant) -> None:
    """The wake-ups' interval is longer than the test: only the end can have sent them."""
    product.env |= {"PALIMPSEST_WAKEUP_INTERVAL_SECONDS": "3600"}
    turn: dict[str, Any] = {"messages": [request("hello")]}
    with product.api() as api, ThreadPoolExecutor(1) as threads:
        client = api.client(tenant.key)
        path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
        assert client.post(f"{path}/turns", json=turn).json()["check"] == "queued"
        assembled = client.post(f"{path}/context", json={"user_message": request("and now?")})
        assert assembled.status_code == 200, assembled.text
        with psycopg.connect(product.env["PALIMPSEST_DATABASE_URL"]) as connection:
            connection.execute("select from conversations for update")
            under_way = threads.submit(client.post, f"{path}/turns", json=turn)
            eventually(lambda: waiting(product) == 1)
            api.process.send_signal(signal.SIGTERM)
            eventually(lambda: refuses(api.url))  # whoever comes now goes to another process
            assert not under_way.done()
        assert under_way.result(60).status_code == 201
        assert api.process.wait(STOP_SECONDS) == -signal.SIGTERM  # the server passes it on once it is done
        client.close()
    assert messages(product) == 1
    assert len(product.chat.query("select from messages")) == 2
    assert len(product.chat.query("select from assemblies")) == 1
    assert "Traceback" not in api.log.read_text()


def refuses(url: str) -> bool:
    try:
        httpx2.get(f"{url}/healthz", timeout=1)
    except httpx2.TransportError:
        return True
    return False


def test_a_request_that_does_not_end_does_not_keep_the_api(product: Product, tenant: Tenant) -> None:
    """A statement of a request has ten seconds at most, so that the end comes before the server's own bound."""
    with product.api() as api, ThreadPoolExecutor(1) as threads:
        client = api.client(tenant.key)
        path = f"/v1/conversations/{client.post('/v1/conversations', json={}).json()['id']}"
        with psycopg.connect(product.env["PALIMPSEST_DATABASE_URL"]) as connection:
            connection.execute("select from conversations for update")
            under_way = threads.submit(client.post, f"{path}/turns", json={"messages": [request("hello")]})
            eventually(lambda: waiting(product) == 1)
            api.process.send_signal(signal.SIGTERM)
            assert api.process.wait(STOP_SECONDS) == -signal.SIGTERM  # the server passes it on once it is done
            assert under_way.result(60).status_code == 503
        client.close()
    assert product.chat.query("select from messages") == []
