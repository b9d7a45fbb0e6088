"""All parts of two releases beside each other, there and back, while turns, contexts and requests come in.

As docs/deployment.md has it: `palimpsest migrate`, then processes are replaced in any order. Back go processes alone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httpx2
import pytest

from migrations.run import upgrade
from tests.conftest import create_database, drop_database
from tests.faults.installation import CUT_BY_CHECKS, SETTLE_SECONDS, installed
from tests.faults.upgrade.releases import after_this_one
from tests.gateway.chatter import Chatter
from tests.gateway.conftest import PROVIDER_KEY, Room
from tests.support.eventually import eventually
from tests.support.messages_api import problems
from tests.support.processes import START_SECONDS, Product
from tests.support.servers.loopback_providers import LoopbackProviders
from tests.support.talk import answer, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
    from tests.faults.installation import Installation, Talk
    from tests.faults.upgrade.releases import Releases
    from tests.support.processes import Api, Worker

TALKS: Final = 3
PACE_SECONDS: Final = 0.25
"""Between two turns of a conversation."""
TURNS: Final = 5
"""Of each conversation, in each constellation of releases at least."""


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    return after_this_one(tmp_path_factory.mktemp("releases"))


@pytest.fixture(scope="module")
def installation(postgres: EmbeddedPostgres, redis_server: EmbeddedRedis, releases: Releases) -> Iterator[Installation]:
    """An installation on the old release's schema."""
    template = f"template_{releases.revision}"
    upgrade(create_database(postgres.url, template), releases.revision)
    with installed(postgres.url, template, redis_server.url) as made:
        yield made
    drop_database(postgres.url, template)


class Fleet(NamedTuple):
    """One process of each part, of one release."""

    api: Api
    gateway: Api
    others: tuple[Worker, Worker]

    def end(self) -> None:
        """End all of them at once; each finishes what it is at."""
        parts = (self.api, self.gateway, *self.others)
        for each in parts:
            each.process.send_signal(signal.SIGTERM)
        ends = [each.process.wait(SETTLE_SECONDS) for each in parts]
        # uvicorn has the signal's own effect follow, once everything is answered.
        assert set(ends[:2]) <= {0, -signal.SIGTERM}
        assert set(ends[2:]) == {0}


class Doors:
    """Where clients go: to each of the processes that are there in turn, and to the next where nobody answers."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._lock = Lock()
        self._open: list[httpx2.Client] = []
        self._next = count()
        self.unheard = 0
        """Requests that no answer came to, since the process was ending."""

    def open(self, api: Api) -> httpx2.Client:
        """Send requests to a process too, from now on."""
        client = api.client(self._key)
        with self._lock:
            self._open.append(client)
        return client

    def close(self, client: httpx2.Client) -> None:
        """Send nothing more to it."""
        with self._lock:
            self._open.remove(client)

    def through(self, ask: Callable[[httpx2.Client], Any]) -> Any:
        """Return what a request answers, wherever."""
        while True:
            with self._lock:
                client = self._open[next(self._next) % len(self._open)]
            try:
                return ask(client)
            except httpx2.TransportError:
                self.unheard += 1


class Load:
    """Conversations that go on until they are told to stop, through the API and through the gateway."""

    def __init__(self, talks: list[Talk], doors: Doors, room: Room, gateways: Doors) -> None:
        self.talks, self._doors, self._gateways = talks, doors, gateways
        self.chatter = Chatter(room, "messages", **{"x-session-id": "rolling"})
        self.asked: list[str] = []
        self.outcomes: set[str] = set()
        self.refused = 0
        self.over = Event()
        self._going: list[Future[None]] = []

    def begin(self, threads: ThreadPoolExecutor) -> None:
        """Go on in as many threads as there are conversations, and one more."""
        self._going = [threads.submit(self.chat), *(threads.submit(self.converse, talk) for talk in self.talks)]

    def end(self) -> None:
        """Wait until everything is answered, and raise what went wrong."""
        self.over.set()
        for each in self._going:
            each.result(SETTLE_SECONDS)

    def converse(self, talk: Talk) -> None:
        """Send turns with their keys, each until it is stored, and read the context after each."""
        while not self.over.wait(PACE_SECONDS):
            number = len(talk.sent)
            said = [request(f"{talk.label} {number}", 150), answer(f"{talk.label} answer {number}", 150)]
            turn = {"json": {"messages": said}, "headers": {"idempotency-key": f"{talk.label} {number}"}}
            while (answered := self._post(f"{talk.path}/turns", turn)).status_code != 201:
                assert answered.status_code == 503, answered.text
                self.refused += 1
            talk.sent.extend(said)
            served = self._doors.through(lambda client: client.get(f"{talk.path}/context"))
            assert served.status_code == 200, served.text
            assert served.json()["messages"][-1:] == talk.sent[-1:]
            assert problems(served.json()["messages"]) == []

    def chat(self) -> None:
        """Ask through the gateway, which has to answer every time."""
        while not self.over.wait(PACE_SECONDS):
            text = f"rolling {len(self.asked)}"
            self.chatter.rows.append({"role": "user", "content": text})
            self._gateways.through(self._ask)
            self.asked.append(text)
            self.outcomes.add(self.chatter.outcome)

    def goes_on(self) -> None:
        """Wait until every conversation has had its turns since; raise what went wrong in one."""
        talks, asked = [len(talk.sent) for talk in self.talks], len(self.asked)

        def has_gone_on() -> bool:
            for each in self._going:
                if each.done():
                    each.result()
            grown = (len(talk.sent) - before for talk, before in zip(self.talks, talks, strict=True))
            return min(grown) >= 2 * TURNS and len(self.asked) >= asked + TURNS

        eventually(has_gone_on, SETTLE_SECONDS)

    def _ask(self, client: httpx2.Client) -> None:
        self.chatter.room = self.chatter.room._replace(client=client)
        self.chatter.send()

    def _post(self, path: str, turn: Mapping[str, Any]) -> httpx2.Response:
        answered: httpx2.Response = self._doors.through(lambda client: client.post(path, **turn))
        return answered


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.fault("F26", "F27")
def test_no_turn_fails_there_and_back(
    installation: Installation, releases: Releases, record_property: Callable[[str, object], None]
) -> None:
    with LoopbackProviders() as providers, ExitStack() as stack:
        doors, gateways = Doors(installation.tenant.key), Doors(installation.tenant.key)

        def start(release: Mapping[str, str]) -> tuple[Fleet, Callable[[], None]]:
            """Start a process of each part beside those that run; return them, and how they are taken away."""
            upstream = {"ANTHROPIC_BASE_URL": providers.url, "ANTHROPIC_API_KEY": PROVIDER_KEY}
            fleet = Fleet(
                stack.enter_context(Product.api(installation, env=release)),
                stack.enter_context(installation.gateway(env={**release, **upstream})),
                (
                    stack.enter_context(installation.worker("checks,summaries", "--concurrency", "2", env=release)),
                    stack.enter_context(installation.worker("beat", env=release)),
                ),
            )
            eventually(lambda: {each.process.pid for each in fleet.others} <= installation.alive(), START_SECONDS)
            clients = [(doors, doors.open(fleet.api)), (gateways, gateways.open(fleet.gateway))]

            def take_away() -> None:
                fleet.end()
                for where, client in clients:
                    where.close(client)

            return fleet, take_away

        old, end_old = start(releases.old)
        installation.client = stack.enter_context(old.api.client(installation.tenant.key))
        running: Any = old.gateway
        room = Room(running, installation.chat.settings, providers, installation.tenant, installation.client)
        talks = [installation.talk(), *(installation.talk(CUT_BY_CHECKS) for _ in range(TALKS - 1))]
        load = Load(talks, doors, room, gateways)
        with ThreadPoolExecutor(TALKS + 1) as threads:
            load.begin(threads)
            try:
                load.goes_on()
                assert migrate(installation, releases.new) == 0
                load.goes_on()
                new, end_new = start(releases.new)
                load.goes_on()
                assert {ready(each) for each in (old.api, new.api)} == {(200, "ok")}
                end_old()
                load.goes_on()
                back, _ = start(releases.old)
                load.goes_on()
                end_new()
                load.goes_on()
            finally:
                load.end()
        installation.client = stack.enter_context(back.api.client(installation.tenant.key))
        ends = [talk.end_state() for talk in talks]
        assert all(end.snapshots for end in ends)
        assert "dead" not in {run.state for end in ends for run in end.runs}
        asked_through_the_gateway(room, load)
    turns = sum(len(talk.sent) // 2 for talk in talks) + len(load.asked)
    record_property(
        "measured",
        f"F26 rolling upgrade from {releases.revision}: {turns} turns, {load.refused} told to come again,"
        f" {doors.unheard + gateways.unheard} sent to a process that had just ended",
    )


def migrate(installation: Installation, release: Mapping[str, str]) -> int:
    """Run `palimpsest migrate` of a release and return its status."""
    command = [sys.executable, "-P", "-m", "cli.main", "migrate"]
    env = {**installation.env, **release}
    return subprocess.run(command, env=env, check=False, capture_output=True, timeout=120).returncode


def ready(api: Api) -> tuple[int, str]:
    """Return the status of /readyz, and what it says of the schema."""
    response = httpx2.get(f"{api.url}/readyz")
    return response.status_code, response.json()["services"]["migrations"]


def asked_through_the_gateway(room: Room, load: Load) -> None:
    """Assert that every request went through, and that what it asked is stored once and in order."""
    assert load.outcomes <= {"unchanged", "compacted", "failed_open"}
    stored = [row["content"] for row in room.eventually_stored(load.chatter.name, 2 * len(load.asked))]
    assert stored[::2] == load.asked
