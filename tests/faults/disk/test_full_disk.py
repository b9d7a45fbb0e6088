"""Postgres' disk is so full that its log has no room either, which ends the server: what was acknowledged is there.

A disk whose log has room, so that the server goes on and refuses what it cannot store: tests/faults/test_database.py.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg
import pytest

from tests.faults.failover.test_failover import load, stored_after
from tests.faults.installation import SETTLE_SECONDS, asked, installed, once
from tests.faults.test_database import ENV, fill, unavailable
from tests.support.eventually import eventually
from tests.support.servers.own_servers import TEMPLATE, OwnPostgres, own_postgres, query, small_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cli.local.embedded import EmbeddedRedis
    from tests.faults.installation import Installation

pytestmark = pytest.mark.slow

MEGABYTES: Final = 256
WASTED_CHARACTERS: Final = 4_000_000
"""Of the log at a time: a file of it has 16 MB."""


class Disk(NamedTuple):
    """A small disk with a Postgres on it, which is started again as a supervisor does, and what was said of that."""

    server: OwnPostgres
    installation: Installation
    ballast: Path
    restarts: list[str]

    def fill(self) -> None:
        """Take all the room there is: what the server has of it is what stands in its files."""
        fill(self.ballast)

    def make_room(self) -> None:
        self.ballast.unlink()

    def leave_the_log(self) -> None:
        """Have the next thing that is written to the log need a new file of it."""
        with psycopg.connect(self.server.url, autocommit=True) as owner:
            for _ in range(self._files_ahead()):
                owner.execute("select pg_switch_wal()")
                owner.execute("select pg_logical_emit_message(true, 'palimpsest', '')")
            owner.execute("select pg_switch_wal()")

    def waste_the_log(self) -> None:
        """Write to the log until the server ends for want of room."""
        with suppress(psycopg.Error), psycopg.connect(self.server.url, autocommit=True) as owner:
            while True:
                owner.execute("select pg_logical_emit_message(true, '', repeat('x', %s))", (WASTED_CHARACTERS,))

    def _files_ahead(self) -> int:
        """Return how many files of the log there are after the one that is written to."""
        files = "select count(*) from pg_ls_waldir() where name ~ '^[0-9A-F]{24}$' and name > pg_walfile_name(%s)"
        ((ahead,),) = query(self.server.url, files.replace("%s", "pg_current_wal_insert_lsn()"))
        assert isinstance(ahead, int)
        return ahead


@contextmanager
def small(tmp_path: Path, broker: EmbeddedRedis, **env: str) -> Iterator[Disk]:
    with (
        small_disk(tmp_path / "disk", MEGABYTES) as disk,
        own_postgres(disk / "data") as server,
        installed(server.url, TEMPLATE, broker.url, **{**ENV, **env}) as installation,
        installation.api(),
    ):
        restarts: list[str] = []
        server.keep_running(restarts.append)
        yield Disk(server, installation, disk / "ballast", restarts)


@pytest.mark.fault("F35")
def test_the_log_has_no_room_in_the_middle_of_appends(
    tmp_path: Path, redis_server: EmbeddedRedis, measured: Callable[[str, float], None]
) -> None:
    """The server ends, and again when it is started as long as there is no room."""
    with small(tmp_path, redis_server) as disk, disk.installation.running("checks,summaries", "beat") as workers:
        installation = disk.installation
        talk = asked(installation)
        with load(installation) as clients:
            disk.fill()
            disk.waste_the_log()
            eventually(lambda: disk.restarts, SETTLE_SECONDS)
            unavailable(installation.client.get(f"{talk.path}/context"))
            disk.make_room()
            took = stored_after(clients, monotonic())
        measured("F35 room again on the disk that ended Postgres: a turn of everybody stored", took)
        installation.model.release()
        once(talk.end_state(runs=1))
        assert [worker.process.poll() for worker in workers] == [None] * 2


@pytest.mark.fault("F36")
def test_the_log_has_no_room_for_a_compactions_commit(
    tmp_path: Path, redis_server: EmbeddedRedis, measured: Callable[[str, float], None]
) -> None:
    """The commit itself ends the server; whether it is there is known once there is a server again."""
    # Nobody else writes to the log meanwhile.
    with small(tmp_path, redis_server, PALIMPSEST_HEARTBEAT_SECONDS="60") as disk:
        installation = disk.installation
        with installation.running("checks,summaries") as (worker,):
            talk = asked(installation)
            installation.points.hold("snapshot.written")
            installation.model.release()
            held = installation.points.arrival("snapshot.written")
            disk.fill()
            disk.leave_the_log()
            assert disk.restarts == []
            held.release()
            eventually(lambda: disk.restarts, SETTLE_SECONDS)
            eventually(lambda: any(event["event"] == "write.again" for event in worker.events), SETTLE_SECONDS)
            unavailable(installation.client.get(f"{talk.path}/context"))
            disk.make_room()
            began = monotonic()
            eventually(lambda: installation.client.get(f"{talk.path}/context").status_code == 200, SETTLE_SECONDS)
            once(talk.end_state(runs=1))
            measured("F36 room again on the disk that ended Postgres at a commit: compacted", monotonic() - began)
            assert worker.process.poll() is None
