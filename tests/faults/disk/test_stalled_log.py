"""Postgres' log is slow, or does not take anything for a while: what is stored is served, and turns are told when.

Whoever waits for the log then can be neither cancelled nor ended: the server's process sees nothing but the disk.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from itertools import pairwise
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from store.hot_path import COMMAND_SECONDS
from store.hot_writes import FEWEST
from tests.faults.failover.test_failover import TALKS, load, stored_after
from tests.faults.installation import asked, installed, once
from tests.faults.test_database import ENV, Turn, unavailable
from tests.support.eventually import eventually
from tests.support.servers.own_servers import TEMPLATE, OwnPostgres, own_postgres, query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cli.local.embedded import EmbeddedRedis
    from tests.faults.installation import Installation

pytestmark = [pytest.mark.slow, pytest.mark.fault("F37")]

WRITE: Final = "select pg_logical_emit_message(true, 'palimpsest', '')"
WRITTEN: Final = "select pg_current_wal_flush_lsn()"
SLOW_MICROSECONDS: Final = 100_000
"""The most that `commit_delay` takes."""
STALLED_SECONDS: Final = 12.0
SERVED_SECONDS: Final = 4.0
"""From the beginning of it to the first context that is served, whatever waits for the log."""
BOUND_SECONDS: Final = 2.0
"""From its end to the first turn that everybody has stored."""
CONNECTIONS: Final = TALKS
"""Of the API's pool: as many as there are clients that send turns."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    """A Postgres that waits a tenth of a second whenever it writes its log, and lets nobody else write it meanwhile."""
    with own_postgres(tmp_path_factory.mktemp("postgres") / "data") as made:
        query(made.url, f"alter system set commit_delay = {SLOW_MICROSECONDS}")
        query(made.url, "alter system set commit_siblings = 0")
        query(made.url, "select pg_reload_conf()")
        yield made


@pytest.fixture(scope="module")
def installation(server: OwnPostgres, redis_server: EmbeddedRedis) -> Iterator[Installation]:
    with (
        installed(
            server.url, TEMPLATE, redis_server.url, **(ENV | {"PALIMPSEST_DATABASE_POOL_SIZE": str(CONNECTIONS)})
        ) as made,
        made.api(),
    ):
        yield made


@contextmanager
def stalled(server: OwnPostgres) -> Iterator[None]:
    """Stop a process of the server while it writes the log, as a disk does that does not answer."""
    over = Event()
    with psycopg.connect(server.url, autocommit=True) as owner:
        pid = owner.info.backend_pid

        def write() -> None:
            while not over.is_set():
                owner.execute(WRITE)

        writing = Thread(target=write)
        writing.start()
        try:
            eventually(lambda: _stopped_while_it_writes(server, pid))
            yield
        finally:
            over.set()
            os.kill(pid, signal.SIGCONT)
            writing.join()


def _stopped_while_it_writes(server: OwnPostgres, pid: int) -> bool:
    """Stop the process; let it go on where it does not keep others from writing."""
    os.kill(pid, signal.SIGSTOP)
    other = Thread(target=query, args=(server.url, WRITE))
    other.start()
    other.join(1.0)
    written = query(server.url, WRITTEN)
    other.join(1.0)
    # On a busy machine it may only be slow; then others write.
    if other.is_alive() and query(server.url, WRITTEN) == written:
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def connections(server: OwnPostgres) -> int:
    """Return how many the hot calls have, those included that nobody waits for any more."""
    ((count,),) = query(
        server.url, "select count(*) from pg_stat_activity where application_name = 'palimpsest-api-hot'"
    )
    assert isinstance(count, int)
    return count


def test_a_slow_log(installation: Installation, measured: Callable[[str, float], None]) -> None:
    """Every write of it takes a tenth of a second, and everybody waits for it."""
    with installation.running("checks,summaries", "beat"), load(installation) as clients:
        talk = asked(installation)
        installation.model.release()
        once(talk.end_state(runs=1))
        stored_after(clients, monotonic())
    slowest = max(after - before for each in clients for before, after in pairwise(each.stored))
    measured("F37 each write of the log takes 0.1 s: the slowest turn", slowest)
    assert slowest <= COMMAND_SECONDS


def test_a_log_that_takes_nothing(
    installation: Installation, server: OwnPostgres, measured: Callable[[str, float], None]
) -> None:
    """In the middle of more appends than there are connections, and when the model has answered."""
    with installation.running("checks,summaries", "beat") as workers:
        with load(installation) as clients:
            talk = asked(installation)
            turn = Turn(talk, installation.client)
            with stalled(server):
                began = monotonic()
                installation.model.release()
                read = []
                while monotonic() - began < STALLED_SECONDS:
                    answered = installation.client.get(f"{talk.path}/context")
                    read.append((monotonic() - began, answered.status_code))
                    refused = turn.send()
                    unavailable(refused)
                    assert refused.elapsed.total_seconds() <= COMMAND_SECONDS + BOUND_SECONDS
                left = connections(server)
                over = monotonic()
            took = stored_after(clients, over)
            turn.send_until_stored()
        served = max((at for at, status in read if status != 200), default=0.0)
        measured("F37 the log takes nothing: contexts are served again after", served)
        measured("F37 the log takes what is written again: a turn of everybody stored", took)
        once(talk.end_state(runs=1))
        assert [worker.process.poll() for worker in workers] == [None] * 2
    assert {status for _, status in read} <= {200, 503}
    assert served <= SERVED_SECONDS
    assert took <= BOUND_SECONDS
    assert left <= 2 * CONNECTIONS + FEWEST * (STALLED_SECONDS / COMMAND_SECONDS)
