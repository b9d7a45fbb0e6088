"""Carrying out runs: from a lease to the run's end, whatever happens on the way."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.exc import SQLAlchemyError

from store import runs
from store.broker import SUMMARIES
from worker.execution import Execution, RunLostError
from worker.leases import Calls, StoppingError, extend
from worker.summarizers import SummaryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.runs import Lease
    from worker.database import Database
    from worker.summarizers import Summarizer, Summary, SummaryRequest

log = structlog.get_logger()


class Compactor:
    """Carries out runs. One object a process; safe to use from many threads.

    `make_summarizer` is called when the first summary is made, and is None where there are none; `wake` tells a
    worker of a run that is queued.
    """

    def __init__(
        self,
        database: Database,
        make_summarizer: Callable[[], Summarizer] | None,
        *,
        lease_seconds: float,
        wake: Callable[[Lease], None],
    ) -> None:
        self.database = database
        self._make_summarizer = make_summarizer
        self._lease_seconds = lease_seconds
        self._wake = wake
        self.calls = Calls()
        """The model calls under way."""

    def execute(self, lease: Lease) -> None:
        """Carry out what is due under a lease, as far as its queue goes."""
        with structlog.contextvars.bound_contextvars(run_id=str(lease.run_id), request_id=str(lease.request_id)):
            try:
                Execution(self, lease).go()
            except RunLostError as error:
                # Whoever took over writes the run's end; this attempt leaves no trace but the log's.
                log.warning("run.lost", reason=str(error))
            except StoppingError:
                log.info("run.released")
                self._release(lease)
            except Exception as error:  # noqa: BLE001 - nothing may take the other conversations' checks with it
                log.error("run.failed", error=type(error).__name__)  # noqa: TRY400 - a traceback may show content
                self._give_back(lease, type(error).__name__)

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

    @property
    def can_summarize(self) -> bool:
        """Whether there is a summarizer."""
        return self._make_summarizer is not None

    @cached_property
    def summarizer(self) -> Summarizer:
        """The summarizer; only where there is one."""
        assert self._make_summarizer is not None  # noqa: S101 - can_summarize was asked
        return self._make_summarizer()

    def ask(self, request: SummaryRequest, lease: Lease) -> Summary:
        """Return a summary; the lease is kept alive meanwhile.

        Raises SummaryError if none could be made, StoppingError if the worker has to stop.
        """
        try:
            return self.calls.wait(
                lambda: self.summarizer.summarize(request),
                lambda: extend(self.database, lease, self._lease_seconds),
                self._lease_seconds / 3,
            )
        except (SummaryError, StoppingError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a summarizer, the fallback is not
            raise SummaryError("summarizer_error", type(error).__name__) from None

    def hand_over(self, lease: Lease) -> None:
        """Queue the run for the workers that wait for models."""
        with self.database.transaction(lease.tenant_id) as connection:
            if not runs.hand_over(connection, lease, SUMMARIES):
                raise RunLostError("lease_lost")
        self._wake(lease)
