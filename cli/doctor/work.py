"""What `palimpsest doctor` finds of processes, and of what waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.doctor.findings import ok, problem, warning
from compaction.policy import merge
from runtime.broker import QUEUES
from runtime.release import VERSION
from store.operations import diagnosis, processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from cli.doctor.findings import Finding
    from runtime.settings import Settings
    from store.operations.diagnosis import ProcessSeen


def work_findings(connection: Connection, settings: Settings) -> Iterator[Finding]:
    """Yield who is alive, and what waits for them; read as a service reads it."""
    patience = settings.heartbeat_seconds * processes.MISSED_BEATS
    alive = [each for each in diagnosis.processes_seen(connection) if each.seen_seconds <= patience]
    for queue in QUEUES:
        served = [each for each in alive if queue in each.queues]
        slots = sum(each.slots for each in served)
        yield (
            ok(f"workers_{queue}", f"{len(served):,} of the workers serve {queue}, {slots:,} tasks at a time")
            if served
            else problem(
                f"workers_{queue}",
                f"no worker serves the queue {queue}",
                why="turns are taken and contexts served, but nothing is compacted",
                mend=f"palimpsest worker --queues {queue}",
            )
        )
    beats = [each for each in alive if each.kind == "beat"]
    yield (
        ok("beat", f"{len(beats):,} alive")
        if beats
        else problem(
            "beat",
            "no beat is alive",
            why="what a lost message, or a dead worker, left behind stays there, and nothing is cleared away",
            mend="palimpsest beat",
        )
    )
    yield from _odd_processes(alive, settings)
    yield from _backlog(connection, settings)
    yield _fixed_tokens(connection, settings)


def _fixed_tokens(connection: Connection, settings: Settings) -> Finding:
    policy = merge(settings.policy)
    over = diagnosis.over_by_fixed(
        connection, threshold=policy.compaction_threshold_tokens, budget=policy.input_token_budget
    )
    if not any(over):
        return ok("fixed_tokens", "no conversation's system prompt and tools are over a threshold by themselves")
    return warning(
        "fixed_tokens",
        f"system prompt and tools alone are over compaction_threshold_tokens in {over.threshold:,} conversations, over "
        f"input_token_budget in {over.budget:,}",
        why="compacting their history cannot get them under it; it is tried each time they have grown by a fifth of it",
        mend="shorten what is sent with each call, or set these thresholds above it",
    )


def _odd_processes(alive: list[ProcessSeen], settings: Settings) -> Iterator[Finding]:
    if others := sorted({each.version for each in alive} - {VERSION}):
        yield warning(
            "releases",
            f"processes of release {', '.join(others)} are alive, and this is {VERSION}",
            why="that is meant for the length of an upgrade",
            mend="finish the rollout",
        )
    for each in alive:
        if (each.oldest_task_seconds or 0) > settings.task_time_limit_seconds:
            yield warning(
                "stuck_task",
                f"the {each.kind} {each.host}:{each.pid} has been at a task for {each.oldest_task_seconds:,.0f} s",
                why="a process of the checks pool would have been replaced; threads wait for a model",
                mend="look at its log; a model that answers slowly is no fault of the worker",
            )


def _backlog(connection: Connection, settings: Settings) -> Iterator[Finding]:
    backlog = processes.backlog(connection)
    late = 10 * max(settings.check_overdue_seconds, settings.sweep_interval_seconds)
    overdue = f"{backlog.due_checks:,} checks are due, the oldest for {backlog.oldest_due_check_seconds:,.0f} s"
    yield (
        ok("checks", overdue if backlog.due_checks else "no check is due")
        if backlog.oldest_due_check_seconds <= late
        else problem(
            "checks",
            overdue,
            why=f"even a lost wake-up is found within {late:,.0f} s where beat and workers get on",
            mend="palimpsest worker --queues checks (more of them), and see workers_checks and beat",
        )
    )
    if backlog.expired_leases:
        yield warning(
            "leases",
            "a run has an expired lease"
            if backlog.expired_leases == 1
            else f"{backlog.expired_leases:,} runs have an expired lease",
            why="their workers died or were paused; the sweep hands them to others",
            mend="nothing if the number falls; else see beat",
        )
    yield (
        ok("dead_runs", "no run is dead")
        if not backlog.dead_runs
        else warning(
            "dead_runs",
            "a run is dead" if backlog.dead_runs == 1 else f"{backlog.dead_runs:,} runs are dead",
            why="they are out of attempts, and nothing tries them again by itself",
            mend="palimpsest runs --dead, and once the reason is mended: palimpsest runs --retry-all",
        )
    )
