"""How long recovery takes with the settings that an installation has by default; docs/reliability.md has the bounds."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from runtime.settings import Settings
from tests.faults.installation import installed

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis

TIMED = ("lease_seconds", "sweep_interval_seconds", "check_overdue_seconds", "run_overdue_seconds", "heartbeat_seconds")


@pytest.mark.slow
@pytest.mark.fault("F2", "F32")
def test_a_worker_killed_in_a_summary_and_a_wake_up_lost(
    postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis, measured: Callable[[str, float], None]
) -> None:
    defaults = {f"PALIMPSEST_{name.upper()}": str(Settings.model_fields[name].default) for name in TIMED}
    with (
        installed(postgres.url, template, redis_server.url, **defaults) as installation,
        installation.api(),
        installation.running("checks", "summaries", "summaries", "sweeper"),
    ):
        summarized, unheard = installation.talk(), installation.talk()
        installation.model.hold()
        summarized.append(*summarized.long())
        summarized.wait_for_calls()
        killed_at = installation.now()
        os.kill(int(installation.chat.run(summarized.id).worker.rpartition(":")[2]), signal.SIGKILL)
        installation.model.release()

        installation.chat.append(unheard.id, messages := unheard.long())  # nobody wakes a worker
        unheard.sent.extend(messages)
        stored_at = installation.now()
        check = unheard.end_state(runs=1)
        summary = summarized.end_state(runs=1)
    assert check.outcome == summary.outcome == [("committed", None)]
    assert (summary.runs[0].attempts, summary.calls, len(summary.snapshots)) == (2, 2, 1)
    measured(
        "default settings, wake-up lost: check begun after", (check.runs[0].started_at - stored_at).total_seconds()
    )
    measured(
        "default settings, worker killed in a summary: committed after",
        (summary.runs[0].finished_at - killed_at).total_seconds(),
    )
