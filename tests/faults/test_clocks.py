"""Processes whose clocks are hours apart: what is timed between them is timed by the database."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from tests.faults.installation import LEASE_SECONDS
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID

    from tests.faults.installation import Installation, Talk

COMMITTED = [("committed", None)]
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


def made_at(identifier: UUID) -> datetime:
    """Return the time in a UUIDv7: that of the process that made it."""
    return datetime.fromtimestamp((identifier.int >> 80) / 1_000, UTC)


def asked(installation: Installation) -> Talk:
    """Return a conversation whose summary the model has been asked for; the answer is held back."""
    talk = installation.talk()
    installation.model.hold()
    talk.append(*talk.long())
    eventually(lambda: talk.calls == 1, 60)
    return talk


@pytest.mark.fault("F21")
@pytest.mark.slow
def test_a_lease_is_the_databases_to_time(installation: Installation, shifted: Callable[[int], dict[str, str]]) -> None:
    """The worker that has the lease is an hour behind; the sweeper, and the worker that joins it, an hour ahead.

    Nobody takes the run over as long as the lease is kept alive, twice over its length; then its worker is killed.
    """
    ahead, behind = shifted(1), shifted(-1)
    with (
        installation.running("sweeper", env=ahead),
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
