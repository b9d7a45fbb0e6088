"""Health of the process, and of what it needs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from litestar import Request, Response, get
from prometheus_client import CONTENT_TYPE_LATEST

from api.types import HealthOut

if TYPE_CHECKING:
    from api.services import Services

PING_SECONDS: Final = 2.0
# Litestar adds the charset to text of every kind.
METRICS_TYPE: Final = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")


@get("/healthz", summary="Is the process alive?")
async def healthz() -> HealthOut:
    """Answer at once; asks nobody."""
    return HealthOut("ok")


@get("/readyz", summary="Can requests be served?")
async def readyz(request: Request[Any, Any, Any]) -> Response[HealthOut]:
    """Answer 200 if the database answers. Without the broker turns are still taken, so it only shows."""
    services: Services = request.app.state.services
    try:
        async with asyncio.timeout(PING_SECONDS):
            await services.ping_database()
    except Exception:  # noqa: BLE001 - whatever keeps it from answering
        database = "unavailable"
    else:
        database = "ok"
    broker = "ok" if services.wakeups.broker_reachable else "unavailable"
    ready = database == "ok"
    return Response(
        HealthOut("ok" if ready else "unavailable", {"database": database, "broker": broker}),
        status_code=200 if ready else 503,
    )


@get("/metrics", summary="Prometheus metrics", media_type=METRICS_TYPE)
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answer with this process's metrics."""
    services: Services = request.app.state.services
    return Response(services.metrics.text(), media_type=METRICS_TYPE)
