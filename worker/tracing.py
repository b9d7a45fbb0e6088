"""What a worker traces: its tasks, and the runs in them. The requests to models are `worker.summarizers.asking`."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from runtime.tracing import HEADER, TRACING, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from store.runs.runs import Lease

_PLACES: Final[ContextVar[Mapping[str, str]]] = ContextVar("places")
"""Where the message of the task came from, by the id of the conversation or run."""


@contextmanager
def traced_task(task: Any) -> Iterator[None]:
    """Trace a task: under the request that it comes from, or with a link to each where one message has several."""
    if TRACING.traces is None:
        yield
        return
    header = task.request.get(HEADER)
    # Whoever can write to the broker can write anything.
    pairs = header.items() if isinstance(header, dict) else ()
    places = {key: place for key, place in pairs if isinstance(key, str) and isinstance(place, str)}
    before = set(places.values())
    parent = before.pop() if len(before) == 1 else None
    token = _PLACES.set(places)
    try:
        with span(task.name, kind="consumer", parent=parent, links=sorted(before), task_id=task.request.id):
            yield
    finally:
        _PLACES.reset(token)


@contextmanager
def traced_run(lease: Lease) -> Iterator[None]:
    """Trace an attempt at a run, with a link to its request, whichever message woke the worker."""
    if TRACING.traces is None:
        yield
        return
    places = _PLACES.get({})
    place = places.get(str(lease.conversation_id)) if len(places) > 1 else None
    with span(
        "run",
        links=[place] if place else [],
        request_id=lease.request_id,
        run_id=str(lease.run_id),
        trigger=lease.trigger,
        queue=lease.queue,
        attempt=lease.attempt,
    ):
        yield
