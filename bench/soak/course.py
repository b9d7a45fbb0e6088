"""The course of a soak: warm-up, load with faults, rest, and what is left when everything has ended."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from bench.measure import progress
from bench.soak import resources
from bench.soak.ends import ServiceLog, unexplained
from bench.soak.faults import PROCESS_FAULTS, Injector, plan
from bench.soak.installation import MAX_ATTEMPTS, Installation
from bench.soak.invariants import Checker, unpaid_for
from bench.soak.load import CLIENTS, SHARED, Client, Conversations
from bench.soak.traffic import Record
from bench.soak.truth import Breaches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.soak.faults import Injected
    from bench.soak.resources import Sample, Tables
    from bench.soak.traffic import Took
    from bench.soak.truth import Breach, KnownConversation

WARM_UP_SECONDS: Final = 20.0
"""Load without faults, at the end of which memory and descriptors are taken down."""
REST_SECONDS: Final = 120.0
"""Time in which everything has to come to rest once the load is over: a few leases, sweeps and attempts."""
_ACTIVE: Final = (
    "select (select count(*)::int from conversations where check_due_at is not null) as due,"
    " (select count(*)::int from runs where state in ('queued', 'running')) as active"
)
_DEAD: Final = (
    "select id::text, conversation_id, reason, error, attempts, extract(epoch from created_at)::float8 as created,"
    " extract(epoch from coalesce(finished_at, now()))::float8 as finished from runs where state = 'dead'"
)
_CALLS: Final = (
    "select r.conversation_id, sum(r.attempts)::int as attempts,"
    # A run that an edit or an overflow overtook ended without its worker, which leaves no step either.
    " count(*) filter (where r.finished_at is not null and r.state <> 'dead' and r.attempts > 0"
    "                  and r.reason is distinct from 'head_moved')::int as ended,"
    " coalesce(sum((select sum(s.model_calls) from run_steps as s where s.run_id = r.id)), 0)::int as calls"
    " from runs as r group by r.conversation_id"
)
_STATES: Final = "select state, reason, count(*)::int as runs from runs group by state, reason order by runs desc"
_HEADS: Final = "select id, head_version, (select count(*) from runs as r where r.conversation_id = c.id) as runs"


class Options(NamedTuple):
    """What a soak is asked for."""

    seconds: float
    faults_every: float
    seed: int


class Outcome(NamedTuple):
    """Everything that a soak found out."""

    options: Options
    load_seconds: float
    faults: Sequence[Injected]
    breaches: Sequence[Breach]
    breach_count: int
    took: Sequence[Took]
    counts: Mapping[str, int]
    samples: Sequence[Sample]
    warm: Sample | None
    rest: Sample | None
    rest_seconds: float | None
    """How long everything took to come to rest; None where it did not."""
    checks: int
    conversations: int
    turns: int
    messages: int
    runs: Sequence[Mapping[str, Any]]
    model_calls: int
    tables: Tables | None
    keys: Mapping[str, int]
    connections_left: int
    ends: Mapping[str, int]
    """How often processes ended, by part and way."""


class Clock:
    """Seconds since the load began."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.epoch = time.time()

    def __call__(self) -> float:
        """Return the seconds."""
        return self.of(time.monotonic())

    def of(self, monotonic: float) -> float:
        """Return the seconds at a monotonic time."""
        return monotonic - self._begun


class Watch(threading.Thread):
    """Checks conversations one after the other while the load goes on."""

    def __init__(self, installation: Installation, conversations: Conversations, breaches: Breaches) -> None:
        super().__init__(name="watch", daemon=True)
        self._installation = installation
        self._conversations = conversations
        self._breaches = breaches
        self._done = threading.Event()
        self.checked = 0

    def run(self) -> None:
        """Check until told to stop; a database that is away is asked again."""
        while not self._done.is_set():
            try:
                with self._installation.connect() as connection:
                    self._check_on(connection)
            except psycopg.Error:
                self._done.wait(0.5)

    def stop(self) -> None:
        """End it, and wait for that."""
        self._done.set()
        self.join()

    def _check_on(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        checker = Checker(connection, self._breaches)
        for number in itertools.count():
            every = self._conversations.all
            # Mostly the newest ones, which somebody is writing to.
            recent = every[-2 * CLIENTS * SHARED :] if number % 4 else every
            if recent:
                checker.check(random.choice(recent))  # noqa: S311 - picks conversations
                self.checked += 1
            if self._done.wait(0.05):
                return


def soak(options: Options, log_path: Path) -> Outcome:
    """Run a soak on an installation of its own."""
    with ServiceLog(log_path) as log, Installation(log) as installation:
        return _Course(options, installation, log).run()


class _Course:
    def __init__(self, options: Options, installation: Installation, log: ServiceLog) -> None:
        self._options = options
        self._installation = installation
        self._log = log
        self._clock = Clock()
        self._breaches = Breaches(self._clock)
        self._record = Record()
        self._conversations = Conversations()
        self._stopping = threading.Event()
        self._sampler = resources.Sampler(installation, self._clock)
        warm_up = min(WARM_UP_SECONDS, options.seconds / 3)
        self._warm_up = warm_up
        faults = plan(options.seed, warm_up, options.seconds, options.faults_every)
        self._injector = Injector(installation, faults, self._clock)
        self._watch = Watch(installation, self._conversations, self._breaches)

    def run(self) -> Outcome:
        self._load()
        load_seconds = self._clock()
        rest_seconds = self._rest()
        self._check_everything()
        runs = self._look_at_runs()
        self._change_nothing_the_second_time()
        tables = resources.vacuumed(self._installation)
        resources.check_tables(tables, self._breaches)
        warm, rest = self._compare_resources()
        self._sampler.stop()
        for end in unexplained(self._log.ends):
            detail = f"ended by itself at {self._clock.of(end.at):.1f} s, with {end.how}"
            self._breaches.add("no process gives itself up", end.part, detail)
        self._installation.stop_services()
        keys, connections = resources.leftovers(self._installation)
        if connections:
            self._breaches.add("nothing is left behind", "Postgres", f"{connections} connections of nobody")
        conversations = self._conversations.all
        return Outcome(
            options=self._options,
            load_seconds=load_seconds,
            faults=self._injector.injected,
            breaches=self._breaches.first,
            breach_count=self._breaches.count,
            took=self._record.took,
            counts=self._record.counts,
            samples=self._sampler.samples,
            warm=warm,
            rest=rest,
            rest_seconds=rest_seconds,
            checks=self._watch.checked,
            conversations=len(conversations),
            turns=sum(len(each.turns) for each in conversations),
            messages=sum(len(turn.messages) for each in conversations for turn in each.turns),
            runs=runs,
            model_calls=sum(self._installation.model.calls.values()),
            tables=tables,
            keys=keys,
            connections_left=connections,
            ends=Counter(f"{end.part}: {end.how}" for end in self._log.ends),
        )

    def _load(self) -> None:
        shared: list[KnownConversation] = []
        clients = [
            Client(
                number,
                self._options.seed,
                self._installation.url,
                [tenant.key for tenant in self._installation.tenants],
                self._conversations,
                shared,
                record=self._record,
                breaches=self._breaches,
                clock=self._clock,
                stopping=self._stopping,
            )
            for number in range(CLIENTS)
        ]
        for _ in range(SHARED):
            clients[0].begin_shared()
        threads = [*clients, self._sampler, self._watch, self._injector]
        for thread in threads:
            thread.start()
        while self._clock() < self._options.seconds and not self._stopping.wait(1.0):
            ended = [thread.name for thread in threads if not thread.is_alive()]
            if ended:
                self._breaches.add("the soak itself works", ", ".join(ended), self._injector.error or "see the output")
                break
        self._stopping.set()
        for client in clients:
            client.join()
        self._watch.stop()
        if not self._watch.checked:
            self._breaches.add("the soak itself works", "", "no conversation was checked during the load")
        self._injector.finish()

    def _rest(self) -> float | None:
        """Wait until nothing is due and nothing active."""
        progress("the load is over; waiting for rest")
        begun = self._clock()
        row: dict[str, Any] = {}
        while self._clock() - begun < REST_SECONDS:
            with self._installation.connect() as connection:
                row = connection.execute(_ACTIVE).fetchone() or {}
            if not any(row.values()):
                return self._clock() - begun
            time.sleep(0.25)
        self._breaches.add("everything comes to rest", "", f"after {REST_SECONDS:g} s: {row}")
        return None

    def _check_everything(self) -> None:
        with self._installation.connect() as connection:
            checker = Checker(connection, self._breaches)
            for conversation in self._conversations.all:
                checker.check(conversation)

    def _look_at_runs(self) -> list[dict[str, Any]]:
        """Explain dead runs and calls of the model; return the runs by state and reason."""
        with self._installation.connect() as connection:
            dead = connection.execute(_DEAD).fetchall()
            calls = connection.execute(_CALLS).fetchall()
            states = connection.execute(_STATES).fetchall()
        for run in dead:
            begun, ended = run["created"] - self._clock.epoch, run["finished"] - self._clock.epoch
            around = [each for each in self._injector.injected if each.until > begun and each.at < ended]
            if sum(each.kind in PROCESS_FAULTS for each in around) < MAX_ATTEMPTS:
                detail = f"run {run['id']}: {run['reason']}, {run['error']}; faults meanwhile: {len(around)}"
                self._breaches.add("dead runs have a cause", str(run["conversation_id"]), detail)
        self._compare_calls(calls)
        return states

    def _compare_calls(self, rows: Sequence[Mapping[str, Any]]) -> None:
        families = {conversation.uuid: conversation.family for conversation in self._conversations.all}
        recorded: dict[int, int] = {}
        lost: dict[int, int] = {}
        for row in rows:
            family = families.get(row["conversation_id"], -1)
            recorded[family] = recorded.get(family, 0) + row["calls"]
            lost[family] = lost.get(family, 0) + max(0, row["attempts"] - row["ended"])
        calls = self._installation.model.calls
        # A prompt may show no mark: such calls count in the sum alone.
        counts = [(f"family {family}", calls[family], recorded.get(family, 0), lost.get(family, 0)) for family in calls]
        counts = [each for each in counts if each[0] != "family -1"]
        counts.append(("", calls.total(), sum(recorded.values()), sum(lost.values())))
        for where, answered, written, attempts in counts:
            wrong = unpaid_for(answered, written, attempts)
            if wrong is not None:
                self._breaches.add("calls are accounted for", where, wrong)

    def _change_nothing_the_second_time(self) -> None:
        """8: a check of what is at rest changes nothing."""
        with self._installation.connect() as connection:
            before = connection.execute(f"{_HEADS} from conversations as c").fetchall()
            connection.execute("update conversations set check_due_at = now()")
        if self._rest() is None:
            return
        with self._installation.connect() as connection:
            after = {row["id"]: row for row in connection.execute(f"{_HEADS} from conversations as c").fetchall()}
        for row in before:
            if after[row["id"]] != row:
                self._breaches.add("idempotent", str(row["id"]), f"at rest {row}, checked again {after[row['id']]}")

    def _compare_resources(self) -> tuple[Sample | None, Sample | None]:
        samples = list(self._sampler.samples)
        warm = next((sample for sample in samples if sample.at >= self._warm_up), None)
        rest = samples[-1] if samples else None
        if warm is None or rest is None or warm is rest:
            self._breaches.add("resources are known", "", f"{len(samples)} samples")
            return warm, rest
        resources.check_growth(warm, rest, self._breaches)
        resources.check_connections(warm, rest, self._breaches)
        return warm, rest
