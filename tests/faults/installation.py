"""An installation whose processes are real, for tests that break it: what to start, what to hold, what has to be so in
the end.

    with installed(postgres.url, template, redis.url) as installation, installation.api():  # the fixture `installation`
        with installation.running("checks", "summaries", "summaries", "beat"):
            talk = installation.talk()  # a conversation, through the HTTP API
            installation.points.hold("summary.answered")
            talk.append(*talk.long())
            installation.points.arrival("summary.answered").kill()  # that process is gone
            end = talk.end_state()  # waits, and asserts what has to be so after any fault
            assert end.outcome == [("committed", None)]

Leases and intervals are short (`SHORT`): a lease of LEASE_SECONDS is kept alive every third of that, as processes are,
so nothing that a loaded machine does to a healthy process takes it away. Give what a test needs otherwise as `env`.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import httpx2
import psycopg
from pydantic import SecretStr

from runtime import ids
from runtime.addresses.redis_clients import redis_client
from runtime.broker import QUEUES, celery_app, queue_keys
from runtime.settings import Settings
from tests.conftest import create_database, drop_database, make_tenant
from tests.support.eventually import eventually
from tests.support.messages_api import problems
from tests.support.processes import START_SECONDS, Api, Product, Worker, environment
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.service.fault_points import FaultPoints, fault_points
from tests.support.service.in_process import SMALL, Chat
from tests.support.talk import answer, request, rounds
from tests.support.truth.rows import (
    CONVERSATION,
    RUNS,
    SNAPSHOTS,
    STEPS,
    attempted_wrongly,
    counted_wrongly,
    covered_wrongly,
    shrunk_wrongly,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from store.tables import AnyRow
    from tests.conftest import Tenant
    from tests.support.blocks import Message

LEASE_SECONDS: Final = 3.0
SWEEP_SECONDS: Final = 0.5
MAX_ATTEMPTS: Final = 3
SETTLE_SECONDS: Final = 90.0
"""A bound for a loaded machine; what is awaited comes within the lease and a sweep, a few times at most."""

CUT_BY_CHECKS: Final = {"input_token_budget": SMALL["input_token_budget"]}
"""A policy for `Installation.talk`: old tool results are cut, which a process of the checks pool does by itself."""

SHORT: Final = {
    "PALIMPSEST_LEASE_SECONDS": str(LEASE_SECONDS),
    "PALIMPSEST_SWEEP_INTERVAL_SECONDS": str(SWEEP_SECONDS),
    "PALIMPSEST_CHECK_OVERDUE_SECONDS": "1",
    "PALIMPSEST_RUN_OVERDUE_SECONDS": "2",
    "PALIMPSEST_MAX_ATTEMPTS": str(MAX_ATTEMPTS),
    "PALIMPSEST_HEARTBEAT_SECONDS": "1",
    "PALIMPSEST_SUMMARIZER": "anthropic",
    "PALIMPSEST_BREAKER_FAILURES": "0",
    "ANTHROPIC_API_KEY": "sk-test",
}


class EndState(NamedTuple):
    """What became of a conversation, as the database has it; `served` is the answer of GET …/context."""

    runs: Sequence[AnyRow]
    steps: Sequence[AnyRow]
    snapshots: Sequence[AnyRow]
    served: Mapping[str, Any]
    calls: int
    """Questions to the model in which words of this conversation stood."""

    @property
    def outcome(self) -> list[tuple[str, str | None]]:
        """State and reason of each run."""
        return [(run.state, run.reason) for run in self.runs]


COMMITTED: Final = [("committed", None)]


def once(end: EndState) -> None:
    """Assert that one run did it at the first attempt and with one question to the model."""
    assert end.outcome == COMMITTED
    assert (end.calls, len(end.snapshots), end.runs[0].attempts) == (1, 1, 1)


class Installation(Product):
    """One installation: a database, a Redis, a model's server and fault points; processes are started by the tests.

    `worker` and `api` run a process for the length of a `with`; every one of them reports to `points`. `client` talks
    to the API that was started last and still runs.
    """

    def __init__(
        self, env: dict[str, str], chat: Chat, folder: Path, tenant: Tenant, model: LoopbackModel, points: FaultPoints
    ) -> None:
        super().__init__(env, chat, celery_app(chat.settings, "test"), folder)
        self.tenant, self.model, self.points = tenant, model, points
        self.database_url = env["PALIMPSEST_DATABASE_URL"]
        """As the owner, whom row-level security does not hide anything from."""
        self.broker_url = env["PALIMPSEST_BROKER_URL"]
        self.client = httpx2.Client()
        """A client of the API that was started last and still runs; until then one without an address."""

    @contextmanager
    def api(self, *extra: str, env: Mapping[str, str] | None = None) -> Iterator[Api]:
        """Run `palimpsest api` until it answers and knows of the broker; `client` talks to it from now on."""
        with super().api(*extra, env=env) as api, api.client(self.tenant.key) as client:
            before, self.client = self.client, client
            try:
                yield api
            finally:
                self.client = before

    @contextmanager
    def running(self, *kinds: str, env: Mapping[str, str] | None = None) -> Iterator[list[Worker]]:
        """Run workers ("checks", "summaries", "checks,summaries") and sweepers, each ready once the block begins."""
        with ExitStack() as stack:
            started = [
                stack.enter_context(self.worker(kind, "--concurrency", "2", env=env))
                if kind != "beat"
                else stack.enter_context(self.worker(kind, env=env))
                for kind in kinds
            ]
            try:
                eventually(lambda: {each.process.pid for each in started} <= self.alive(), START_SECONDS)
            except AssertionError as error:
                for each in started:
                    error.add_note(f"{each.process.pid}, ended with {each.process.poll()}: {each.log.read_text()}")
                raise
            yield started

    def alive(self) -> set[int]:
        """Return the process ids of the workers and beat that have written a heartbeat."""
        return {row.pid for row in self.chat.query("select pid from processes where kind in ('worker', 'beat')")}

    def talk(self, policy: Mapping[str, Any] | None = None, **fields: Any) -> Talk:
        """Begin a conversation through the API: summaries from 4,000 tokens on, no cut tool results."""
        body = {"policy": {**SMALL, "input_token_budget": 0, **(policy or {})}, **fields}
        response = self.client.post("/v1/conversations", json=body)
        assert response.status_code == 201, response.text
        return Talk(self, response.json()["id"])

    def queued(self, queue: str | None = None) -> int:
        """Return the messages that nobody has taken, of one queue or of all."""
        with redis_client(self.broker_url) as client:
            return sum(int(client.llen(key)) for each in ([queue] if queue else QUEUES) for key in queue_keys(each))

    def unacknowledged(self) -> int:
        """Return the messages that workers have taken and not finished."""
        return sum(map(len, self._taken().values()))

    def _taken(self) -> dict[str, list[Any]]:
        """Return the tasks under way and those that were prefetched, by worker."""
        inspect = self.app.control.inspect(timeout=1)
        replies = [inspect.active() or {}, inspect.reserved() or {}]
        return {name: [*replies[0].get(name, ()), *replies[1].get(name, ())] for name in {*replies[0], *replies[1]}}

    def drain(self, *, under_way: int = 0) -> None:
        """Wait until no message is left that anybody could still act on, but those of tasks that are held."""
        try:
            eventually(lambda: not self.queued() and self.unacknowledged() == under_way, SETTLE_SECONDS)
        except AssertionError:
            raise AssertionError(
                f"{self.queued()} messages wait, {under_way} may be taken, and are: {self._taken()}\n{self._trouble()}"
            ) from None

    def _trouble(self) -> str:
        """Return what the processes have logged that is more than a piece of information."""
        lines = [line for log in sorted(self.folder.glob("*.log")) for line in log.read_text().splitlines()]
        return "\n".join(line for line in lines if '"level": "info"' not in line)

    def now(self) -> Any:
        """Return the database's time, for what is measured."""
        return self.chat.query("select clock_timestamp()")[0][0]

    def owner(self) -> psycopg.Connection[Any]:
        """Return a connection as the owner, who sees every tenant."""
        return psycopg.connect(self.database_url, autocommit=True)


class Talk:
    """A conversation that a chat product holds through the API, and what it has sent."""

    def __init__(self, installation: Installation, external_id: str) -> None:
        self._installation = installation
        self.path = f"/v1/conversations/{external_id}"
        parsed = ids.parse("conv", external_id)
        assert parsed is not None
        self.id = parsed
        self.label = f"talk-{uuid4().hex[:12]}"
        """Stands in every message that `long` and `tool_rounds` make."""
        self.sent: list[Message] = []

    def long(self, exchanges: int = 12, tokens: int = 200) -> list[Message]:
        """Return exchanges that go over the threshold of summaries, numbered on from what was sent."""
        first = len(self.sent)
        return [
            message
            for number in range(first, first + exchanges)
            for message in (
                request(f"{self.label} request {number}", tokens),
                answer(f"{self.label} answer {number}", tokens),
            )
        ]

    def tool_rounds(self, count: int = 6, tokens: int = 600) -> list[Message]:
        """Return a request and tool rounds: cut without a model under the policy CUT_BY_CHECKS."""
        return [request(f"{self.label} go"), *rounds(count, tokens, start=len(self.sent))]

    def append(self, *messages: Message, **fields: Any) -> dict[str, Any]:
        """Append one turn and return the answer."""
        done = self._installation.client.post(f"{self.path}/turns", json={"messages": messages, **fields})
        assert done.status_code == 201, done.text
        self.sent.extend(messages)
        body: dict[str, Any] = done.json()
        return body

    def context(self) -> dict[str, Any]:
        """Return GET …/context."""
        return self._get("context")

    @property
    def calls(self) -> int:
        """The questions to the model so far in which words of this conversation stood."""
        return sum(self.label in asked.prompt for asked in self._installation.model.requests)

    def wait_for_calls(self, count: int = 1) -> None:
        """Wait until the model was asked so often with words of this conversation."""
        eventually(lambda: self.calls >= count, SETTLE_SECONDS)

    def is_at_rest(self) -> bool:
        """Tell whether every due check is done and no run is active."""
        # One statement, so one moment: a run that ends asks for a check in the same transaction.
        left = self._installation.chat.query(
            "select 1 from conversations where id = :c and check_due_at is not null"
            " union all select 1 from runs where conversation_id = :c and state in ('queued', 'running')",
            c=self.id,
        )
        return not left

    def end_state(self, *, runs: int | None = None, timeout: float = SETTLE_SECONDS) -> EndState:
        """Wait until nothing is left to do, assert what has to be so after any fault, and return what came of it.

        So after any fault: every message as it was sent; a context that the Messages API accepts and that ends with the
        newest message; exactly one snapshot for each step that committed one, the newest at the head; no run active, no
        lease held, none claimed more often than MAX_ATTEMPTS; no check due; and the API tells the same as the database.
        With `runs`, wait until there are as many.
        """
        chat = self._installation.chat
        eventually(lambda: self.is_at_rest() and (runs is None or len(chat.runs(self.id)) >= runs), timeout)
        found = chat.runs(self.id)
        steps = [step for run in found for step in chat.steps(run.id)]
        snapshots = chat.query("select * from snapshots where conversation_id = :c order by version", c=self.id)
        self._messages_are_complete()
        self._rows_hold()
        self._runs_have_ended(found)
        self._snapshots_are_single(snapshots, steps)
        return EndState(found, steps, snapshots, self._context_is_good(), self.calls)

    def _messages_are_complete(self) -> None:
        stored = self._installation.chat.originals(self.id)
        assert [(role, json.loads(content)) for _, role, content in stored] == [
            (message["role"], message["content"]) for message in self.sent
        ]
        assert [seq for seq, _, _ in stored] == list(range(len(self.sent)))
        page = self._get("messages", limit=1000)
        shown = page["data"]
        while page["has_more"]:
            page = self._get("messages", limit=1000, after=page["last_id"])
            shown += page["data"]
        assert [message["content"] for message in shown] == [message["content"] for message in self.sent]

    def _rows_hold(self) -> None:
        chat = self._installation.chat
        (conversation,) = chat.query(f"{CONVERSATION}:c", c=self.id)
        snapshots, runs, steps = (
            [row._asdict() for row in chat.query(f"{select}:c", c=self.id)] for select in (SNAPSHOTS, RUNS, STEPS)
        )
        superseded = chat.query(
            "select seq from messages where conversation_id = :c and superseded_at is not null", c=self.id
        )
        stored = range(len(self.sent))
        assert not covered_wrongly(stored, {row.seq for row in superseded}, conversation.head_version, snapshots)
        assert not counted_wrongly(conversation._asdict(), max(stored, default=None))
        assert not attempted_wrongly(runs, MAX_ATTEMPTS)
        assert not shrunk_wrongly(steps)

    def _runs_have_ended(self, runs: Sequence[AnyRow]) -> None:
        for run in runs:
            assert run.state not in {"queued", "running"}, run
            assert run.lease_token is None
            assert run.lease_expires_at is None
            assert run.finished_at is not None
        told = self._get("runs", limit=100)["data"]
        assert sorted((run["id"], run["state"], run["attempts"]) for run in told) == sorted(
            (ids.external("run", run.id), run.state, run.attempts) for run in runs
        )
        row = self._installation.chat.row(self.id)
        assert row.check_due_at is None

    def _snapshots_are_single(self, snapshots: Sequence[AnyRow], steps: Sequence[AnyRow]) -> None:
        versions = [snapshot.version for snapshot in snapshots]
        assert versions == list(range(1, len(snapshots) + 1))
        committed = [step.snapshot_version for step in steps if step.snapshot_version is not None]
        assert sorted(committed) == versions
        row = self._installation.chat.row(self.id)
        assert row.head_version == (versions[-1] if versions else 0)
        assert sorted(each["version"] for each in self._get("snapshots", limit=100)["data"]) == versions

    def _context_is_good(self) -> dict[str, Any]:
        served = self.context()
        assert served["last_seq"] == len(self.sent) - 1
        assert served["messages"][-1:] == self.sent[-1:]
        if self.sent:
            assert problems(served["messages"]) == []
        return served

    def _get(self, what: str, **query: Any) -> dict[str, Any]:
        answered = self._installation.client.get(f"{self.path}/{what}", params=query)
        assert answered.status_code == 200, answered.text
        body: dict[str, Any] = answered.json()
        return body


@contextmanager
def installed(
    server_url: str,
    template: str,
    broker_url: str,
    *,
    default_step: Any = None,
    hosts: str | None = None,
    **env: str,
) -> Iterator[Installation]:
    """Make an installation on running servers: a new database, that Redis flushed; no process is started.

    server_url: a Postgres server; template: a migrated database there to clone. hosts: what the URL of the processes
    names instead of that server; the database is left to its servers' end then. `env` goes over SHORT.
    """
    name = f"faults_{uuid4().hex}"
    database_url = create_database(server_url, name, template)
    with redis_client(broker_url) as client:
        client.flushall()
    tenant = make_tenant(database_url, "acme")
    if hosts:
        parts = urlsplit(database_url)
        database_url = parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{hosts}").geturl()
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        LoopbackModel(default=default_step) as model,
        fault_points(Path(folder)) as points,
    ):
        settings = Settings(database_url=SecretStr(database_url), broker_url=SecretStr(broker_url))
        given = {
            "PALIMPSEST_DATABASE_URL": database_url,
            "PALIMPSEST_BROKER_URL": broker_url,
            "ANTHROPIC_BASE_URL": model.url,
        }
        with Chat(settings, tenant.id) as chat:
            made = Installation(
                environment(**{**SHORT, **given, **points.env, **env}), chat, Path(folder), tenant, model, points
            )
            if hosts:
                # The product says so by itself; connections of the tests' own do not.
                made.database_url += "?target_session_attrs=read-write"
            yield made
            made.app.close()
    if not hosts:
        drop_database(server_url, name)


def asked(installation: Installation) -> Talk:
    """Return a conversation whose summary the model has been asked for; the answer is held back."""
    talk = installation.talk()
    installation.model.hold()
    talk.append(*talk.long())
    talk.wait_for_calls()
    return talk
