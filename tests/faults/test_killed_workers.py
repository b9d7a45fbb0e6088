"""Workers that are killed where they stand, or stopped for longer than their lease: another finishes, once.

Two sweepers look on, and what they find at the same time is offered twice at most, and done once.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from runtime import ids
from tests.faults.crew import Crew
from tests.faults.installation import CUT_BY_CHECKS, MAX_ATTEMPTS
from tests.support.eventually import eventually
from tests.support.processes import START_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runtime.fault_points import Point
    from tests.faults.installation import Installation, Talk
    from tests.support.processes import Worker

    Measured = Callable[[str, float], None]


TURNS_BEYOND_FREE_MEMORY: Final = 16
"""Turns of 2 MB: for a few of them a process has room in what it once asked for and does not use."""


@pytest.fixture(scope="module")
def standing(installation: Installation) -> Iterator[Crew]:
    with ExitStack() as stack:
        yield Crew(installation, stack)


@pytest.fixture
def crew(standing: Crew) -> Crew:
    eventually(standing.is_complete, START_SECONDS)
    return standing


def seconds_until_end(installation: Installation, talk: Talk, since: object) -> float:
    """Return the seconds from a moment of the database's clock until the newest run had ended."""
    ((taken,),) = installation.chat.query(
        "select extract(epoch from max(finished_at) - cast(:since as timestamptz)) from runs"
        " where conversation_id = :c",
        since=since,
        c=talk.id,
    )
    return float(taken)


@pytest.mark.slow
@pytest.mark.fault("F1", "F16")
@pytest.mark.parametrize("point", ["check.started", "run.claimed", "snapshot.written"])
def test_a_pool_child_is_killed_at_work(installation: Installation, crew: Crew, point: Point) -> None:
    """As the kernel does when memory is short. What it had begun is rolled back, and done once by another child."""
    talk = installation.talk(CUT_BY_CHECKS)
    installation.points.hold(point)
    talk.append(*talk.tool_rounds())
    held = installation.points.arrival(point)
    worker = crew.of(held.pid)
    assert held.pid != worker.process.pid
    held.kill()
    end = talk.end_state(runs=1)
    assert end.outcome == [("committed", None)]
    assert (len(end.snapshots), end.calls) == (1, 0)
    assert end.runs[0].attempts <= 2
    assert worker.process.poll() is None


@pytest.mark.slow
@pytest.mark.fault("F4")
def test_a_pool_child_is_killed_before_it_acknowledges(installation: Installation, crew: Crew) -> None:
    """The message comes again, to a conversation that has nothing due any more."""
    talk = installation.talk(CUT_BY_CHECKS)
    installation.points.hold("run.ended")
    talk.append(*talk.tool_rounds())
    held = installation.points.arrival("run.ended")
    started = installation.points.counts["check.started"]
    held.kill()
    eventually(lambda: installation.points.counts["check.started"] > started, 60)
    end = talk.end_state(runs=1)
    assert (end.outcome, end.runs[0].attempts) == ([("committed", None)], 1)
    assert len(end.snapshots) == 1


@pytest.mark.fault("F2")
def test_a_worker_is_killed_while_it_waits_for_the_model(
    installation: Installation, crew: Crew, measured: Measured
) -> None:
    talk = installation.talk()
    installation.model.hold()
    installation.points.hold("summary.asked")
    talk.append(*talk.long())
    held = installation.points.arrival("summary.asked")
    held.release()
    talk.wait_for_calls()
    killed_at = installation.now()
    crew.kill(held.pid)
    installation.model.release()
    end = talk.end_state(runs=1)
    measured(
        "F2 worker killed while it waits for the model: run ended after",
        seconds_until_end(installation, talk, killed_at),
    )
    assert (end.outcome, end.runs[0].attempts) == ([("committed", None)], 2)
    assert len(end.snapshots) == 1
    assert end.calls == 2


@pytest.mark.slow
@pytest.mark.fault("F3")
def test_a_worker_is_killed_between_answer_and_commit(
    installation: Installation, crew: Crew, measured: Measured
) -> None:
    """The one case in which a summary is paid twice."""
    talk = installation.talk()
    installation.points.hold("summary.answered")
    talk.append(*talk.long())
    held = installation.points.arrival("summary.answered")
    killed_at = installation.now()
    crew.kill(held.pid)
    held.release()
    end = talk.end_state(runs=1)
    measured(
        "F3 worker killed between answer and commit: run ended after",
        seconds_until_end(installation, talk, killed_at),
    )
    assert (end.outcome, end.runs[0].attempts) == ([("committed", None)], 2)
    assert len(end.snapshots) == 1
    assert end.calls == 2


@pytest.mark.slow
@pytest.mark.fault("F3", "F4")
@pytest.mark.parametrize(("point", "calls"), [("snapshot.written", 2), ("snapshot.committed", 1)])
def test_a_worker_is_killed_around_the_commit(installation: Installation, crew: Crew, point: Point, calls: int) -> None:
    """Before it the summary is made again; after it the run only has to be closed."""
    talk = installation.talk()
    installation.points.hold(point)
    talk.append(*talk.long())
    held = installation.points.arrival(point)
    crew.kill(held.pid)
    held.release()
    end = talk.end_state(runs=1)
    assert (end.outcome, end.runs[0].attempts) == ([("committed", None)], 2)
    assert (len(end.snapshots), end.runs[0].snapshot_version) == (1, 1)
    assert end.calls == calls


@pytest.mark.slow
@pytest.mark.fault("F5")
def test_a_checks_worker_that_is_told_to_stop_finishes_what_it_computes(installation: Installation, crew: Crew) -> None:
    talk = installation.talk(CUT_BY_CHECKS)
    installation.points.hold("snapshot.written")
    talk.append(*talk.tool_rounds())
    held = installation.points.arrival("snapshot.written")
    worker = crew.of(held.pid)
    worker.process.send_signal(signal.SIGTERM)
    eventually(lambda: "shutdown" in worker.log.read_text().lower(), 60)
    held.release()
    assert worker.process.wait(60) == 0
    crew.replace(worker)
    end = talk.end_state(runs=1)
    assert (end.outcome, end.runs[0].attempts) == ([("committed", None)], 1)


@pytest.mark.slow
@pytest.mark.fault("F6")
def test_a_worker_that_was_stopped_for_longer_than_its_lease_is_fenced_off(
    installation: Installation, crew: Crew
) -> None:
    """The summary that it brings belongs to nobody: it is written down as lost, and the other's stands."""
    talk = installation.talk()
    installation.points.hold("summary.answered")
    talk.append(*talk.long())
    held = installation.points.arrival("summary.answered")
    os.kill(held.pid, signal.SIGSTOP)
    end = talk.end_state(runs=1)
    assert (end.outcome, end.runs[0].attempts, end.calls) == ([("committed", None)], 2, 2)
    os.kill(held.pid, signal.SIGCONT)
    held.release()
    eventually(lambda: [each for each in crew.of(held.pid).events if each["event"] == "run.lost"], 60)
    again = talk.end_state(runs=1)
    assert again.runs == end.runs
    assert again.snapshots == end.snapshots
    assert again.served == end.served
    assert [(step.attempt, step.state, step.reason) for step in again.steps] == [
        (2, "committed", None),
        (1, "skipped", "lease_lost"),
    ]


@pytest.mark.slow
@pytest.mark.fault("F28")
def test_two_beats_send_for_the_same_expired_leases_and_lost_wake_ups(installation: Installation, crew: Crew) -> None:
    talks = [installation.talk() for _ in range(4)]
    installation.model.hold()
    for talk in talks[:2]:
        talk.append(*talk.long())
    for talk in talks[:2]:
        talk.wait_for_calls()
    workers = {crew.of(owner(installation, talk)).process.pid for talk in talks[:2]}
    for pid in workers:
        crew.kill(pid)
    for talk in talks[2:]:
        installation.chat.append(talk.id, messages := talk.long())  # as an API that is gone before it tells anybody
        talk.sent.extend(messages)
    installation.model.release()
    for talk, attempts in zip(talks, (2, 2, 1, 1), strict=True):
        end = talk.end_state(runs=1)
        assert (end.outcome, end.runs[0].attempts, len(end.snapshots)) == ([("committed", None)], attempts, 1)
        assert end.calls == attempts
    crew_logs = [event for worker in crew.each("checks") for event in worker.events]
    assert not [event for event in crew_logs if event["event"] == "sweep.failed"]


def owner(installation: Installation, talk: Talk) -> int:
    """Return the process that holds the lease of a conversation's run."""
    return int(installation.chat.run(talk.id).worker.rpartition(":")[2])


@pytest.mark.slow
@pytest.mark.fault("F15")
def test_a_run_that_kills_its_worker_each_time_is_dead_after_its_attempts(
    installation: Installation, crew: Crew, measured: Measured
) -> None:
    """Until somebody retries it by hand. The context is served all the while, and others are not held up."""
    talk = installation.talk(CUT_BY_CHECKS)
    installation.points.hold("run.claimed", MAX_ATTEMPTS)
    talk.append(*talk.tool_rounds())
    for _ in range(MAX_ATTEMPTS):
        installation.points.arrival("run.claimed").kill()
        assert talk.context()["messages"] == talk.sent
    last = installation.now()
    end = talk.end_state(runs=1)
    assert end.outcome == [("dead", "attempts_exhausted")]
    assert (end.runs[0].attempts, end.snapshots) == (MAX_ATTEMPTS, [])
    measured("F15 last attempt killed: run dead after", seconds_until_end(installation, talk, last))

    other = installation.talk(CUT_BY_CHECKS)
    other.append(*other.tool_rounds())
    assert other.end_state(runs=1).outcome == [("committed", None)]
    dead = ids.external("run", end.runs[0].id)
    assert dead in {run["id"] for run in installation.client.get("/v1/runs", params={"state": "dead"}).json()["data"]}
    assert installation.client.post(f"/v1/runs/{dead}/retry").status_code == 202
    assert talk.end_state().outcome == [("committed", None)]


@pytest.mark.slow
@pytest.mark.fault("F16")
def test_a_pool_child_that_gets_no_memory_gives_its_run_back(installation: Installation, crew: Crew) -> None:
    """Where the limit is the process's own, so that allocations fail instead of the kernel ending it.

    Celery ends the whole worker where such a failure reaches it; then its supervisor starts another.
    """
    talk = installation.talk({**CUT_BY_CHECKS, "compaction_enabled": False})
    installation.points.hold("run.claimed")
    for _ in range(TURNS_BEYOND_FREE_MEMORY):
        talk.append(*talk.tool_rounds(60, 9_000))
    held = installation.points.arrival("run.claimed")
    worker = crew.of(held.pid)
    before = resource.prlimit(held.pid, resource.RLIMIT_DATA, (memory(held.pid), resource.RLIM_INFINITY))
    held.release()
    eventually(lambda: has_failed(worker) or not Path(f"/proc/{held.pid}").exists(), 60)
    with suppress(ProcessLookupError):
        resource.prlimit(held.pid, resource.RLIMIT_DATA, before)
    eventually(lambda: talk.is_at_rest() or worker.process.poll() is not None, 60)
    if worker.process.poll() is not None:
        assert worker.process.returncode == 1
        crew.replace(worker)
    end = talk.end_state(runs=1)
    assert (end.runs[0].state, end.runs[0].attempts > 1) == ("committed", True)
    assert end.snapshots


def has_failed(worker: Worker) -> bool:
    return any(event["event"] in {"run.failed", "task.failed"} for event in worker.events)


def memory(pid: int) -> int:
    """Return the bytes of writable memory that a process has, without address space that is only set aside."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) * 1024
