"""Carrying out runs: from a lease to the run's end, whatever happens on the way."""

from __future__ import annotations

import math
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError

from runtime import ids
from runtime.broker import SUMMARIES
from runtime.fault_points import reach
from store.bytes_held import bounded_by
from store.runs import runs
from worker.batches.batched_run import BatchedRun
from worker.metrics import METRICS
from worker.process.memory import FullError, Memory, RunMemory
from worker.runs.after_overflow import Recovery
from worker.runs.context_block import BlockSummary
from worker.runs.execution import Execution
from worker.runs.journal import BATCH_TRIGGER, RunLostError
from worker.runs.leases import Calls, StoppingError, extend
from worker.summarizers import SummaryError
from worker.summarizers.purse import UNLIMITED
from worker.tracing import traced_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.runs.runs import Lease
    from worker.batches.provider import AnthropicBatches
    from worker.database import Database
    from worker.runs.budgets import Budgets
    from worker.summarizers import Summarizer, Summary, SummaryRequest
    from worker.summarizers.base import Model, NativeSummarizer
    from worker.summarizers.purse import Purse

T = TypeVar("T")

log = structlog.get_logger()


class Compactor:
    """Carries out runs. One object a process; safe to use from many threads.

    `make_summarizer`, `make_model` and `make_batches` are called when the first summary is made, of a conversation,
    of a context block and by a message batch, and are None where there are none; `wake` tells a worker of a run that is
    queued. A lease is kept alive for `limit_seconds` of waiting for a model at most. `budgets` are those that calls are
    paid from, None for as much as it takes.
    """

    def __init__(
        self,
        database: Database,
        make_summarizer: Callable[[], Summarizer | NativeSummarizer] | None,
        *,
        make_model: Callable[[], Model] | None = None,
        make_batches: Callable[[], AnthropicBatches] | None = None,
        lease_seconds: float,
        limit_seconds: float = math.inf,
        wake: Callable[[Lease], None],
        budgets: Budgets | None = None,
    ) -> None:
        self.database = database
        self._make_summarizer = make_summarizer
        self._make_model = make_model
        self._make_batches = make_batches
        self._lease_seconds = lease_seconds
        self._limit_seconds = limit_seconds
        self._wake = wake
        self.budgets = budgets
        self._memory = Memory()
        self.calls = Calls()
        """The model calls under way."""

    def execute(self, lease: Lease) -> None:
        """Carry out what is due under a lease, as far as its queue goes."""
        request_id = None if lease.request_id is None else ids.external("req", lease.request_id)
        with (
            structlog.contextvars.bound_contextvars(run_id=str(lease.run_id), request_id=request_id),
            traced_run(lease),
        ):
            reach("run.claimed")
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
                log.error("run.failed", error=type(error).__name__)  # noqa: TRY400 - a traceback may show content
                self._give_back(lease, type(error).__name__)

    def _go(self, lease: Lease) -> None:
        """Carry out a run once there is room for what it reads; it reads before it does anything."""
        room = RunMemory(self._memory)
        try:
            while True:
                try:
                    with bounded_by(room.take):
                        return self._attempt(lease).go()
                except FullError as error:
                    size = error.size
                beat = partial(extend, self.database, lease, self._lease_seconds)
                self.calls.wait(partial(room.wait, size), beat, self._lease_seconds / 3)
        finally:
            room.give_back()

    def _attempt(self, lease: Lease) -> Execution | Recovery | BlockSummary | BatchedRun:
        if lease.block_id is not None:
            return BlockSummary(self, lease)
        if lease.trigger == BATCH_TRIGGER:
            return BatchedRun(self, lease)
        return Execution(self, lease) if lease.base_version is None else Recovery(self, lease)

    def _give_back(self, lease: Lease, error: str) -> None:
        """Queue the run for another attempt; where even that fails, its lease runs out."""
        try:
            with self.database.transaction(lease.tenant_id) as connection:
                runs.give_back(connection, lease, error)
        except SQLAlchemyError as failure:
            log.warning("run.not_given_back", error=type(failure).__name__)

    def _release(self, lease: Lease) -> None:
        """Let another worker have the run at once; where that fails, its lease runs out."""
        try:
            with self.database.transaction(lease.tenant_id) as connection:
                released = runs.release(connection, lease)
        except SQLAlchemyError as failure:
            log.warning("run.not_released", error=type(failure).__name__)
        else:
            if released:
                self._wake(lease)

    def purse(self, lease: Lease) -> Purse:
        """Return what the model calls of one attempt at a run are paid from."""
        return UNLIMITED if self.budgets is None else self.budgets.purse(lease)

    @property
    def can_summarize(self) -> bool:
        """Whether there is a summarizer."""
        return self._make_summarizer is not None

    @cached_property
    def summarizer(self) -> Summarizer | NativeSummarizer:
        """The summarizer; only where there is one."""
        assert self._make_summarizer is not None  # noqa: S101 - can_summarize was asked
        return self._make_summarizer()

    def ask(self, request: SummaryRequest, lease: Lease, summarizer: Summarizer) -> Summary:
        """Return a summarizer's summary; the lease is kept alive meanwhile.

        Raises SummaryError if none could be made, StoppingError if the worker has to stop.
        """
        return self.summarized(lambda: summarizer.summarize(request), lease)

    def summarized(self, call: Callable[[], T], lease: Lease) -> T:
        """Return what a call of a summarizer returns; see `ask`."""
        try:
            return self.wait(call, lease)
        except (SummaryError, StoppingError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a summarizer, the fallback is not
            raise SummaryError("summarizer_error", type(error).__name__) from None

    @cached_property
    def model(self) -> Model | None:
        """The model that summarizes context blocks, None where there is none."""
        return None if self._make_model is None else self._make_model()

    @cached_property
    def batches(self) -> AnthropicBatches | None:
        """What has summaries made at half price, None where no provider is asked."""
        return None if self._make_batches is None else self._make_batches()

    def wait(self, call: Callable[[], T], lease: Lease) -> T:
        """Return what `call` returns; the lease is kept alive meanwhile, up to the limit. Raises StoppingError."""
        limit = time.monotonic() + self._limit_seconds

        def beat() -> None:
            # A call that never ends must not keep the run for ever: without a lease another worker takes it over.
            if time.monotonic() < limit:
                extend(self.database, lease, self._lease_seconds)

        reach("summary.asked")
        answer = self.calls.wait(call, beat, self._lease_seconds / 3)
        reach("summary.answered")
        return answer

    def hand_over(self, lease: Lease) -> None:
        """Queue the run for the workers that wait for models."""
        with self.database.transaction(lease.tenant_id) as connection:
            if not runs.hand_over(connection, lease, SUMMARIES):
                raise RunLostError("lease_lost")
        self._wake(lease)
