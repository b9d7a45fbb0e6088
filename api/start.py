"""Starting the API's server."""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn

from actions.monitoring.shared_metrics import shared_metrics
from api.app import create_app
from runtime.http.bounded_http import IDLE_SECONDS, BoundedHttp
from runtime.http.listening import check_port_is_free
from runtime.release import VERSION
from runtime.threads import SWITCH_SECONDS

if TYPE_CHECKING:
    from typing import Any

    from litestar import Litestar

    from runtime.settings import Settings

log = structlog.get_logger()

_GC_THRESHOLDS: Final = (10_000, 20, 50)
"""Requests make many objects and hardly a cycle; 700 objects, Python's default, is some ten requests' worth."""


def run_api(settings: Settings, *, host: str | None, port: int | None, workers: int) -> None:
    """Serve HTTP until SIGTERM or SIGINT, then finish what is under way. Raises CannotListenError."""
    with shared_metrics() if workers > 1 else nullcontext():
        _serve(settings, host=host, port=port, workers=workers)


def _serve(settings: Settings, *, host: str | None, port: int | None, workers: int) -> None:
    host, port = host or settings.host, port or settings.port
    check_port_is_free(host, port, "set another one with --port or PALIMPSEST_PORT")
    log.info("api.started", host=host, port=port, processes=workers, release=VERSION)
    uvicorn.run(
        "api.start:create_served_app",
        factory=True,
        host=host,
        port=port,
        workers=workers,
        **server_options(settings),
        server_header=False,
        timeout_graceful_shutdown=20,
    )


def create_served_app() -> Litestar:
    """Return the application for a process that serves nothing else.

    What is made until then lives as long as the process: the garbage collector need not go through it again and again.
    """
    app = create_app()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    return app


def server_options(settings: Settings) -> dict[str, Any]:
    """Return how uvicorn reads requests and what it logs, wherever it runs."""
    return {
        "loop": "uvloop",
        "http": BoundedHttp,
        "ws": "none",
        "h11_max_incomplete_event_size": settings.max_head_bytes,
        "timeout_keep_alive": IDLE_SECONDS,
        "access_log": False,
        "log_config": None,
    }
