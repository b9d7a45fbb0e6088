"""An API whose database takes no writes, as a replica: what looks back is answered, what writes shall come again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from tests.conftest import make_tenant
from tests.support.service.running_api import running_api
from tests.support.talk import exchanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.settings import Settings

LOOKS_BACK = [
    "/context",
    "/messages",
    "/messages/0",
    "/runs",
    "/snapshots",
    "/pins",
    "/rules",
    "/context-blocks",
    "",
]


@pytest.fixture
def read_only(database_url: str) -> Callable[[], None]:
    """Let every transaction from now on be one that cannot write."""

    def begin() -> None:
        with psycopg.connect(database_url, autocommit=True) as owner:
            name = sql.Identifier(owner.info.dbname)
            owner.execute(sql.SQL("alter database {} set default_transaction_read_only = on").format(name))

    return begin


def test_what_looks_back_is_answered_and_what_writes_is_503(
    make_settings: Callable[..., Settings], broker_url: str, database_url: str, read_only: Callable[[], None]
) -> None:
    tenant = make_tenant(database_url, "acme")
    settings = make_settings(broker_url=broker_url)
    turn = {"messages": exchanges(2, 50)}
    long = {"messages": exchanges(100, 50)}
    with running_api(settings) as primary, primary.client(tenant.key) as client:
        path = "/v1/conversations/" + client.post("/v1/conversations", json={"user_ref": "anna"}).json()["id"]
        assert client.post(f"{path}/turns", json=turn).status_code == 201
        searched = "/v1/conversations/" + client.post("/v1/conversations", json={}).json()["id"]
        assert client.post(f"{searched}/turns", json=long).status_code == 201
    read_only()
    with running_api(settings) as replica, replica.client(tenant.key) as client:
        for end in LOOKS_BACK:
            assert client.get(path + end).status_code == 200, end
        for whole in ("/v1/conversations", "/v1/runs", "/v1/erasures", "/v1/tenant/usage", "/v1/users/anna/export"):
            assert client.get(whole).status_code == 200, whole
        # A search stores what it has to make where it can, and what was asked.
        response = client.post(f"{searched}/recall", json={"query": "lorem"})
        assert (response.status_code, response.json()["searched"]) == (200, 200)
        assert client.get(f"{searched}/recalls").json()["data"] == []
        counted = client.get("/metrics").text
        assert 'palimpsest_recalls_total{kind="query",outcome="found"} 1.0' in counted
        assert "palimpsest_recalls_unrecorded_total 1.0" in counted
        for answer in (
            client.post(f"{path}/turns", json=turn),
            client.post("/v1/conversations", json={}),
            client.post(f"{path}/compactions", json={}),
            client.delete(path),
        ):
            assert answer.status_code == 503, answer.text
            assert answer.json()["code"] == "unavailable"
            assert answer.headers["retry-after"]
        assert len(client.get(f"{path}/messages").json()["data"]) == 4
