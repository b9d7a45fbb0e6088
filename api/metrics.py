"""What this process counts for Prometheus. No label names a tenant or a conversation."""

from __future__ import annotations

from typing import Final, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)

ContextPath = Literal["plain", "mended", "not_modified"]
WakeUp = Literal["sent", "deferred", "lost"]


class Metrics:
    """Counters and durations of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._requests = Counter(
            "palimpsest_http_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "palimpsest_http_request_duration_seconds",
            "Seconds from a request's head to the end of its answer.",
            ["method", "route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        turns = Counter("palimpsest_turns", "Turns taken.", ["outcome"], registry=self._registry)
        self.turns_appended = turns.labels("appended")
        """Turns that were stored."""
        self.turns_replayed = turns.labels("replayed")
        """Turns that an idempotency key found stored already."""
        contexts = Counter(
            "palimpsest_contexts",
            "Contexts served: as stored (plain), parsed to cap, strip or repair (mended), or known (not_modified).",
            ["path"],
            registry=self._registry,
        )
        paths: tuple[ContextPath, ...] = ("plain", "mended", "not_modified")
        self.contexts = {path: contexts.labels(path) for path in paths}
        """Contexts served, by how."""
        wakeups = Counter(
            "palimpsest_wakeups",
            "Conversations of which a worker was told, left to the sweeper, or in a batch that did not arrive.",
            ["outcome"],
            registry=self._registry,
        )
        outcomes: tuple[WakeUp, ...] = ("sent", "deferred", "lost")
        self.wakeups = {outcome: wakeups.labels(outcome) for outcome in outcomes}
        """Conversations in wake-ups, by what became of them."""
        # Finding a metric by its labels takes a lock and builds strings; a request should not.
        self._of_route: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request; `route` is its template, never its path."""
        key = (method, route, status)
        found = self._of_route.get(key)
        if found is None:
            name = method if method in _METHODS else "other"
            found = (self._requests.labels(name, route, status), self._seconds.labels(name, route))
            self._of_route[key] = found
        found[0].inc()
        found[1].observe(seconds)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)
