"""Starting the gateway's server."""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn

from actions.monitoring.shared_metrics import shared_metrics
from gateway.app import create_gateway
from runtime.http.bounded_http import IDLE_SECONDS, BoundedHttp
from runtime.http.listening import check_port_is_free
from runtime.release import VERSION
from runtime.threads import SWITCH_SECONDS

if TYPE_CHECKING:
    from typing import Any

    from litestar.types import ASGIApp

    from runtime.settings import Settings

log = structlog.get_logger()

_GC_THRESHOLDS: Final = (10_000, 20, 50)
"""Requests make many objects and hardly a cycle, as in the API."""


def run_gateway(settings: Settings, *, host: str | None, port: int | None, workers: int) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is under way. Raises CannotListenError."""
    host, port = host or settings.host, port or settings.gateway_port
    check_port_is_free(host, port, "set another one with --port or PALIMPSEST_GATEWAY_PORT")
    log.info("gateway.started", host=host, port=port, processes=workers, release=VERSION)
    with shared_metrics() if workers > 1 else nullcontext():
        uvicorn.run(
            "gateway.start:create_served_gateway",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            **gateway_options(settings),
            timeout_graceful_shutdown=20,
        )


def gateway_options(settings: Settings) -> dict[str, Any]:
    """Return how uvicorn reads requests and what it adds to answers, wherever it runs: the provider's are whole."""
    return {
        "loop": "uvloop",
        "http": BoundedHttp,
        "ws": "none",
        "h11_max_incomplete_event_size": settings.max_head_bytes,
        "timeout_keep_alive": IDLE_SECONDS,
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "date_header": False,
    }


def create_served_gateway() -> ASGIApp:
    """Return the application for a process that serves nothing else."""
    app = create_gateway()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    return app
