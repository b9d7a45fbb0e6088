"""What one `summaries` worker process holds: model calls and memory; and what appends feel of it at full load."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from bench import data
from bench.load.http_load import percentiles, run_client
from bench.machine import give_way, resident_mb
from bench.measure import Row, Sample, Target, progress
from bench.rows.http import append_request
from compaction.policy import Policy
from runtime.broker import RUN_TASK, SUMMARIES, celery_app
from store.conversations import conversations
from store.runs.runs import LeaseHolder
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.service.in_process import Chat
from tests.support.service.stub_summarizer import StubSummarizer
from tests.support.talk import exchanges
from worker.checks import Checker
from worker.runs.dispatch import Dispatcher
from worker.runs.resources import RunResources
from worker.summarizers.staged import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from bench.plan import Plan
    from bench.servers import Servers
    from store.runs.runs import Lease

T = TypeVar("T")

PLACES: Final = 64
"""Summaries that a worker has under way at a time by default."""
ANSWER_SECONDS: Final = 5.0
"""Seconds that the model takes for each of a summary's two rounds of calls; Claude takes twice as long, or longer."""
SUMMARY_SECONDS: Final = 2 * ANSWER_SECONDS
_ROOT: Final = Path(__file__).parents[2]
_CONNECTIONS: Final = 4
_WAIT_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05
_OPEN: Final = """
    select count(*), count(*) filter (where state <> 'idle') from pg_stat_activity
    where application_name = 'palimpsest-worker'
"""

_WRITTEN: Final = "select count(*) from runs where state = 'committed' and queue = 'summaries'"
_BEATS: Final = "select count(*) from pg_stat_activity where application_name = 'palimpsest-heartbeat'"
"""Connections of worker processes that are up."""


class Supply:
    """Conversations of default size over the threshold whose runs wait for a summary."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._app = celery_app(servers.settings, "palimpsest-bench")
        self._handed: list[Lease] = []

    def prepare(self, count: int) -> list[Lease]:
        """Make conversations and check them; return the runs, which are queued now."""
        progress(f"making {count} conversations that are due for a summary")
        threshold = Policy().compaction_threshold_tokens
        talk = exchanges(threshold // 1_000 + 1, 500)
        with Chat(self._servers.settings, self._servers.tenant_id) as chat:
            resources = RunResources(chat.database, StubSummarizer, lease_seconds=45, wake=self._handed.append)
            dispatcher = Dispatcher(resources)
            checker = Checker(chat.database, {}, holder=lambda: LeaseHolder("bench"), lease_seconds=45)
            for _ in range(count):
                with chat.database.transaction(chat.tenant_id) as connection:
                    conversation: UUID = conversations.create(connection, chat.tenant_id, {})[0].id
                chat.append(conversation, talk)
                checker.check([conversation], dispatcher.execute)
        leases, self._handed = self._handed, []
        return leases

    def send(self, lease: Lease) -> None:
        """Wake a worker for a run."""
        self._app.send_task(RUN_TASK, args=[str(lease.tenant_id), str(lease.run_id)], queue=SUMMARIES)


def summaries(plan: Plan) -> list[Row]:
    """Hold every call until all places are taken, and see what the worker process holds besides."""
    servers, places = plan.servers, 4 if plan.short else PLACES
    # A summary of this size is several calls at once: the first so many make as many calls as there are places.
    some = max(1, places // THREADS)
    supply = Supply(servers)
    calls: list[tuple[Sample, Sample]] = []
    memory: list[tuple[Sample, Sample]] = []
    for number in range(plan.rounds):
        leases = supply.prepare(places + 2)  # two more than there is room for
        with LoopbackModel() as model, _worker(servers, model.url, places) as pid:
            _until(lambda: _count(servers, _BEATS))
            idle = resident_mb(pid)
            model.hold()
            for lease in leases[:some]:
                supply.send(lease)
            model.wait_for_requests(some * THREADS, _WAIT_SECONDS)
            at_some = resident_mb(pid), _settled(model)
            for lease in leases[some:]:
                supply.send(lease)
            running = _until(lambda: _running(servers) if _running(servers) >= places else 0)
            held = _settled(model)
            opened, used = _connections(servers)
            details = {"model calls": held, "connections open": opened, "in use": used}
            calls.append((Sample(running, details), Sample(places)))
            memory_details = {"model calls": at_some[1], f"MB with {held} calls": resident_mb(pid)}
            memory.append((Sample(at_some[0], memory_details), Sample(idle)))
            model.release()
            _until(lambda: not _unfinished(servers))
        progress(f"  round {number + 1}: {held} calls of {running} runs; {at_some[0]:.0f} MB with {at_some[1]} calls")
    return [
        Row(
            name="summaries-held",
            what="summaries under way in one worker process, the model silent",
            measured="one summaries worker",
            reference="places",
            unit="",
            samples=calls,
            target=Target(">=", places, of="measured"),
        ),
        Row(
            name="summaries-memory",
            what="memory of that process (resident), 80,000 tokens a summary",
            measured="as many calls as places",
            reference="idle",
            unit=" MB",
            samples=memory,
            target=Target("<=", 300, of="measured"),
        ),
    ]


def append_under_summaries(plan: Plan) -> list[Row]:
    """Append at a moderate rate, idle and with every place of a summaries worker taken all the time."""
    servers, body = plan.servers, data.turn_body()
    group = data.Group(data.APPENDS, plan.conversations)
    with servers.connect() as connection:
        data.add_conversations(connection, servers.tenant_id, group)
    api, request = servers.api(), append_request(body)
    # As long as a summary takes: all parts of its work fall into it.
    seconds = plan.seconds if plan.short else max(plan.seconds, SUMMARY_SECONDS)
    places = 4 if plan.short else PLACES
    supply = Supply(servers)

    def appended() -> Sample:
        outcome = run_client(api, request, [group], seconds=seconds, connections=_CONNECTIONS)
        latencies = percentiles(outcome.latencies[0])
        return Sample(
            latencies["p99 ms"], {"p50 ms": latencies["p50 ms"], "turns/s": outcome.requests / outcome.seconds}
        )

    samples: list[tuple[Sample, Sample]] = []
    with servers.checks_cleared():
        appended()
        for number in range(plan.rounds):
            idle = appended()
            leases = supply.prepare(places * (2 + round(seconds / SUMMARY_SECONDS)))
            with _stand_in(min(ANSWER_SECONDS, 5 * seconds)) as (url, model), _worker(servers, url, places) as pid:
                # What computes elsewhere in a deployment takes only what the API leaves of its core.
                for process in (pid, model):
                    servers.cores.pin(process, servers.cores.measured)
                    give_way(process)
                earlier = _count(servers, _WRITTEN)
                for lease in leases:
                    supply.send(lease)
                # From the first that is written: till then they only wait for the model.
                before = _until(partial(_count_over, servers, _WRITTEN, earlier))
                loaded = appended()
                written = _count(servers, _WRITTEN) - before
                _until(lambda: not _unfinished(servers))
            loaded = Sample(loaded.value, {**loaded.details, "summaries/s": written / seconds})
            samples.append((loaded, idle))
            progress(f"  round {number + 1}: p99 {loaded.value:.1f} ms, idle {idle.value:.1f} ms")
    return [
        Row(
            name="append-under-summaries",
            what=f"POST …/turns p99, {_CONNECTIONS} connections",
            measured=f"{places} summaries under way all the time",
            reference="idle",
            unit=" ms",
            samples=samples,
            target=Target("<=", 1.5),
        )
    ]


@contextmanager
def _stand_in(latency: float) -> Iterator[tuple[str, int]]:
    """Run what stands in for the model as a process of its own; return its address and its id."""
    command = [sys.executable, "-m", "tests.support.servers.loopback_model", "--no-validate", "--latency", str(latency)]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline() if process.stdout else "")["url"], process.pid
        finally:
            process.terminate()


@contextmanager
def _worker(servers: Servers, model_url: str, places: int) -> Iterator[int]:
    settings = {
        "summarizer": "anthropic",
        "summaries_per_tenant": "0",
        "ANTHROPIC_API_KEY": "sk-bench",
        "ANTHROPIC_BASE_URL": model_url,
    }
    with servers.worker(SUMMARIES, places, **settings) as pid:
        yield pid


def _until(poll: Callable[[], T]) -> T:
    """Return what is found once it is anything. Raises TimeoutError."""
    end = time.monotonic() + _WAIT_SECONDS
    while not (value := poll()):
        if time.monotonic() > end:
            raise TimeoutError("the worker did not do what it was given")
        time.sleep(_POLL_SECONDS)
    return value


def _running(servers: Servers) -> int:
    return _count(servers, "select count(*) from runs where state = 'running' and queue = 'summaries'")


def _unfinished(servers: Servers) -> int:
    return _count(servers, "select count(*) from runs where state in ('queued', 'running')")


def _count(servers: Servers, query: str) -> int:
    with servers.connect() as connection:
        row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0


def _count_over(servers: Servers, query: str, least: int) -> int:
    """Return the count once it is over a number, 0 until then."""
    count = _count(servers, query)
    return count if count > least else 0


def _connections(servers: Servers) -> tuple[int, int]:
    """Return the worker's connections to the database, and those of them that are in use."""
    with servers.connect() as connection:
        row = connection.execute(_OPEN).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def _settled(model: LoopbackModel) -> int:
    """Return how many requests the model holds, once there come no more."""
    held = -1
    while held != (held := sum(not each.answered.is_set() for each in model.requests)):
        time.sleep(1)
    return held
