"""What attempts at runs work with: the database, the summarizer, and waiting for a model under a lease."""

from __future__ import annotations

import contextvars
import math
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import cached_property
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from compaction.steps.runs import RunReason
from runtime.broker import SUMMARIES
from runtime.fault_points import pause_for_test
from store.runs import runs
from worker.runs.leases import LeaseKeeper
from worker.runs.transactions import RunLostError
from worker.summarizers.base import SummaryError
from worker.summarizers.paying import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.runs.runs import Lease
    from worker.database import Database
    from worker.runs.budgets import Budgets
    from worker.runs.swapping import Swapping
    from worker.summarizers.base import Model, Summarizer
    from worker.summarizers.paying import Purse

T = TypeVar("T")


class StoppingError(Exception):
    """The worker stops: what was waited for is given up."""


class Calls:
    """The calls that a process waits for; all of them are given up when it stops."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: set[Future[Any]] = set()
        self.stopping = False
        """Whether no call may begin any more."""

    def stop(self) -> None:
        """Raise StoppingError wherever a call is waited for, now or later."""
        with self._lock:
            self.stopping = True
            waiting = list(self._waiting)
        for future in waiting:
            with suppress(InvalidStateError):  # the answer came first
                future.set_exception(StoppingError())

    def wait(self, call: Callable[[], T]) -> T:
        """Return what `call` returns. Raises StoppingError if the process stops meanwhile.

        The call has a thread of its own: if it is given up, it ends with the process.
        """
        future: Future[T] = Future()
        with self._lock:
            if self.stopping:
                raise StoppingError
            self._waiting.add(future)
        # With what the log and the trace know of the run.
        settle = contextvars.copy_context().run
        Thread(target=settle, args=(_settle, future, call), name="model-call", daemon=True).start()
        try:
            return future.result()
        finally:
            with self._lock:
                self._waiting.discard(future)


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised again where the call is waited for
        with suppress(InvalidStateError):
            future.set_exception(error)
    else:
        with suppress(InvalidStateError):
            future.set_result(result)


class RunResources:
    """What the attempts of one process share. One object a process; safe to use from many threads.

    `make_summarizer` and `make_model` are called when the first summary is made, of a conversation and of a context
    block, and are None where there are none; `wake` tells a worker of a run that is queued. A lease is kept alive for
    `limit_seconds` of waiting for a model at most. `budgets` are those that calls are paid from, None for as much as it
    takes; `swapping` decides whether snapshots wait until they pay, None that they never do.
    """

    def __init__(
        self,
        database: Database,
        make_summarizer: Callable[[], Summarizer] | None,
        *,
        make_model: Callable[[], Model] | None = None,
        lease_seconds: float,
        limit_seconds: float = math.inf,
        wake: Callable[[Lease], None],
        budgets: Budgets | None = None,
        swapping: Swapping | None = None,
    ) -> None:
        self.database = database
        self._make_summarizer = make_summarizer
        self._make_model = make_model
        self.leases = LeaseKeeper(database, lease_seconds, limit_seconds)
        self.wake = wake
        self.budgets = budgets
        self.swapping = swapping
        self.calls = Calls()
        """The model calls under way."""

    @property
    def can_summarize(self) -> bool:
        """Whether there is a summarizer."""
        return self._make_summarizer is not None

    @cached_property
    def summarizer(self) -> Summarizer:
        """The summarizer; only where there is one."""
        assert self._make_summarizer is not None  # noqa: S101 - can_summarize was asked
        return self._make_summarizer()

    @cached_property
    def model(self) -> Model | None:
        """The model that summarizes context blocks, None where there is none."""
        return None if self._make_model is None else self._make_model()

    def purse(self, lease: Lease) -> Purse:
        """Return what the model calls of one attempt at a run are paid from."""
        return UNLIMITED if self.budgets is None else self.budgets.purse(lease)

    def wait(self, call: Callable[[], T], lease: Lease) -> T:
        """Return what `call` returns; the lease is kept alive meanwhile, up to the limit. Raises StoppingError."""
        pause_for_test("summary.asked")
        answer = self._wait(call, lease, self.leases.limit_seconds)
        pause_for_test("summary.answered")
        return answer

    def wait_for_room(self, call: Callable[[], T], lease: Lease) -> T:
        """Return what `call` returns; the lease is kept alive however long that takes. Raises StoppingError."""
        return self._wait(call, lease, math.inf)

    def _wait(self, call: Callable[[], T], lease: Lease, seconds: float) -> T:
        self.leases.keep_for(lease, seconds)
        answer = self.calls.wait(call)
        self.leases.keep_for(lease, self.leases.limit_seconds)
        return answer

    def summarized(self, call: Callable[[], T], lease: Lease) -> T:
        """Return what a call of a summarizer returns; the lease is kept alive meanwhile.

        Raises SummaryError, whatever is wrong with the summarizer, and StoppingError if the worker has to stop.
        """
        try:
            return self.wait(call, lease)
        except (SummaryError, StoppingError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a summarizer, the fallback is not
            raise SummaryError(RunReason.SUMMARIZER_ERROR, type(error).__name__) from None

    def hand_over(self, lease: Lease) -> None:
        """Queue the run for the workers that wait for models. Raises RunLostError."""
        with self.database.transaction(lease.tenant_id) as connection:
            if not runs.hand_over(connection, lease, SUMMARIES):
                raise RunLostError(RunReason.LEASE_LOST)
        self.wake(lease)
