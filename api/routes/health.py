"""Health of the process, and of what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from litestar import Request, Response, get
from prometheus_client import CONTENT_TYPE_LATEST

from actions.types.core import HealthOut
from api.auth.guards import metrics_guard
from api.schema.documentation import answers, problem

if TYPE_CHECKING:
    from actions.services import Services

# Litestar adds the charset to text of every kind.
METRICS_TYPE: Final = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")


@get("/healthz", summary="Is the process alive?")
async def healthz() -> HealthOut:
    """Answer at once; asks nobody."""
    return HealthOut("ok")


@get(
    "/readyz",
    summary="Can requests be served?",
    responses={503: answers(HealthOut, "No request can be served: the database is away, or its schema is older.")},
)
async def readyz(request: Request[Any, Any, Any]) -> Response[HealthOut]:
    """Answer 200 if the database answers and has the schema; `degraded` if something else is missing.

    Turns are taken and contexts served then, but compactions may have to wait.
    """
    services: Services = request.app.state.services
    status, parts = await services.operations.readiness()
    return Response(HealthOut(status, dict(parts)), status_code=503 if status == "unavailable" else 200)


@get(
    "/metrics",
    guards=[metrics_guard],
    summary="Prometheus metrics",
    media_type=METRICS_TYPE,
    responses={401: problem("unauthenticated")},
)
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answer with this process's metrics, and with those of the whole installation."""
    services: Services = request.app.state.services
    return Response(services.metrics.text() + await services.operations.metrics(), media_type=METRICS_TYPE)
