"""Postgres away, restarted, out of connections and out of disk: 503 to the client, and nothing half-written.

The server is the module's own. What a model was paid for is kept until the database takes it.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.faults.installation import SETTLE_SECONDS, asked, installed, once
from tests.support.eventually import eventually
from tests.support.servers.own_servers import TEMPLATE, OwnPostgres, own_postgres, own_redis, query, small_disk
from tests.support.service.problem_documents import problem
from tests.support.talk import answer, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    import httpx2

    from cli.local.embedded import EmbeddedRedis
    from tests.faults.installation import Installation, Talk
    from tests.support.processes import Worker

pytestmark = pytest.mark.slow
ENV = {
    "PALIMPSEST_DATABASE_POOL_SIZE": "2",
    # No lease runs out here, however long the database is away: who has asked the model also writes its answer.
    "PALIMPSEST_LEASE_SECONDS": "60",
}
WAITS = (
    "select pid from pg_stat_activity where datname = current_database()"
    " and application_name = %s and cardinality(pg_blocking_pids(pid)) > 0"
)
HELD_COMMIT = (
    "select pid from pg_stat_activity as a where datname = current_database()"
    " and application_name = %s and wait_event = 'SyncRep' and exists (select from pg_locks as l"
    " where l.pid = a.pid and relation = any('{messages, snapshots}'::regclass[]) and mode = 'RowExclusiveLock')"
)
FAIL_ONCE = """
create sequence broken_off;
create function break_off() returns trigger language plpgsql as $$
begin
    if nextval('broken_off') = 1 then
        raise exception 'broken off by a test' using errcode = '{code}';
    end if;
    return null;
end $$;
create trigger broken_off after insert on {table} for each row execute function break_off();
grant usage on sequence broken_off to palimpsest_service;
"""
AS_BEFORE = "drop trigger if exists broken_off on {table}; drop function break_off; drop sequence broken_off"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    with own_postgres(tmp_path_factory.mktemp("postgres") / "data") as made:
        yield made


@pytest.fixture(scope="module")
def installation(server: OwnPostgres, redis_server: EmbeddedRedis) -> Iterator[Installation]:
    with installed(server.url, TEMPLATE, redis_server.url, **ENV) as made, made.api():
        yield made


@pytest.fixture(scope="module")
def workers(installation: Installation) -> Iterator[list[Worker]]:
    with installation.running("checks,summaries", "beat") as running:
        yield running


@pytest.fixture(autouse=True)
def _as_before(server: OwnPostgres) -> Iterator[None]:
    """Let no test find what another one broke."""
    yield
    if server.pid is None:
        server.start()


class Turn:
    """A turn that a client sends until it is stored, always with the same key."""

    def __init__(self, talk: Talk, client: httpx2.Client) -> None:
        self.talk, self.client = talk, client
        self.messages = [request(f"{talk.label} late"), answer(f"{talk.label} late answer")]
        self.key = talk.label

    def send(self) -> httpx2.Response:
        return self.client.post(
            f"{self.talk.path}/turns", json={"messages": self.messages}, headers={"idempotency-key": self.key}
        )

    def send_until_stored(self) -> httpx2.Response:
        """Come again as the answers say; each of them is a 503 until it is stored."""

        def stored() -> httpx2.Response | None:
            state = self.send()
            if state.status_code == 503:
                unavailable(state)
                return None
            return state

        state = eventually(stored, SETTLE_SECONDS)
        assert state is not None
        assert state.status_code == 201, state.text
        self.talk.sent.extend(self.messages)
        return state


def unavailable(told: httpx2.Response) -> None:
    problem(told, 503, "unavailable")
    assert told.headers["retry-after"] == "1"


def waiting(installation: Installation, statement: str, name: str) -> list[tuple[object, ...]]:
    """Return the connections of the processes with that application name that wait as the statement says."""
    return eventually(lambda: query(installation.database_url, statement, name), 60)


def is_blocked(installation: Installation, pid: int) -> bool:
    """Tell whether a connection waits for a lock."""
    return query(installation.database_url, "select cardinality(pg_blocking_pids(%s)) > 0", pid) == [(True,)]


@pytest.mark.fault("F12")
def test_postgres_restarts_at_once(
    installation: Installation, server: OwnPostgres, workers: list[Worker], measured: Callable[[str, float], None]
) -> None:
    """In the middle of an append, which is in its transaction, and of a model's call, whose answer comes meanwhile."""
    talk = asked(installation)
    turn = Turn(talk, installation.client)
    with ThreadPoolExecutor(1) as threads, closing(psycopg.connect(installation.database_url)) as owner:
        owner.execute("select from conversations for update")
        broken: Future[httpx2.Response] = threads.submit(turn.send)
        waiting(installation, WAITS, "palimpsest-api-hot")
        server.crash()
        unavailable(broken.result(60))
    unavailable(installation.client.get(f"{talk.path}/context"))
    unavailable(installation.client.get(talk.path))
    assert installation.client.get("/healthz").status_code == 200
    worker = workers[0]
    installation.model.release()
    eventually(lambda: any(event["event"] == "write.again" for event in worker.events), 60)
    server.start()
    began = installation.now()
    assert "idempotency-replayed" not in turn.send_until_stored().headers
    measured("F12 Postgres back: a turn stored", (installation.now() - began).total_seconds())
    assert turn.send().headers["idempotency-replayed"] == "true"
    once(talk.end_state(runs=1))
    measured("F12 Postgres back: the conversation compacted", (installation.now() - began).total_seconds())
    assert [worker.process.poll() for worker in workers] == [None] * 2


@pytest.mark.fault("F13")
def test_a_workers_connection_is_ended(installation: Installation, workers: list[Worker]) -> None:
    """All of them, while a model is asked; and the one that is about to commit the answer."""
    talk = asked(installation)
    ended = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'palimpsest-%'"
    query(installation.database_url, ended)
    installation.points.hold("snapshot.written")
    installation.model.release()
    held = installation.points.arrival("snapshot.written")
    in_transaction = " and application_name = 'palimpsest-worker' and state = 'idle in transaction'"
    assert query(installation.database_url, ended + in_transaction) == [(True,)]
    held.release()
    once(talk.end_state(runs=1))
    assert workers[0].process.poll() is None


@pytest.mark.fault("F13")
def test_a_worker_loses_a_deadlock(installation: Installation, workers: list[Worker]) -> None:
    """It has the conversation and wants to write a step; somebody has the steps and wants the conversation.

    The run is kept from the worker until the other one waits, so that the worker closes the circle, and is found by it.
    """
    talk = asked(installation)
    with installation.owner() as gate, installation.owner() as owner, ThreadPoolExecutor(1) as threads:
        owner.execute("set deadlock_timeout = '100s'")  # who looks is who gives way
        with owner.transaction():
            owner.execute("lock table run_steps in exclusive mode")
            with gate.transaction():
                gate.execute("select from runs where conversation_id = %s for update", (talk.id,))
                installation.model.release()
                waiting(installation, WAITS + " and query ilike '%%select runs.id%%'", "palimpsest-worker")
                other = threads.submit(owner.execute, "select from conversations where id = %s for update", (talk.id,))
                eventually(lambda: is_blocked(installation, owner.info.backend_pid), 60)
            other.result(60)
    assert any(event["event"] == "write.again" for event in workers[0].events)
    once(talk.end_state(runs=1))


@pytest.mark.fault("F13")
@pytest.mark.parametrize("code", ["40001", "40P01", "55P03"])
def test_a_transaction_is_rolled_back_by_the_server(
    installation: Installation, workers: list[Worker], code: str
) -> None:
    """Serialization failure, deadlock, lock not available: the worker does it again, the client is told to."""
    talk = installation.talk()
    query(installation.database_url, FAIL_ONCE.format(code=code, table="snapshot_parts"))
    talk.append(*talk.long())
    once(talk.end_state(runs=1))
    assert query(installation.database_url, "select last_value from broken_off") == [(2,)]
    query(installation.database_url, AS_BEFORE.format(table="snapshot_parts"))

    query(installation.database_url, FAIL_ONCE.format(code=code, table="messages"))
    turn = Turn(talk, installation.client)
    unavailable(turn.send())
    assert "idempotency-replayed" not in turn.send_until_stored().headers
    query(installation.database_url, AS_BEFORE.format(table="messages"))
    once(talk.end_state(runs=1))


@pytest.mark.fault("F13")
def test_connections_end_between_a_commit_and_its_answer(installation: Installation, workers: list[Worker]) -> None:
    """A commit that waits for a standby is done when its connection is ended, and nobody has been told."""
    talk = asked(installation)
    turn = Turn(talk, installation.client)
    with installation.owner() as owner, ThreadPoolExecutor(1) as threads:
        owner.execute("set synchronous_commit = local")
        owner.execute("alter system set synchronous_standby_names = 'nobody'")
        owner.execute("select pg_reload_conf()")
        try:
            eventually(lambda: owner.execute("show synchronous_standby_names").fetchone() == ("nobody",))
            owner.execute("checkpoint")  # commits wait as soon as the checkpointer has read it
            lost = threads.submit(turn.send)
            ((pid,),) = waiting(installation, HELD_COMMIT, "palimpsest-api-hot")
            owner.execute("select pg_terminate_backend(%s)", (pid,))
            unavailable(lost.result(60))
            installation.model.release()
            ((pid,),) = waiting(installation, HELD_COMMIT, "palimpsest-worker")
            owner.execute("select pg_terminate_backend(%s)", (pid,))
        finally:
            owner.execute("alter system reset synchronous_standby_names")
            owner.execute("select pg_reload_conf()")
    assert turn.send_until_stored().headers["idempotency-replayed"] == "true"
    once(talk.end_state(runs=1))


@pytest.mark.fault("F14")
@pytest.mark.usefixtures("workers")
def test_connections_that_are_all_in_use(installation: Installation) -> None:
    """As many as may wait for a row that somebody has locked; whoever comes after them is told to come again.

    Of the hot calls' two connections that is one: further appends wait for it together.
    """
    talk = installation.talk()
    turn = request(talk.label)

    def append(message: Any) -> httpx2.Response:
        return installation.client.post(f"{talk.path}/turns", json={"messages": [message]})

    with ThreadPoolExecutor(4) as threads:
        with psycopg.connect(installation.database_url) as owner:
            owner.execute("select from conversations where id = %s for update", (talk.id,))
            held = [threads.submit(append, turn)]
            held += [threads.submit(installation.client.patch, talk.path, json={"model": "m"}) for _ in range(2)]
            eventually(
                lambda: (
                    len(query(installation.database_url, WAITS, "palimpsest-api-hot"))
                    + len(query(installation.database_url, WAITS, "palimpsest-api"))
                    == 3
                )
            )
            # They are answered while the others still wait: nothing here hangs.
            unavailable(append(request("one more")))
            unavailable(installation.client.get(talk.path))
            # What is read on the way of turns has others: F37.
            assert eventually(lambda: installation.client.get(f"{talk.path}/context").status_code == 200)
            assert not any(each.done() for each in held)
        assert [each.result(60).status_code for each in held] == [201, 200, 200]
    talk.sent.append(turn)
    talk.end_state()


@pytest.mark.fault("F22")
@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", 256) as disk,
        own_postgres(disk / "data") as server,
        own_redis() as broker,  # the other one has workers of another database
        installed(server.url, TEMPLATE, broker.url, **ENV) as installation,
        installation.api(),
        installation.running("checks,summaries") as (worker,),
    ):
        talk, large = asked(installation), installation.talk({"compaction_enabled": False})
        turn = Turn(large, installation.client)
        turn.messages = [request(random.Random(7).randbytes(200_000).hex())]  # noqa: S311 - only to compress badly
        ballast = disk / "ballast"
        # A log that runs out of room would end the server: from here on it has a whole new file.
        query(server.url, "select pg_switch_wal()")
        query(server.url, "create table first_in_it ()")
        fill(ballast)
        refused = turn.send()
        unavailable(refused)
        assert refused.json()["detail"].startswith("The database's disk is full.")
        ready = installation.client.get(f"{installation.client.base_url.copy_with(path='/readyz')}")
        assert (ready.status_code, ready.json()["services"]["database"]) == (200, "disk_full")
        installation.model.release()
        eventually(lambda: any(event["event"] == "write.again" for event in worker.events), 60)
        assert talk.context()["last_seq"] == len(talk.sent) - 1  # what is there is served
        ballast.unlink()
        assert "idempotency-replayed" not in turn.send_until_stored().headers
        once(talk.end_state(runs=1))
        large.end_state()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(65_536)):
            pass
