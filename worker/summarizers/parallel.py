"""Several calls at once, begun in order; what they return, or the failure that counts."""

from __future__ import annotations

import contextvars
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

T = TypeVar("T")
R = TypeVar("R")


def answers_in_order(
    items: Sequence[T], do: Callable[[T], R], *, threads: int, fatal: Collection[str] = ()
) -> tuple[list[R], SummaryError | None]:
    """Return what `do` made of the items before the first failure, and that failure.

    Nothing begins after a failure; what is under way is waited for. Raises what is no SummaryError, and those whose
    code is `fatal`.
    """
    calls = _carried_out(items, do, threads, Event())
    first: SummaryError | None = None
    for _, error in sorted(calls.failures.items(), key=lambda each: each[0]):
        if not isinstance(error, SummaryError) or error.code in fatal:
            raise error
        first = first or error
    return [calls.results[number] for number in range(min(calls.failures, default=len(items)))], first


def all_answers(items: Sequence[T], do: Callable[[T], R], *, threads: int, stop: Event) -> list[R] | None:
    """Return what `do` made of all items, None if `stop` was set before all were through.

    Nothing begins after a failure, which is raised once those under way have ended, nor once `stop` is set.
    """
    calls = _carried_out(items, do, threads, stop)
    if calls.failures:
        raise calls.failures[min(calls.failures)]
    if len(calls.results) < len(items):
        return None
    return [calls.results[number] for number in range(len(items))]


def _carried_out(items: Sequence[T], do: Callable[[T], R], threads: int, stop: Event) -> _Calls[T, R]:
    calls = _Calls(items, do, stop)
    if len(items) == 1:
        calls.work()
        return calls
    # Daemons: when the worker stops, calls under way end with the process.
    workers = [
        Thread(target=contextvars.copy_context().run, args=(calls.work,), name="model-part", daemon=True)
        for _ in range(min(threads, len(items)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return calls


class _Calls(Generic[T, R]):
    """Items that several threads take one by one, in order."""

    def __init__(self, items: Sequence[T], do: Callable[[T], R], stop: Event) -> None:
        self._items = items
        self._do = do
        self._stop = stop
        self._lock = Lock()
        self._taken = 0
        self.results: dict[int, R] = {}
        self.failures: dict[int, BaseException] = {}

    def work(self) -> None:
        while (number := self._take()) is not None:
            try:
                self.results[number] = self._do(self._items[number])
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                self.failures[number] = error

    def _take(self) -> int | None:
        with self._lock:
            if self.failures or self._stop.is_set() or self._taken == len(self._items):
                return None
            self._taken += 1
            return self._taken - 1
