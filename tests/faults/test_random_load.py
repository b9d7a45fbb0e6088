"""Random load and random faults: in whatever order they come, every conversation ends as it has to.

`make soak` runs this for three minutes; SOAK_SECONDS and SOAK_SEED choose how long, and which plan of faults.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import httpx2
import psycopg
import pytest

from runtime.addresses.redis_clients import redis_client
from tests.faults.crew import Crew
from tests.support.eventually import eventually
from tests.support.messages_api import problems
from tests.support.processes import START_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.faults.installation import Installation, Talk

SECONDS: Final = float(os.environ.get("SOAK_SECONDS", "20"))
CLIENTS: Final = 4
MOST_MESSAGES: Final = 400
"""Messages after which a client begins another conversation."""
SECONDS_BETWEEN_FAULTS: Final = 3.0
REST_SECONDS: Final = 120.0
_UNAVAILABLE: Final = 503


class ChatClient(Thread):
    """A chat product: it appends turns, reads contexts, has payloads assembled and compacts by hand.

    It sends a turn again, under the same key, until it was answered.
    """

    def __init__(self, number: int, seed: int, installation: Installation, over: Event) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._random = random.Random(f"{seed}-{number}")  # noqa: S311 - a plan, no secret
        self._installation = installation
        self._over = over
        self.talks: list[Talk] = []
        self.error: BaseException | None = None
        """The assertion that ended it, if one did."""

    def run(self) -> None:
        """Talk until the load is over."""
        try:
            while not self._over.is_set():
                self._act()
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self.error = error

    def _act(self) -> None:
        if not self.talks or len(self.talks[-1].sent) > MOST_MESSAGES:
            self.talks.append(self._begin())
        talk = self._random.choice(self.talks[-2:])
        acts = [self._append, self._append, self._append, self._read, self._assemble, self._compact]
        act = self._random.choice(acts) if talk.sent else self._append
        act(talk)

    def _begin(self) -> Talk:
        while True:
            with suppress(httpx2.TransportError, AssertionError):
                return self._installation.talk({"input_token_budget": self._random.choice([0, 2_000])})
            self._over.wait(0.1)

    def _append(self, talk: Talk) -> None:
        messages = talk.long(self._random.randint(1, 4), self._random.choice([20, 200, 600]))
        key = str(uuid4())
        answer = self._send("POST", f"{talk.path}/turns", json={"messages": messages}, headers={"Idempotency-Key": key})
        assert answer["last_seq"] == len(talk.sent) + len(messages) - 1
        talk.sent.extend(messages)

    def _read(self, talk: Talk) -> None:
        self._check(talk, self._send("GET", f"{talk.path}/context"))

    def _assemble(self, talk: Talk) -> None:
        self._check(talk, self._send("POST", f"{talk.path}/context", json={}))

    def _check(self, talk: Talk, served: Mapping[str, Any]) -> None:
        assert problems(served["messages"]) == []
        assert served["messages"][-1:] == talk.sent[-1:]

    def _compact(self, talk: Talk) -> None:
        self._send("POST", f"{talk.path}/compactions", json={}, accepted={202, 409})

    def _send(self, method: str, path: str, *, accepted: set[int] | None = None, **rest: Any) -> dict[str, Any]:
        """Return the answer to a request that is sent until the service has one."""
        while True:
            with suppress(httpx2.TransportError):
                answer = self._installation.client.request(method, path, **rest)
                if answer.status_code != _UNAVAILABLE:
                    assert answer.is_success or answer.status_code in (accepted or ()), answer.text
                    body: dict[str, Any] = answer.json()
                    return body
            time.sleep(0.05)


class Faults:
    """Faults from a shuffled deck, one after the other."""

    def __init__(self, seed: int, installation: Installation, crew: Crew) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a plan, no secret
        self._installation = installation
        self._crew = crew
        self.injected: list[str] = []

    def inject(self) -> None:
        """Inject the next fault."""
        if not self.injected or len(self.injected) % len(self._deck) == 0:
            self._order = self._random.sample(self._deck, len(self._deck))
        fault = self._order[len(self.injected) % len(self._deck)]
        self.injected.append(fault.__name__)
        fault()

    @property
    def _deck(self) -> list[Callable[[], None]]:
        return [self.kill_checks, self.kill_summaries, self.kill_sweeper, self.flush_redis, self.end_connections]

    def kill_checks(self) -> None:
        """Kill a worker of checks."""
        self._kill("checks")

    def kill_summaries(self) -> None:
        """Kill a worker of summaries."""
        self._kill("summaries")

    def kill_sweeper(self) -> None:
        """Kill a sweeper."""
        self._kill("beat")

    def flush_redis(self) -> None:
        """Lose every message of the broker."""
        with redis_client(self._installation.broker_url) as client:
            client.flushall()

    def end_connections(self) -> None:
        """End every connection of the service to the database."""
        with self._installation.owner() as owner, suppress(psycopg.Error):
            owner.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name like 'palimpsest-%'"
            )

    def _kill(self, kind: str) -> None:
        worker = self._random.choice(self._crew.each(kind))
        worker.kill()
        self._crew.replace(worker)


@pytest.fixture
def crew(installation: Installation) -> Iterator[Crew]:
    with ExitStack() as stack:
        made = Crew(installation, stack)
        eventually(made.is_complete, START_SECONDS)
        yield made


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + REST_SECONDS + START_SECONDS)
@pytest.mark.fault("F2", "F10", "F13")
def test_every_conversation_survives_random_faults(
    installation: Installation, crew: Crew, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(1_000_000))
    over = Event()
    clients = [ChatClient(number, seed, installation, over) for number in range(CLIENTS)]
    faults = Faults(seed, installation, crew)
    for client in clients:
        client.start()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and all(client.is_alive() for client in clients):
        over.wait(min(SECONDS_BETWEEN_FAULTS, max(0.0, until - time.monotonic())))
        faults.inject()
    over.set()
    for client in clients:
        client.join()
    note = f"SOAK_SEED={seed}, faults: {', '.join(faults.injected)}"
    for client in clients:
        if client.error is not None:
            client.error.add_note(note)
            raise client.error
    talks = [talk for client in clients for talk in client.talks]
    for talk in talks:
        try:
            end = talk.end_state(timeout=REST_SECONDS)
        except AssertionError as error:
            error.add_note(note)
            raise
        assert end.served["last_seq"] == len(talk.sent) - 1
    # Nothing was lost, and something was done.
    assert any(installation.chat.runs(talk.id) for talk in talks)
    record_property("measured", f"random load: {len(talks)} conversations, {len(faults.injected)} faults")
