"""Where Prometheus finds a worker or beat: GET /metrics on a port of its own, if one is set.

A port, and not a file or a gateway: a scrape that fails is how Prometheus knows that a process is gone.
"""

from __future__ import annotations

import hmac
import socket
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.pool import QueuePool

from worker.metrics import METRICS, Pipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric
    from sqlalchemy import Engine

    from runtime.settings import Settings
    from store.operations.processes import Activity

log = structlog.get_logger()

REQUEST_SECONDS: Final = 5.0
"""Seconds that a scrape has for its request."""


class Exposition:
    """Answers scrapes, and takes in what the processes of a pool count."""

    def __init__(self, settings: Settings, *, pipe: Pipe | None = None) -> None:
        self._settings = settings
        self._pipe = pipe
        self._server: _Server | None = None

    def start(self) -> None:
        """Begin; a port that cannot be had is no reason not to work."""
        if self._pipe is not None:
            Thread(target=self._take_in, args=(self._pipe,), name="metrics-pipe", daemon=True).start()
        if not (port := self._settings.metrics_port):
            return
        token = self._settings.metrics_token
        try:
            self._server = _Server(self._settings.metrics_host, port, token.get_secret_value() if token else None)
        except OSError as error:
            log.error("metrics.not_served", port=port, error=error.strerror or type(error).__name__)  # noqa: TRY400 - says all there is
            return
        Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        log.info("metrics.served", host=self._settings.metrics_host, port=port)

    def stop(self) -> None:
        """Answer no more scrapes."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def leave_to_parent(self) -> None:
        """Have the process that this one was forked off count, and be scraped."""
        if self._pipe is not None:
            METRICS.pass_on(self._pipe)
        if self._server is not None:
            self._server.socket.close()

    def _take_in(self, pipe: Pipe) -> None:
        for line in pipe.lines():
            METRICS.take(*line)


class ProcessGauges(Collector):
    """What a process is at when it is scraped: its tasks, and its connections to the database."""

    def __init__(self, activity: Callable[[], Activity], engines: Mapping[str, Engine]) -> None:
        self._activity = activity
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        """Return the gauges."""
        busy, oldest = self._activity()
        yield GaugeMetricFamily("palimpsest_tasks_under_way", "Tasks that the process is at.", value=busy)
        yield GaugeMetricFamily(
            "palimpsest_oldest_task_seconds", "Seconds since the oldest task under way began.", value=oldest or 0
        )
        connections = GaugeMetricFamily(
            "palimpsest_pool_connections", "Connections to the database.", labels=["pool", "state"]
        )
        size = GaugeMetricFamily("palimpsest_pool_size", "Most connections that a pool opens.", labels=["pool"])
        for name, engine in self._engines.items():
            pool = engine.pool
            if isinstance(pool, QueuePool):
                connections.add_metric([name, "used"], pool.checkedout())
                connections.add_metric([name, "idle"], pool.checkedin())
                size.add_metric([name], pool.size())
        yield connections
        yield size


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self.token = token
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Scrape)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a scraper that went away is its own affair."""


class _Scrape(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer with the metrics, to whoever may have them."""
        if self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND)
        elif not self._may_read():
            self._answer(HTTPStatus.UNAUTHORIZED, challenge="Bearer")
        else:
            self._answer(HTTPStatus.OK, generate_latest(METRICS.registry))

    def _may_read(self) -> bool:
        token = self.server.token
        scheme, _, presented = self.headers.get("authorization", "").partition(" ")
        return token is None or (
            scheme.lower() == "bearer" and hmac.compare_digest(presented.strip().encode(), token.encode())
        )

    def _answer(self, status: HTTPStatus, body: bytes = b"", *, challenge: str | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", CONTENT_TYPE_LATEST)
        self.send_header("content-length", str(len(body)))
        if challenge is not None:
            self.send_header("www-authenticate", challenge)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of scrapes."""

    def version_string(self) -> str:
        """Say nothing of what serves them."""
        return "palimpsest"
