"""OpenTelemetry behind `runtime.tracing`; imported only where traces are on."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from runtime import ids
from runtime.spans import ids_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextvars import Token
    from uuid import UUID

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor

    from runtime.spans import Attribute, Kind

_KINDS: Final[dict[Kind, SpanKind]] = {
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "internal": SpanKind.INTERNAL,
}
_TRACE_CONTEXT: Final = TraceContextTextMapPropagator()
_HEADER: Final = "traceparent"
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MOST: Final = 2**63 - 1
"""The largest number that OTLP has room for."""
_MOST_LINKS: Final = 128
"""Links of one span; the SDK's own default."""


class Traces:
    """Makes spans, and sends them by OTLP over HTTP as `OTEL_EXPORTER_OTLP_…` says."""

    def __init__(self, service: str, processor: SpanProcessor | None = None) -> None:
        self._ids = _Ids()
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before this name.
        resource = Resource({SERVICE_NAME: service}).merge(Resource.create())
        if resource.attributes.get(SERVICE_NAME, "").startswith("unknown_service"):  # type: ignore[union-attr] # a text
            resource = resource.merge(Resource({SERVICE_NAME: service}))
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("palimpsest")

    def shut_down(self) -> None:
        """Send what is left and end."""
        self._provider.shutdown()

    def here(self) -> str | None:
        """Return the `traceparent` of the span that is under way."""
        carrier: dict[str, str] = {}
        _TRACE_CONTEXT.inject(carrier)
        return carrier.get(_HEADER)

    @contextmanager
    def span(
        self,
        name: str,
        kind: Kind,
        parent: str | None,
        links: Iterable[str],
        request_id: UUID | None,
        attributes: Mapping[str, Attribute | None],
    ) -> Iterator[OtelSpan]:
        """Trace the block; see `runtime.tracing.span`."""
        context = _under(parent)
        linked = [place for place in map(_place, links) if place is not None][:_MOST_LINKS]
        if request_id is not None:
            here = trace.get_current_span(context).get_span_context()
            trace_id, span_id = ids_of(request_id)
            # Where the message brought the request's own place, this one would say it twice.
            if trace_id not in {here.trace_id, *(place.trace_id for place in linked)}:
                linked.append(SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags.get_default()))
            attributes = {**attributes, "request_id": ids.external("req", request_id)}
        otel_span = self._tracer.start_span(
            name,
            context,
            kind=_KINDS[kind],
            links=[Link(place) for place in linked],
            attributes=_named(attributes),
        )
        with trace.use_span(otel_span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            span = OtelSpan(otel_span)
            try:
                yield span
            except BaseException as error:
                # Its type alone: what it says may quote a row, or a prompt.
                otel_span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    def begin_request(self, request_id: UUID, method: str, traceparent: str | None) -> RequestSpan:
        """Begin the span of a request; a caller that traces has it in its own trace."""
        parent = _under(traceparent)
        method = _known(method)
        with self._ids.given(request_id):
            otel_span = self._tracer.start_span(
                method,
                parent if parent is not None else contexts.Context(),
                kind=SpanKind.SERVER,
                attributes={
                    "http.request.method": method,
                    "palimpsest.request_id": ids.external("req", request_id),
                },
            )
        return RequestSpan(otel_span)


class OtelSpan:
    """A span that is recorded."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def set(self, **attributes: Attribute | None) -> None:
        """Tell more of it."""
        self._span.set_attributes(_named(attributes))


class RequestSpan:
    """The span of a request, from its head to the end of its answer."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._token: Token[Context] = contexts.attach(trace.set_span_in_context(span))

    def end(self, method: str, route: str, status: int) -> None:
        """End it; `route` is the template, never the path."""
        contexts.detach(self._token)
        self._span.update_name(f"{_known(method)} {route}")
        self._span.set_attributes({"http.route": route, "http.response.status_code": status})
        if status >= 500:  # noqa: PLR2004 - a fault of ours
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class _Ids(RandomIdGenerator):
    """Makes ids by chance, but for a request's first span."""

    def __init__(self) -> None:
        self._request: ContextVar[UUID | None] = ContextVar("request", default=None)

    @contextmanager
    def given(self, request_id: UUID) -> Iterator[None]:
        """Take the ids that are made in the block from a request's."""
        token = self._request.set(request_id)
        try:
            yield
        finally:
            self._request.reset(token)

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        request_id = self._request.get()
        return super().generate_trace_id() if request_id is None else ids_of(request_id)[0]

    def generate_span_id(self) -> int:
        """Return the id of a new span."""
        request_id = self._request.get()
        return super().generate_span_id() if request_id is None else ids_of(request_id)[1]


def _known(method: str) -> str:
    """Return a request's method; what a client makes up is `_OTHER`, as OpenTelemetry's conventions have it."""
    return method if method in _METHODS else "_OTHER"


def _under(traceparent: str | None) -> Context | None:
    """Return the context of another process's span, None for this one's own."""
    place = _place(traceparent or "")
    return None if place is None else trace.set_span_in_context(NonRecordingSpan(place), contexts.Context())


def _place(traceparent: str) -> SpanContext | None:
    """Return what a `traceparent` names, None if it is none."""
    context = _TRACE_CONTEXT.extract({_HEADER: traceparent}, contexts.Context())
    place = trace.get_current_span(context).get_span_context()
    return place if place.is_valid else None


def _named(attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    return {
        name if "." in name else f"palimpsest.{name}": _sendable(value)
        for name, value in attributes.items()
        if value is not None
    }


def _sendable(value: Attribute) -> Attribute:
    """Return what OTLP has room for: a provider's answer may have any number in it, and half of a character."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return min(max(value, -_MOST), _MOST) if type(value) is int else value
