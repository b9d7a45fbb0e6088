"""Several questions at once, answered in order up to the first that fails."""

from __future__ import annotations

import contextvars
from threading import Lock, Thread
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
    asked = _Asked(items, do)
    if len(items) == 1:
        asked.work()
    else:
        # Daemons: when the worker stops, calls under way end with the process.
        workers = [
            Thread(target=contextvars.copy_context().run, args=(asked.work,), name="model-part", daemon=True)
            for _ in range(min(threads, len(items)))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    first: SummaryError | None = None
    for _, error in sorted(asked.failures.items(), key=lambda each: each[0]):
        if not isinstance(error, SummaryError) or error.code in fatal:
            raise error
        first = first or error
    return [asked.results[number] for number in range(min(asked.failures, default=len(items)))], first


class _Asked(Generic[T, R]):
    """Items that several threads take one by one, in order."""

    def __init__(self, items: Sequence[T], do: Callable[[T], R]) -> None:
        self._items = items
        self._do = do
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
            if self.failures or self._taken == len(self._items):
                return None
            self._taken += 1
            return self._taken - 1
