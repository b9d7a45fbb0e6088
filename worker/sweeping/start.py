"""Starting a sweeper, which loads nothing of what workers do."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Final

from runtime.broker import celery_app
from runtime.tracing import TRACING
from store.operations.processes import Activity
from worker.metrics import METRICS
from worker.process.exposition import Exposition, ProcessGauges
from worker.process.liveness import FROZEN_SECONDS, Heart, Watch, heart_database
from worker.process.shutdown import leave_in_time, leave_now
from worker.sweeping.missing import Missing
from worker.sweeping.sweeper import Sweeper

if TYPE_CHECKING:
    from runtime.settings import Settings

SWEEPER_SERVICE: Final = "palimpsest-sweeper"
"""What traces call a sweeper, unless OTEL_SERVICE_NAME does."""


def run_sweeper(settings: Settings) -> int:
    """Sweep until SIGTERM or SIGINT; return the exit code."""
    stop = threading.Event()

    def end(*_: object) -> None:
        leave_in_time()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    TRACING.start(settings, SWEEPER_SERVICE)
    sweeper = Sweeper(settings, celery_app(settings, "palimpsest-sweeper"))
    database = heart_database(settings)
    missing = Missing(settings, database)

    def look() -> None:
        if missing.look():
            sweeper.hurry()

    heart = Heart(
        database,
        "sweeper",
        [],
        slots=1,
        seconds=settings.heartbeat_seconds,
        activity=Activity,
        beside=look,
    )
    # What it does can be done again at any time: a sweeper that is stuck ends at once.
    watch = Watch(sweeper.progress, settings.task_stuck_seconds, leave_now, frozen=FROZEN_SECONDS)
    METRICS.registry.register(ProcessGauges(Activity, {"sweeper": sweeper.engine}))
    exposition = Exposition(settings)
    heart.start()
    watch.start()
    exposition.start()
    sweeper.run(stop)
    TRACING.stop()
    exposition.stop()
    watch.stop()
    heart.stop()
    return 0
