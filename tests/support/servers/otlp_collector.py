"""An OTLP collector on a loopback port, and the spans that processes have sent it."""

from __future__ import annotations

import gzip
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


class Collector:
    """An OTLP collector on a loopback port."""

    def __init__(self) -> None:
        self.spans: list[Exported] = []
        collector = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.read_body()
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    names = {each.key: each.value.string_value for each in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        for each in scope.spans:
                            attributes = {a.key: a.value.string_value or a.value.int_value for a in each.attributes}
                            collector.spans.append(
                                Exported(names["service.name"], each.name, each.trace_id.hex(), attributes, str(each))
                            )
                self.answer(200)

        self.server = ThreadedServer(Handler)
        self.url = self.server.url

    @property
    def env(self) -> dict[str, str]:
        """What a process has to find in its environment to send its spans here soon."""
        return {
            "PALIMPSEST_TRACING": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }


class Exported(NamedTuple):
    """A span as the collector got it."""

    service: str
    name: str
    trace_id: str
    attributes: dict[str, Any]
    text: str


@contextmanager
def otlp_collector() -> Iterator[Collector]:
    """Run a collector for the length of the block."""
    collector = Collector()
    with collector.server:
        yield collector
