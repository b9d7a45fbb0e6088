"""The life of a Celery worker: its heartbeat, the watch over its tasks and its pool, its metrics."""

from __future__ import annotations

import gc
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import structlog
from celery.signals import worker_before_create_process, worker_process_init, worker_process_shutdown, worker_ready
from celery.worker import state
from redis.exceptions import RedisError

from runtime.broker import QueueDepths
from runtime.launch import die_with_parent
from runtime.tracing import TRACING
from store.operations import processes
from store.operations.processes import Activity
from worker.process import place
from worker.process.liveness import FROZEN_SECONDS, Heart, Watch, heart_database
from worker.process.shutdown import leave_in_time, leave_now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from runtime.settings import Settings
    from worker.process.exposition import Exposition
    from worker.process.progress import Progress

log = structlog.get_logger()

SERVICE: Final = "palimpsest-worker"
"""What traces call a worker, unless OTEL_SERVICE_NAME does."""


class Consumed(NamedTuple):
    """What a worker's pool is at: tasks begun since the start, tasks under way, and seconds since the oldest began."""

    begun: int
    busy: int
    oldest_seconds: float | None


class PoolWatch(Watch):
    """Watches over a whole worker: also over a pool that takes nothing although it has room and messages wait."""

    def __init__(
        self,
        progress: Progress,
        seconds: float,
        give_up: Callable[[], None],
        *,
        frozen: float | None = FROZEN_SECONDS,
        consumed: Callable[[], Consumed],
        slots: int,
        depths: QueueDepths,
        queues: Sequence[str],
        queue_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(progress, seconds, give_up, frozen=frozen)
        self._consumed = consumed
        self._slots = slots
        self._depths = depths
        self._queues = queues
        self._queue_seconds = queue_seconds
        self._clock = clock
        self._last = (-1, clock())

    def is_stuck(self) -> bool:
        """Tell whether the worker is to be given up, and log why."""
        return super().is_stuck() or self._starves()

    def _starves(self) -> bool:
        begun, busy, _ = self._consumed()
        now = self._clock()
        if begun != self._last[0] or busy >= self._slots or not self._messages_wait():
            self._last = begun, now
            return False
        seconds = now - self._last[1]
        if seconds <= self._queue_seconds:
            return False
        log.error("queue.stuck", queues=list(self._queues), seconds=round(seconds, 1))
        return True

    def _messages_wait(self) -> bool:
        try:
            return any(self._depths.of(queue) for queue in self._queues)
        except RedisError:
            return False  # Nobody can take anything: whether the pool would is not to be known.


class WorkerLife:
    """The life of a Celery worker, between the start of its pool and its end."""

    def __init__(
        self,
        settings: Settings,
        process_id: UUID,
        queues: Sequence[str],
        slots: int,
        progress: Progress,
        exposition: Exposition,
    ) -> None:
        self.was_given_up = False
        """Whether the worker ends because it was stuck."""
        self._depths = QueueDepths(settings)
        self._heart = Heart(
            heart_database(settings),
            "worker",
            queues,
            slots=slots,
            seconds=settings.heartbeat_seconds,
            activity=lambda: Activity(*consumed()[1:]),
            process_id=process_id,
            summarizer=(settings.chosen_summarizer, settings.chosen_model),
            beside=self._bury,
        )
        self._parent = os.getpid()
        self._pool: Any = None
        self._pool_pids: set[int] = set()
        self._watch = PoolWatch(
            progress,
            settings.task_stuck_seconds,
            self._give_up,
            consumed=consumed,
            slots=slots,
            depths=self._depths,
            queues=queues,
            queue_seconds=settings.queue_stuck_seconds,
        )
        self._progress = progress
        self._seconds = settings.task_stuck_seconds
        self._settings = settings
        self._exposition = exposition

    def __enter__(self) -> Self:
        # Once the pool is up: a process that is forked off must not find another thread's locks held.
        worker_ready.connect(self._begin, weak=False)
        worker_before_create_process.connect(_share_pages, weak=False)
        worker_process_init.connect(self._begin_child, weak=False)
        worker_process_shutdown.connect(self._end_child, weak=False)
        return self

    def __exit__(self, *_: object) -> None:
        worker_ready.disconnect(self._begin)
        worker_before_create_process.disconnect(_share_pages)
        worker_process_init.disconnect(self._begin_child)
        worker_process_shutdown.disconnect(self._end_child)
        self._watch.stop()
        self._heart.stop()
        self._exposition.stop()
        self._depths.close()

    def _begin(self, sender: Any, **_: Any) -> None:
        self._pool = sender.pool
        self._heart.start()
        self._watch.start()
        self._exposition.start()

    def _bury(self) -> None:
        """Have the leases expire of processes of the pool that have ended since the last beat."""
        of_celery = getattr(self._pool, "_pool", None)  # None for threads, and at the end
        alive = {child.pid for child in list(getattr(of_celery, "_pool", ()))}
        if not alive:
            return
        workers = [place.worker_name(pid) for pid in self._pool_pids - alive]
        if not workers or self._heart.write(
            lambda connection: processes.expire_leases(connection, self._heart.process.id, workers)
        ):
            self._pool_pids = alive

    def _begin_child(self, **_: Any) -> None:
        # One that goes on without the parent would have nobody to tell when its leases may be taken.
        die_with_parent(signal.SIGKILL)
        if os.getppid() != self._parent:
            leave_now()
        self._progress.forget()
        self._exposition.leave_to_parent()
        TRACING.start(self._settings, SERVICE)
        # One process of the pool: its message comes back, and the pool starts another in its place.
        Watch(self._progress, self._seconds, leave_now).start()

    def _end_child(self, **_: Any) -> None:
        TRACING.stop()

    def _give_up(self) -> None:
        """End this worker as SIGTERM would, if need be by force: what can be given back is given back."""
        self.was_given_up = True
        leave_in_time()
        os.kill(os.getpid(), signal.SIGTERM)


def _share_pages(**_: Any) -> None:
    """Leave what there is before a fork out of later collections, which would write to the pages that are shared."""
    gc.collect()
    gc.freeze()


_begun: dict[str, float] = {}
"""When each task under way was first seen, at a heartbeat at the latest, by a clock that nobody sets.

Celery has its beginning by the one that tells the time of day.
"""


def consumed() -> Consumed:
    """Return what the pool of this process's Celery worker is at."""
    global _begun  # noqa: PLW0603 - as what it is about, which Celery keeps in a module
    while True:
        try:
            under_way = [request.id for request in list(state.active_requests)]
        except RuntimeError:  # a task began or ended meanwhile
            continue
        now, known = time.monotonic(), _begun
        _begun = {task: known.get(task, now) for task in under_way}
        oldest = max(0.0, now - min(_begun.values())) if _begun else None
        return Consumed(state.all_total_count[0], len(under_way), oldest)
