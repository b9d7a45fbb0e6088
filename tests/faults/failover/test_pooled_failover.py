"""Postgres fails over behind PgBouncers: one before each server, as docs/deployment.md has it.

What a server is, it tells a PgBouncer once, which tells it to whoever comes from then on.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url

from tests.api.operations.test_pgbouncer import PASSWORD, pooler
from tests.faults.failover.test_failover import BOUND_SECONDS, Pair, load, pair, stopped, stored_after
from tests.faults.test_database import asked, once
from tests.support.servers.own_servers import query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["pair", "stopped"]

pytestmark = [pytest.mark.slow, pytest.mark.fault("F33")]

LOGIN: Final = "app"


@pytest.fixture
def pooled(pair: Pair) -> Iterator[dict[str, str]]:
    """What processes are told that go through PgBouncers."""
    pair.wait_for_standby()
    for statement in (
        f"create role {LOGIN} login noinherit password '{PASSWORD}'",
        f"grant palimpsest_service to {LOGIN}",
        f"alter role {LOGIN} set role = 'palimpsest_service'",
    ):
        query(pair.primary.url, statement)
    with ExitStack() as stack:
        ports = []
        for server in (pair.primary, pair.standby):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-pgbouncer-")))
            folder.chmod(0o755)
            running = stack.enter_context(pooler(server.url, LOGIN, folder, at_least=False))
            ports.append(make_url(running.url).port)
        database = urlsplit(pair.installation.database_url).path
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        url = f"postgresql://{LOGIN}:{PASSWORD}@{hosts}{database}"
        yield {"PALIMPSEST_DATABASE_URL": url, "PALIMPSEST_DATABASE_ROLE": ""}


def test_no_acknowledged_turn_is_lost_behind_pgbouncers(
    pair: Pair, pooled: dict[str, str], measured: Callable[[str, float], None]
) -> None:
    installation = pair.installation
    with installation.api(env=pooled), installation.running("checks,summaries", "sweeper", env=pooled) as workers:
        talk = asked(installation)
        with load(installation) as clients:
            pair.primary.crash()
            promoted = pair.promote()
            for url in consoles:
                query(url, "reconnect")
            took = stored_after(clients, promoted)
        measured("F33 standby promoted, PgBouncers between: a turn of everybody stored", took)
        installation.model.release()
        once(talk.end_state(runs=1))
        assert [worker.process.poll() for worker in workers] == [None] * 2
    assert took <= BOUND_SECONDS
