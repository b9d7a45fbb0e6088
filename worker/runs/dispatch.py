"""Carrying out runs: from a lease to the attempt that fits the run, and to its end, whatever happens on the way."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.exc import SQLAlchemyError

from compaction.steps.runs import RunKind
from runtime import ids
from runtime.fault_points import pause_for_test
from runtime.log import fault
from store.bytes_held import bounded_by
from store.runs import runs
from worker.metrics import METRICS
from worker.process.memory import FullError, Memory, RunMemory
from worker.recall.preparing import prepare
from worker.runs.after_overflow import Recovery
from worker.runs.context_block import BlockSummary
from worker.runs.execute import LadderRun
from worker.runs.resources import StoppingError
from worker.runs.transactions import RunLostError
from worker.tracing import traced_run

if TYPE_CHECKING:
    from store.runs.runs import Lease
    from worker.runs.resources import RunResources
    from worker.runs.summarizing import WriteSigned

log = structlog.get_logger()


class Dispatcher:
    """Carries out runs. One object a process; safe to use from many threads.

    `write_signed` asks the API for its own summaries, None if the summarizer writes all of them.
    """

    def __init__(self, resources: RunResources, write_signed: WriteSigned | None = None) -> None:
        self._resources = resources
        self._write_signed = write_signed
        self._memory = Memory()

    def execute(self, lease: Lease) -> None:
        """Carry out what is due under a lease, as far as its queue goes."""
        request_id = None if lease.request_id is None else ids.external("req", lease.request_id)
        with (
            structlog.contextvars.bound_contextvars(run_id=str(lease.run_id), request_id=request_id),
            traced_run(lease),
            self._resources.leases.keeping(lease),
        ):
            pause_for_test("run.claimed")
            try:
                self._go(lease)
                METRICS.attempted("done")
            except RunLostError as error:
                METRICS.attempted("lost")
                # Whoever took over writes the run's end; this attempt leaves no trace but the log's.
                log.warning("run.lost", reason=str(error))
            except StoppingError:
                METRICS.attempted("released")
                log.info("run.released")
                self._release(lease)
            except Exception as error:  # noqa: BLE001 - nothing may take the other conversations' checks with it
                METRICS.attempted("failed")
                log.error("run.failed", error=fault(error))  # noqa: TRY400 - a traceback may show content
                self._give_back(lease, type(error).__name__)

    def _go(self, lease: Lease) -> None:
        """Carry out a run once there is room for what it reads; it reads before it does anything."""
        room = RunMemory(self._memory)
        try:
            while True:
                try:
                    with bounded_by(room.take):
                        self._attempt(lease).run()
                        return prepare(self._resources.database, lease.tenant_id, lease.conversation_id)
                except FullError as error:
                    size = error.size
                self._resources.wait_for_room(partial(room.wait, size), lease)
        finally:
            room.give_back()

    def _attempt(self, lease: Lease) -> BlockSummary | Recovery | LadderRun:
        match lease.kind:
            case RunKind.CONTEXT_BLOCK:
                return BlockSummary(self._resources, lease)
            case RunKind.RECOVERY:
                return Recovery(self._resources, lease)
            case _:
                return LadderRun(self._resources, lease, self._write_signed)

    def _give_back(self, lease: Lease, error: str) -> None:
        """Queue the run for another attempt; where even that fails, its lease runs out."""
        try:
            with self._resources.database.transaction(lease.tenant_id) as connection:
                runs.give_back(connection, lease, error)
        except SQLAlchemyError as failure:
            log.warning("run.not_given_back", error=fault(failure))

    def _release(self, lease: Lease) -> None:
        """Let another worker have the run at once; where that fails, its lease runs out."""
        try:
            with self._resources.database.transaction(lease.tenant_id) as connection:
                released = runs.release(connection, lease)
        except SQLAlchemyError as failure:
            log.warning("run.not_released", error=fault(failure))
        else:
            if released:
                self._resources.wake(lease)
