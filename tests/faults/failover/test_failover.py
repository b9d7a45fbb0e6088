"""Postgres fails over to a standby that streams from it: nothing acknowledged is lost where commits wait for it.

The URL names both; each test has a pair of its own, since a promotion cannot be taken back.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import pytest
from palimpsest_client import Client as PalimpsestClient

from store.hot_path import COMMAND_SECONDS
from tests.faults.installation import SETTLE_SECONDS, asked, installed, once
from tests.faults.test_database import Turn, unavailable
from tests.support.eventually import eventually
from tests.support.servers.own_servers import (
    STANDBY,
    TEMPLATE,
    OwnPostgres,
    Standby,
    copy_of,
    own_postgres,
    query,
)
from tests.support.servers.tcp_gate import Gate, gate
from tests.support.service.problem_documents import problem
from tests.support.talk import answer, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx2

    from cli.local.embedded import EmbeddedRedis
    from tests.faults.installation import Installation, Talk
    from tests.support.processes import Worker

pytestmark = [pytest.mark.slow, pytest.mark.fault("F33")]

BOUND_SECONDS: Final = 2.0
"""From the promotion of a standby to the first turn that it stores."""
TALKS: Final = 4


class Pair(NamedTuple):
    """A primary and its standby, the gate that it streams through, and the one between processes and primary."""

    primary: OwnPostgres
    standby: Standby
    stream: Gate
    door: Gate
    installation: Installation

    def wait_for_standby(self) -> None:
        """Let commits wait for the standby from now on, and be sure of it."""
        query(self.primary.url, f"alter system set synchronous_standby_names = '{STANDBY}'")
        query(self.primary.url, "select pg_reload_conf()")
        state = "select sync_state from pg_stat_replication"
        eventually(lambda: query(self.primary.url, state) == [("sync",)])

    def silence_once_replayed(self) -> None:
        """Let the standby have all that there is, and nothing that comes from now on."""
        behind = "select pg_current_wal_lsn() <= replay_lsn from pg_stat_replication"
        eventually(lambda: query(self.primary.url, behind) == [(True,)])
        self.stream.silence()

    def take_no_writes(self) -> None:
        """Have the primary refuse to write from now on, as after a planned change of roles; connections stay open."""
        query(self.primary.url, "alter system set default_transaction_read_only = on")
        query(self.primary.url, "select pg_reload_conf()")

    def promote(self) -> float:
        """Promote the standby; return the time at which it takes writes."""
        self.standby.promote()
        return monotonic()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a Postgres with a migrated database, to be copied."""
    directory = tmp_path_factory.mktemp("postgres") / "stopped"
    with own_postgres(directory):
        return directory


@pytest.fixture
def pair(stopped: Path, tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Pair]:
    with ExitStack() as stack:
        primary = stack.enter_context(OwnPostgres(copy_of(stopped, tmp_path / "primary")))
        stream = stack.enter_context(gate(port(primary)))
        door = stack.enter_context(gate(port(primary)))
        standby = stack.enter_context(Standby(copy_of(stopped, tmp_path / "standby"), stream.port))
        hosts = f"127.0.0.1:{door.port},127.0.0.1:{port(standby)}"
        installation = stack.enter_context(
            # No lease runs out here: who has asked the model also writes its answer.
            installed(primary.url, TEMPLATE, redis_server.url, hosts=hosts, PALIMPSEST_LEASE_SECONDS="60")
        )
        stack.enter_context(installation.api())
        yield Pair(primary, standby, stream, door, installation)


def port(server: OwnPostgres) -> int:
    return urlsplit(server.url).port or 0


class Client:
    """Somebody who sends turn after turn, each until it is stored, and reads between them."""

    def __init__(self, talk: Talk, installation: Installation, *, reads: bool) -> None:
        self.talk, self.installation, self.reads = talk, installation, reads
        self.stored: list[float] = []
        """When each turn was acknowledged."""

    def send_until(self, over: Event) -> None:
        while not over.is_set():
            turn = Turn(self.talk, self.installation.client)
            turn.messages = [request(f"{self.talk.label} turn {len(self.stored)}")]
            turn.key = f"{self.talk.label}-{len(self.stored)}"
            turn.send_until_stored()
            self.stored.append(monotonic())
            if self.reads:
                self.read()

    def read(self) -> None:
        """Read what was stored, by the hot call and by another: it is there, or nothing is answered for the moment."""
        for path in (f"{self.talk.path}/context", self.talk.path):
            answered = unless_away(self.installation.client.get(path))
            if answered is not None:
                assert answered.status_code == 200, answered.text
                assert answered.json()["last_seq"] == len(self.stored) - 1


@contextmanager
def load(installation: Installation, *, reads: bool = True) -> Iterator[list[Client]]:
    """Have turns sent all the while; every one that is acknowledged has to be there in the end, once."""
    policy = {"compaction_enabled": False}
    clients = [Client(installation.talk(policy), installation, reads=reads) for _ in range(TALKS)]
    over = Event()
    with ThreadPoolExecutor(TALKS) as threads:
        sending = [threads.submit(each.send_until, over) for each in clients]
        try:
            eventually(lambda: all(len(each.stored) >= 3 for each in clients))
            yield clients
        finally:
            over.set()
        for done in sending:
            done.result(SETTLE_SECONDS)
    with installation.running("checks,summaries", "beat"):
        for each in clients:
            each.talk.end_state(runs=0)


def stored_after(clients: list[Client], moment: float) -> float:
    """Return the seconds from a moment until everybody has had a turn stored."""
    eventually(lambda: all(each.stored[-1] > moment for each in clients), SETTLE_SECONDS)
    return max(next(at for at in each.stored if at > moment) for each in clients) - moment


def refused(talk: Talk, client: httpx2.Client) -> Turn:
    """Send turn after turn until one is refused, which is returned."""

    def one() -> Turn | None:
        turn = Turn(talk, client)
        turn.key = f"{talk.label}-{len(talk.sent)}"
        if unless_away(turn.send()) is None:
            return turn
        talk.sent += turn.messages
        return None

    turn = eventually(one)
    assert turn is not None
    return turn


def test_no_acknowledged_turn_is_lost(pair: Pair, measured: Callable[[str, float], None]) -> None:
    """In the middle of appends, and of a model's call, whose answer comes while there is no primary."""
    installation = pair.installation
    pair.wait_for_standby()
    with installation.running("checks,summaries", "beat") as workers:
        talk = asked(installation)
        with load(installation) as clients:
            pair.primary.crash()
            installation.model.release()
            eventually(lambda: any(event["event"] == "write.again" for event in workers[0].events), SETTLE_SECONDS)
            promoted = pair.promote()
            took = stored_after(clients, promoted)
        measured("F33 standby promoted: a turn of everybody stored", took)
        once(talk.end_state(runs=1))
        assert [worker.process.poll() for worker in workers] == [None] * 2
        met_by_all(pair, workers)
        assert [said_lost(worker) for worker in workers] == [[], []]
    assert took <= BOUND_SECONDS


def test_a_primary_that_takes_no_more_writes_is_left(pair: Pair, measured: Callable[[str, float], None]) -> None:
    """As in a planned change of roles: its connections stay open, and would answer for good that it is read-only."""
    installation = pair.installation
    pair.wait_for_standby()
    with installation.running("checks,summaries", "beat"), load(installation) as clients:
        talk = asked(installation)
        pair.take_no_writes()
        turn = refused(talk, installation.client)
        promoted = pair.promote()
        measured("F33 primary read-only, standby promoted: a turn of everybody stored", stored_after(clients, promoted))
        installation.model.release()
        turn.send_until_stored()
        once(talk.end_state(runs=1))


def test_a_primary_that_falls_silent(pair: Pair, measured: Callable[[str, float], None]) -> None:
    """Nothing is refused and nothing closed: its connections stay open, new ones are accepted, and no answer comes.

    Of a host that is gone the kernel gives up the connections in the end, which is the door's to do here: its side of
    them is alive.
    """
    installation = pair.installation
    pair.wait_for_standby()
    # A read that was under way could take longer than a turn may.
    with load(installation, reads=False) as clients:
        pair.door.silence()
        pair.primary.crash()
        promoted = pair.promote()
        took = stored_after(clients, promoted)
        pair.door.shut()
        measured("F33 primary silent, standby promoted: a turn of everybody stored", took)
    assert took <= COMMAND_SECONDS + BOUND_SECONDS


def test_a_turn_sent_again_waits_for_the_standby_too(pair: Pair) -> None:
    """A commit that gave up waiting is there, and only there: to answer from it would acknowledge what can be lost."""
    installation = pair.installation
    talk = installation.talk({"compaction_enabled": False})
    talk.append(request("before"))
    pair.wait_for_standby()
    pair.stream.silence()
    turn = Turn(talk, installation.client)
    unavailable(turn.send())
    # There once the server has heard that nobody waits any more.
    eventually(lambda: query(installation.database_url, "select count(*) from messages") == [(3,)])
    unavailable(turn.send())
    pair.primary.crash()
    pair.promote()
    assert "idempotency-replayed" not in turn.send_until_stored().headers
    comes_to_rest(talk, installation)


def test_where_commits_do_not_wait_what_is_lost_is_noticed_and_can_be_sent_again(pair: Pair) -> None:
    """What the standby had not yet when the primary ended; nothing else. Its key is not known there any more."""
    installation = pair.installation
    talk = installation.talk({"compaction_enabled": False})
    talk.append(request("there"))
    pair.silence_once_replayed()
    lost = Turn(talk, installation.client)
    assert lost.send().status_code == 201
    known = installation.client.get(f"{talk.path}/context").headers["etag"]
    pair.primary.crash()
    pair.promote()
    messages = [request("next")]
    follows = {"messages": messages, "expected_next_seq": 3}
    refused = eventually(lambda: unless_away(installation.client.post(f"{talk.path}/turns", json=follows)))
    assert refused is not None
    problem(refused, 409, "unexpected_seq", pointer="/expected_next_seq")
    assert refused.json()["next_seq"] == 1
    talk.append(request("instead"))
    # As many changes as the lost turn made, and another context.
    served = installation.client.get(f"{talk.path}/context", headers={"if-none-match": known})
    assert (served.status_code, served.json()["last_seq"]) == (200, 1)
    assert "idempotency-replayed" not in lost.send_until_stored().headers
    follows["expected_next_seq"] = 4
    assert installation.client.post(f"{talk.path}/turns", json=follows).status_code == 201
    talk.sent += messages
    comes_to_rest(talk, installation)


@pytest.mark.parametrize("by", ["context", "deliver"])
def test_a_client_puts_the_turns_again_that_it_still_holds(pair: Pair, by: str) -> None:
    """Noticed by a context, which `flush` follows, or by the next turn: in their order, under their keys, each once."""
    installation = pair.installation
    talk = installation.talk({"compaction_enabled": False})
    conversation = talk.path.rpartition("/")[2]
    with PalimpsestClient(str(installation.client.base_url), installation.tenant.key) as client:
        turns = [[request(f"{talk.label} {number}"), answer("well")] for number in range(4)]
        client.deliver(conversation, turns[0])
        pair.silence_once_replayed()
        for messages in turns[1:3]:
            assert client.deliver(conversation, messages) is not None
        pair.primary.crash()
        pair.promote()
        eventually(lambda: unless_away(installation.client.get(talk.path)))
        talk.sent = [message for messages in turns[:3] for message in messages]
        if by == "context":
            assert eventually(lambda: client.context(conversation, timeout=10.0)).last_seq == 1
            assert eventually(lambda: client.flush() == 0)
        else:
            stored = eventually(lambda: client.deliver(conversation, turns[3]))
            assert stored is not None
            assert stored.first_seq == 6
            talk.sent += turns[3]
        assert client.context(conversation).last_seq == len(talk.sent) - 1
        assert client.flush() == 0
    comes_to_rest(talk, installation)


@pytest.mark.parametrize("by", ["context", "deliver"])
def test_a_client_puts_again_what_another_has_written_over(pair: Pair, by: str) -> None:
    """No seq is lower than it was told: another process had as many messages stored as were lost."""
    installation = pair.installation
    talk = installation.talk({"compaction_enabled": False})
    conversation = talk.path.rpartition("/")[2]
    kept, lost, of_other, next_one = ([request(f"{talk.label} {number}"), answer("well")] for number in range(4))
    url, key = str(installation.client.base_url), installation.tenant.key
    with PalimpsestClient(url, key) as client, PalimpsestClient(url, key) as other:
        client.deliver(conversation, kept)
        pair.silence_once_replayed()
        assert client.deliver(conversation, lost) is not None
        pair.primary.crash()
        pair.promote()
        other.deliver(conversation, of_other)
        eventually(lambda: other.flush() == 0)
        talk.sent = [*kept, *of_other]
        if by == "context":
            assert eventually(lambda: client.context(conversation, timeout=10.0)).last_seq == 3
            assert client.flush() == 0
        else:
            stored = client.deliver(conversation, next_one)
            assert stored is not None
            assert stored.first_seq == 4
            talk.sent += next_one
        talk.sent += lost
        assert client.context(conversation).last_seq == len(talk.sent) - 1
        assert client.flush() == other.flush() == 0
    comes_to_rest(talk, installation)


def test_processes_say_that_acknowledged_commits_are_lost_and_since_when(pair: Pair) -> None:
    """Without having been asked for anything: a heartbeat that was acknowledged after them is gone as well."""
    installation = pair.installation
    talk = installation.talk({"compaction_enabled": False})
    with installation.running("checks,summaries", "beat") as workers:
        talk.append(request("there"))
        pair.silence_once_replayed()
        lost = Turn(talk, installation.client)
        assert lost.send().status_code == 201
        # The primary's own word for when the turn was stored, and that everybody has been heard of since.
        ((stored_at,),) = query(installation.database_url, "select max(created_at) from messages")
        assert isinstance(stored_at, datetime)
        later = "select bool_and(seen_at > %s) from processes"
        eventually(lambda: query(installation.database_url, later, stored_at) == [(True,)])
        assert [said_lost(worker) for worker in workers] == [[], []]
        kept = beats(pair)
        pair.primary.crash()
        pair.promote()
        for worker in workers:
            (said,) = eventually(partial(said_lost, worker), SETTLE_SECONDS)
            since, through = (datetime.fromisoformat(said[name]) for name in ("since", "through"))
            assert since == kept[worker.process.pid]
            assert since < stored_at < through
        # Said once: from then on the new primary's commits are what there is.
        met_by_all(pair, workers)
        assert [len(said_lost(worker)) for worker in workers] == [1, 1]
        assert "idempotency-replayed" not in lost.send_until_stored().headers
        installation.wake(talk.id)
        talk.end_state(runs=0)


def comes_to_rest(talk: Talk, installation: Installation) -> None:
    """Let workers look, who find nothing to do, and verify what is stored."""
    with installation.running("checks,summaries"):
        installation.wake(talk.id)
        talk.end_state(runs=0)


def said_lost(worker: Worker) -> list[dict[str, Any]]:
    """Return what a process has said of commits that are not there any more."""
    return [event for event in worker.events if event["event"] == "commits.lost"]


def beats(pair: Pair) -> dict[int, datetime]:
    """Return when the standby has last heard of each process, by process id."""
    database = urlsplit(pair.installation.database_url).path
    rows = query(urlsplit(pair.standby.url)._replace(path=database).geturl(), "select pid, seen_at from processes")
    return {pid: at for pid, at in rows if isinstance(pid, int) and isinstance(at, datetime)}


def met_by_all(pair: Pair, workers: list[Worker]) -> None:
    """Wait until each process has been heard of twice by the promoted standby: by then it has said what it has to."""
    pids = [worker.process.pid for worker in workers]

    def heard_since(before: dict[int, datetime]) -> bool:
        now = beats(pair)
        return all(now[pid] > before[pid] for pid in pids)

    for _ in range(2):
        eventually(partial(heard_since, beats(pair)), SETTLE_SECONDS)


def unless_away(answered: httpx2.Response) -> httpx2.Response | None:
    """Return an answer that is not a refusal for the moment; what else it may be is an answer from the database."""
    if answered.status_code == 503:
        unavailable(answered)
        return None
    return answered
