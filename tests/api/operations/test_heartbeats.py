"""API and gateway processes among those that are counted: there while they serve, gone once they have ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from cli.installation.stats import run_stats
from tests.gateway.running_gateway import running_gateway
from tests.support.eventually import eventually
from tests.support.service.running_api import running_api

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.settings import Settings


def rows_of(settings: Settings, kind: str) -> list[dict[str, Any]]:
    with psycopg.connect(settings.database_url.get_secret_value(), row_factory=dict_row) as connection:
        return connection.execute("select * from processes where kind = %s", (kind,)).fetchall()


@pytest.mark.parametrize(("kind", "serving"), [("api", running_api), ("gateway", running_gateway)])
def test_a_server_is_counted_while_it_serves(
    make_settings: Callable[..., Settings],
    capsys: pytest.CaptureFixture[str],
    kind: str,
    serving: Callable[[Settings], Any],
) -> None:
    settings = make_settings(heartbeat_seconds=0.1)
    with serving(settings):
        eventually(lambda: rows_of(settings, kind))
        (row,) = rows_of(settings, kind)
        assert (row["slots"], row["queues"]) == (0, [])
        eventually(lambda: rows_of(settings, kind)[0]["seen_at"] > row["seen_at"])
        capsys.readouterr()
        assert run_stats(make_settings(heartbeat_seconds=60), None, 1, as_json=True) == 0
        (told,) = json.loads(capsys.readouterr().out.splitlines()[-1])["processes"]
        assert (told["kind"], told["is_alive"]) == (kind, True)
    assert rows_of(settings, kind) == []


def test_an_api_without_a_database_goes_on_and_ends(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(heartbeat_seconds=0.05, database_url="postgresql://nobody:x@127.0.0.1:1/none")
    with running_api(settings) as api, api.client() as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
