"""Processes whose clocks are hours apart, or are moved: what is timed between them is timed by the database."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

import pytest

from tests.faults.clocks.moved_clock import Clock, moved_clock
from tests.faults.installation import COMMITTED, LEASE_SECONDS, asked, once
from tests.faults.test_database import Turn
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from uuid import UUID

    from tests.faults.installation import Installation, Talk

SHIFTED = """
import time
from uuid_utils import compat

seconds = {seconds}
now, now_ns, uuid7 = time.time, time.time_ns, compat.uuid7
time.time = lambda: now() + seconds
time.time_ns = lambda: now_ns() + seconds * 10**9
compat.uuid7 = lambda: uuid7(nanoseconds=time.time_ns())
"""
"""A sitecustomize module: Python runs it before anything else. What C code reads of the clock stays as it is."""


@pytest.fixture
def shifted(tmp_path: Path) -> Callable[[int], dict[str, str]]:
    """Return the environment of processes whose clock is off by so many hours."""

    def environment(hours: int) -> dict[str, str]:
        folder = tmp_path / str(hours)
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(SHIFTED.format(seconds=hours * 3_600))
        given = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join([str(folder), *([given] if given else [])]), "TZ": f"XXX{-hours}"}

    return environment


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    with moved_clock(tmp_path) as made:
        yield made


def made_at(identifier: UUID) -> datetime:
    """Return the time in a UUIDv7: that of the process that made it."""
    return datetime.fromtimestamp((identifier.int >> 80) / 1_000, UTC)


@pytest.mark.fault("F21")
@pytest.mark.slow
def test_a_lease_is_the_databases_to_time(installation: Installation, shifted: Callable[[int], dict[str, str]]) -> None:
    """The worker that has the lease is an hour behind; the sweep, and the worker that joins it, an hour ahead.

    Nobody takes the run over as long as the lease is kept alive, twice over its length; then its worker is killed.
    """
    ahead, behind = shifted(1), shifted(-1)
    with (
        installation.running("beat", env=ahead),
        installation.running("checks,summaries", env=behind) as (holder,),
    ):
        talk = asked(installation)
        run = installation.chat.run(talk.id)
        # The clock is off: the id comes from the worker, the time from the database.
        assert run.created_at - made_at(run.id) > timedelta(minutes=59)
        with installation.running("checks,summaries", env=ahead):
            later = run.lease_expires_at + timedelta(seconds=2 * LEASE_SECONDS)
            eventually(lambda: installation.chat.run(talk.id).lease_expires_at > later, 60)
            held = installation.chat.run(talk.id)
            assert (held.state, held.attempts, held.lease_token) == ("running", 1, run.lease_token)
            holder.kill()
            installation.model.release()
            end = talk.end_state(runs=1)
            assert (end.outcome, end.calls, end.runs[0].attempts, len(end.snapshots)) == (COMMITTED, 2, 2, 1)
            talk.append(*talk.long())
            end = talk.end_state(runs=2)
            assert (end.outcome, end.calls, len(end.snapshots)) == (COMMITTED * 2, 3, 2)


LEASE: Final = timedelta(seconds=9)
PATIENT: Final = {"PALIMPSEST_LEASE_SECONDS": "9", "PALIMPSEST_HEARTBEAT_SECONDS": "3"}
"""Long enough that no load of the machine ends a lease, and short enough to be waited for."""


def held_on(installation: Installation, talk: Talk) -> None:
    """Assert that whoever has the run keeps it for twice the length of its lease."""
    run = installation.chat.run(talk.id)
    later = run.lease_expires_at + LEASE
    eventually(lambda: installation.chat.run(talk.id).lease_expires_at > later, 60)
    held = installation.chat.run(talk.id)
    assert (held.state, held.attempts, held.lease_token) == ("running", 1, run.lease_token)


def older_than(installation: Installation, least: timedelta) -> timedelta | None:
    """Return for how long a task has been under way, as its process tells; None if none has for so long."""
    ((age,),) = installation.chat.query("select max(seen_at - oldest_task_at) as age from processes")
    return age if age is not None and age > least else None


def is_off(told: datetime, hours: int) -> bool:
    """Tell whether a time that a process has just told is so many hours ahead."""
    return abs(told - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(minutes=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hours", [pytest.param(1, marks=pytest.mark.fault("F38")), pytest.param(-1, marks=pytest.mark.fault("F39"))]
)
def test_the_clock_of_a_worker_is_moved(installation: Installation, clock: Clock, hours: int) -> None:
    """In the middle of a summary, beside a worker whose clock is right; what is due afterwards is done by either."""
    with (
        installation.running("beat", env=PATIENT),
        installation.running("checks,summaries", env={**PATIENT, **clock.env}) as (worker,),
    ):
        talk = asked(installation)
        clock.move(hours)
        with installation.running("checks,summaries", env=PATIENT):
            # To it, messages that the other one has not acknowledged are an hour older or younger.
            held_on(installation, talk)
            # Told at heartbeats alone, and counted from the first of them that met the task.
            age = eventually(lambda: older_than(installation, LEASE))
            assert age is not None
            assert age < timedelta(minutes=10)
            installation.model.release()
            once(talk.end_state(runs=1))
        talk.append(*talk.long())
        end = talk.end_state(runs=2)
        assert (end.outcome, end.calls, len(end.snapshots)) == (COMMITTED * 2, 2, 2)
        written = eventually(lambda: [each for each in worker.events if each["event"] == "run.ended"])
        assert is_off(datetime.fromisoformat(written[-1]["timestamp"]), hours)
        clock.move(0)
        talk.append(*talk.long())
        end = talk.end_state(runs=3)
        assert (end.outcome, end.calls, len(end.snapshots)) == (COMMITTED * 3, 3, 3)
        assert worker.process.poll() is None


@pytest.mark.slow
@pytest.mark.fault("F40")
@pytest.mark.parametrize("hours", [1, -1])
def test_the_clocks_of_api_and_sweeper_are_moved(installation: Installation, clock: Clock, hours: int) -> None:
    """While a summary is made and turns come in: no lease is taken, no turn refused or stored twice, none is missed."""
    with (
        installation.api(env=clock.env),
        installation.running("beat", env={**PATIENT, **clock.env}),
        installation.running("checks,summaries", env=PATIENT),
    ):
        talk = asked(installation)
        etag = installation.client.get(f"{talk.path}/context").headers["etag"]
        clock.move(hours)
        held_on(installation, talk)
        served = installation.client.get(f"{talk.path}/context", headers={"if-none-match": etag})
        assert served.status_code == 304
        assert is_off(parsedate_to_datetime(served.headers["date"]), hours)
        turn = Turn(talk, installation.client)
        assert turn.send_until_stored().status_code == 201
        assert turn.send().headers["idempotency-replayed"] == "true"
        later = installation.talk()
        installation.chat.append(later.id, messages := later.long())  # nobody wakes a worker: the sweep has to
        later.sent.extend(messages)
        installation.model.release()
        once(talk.end_state(runs=1))
        once(later.end_state(runs=1))
        clock.move(0)
        assert turn.send().headers["idempotency-replayed"] == "true"
        later.append(*later.long())
        assert later.end_state(runs=2).outcome == COMMITTED * 2
