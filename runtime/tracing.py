"""Traces by OpenTelemetry, off by default: ids, names and counts only, never what anybody wrote.

The library is an extra and is loaded where traces are on. One trace leads from a request through the wake-up to the run
and its requests to the model. Wake-ups may be lost, and one may stand for many requests; so the ids of a request's
trace are made from its request id, which the run has in Postgres: a run can always name the request it comes from.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from uuid import UUID

    from opentelemetry.sdk.trace import SpanProcessor

    from runtime.otel import Traces
    from runtime.settings import Settings
    from runtime.spans import Attribute, Kind, TracedSpan

HEADER: Final = "palimpsest_traces"
"""Header of a task message: where it comes from, as `traceparent` by the id of the conversation or run."""


class _NoSpan:
    def set(self, **attributes: Attribute | None) -> None:
        """Record nothing."""


_NO_SPAN: Final = _NoSpan()


class Tracing:
    """Whether this process traces, and by what."""

    def __init__(self) -> None:
        self.traces: Traces | None = None
        """None while traces are off."""

    def start(self, settings: Settings, service: str, processor: SpanProcessor | None = None) -> None:
        """Begin, if the settings say so. `processor` takes the place of the exporter.

        In a pool of processes in each of them, as the exporter's thread does not survive a fork.
        """
        if settings.tracing and self.traces is None:
            # Loads the library, a hundred modules.
            from runtime.otel import Traces  # noqa: PLC0415

            self.traces = Traces(service, processor)

    def stop(self) -> None:
        """Send what is left, within the exporter's own time limit, and end."""
        if self.traces is not None:
            self.traces.shut_down()
            self.traces = None


TRACING: Final = Tracing()
"""That of this process."""


@contextmanager
def span(
    name: str,
    *,
    kind: Kind = "internal",
    parent: str | None = None,
    links: Iterable[str] = (),
    request_id: UUID | None = None,
    **attributes: Attribute | None,
) -> Iterator[TracedSpan]:
    """Trace the block. `parent` and `links` are `traceparent`s; a link to the request `request_id` is added."""
    if TRACING.traces is None:
        yield _NO_SPAN
        return
    with TRACING.traces.span(name, kind, parent, links, request_id, attributes) as opened:
        yield opened


def here() -> str | None:
    """Return the `traceparent` of the span that is under way, None if there is none."""
    return None if TRACING.traces is None else TRACING.traces.here()


def header(places: Mapping[str, str]) -> dict[str, Any]:
    """Return the headers of a task message that comes from these places; none where there are none."""
    return {HEADER: dict(places)} if places else {}
