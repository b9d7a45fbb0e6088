"""Waiting for a model under a lease: kept alive meanwhile, and given up at once when the worker has to stop."""

from __future__ import annotations

import contextvars
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError

from store.runs import runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.runs.runs import Lease
    from worker.database import Database

T = TypeVar("T")

log = structlog.get_logger()


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

    def wait(self, call: Callable[[], T], beat: Callable[[], None], seconds: float) -> T:
        """Return what `call` returns; run `beat` every so many seconds until then.

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
            while not wait([future], seconds).done:
                beat()
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


def extend(database: Database, lease: Lease, seconds: float) -> None:
    """Extend a lease, if the database can be reached. A lost one is found out at the commit.

    Only a lease that is held counts as progress: whoever waits without one is stuck in the end.
    """
    try:
        with database.transaction(lease.tenant_id, is_progress=False) as connection:
            held = runs.heartbeat(connection, lease, seconds)
    except SQLAlchemyError as error:
        # The database may be back before the lease runs out; the next beat tries again.
        log.warning("heartbeat.failed", error=type(error).__name__)
    else:
        if held:
            database.mark()
