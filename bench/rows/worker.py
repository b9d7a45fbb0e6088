"""Checks a second, of conversations that need no compaction: one worker process, against the bare queries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from bench import data
from bench.machine import cpu_seconds
from bench.measure import Row, Sample, Target, interleave, pair
from runtime.broker import BATCH, CHECK_TASK, CHECKS, celery_app
from store.runs.runs import LeaseHolder
from worker.checks import Checker
from worker.database import Database

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from bench.plan import Plan
    from bench.servers import Servers
    from store.runs.runs import Lease

_QUEUE: Final = f"palimpsest:{CHECKS}"
_STAGED: Final = "palimpsest:staged"
_WAIT_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.01


def checks(plan: Plan) -> list[Row]:
    """Check conversations in batches: by Celery tasks, by the same code in this process, by two bare queries."""
    servers = plan.servers
    group = data.Group(data.CHECKS, plan.conversations)
    with servers.connect() as connection:
        data.add_conversations(connection, servers.tenant_id, group)
        connection.execute("analyze conversations")
    identifiers = [data.conversation_id(group.first + number) for number in range(group.size)]
    batches = [identifiers[start : start + BATCH] for start in range(0, len(identifiers), BATCH)]
    with servers.worker(CHECKS, concurrency=1) as pid:
        samples = interleave(
            {
                "worker": lambda: _by_worker(servers, group, batches, pid),
                "checker": lambda: _by_checker(servers, group, batches),
                "queries": lambda: _by_queries(servers, group, batches),
            },
            plan.rounds,
        )
    reference = "select + update, psycopg"
    return [
        Row(
            name="checks",
            what=f"checks, {BATCH} a task, nothing due",
            measured="one Celery worker process",
            reference=reference,
            unit="/s",
            samples=pair(samples, "worker", "queries"),
            target=Target(">=", 10_000, of="measured"),
        ),
        Row(
            name="checks-in-process",
            what=f"checks, {BATCH} a batch, nothing due",
            measured="Checker, no broker",
            reference=reference,
            unit="/s",
            samples=pair(samples, "checker", "queries"),
        ),
    ]


def _by_worker(servers: Servers, group: data.Group, batches: Sequence[Sequence[UUID]], pid: int) -> Sample:
    """Hand all tasks to the worker in one moment, and wait until no check is due."""
    _mark_due(servers, group)
    app = celery_app(servers.settings, "palimpsest-bench")
    with servers.broker() as broker, servers.connect() as connection:
        # Published elsewhere first: what publishing costs is not the worker's.
        app.conf.task_create_missing_queues = True
        for batch in batches:
            app.send_task(CHECK_TASK, args=[[str(identifier) for identifier in batch]], queue="staged")
        # Workers take only messages that name a queue of the product's.
        staged = [message.replace(b'"staged"', f'"{CHECKS}"'.encode()) for message in broker.lrange(_STAGED, 0, -1)]
        broker.delete(_STAGED)
        broker.rpush(_STAGED, *staged)
        used = cpu_seconds(pid)
        started = time.perf_counter()
        broker.rename(_STAGED, _QUEUE)
        # Polled from the other core, by an index that is empty in the end.
        while connection.execute(
            "select exists (select from conversations where check_due_at is not null)"
        ).fetchone() != (False,):
            if time.perf_counter() - started > _WAIT_SECONDS:
                raise TimeoutError("the worker did not check what it was given")
            time.sleep(_POLL_SECONDS)
        took = time.perf_counter() - started
        used = cpu_seconds(pid) - used
    app.close()
    return Sample(group.size / took, {"CPU µs": 1e6 * used / group.size})


def _by_checker(servers: Servers, group: data.Group, batches: Sequence[Sequence[UUID]]) -> Sample:
    """Run the worker's code in this process."""
    _mark_due(servers, group)
    database = Database(servers.settings, "bench")
    checker = Checker(database, {}, holder=lambda: LeaseHolder("bench"), lease_seconds=45)
    with servers.cores.on(servers.cores.measured):
        checker.check([], _no_run)
        used = time.process_time()
        started = time.perf_counter()
        for batch in batches:
            checker.check(batch, _no_run)
        took = time.perf_counter() - started
        used = time.process_time() - used
    database.close()
    return Sample(group.size / took, {"CPU µs": 1e6 * used / group.size})


def _by_queries(servers: Servers, group: data.Group, batches: Sequence[Sequence[UUID]]) -> Sample:
    """Read the counters and take the marks off, each in a statement and transaction of its own."""
    _mark_due(servers, group)
    read = """
        select id, tenant_id, policy, revision, context_tokens, token_ratio, measured_tokens, tool_results_hold,
               summary_hold, pending_version
        from conversations where id = any(%s)
    """
    write = "update conversations set check_due_at = null where id = any(%s)"
    with servers.connect() as connection, servers.cores.on(servers.cores.measured):
        started = time.perf_counter()
        for batch in batches:
            ids = [row[0] for row in connection.execute(read, [batch]).fetchall()]
            connection.execute(write, [ids])
        took = time.perf_counter() - started
    return Sample(group.size / took)


def _mark_due(servers: Servers, group: data.Group) -> None:
    ends = [data.conversation_id(group.first), data.conversation_id(group.first + group.size - 1)]
    with servers.connect() as connection:
        connection.execute("update conversations set check_due_at = null where check_due_at is not null")
        connection.execute("update conversations set check_due_at = now() where id between %s and %s", ends)
        connection.execute("vacuum conversations")


def _no_run(lease: Lease) -> None:
    raise AssertionError(f"a compaction was due: {lease.run_id}")
