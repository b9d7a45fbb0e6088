"""What callers and messages say of traces, and what providers say that becomes an attribute: every span can be sent."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runtime.broker import CHECK_TASK
from runtime.tracing import HEADER, TRACING, here, span
from tests.fuzz.turns import ODD_TEXTS, values
from worker.tracing import traced_task

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

    from tests.support.service.running_api import Service

_PLACE: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_CANARY: Final = "plover-in-a-header"


def _near_places() -> SearchStrategy[str]:
    whole = f"00-{'a' * 32}-{'b' * 16}-01"
    parts = st.tuples(
        st.sampled_from(["00", "ff", "01", "0", "GG", "\u0660\u0660", _CANARY]),
        st.sampled_from(["a" * 32, "0" * 32, "a" * 31, "A" * 32, "\u0663" * 32, "a" * 3_000]),
        st.sampled_from(["b" * 16, "0" * 16, "b" * 17]),
        st.sampled_from(["01", "00", "ff", "1", "01-more", "01-", f"01-{_CANARY}", "zz"]),
    )
    return st.one_of(st.just(whole), parts.map("-".join), st.sampled_from(ODD_TEXTS), st.text(max_size=80))


@st.composite
def trace_headers(draw: DrawFn) -> dict[str, Any]:
    """Draw what a caller sends, what a message brings, and what is told of a span."""
    return {
        "traceparent": draw(_near_places()),
        "tracestate": draw(st.one_of(st.none(), st.text(max_size=60))),
        "places": draw(st.one_of(st.dictionaries(st.text(max_size=40), _near_places(), max_size=200), values())),
        "attribute": draw(st.one_of(st.text(max_size=200), st.sampled_from(ODD_TEXTS), st.integers(), st.floats())),
    }


class TraceHeaders:
    """Traces of this process, into memory."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._exporter = InMemorySpanExporter()
        settings = service.settings.model_copy(update={"tracing": True})
        TRACING.start(settings, "fuzz", SimpleSpanProcessor(self._exporter))
        self.spans = 0

    def stop(self) -> None:
        """End tracing."""
        TRACING.stop()

    def traced(self, drawn: dict[str, Any]) -> None:
        """Assert that nothing raises, every span can be encoded, and none has a caller's words."""
        self._asked(drawn)
        task = SimpleNamespace(name=CHECK_TASK, request=_Request(drawn["places"]))
        with traced_task(task):
            assert _PLACE.fullmatch(here() or "")
            with span("model", model=drawn["attribute"], request_id=uuid4()) as told:
                told.set(answered=drawn["attribute"])
        # A request's own span may end after its answer has come: it is looked at with the next example's.
        finished = self._exporter.get_finished_spans()
        self._exporter.clear()
        assert len(finished) >= 2
        self.spans += len(finished)
        for each in finished:
            encode_spans([each]).SerializeToString()
            assert _CANARY not in each.to_json()

    def _asked(self, drawn: dict[str, Any]) -> None:
        headers = {name: drawn[name] for name in ("traceparent", "tracestate") if drawn[name] is not None}
        sendable = {name: value for name, value in headers.items() if _is_sendable(value)}
        answer = self._service.client.get("/v1/conversations?limit=1", headers=sendable)
        assert answer.status_code == 200, answer.text


class _Request(dict[str, Any]):
    def __init__(self, places: Any) -> None:
        super().__init__({HEADER: places})
        self.id = str(uuid4())


def _is_sendable(text: str) -> bool:
    return text.isascii() and text.isprintable() and text == text.strip() and text != ""
