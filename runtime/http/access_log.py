"""The access log: one line for each request that was answered."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

if TYPE_CHECKING:
    from uuid import UUID

_PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Routes that are asked every few seconds."""
log = structlog.get_logger()


class AccessLog(NamedTuple):
    """Logs requests if it is on."""

    is_on: bool

    def add(self, method: str, route: str, status: int, seconds: float, tenant_id: UUID | None) -> None:
        """Log a request that was answered with `status`, 0 for none, by the template of its route.

        The request's id is among the context variables. The request goes on where the log takes no line, as on a full
        disk.
        """
        if self.is_on and route not in _PROBES:
            tenant = None if tenant_id is None else str(tenant_id)
            ms = round(seconds * 1_000, 1)
            with suppress(OSError, ValueError):
                log.info("request.answered", method=method, route=route, status=status, ms=ms, tenant_id=tenant)
