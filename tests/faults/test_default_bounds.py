"""How long recovery takes with the settings that an installation has by default; docs/reliability.md has the bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from runtime.settings import Settings
from tests.faults.installation import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
    from tests.faults.installation import Installation

TIMED = ("lease_seconds", "sweep_interval_seconds", "check_overdue_seconds", "run_overdue_seconds", "heartbeat_seconds")
COMMITTED_SECONDS: Final = 20.0
"""Most seconds from a worker's death until its run is committed by others: its lease, a sweep, the task itself."""


@pytest.fixture
def by_default(postgres: EmbeddedPostgres, template: str, redis_server: EmbeddedRedis) -> Iterator[Installation]:
    defaults = {f"PALIMPSEST_{name.upper()}": str(Settings.model_fields[name].default) for name in TIMED}
    with installed(postgres.url, template, redis_server.url, **defaults) as made, made.api():
        yield made


@pytest.mark.slow
@pytest.mark.fault("F2")
def test_every_worker_is_killed_in_a_summary(by_default: Installation, measured: Callable[[str, float], None]) -> None:
    talk = by_default.talk()
    with by_default.running("beat"):
        with by_default.running("checks", "summaries") as workers:
            by_default.model.hold()
            talk.append(*talk.long())
            talk.wait_for_calls()
            killed_at = by_default.now()
            for worker in workers:
                worker.kill()
        by_default.model.release()
        with by_default.running("checks", "summaries"):
            end = talk.end_state(runs=1)
    assert end.outcome == [("committed", None)]
    assert (end.runs[0].attempts, end.calls, len(end.snapshots)) == (2, 2, 1)
    committed = (end.runs[0].finished_at - killed_at).total_seconds()
    measured("default settings, every worker killed in a summary: committed by new ones after", committed)
    assert committed <= COMMITTED_SECONDS


@pytest.mark.slow
@pytest.mark.fault("F32")
def test_a_wake_up_gets_lost(by_default: Installation, measured: Callable[[str, float], None]) -> None:
    talk = by_default.talk()
    with by_default.running("checks", "summaries", "beat"):
        by_default.chat.append(talk.id, messages := talk.long())  # nobody wakes a worker
        talk.sent.extend(messages)
        stored_at = by_default.now()
        end = talk.end_state(runs=1)
    assert end.outcome == [("committed", None)]
    measured("default settings, wake-up lost: check begun after", (end.runs[0].started_at - stored_at).total_seconds())
