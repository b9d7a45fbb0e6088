"""Postgres fails over behind PgBouncers: one before each server, set as docs/deployment.md has it.

What its server was when it first connected, a PgBouncer tells whoever comes from then on.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import make_url

from store.hot_path import COMMAND_SECONDS
from tests.api.operations.test_pgbouncer import OLDEST, PASSWORD, SESSIONS, documented, make_login, pooler
from tests.faults.failover.test_failover import (
    BOUND_SECONDS,
    Pair,
    load,
    pair,
    refused,
    stopped,
    stored_after,
    unless_away,
)
from tests.faults.installation import SETTLE_SECONDS, asked, once
from tests.support.eventually import eventually
from tests.support.talk import request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["pair", "stopped"]

pytestmark = [pytest.mark.slow, pytest.mark.fault("F33")]

SERVER_CONNECTIONS: Final = 40


class Mode(NamedTuple):
    """How connections are pooled, and the oldest PgBouncer that can do it so."""

    settings: list[str]
    oldest: tuple[int, int]


class Pooled(NamedTuple):
    """The URLs of the primary's PgBouncer and of the standby's, and how they pool."""

    primary: str
    standby: str
    mode: str


MODES: Final = {
    "transaction": Mode(documented()[0], OLDEST),
    "session": Mode(SESSIONS, (1, 18)),
}


@pytest.fixture(params=MODES)
def pooled(pair: Pair, request: pytest.FixtureRequest) -> Iterator[Pooled]:
    """Have all processes from now on go through PgBouncers, and commits wait for the standby."""
    pair.wait_for_standby()
    mode, login = MODES[request.param], make_login(pair.primary.url)
    database = urlsplit(pair.installation.database_url).path.removeprefix("/")
    urls = []
    with ExitStack() as stack:
        for server in (pair.primary, pair.standby):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palimpsest-pgbouncer-")))
            folder.chmod(0o755)
            settings = [f"default_pool_size = {SERVER_CONNECTIONS}", *mode.settings, *documented()[1]]
            running = stack.enter_context(pooler(server.url, login, folder, *settings, oldest=mode.oldest))
            urls.append(make_url(running.url).set(database=database).render_as_string(hide_password=False))
        hosts = ",".join(urlsplit(url).netloc.rpartition("@")[2] for url in urls)
        pair.installation.env |= {
            "PALIMPSEST_DATABASE_URL": f"postgresql://{login}:{PASSWORD}@{hosts}/{database}",
            "PALIMPSEST_DATABASE_ROLE": "",
        }
        yield Pooled(urls[0], urls[1], request.param)


def told(url: str) -> str | None:
    """Return what a PgBouncer says its server is."""
    with psycopg.connect(url) as connection:
        return connection.info.parameter_status("in_hot_standby")


def test_no_acknowledged_turn_is_lost_behind_pgbouncers(
    pair: Pair, pooled: Pooled, measured: Callable[[str, float], None]
) -> None:
    """In the middle of appends, and of a model's call, whose answer comes while there is no primary."""
    installation = pair.installation
    with installation.api(), installation.running("checks,summaries", "beat") as workers:
        talk = asked(installation)
        assert (told(pooled.primary), told(pooled.standby)) == ("off", "on")
        with load(installation) as clients:
            pair.primary.crash()
            installation.model.release()
            eventually(lambda: any(event["event"] == "write.again" for event in workers[0].events), SETTLE_SECONDS)
            promoted = pair.promote()
            took = stored_after(clients, promoted)
        assert told(pooled.standby) == "on"
        measured(f"F33 standby promoted behind PgBouncers, {pooled.mode} mode: a turn of everybody stored", took)
        once(talk.end_state(runs=1))
        assert [worker.process.poll() for worker in workers] == [None] * 2
    assert took <= BOUND_SECONDS


def test_a_primary_behind_a_pgbouncer_that_takes_no_more_writes_is_left(
    pair: Pair, pooled: Pooled, measured: Callable[[str, float], None]
) -> None:
    """As in a planned change of roles; the connections to its PgBouncer stay open."""
    installation = pair.installation
    with installation.api(), installation.running("checks,summaries", "beat"), load(installation) as clients:
        talk = asked(installation)
        # What is asked for the first time after the promotion is answered as it is by then.
        assert (told(pooled.primary), told(pooled.standby)) == ("off", "on")
        pair.take_no_writes()
        turn = refused(talk, installation.client)
        promoted = pair.promote()
        took = stored_after(clients, promoted)
        assert told(pooled.standby) == "on"
        measured(f"F33 primary read-only behind PgBouncers, {pooled.mode} mode: a turn of everybody stored", took)
        installation.model.release()
        turn.send_until_stored()
        once(talk.end_state(runs=1))
    # A turn that was on its way already waits for the word of a standby that is none any more.
    assert took <= COMMAND_SECONDS + BOUND_SECONDS


@pytest.mark.usefixtures("pooled")
def test_nothing_is_read_from_a_server_behind_a_pgbouncer_that_was_the_primary(pair: Pair) -> None:
    """Not even by who only reads: others were told of turns by then that it does not have."""
    installation = pair.installation
    with installation.api() as reading, installation.api():
        talk = installation.talk({"compaction_enabled": False})
        talk.append(request("before"))
        paths = f"{talk.path}/context", talk.path
        with reading.client(installation.tenant.key) as reader:
            assert {reader.get(path).json()["last_seq"] for path in paths} == {0}
            pair.take_no_writes()
            late = refused(talk, installation.client)
            pair.promote()
            late.send_until_stored()
            for path in paths:
                answered = eventually(partial(lambda path: unless_away(reader.get(path)), path))
                assert answered is not None
                assert answered.json()["last_seq"] == len(talk.sent) - 1
