"""Redis fails over: Sentinels make the replica the master, and the wake-ups go there.

Replication is asynchronous and nothing in Redis is worth keeping, so what was there may be gone: the work is Postgres'.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

import pytest
import redis

from tests.faults.installation import SETTLE_SECONDS, installed, once
from tests.support.eventually import eventually
from tests.support.servers.sentinels import Sentinels, watched_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cli.local.embedded import EmbeddedPostgres
    from tests.faults.installation import Installation, Talk
    from tests.support.servers.own_servers import OwnRedis

pytestmark = [pytest.mark.slow, pytest.mark.fault("F34")]

BOUND_SECONDS: Final = 10.0
"""From the promotion until a wake-up gets to a worker again."""
SETTINGS: Final = {
    "PALIMPSEST_LEASE_SECONDS": "60",
    # Both are kept in Redis.
    "PALIMPSEST_BREAKER_FAILURES": "5",
    "PALIMPSEST_RATE_LIMIT_KEY": "1000000/minute",
}


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    with watched_redis(tmp_path) as running:
        yield running


@pytest.fixture
def watched(postgres: EmbeddedPostgres, template: str, sentinels: Sentinels) -> Iterator[Installation]:
    with installed(postgres.url, template, sentinels.url, **SETTINGS) as made, made.api():
        yield made


def woken(installation: Installation) -> list[Talk]:
    """Begin a conversation a second until a wake-up has one of them checked, since no sweeper runs; return them."""
    talks: list[Talk] = []
    begun = [-1.0]

    def one_is() -> bool:
        if monotonic() - begun[-1] >= 1:
            begun.append(monotonic())
            talks.append(installation.talk())
            talks[-1].append(*talks[-1].long())
        return any(installation.chat.runs(talk.id) for talk in talks)

    eventually(one_is, SETTLE_SECONDS)
    return talks


def is_replica(server: OwnRedis) -> bool:
    """Tell whether a Redis follows another one; not where it ends the connection because that changes."""
    with suppress(redis.ConnectionError), server.client() as client:
        return bool(client.info("replication")["role"] == "slave")
    return False


@pytest.mark.parametrize("how", ["killed", "demoted"])
def test_wake_ups_go_to_the_new_master(
    watched: Installation, sentinels: Sentinels, measured: Callable[[str, float], None], how: str
) -> None:
    """In the middle of summaries, with turns coming in whose checks are deferred, or whose wake-ups are lost."""
    with watched.running("checks", "summaries") as workers:
        watched.model.hold()
        talks = woken(watched)
        if how == "killed":
            sentinels.one.kill()
        else:
            sentinels.change_roles()
        talks.append(meanwhile := watched.talk())
        meanwhile.append(*meanwhile.long())
        eventually(lambda: sentinels.masters == {sentinels.two.port})
        promoted = monotonic()
        talks += woken(watched)
        took = monotonic() - promoted
        measured(f"F34 master {how}, replica promoted: a wake-up is there after", took)
        # Requests are counted again once the pause is over in which nobody asks.
        eventually(lambda: "ratelimit" in watched.client.get(meanwhile.path).headers)
        if how == "killed":
            sentinels.one.start()
        eventually(lambda: is_replica(sentinels.one))
        talks += woken(watched)
        watched.model.release()
        with watched.running("beat"):
            for talk in talks:
                once(talk.end_state(runs=1))
        assert [worker.process.poll() for worker in workers] == [None] * 2
    assert took <= BOUND_SECONDS
