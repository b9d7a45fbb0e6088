"""The gateway behind real sockets: uvicorn in a thread of the test process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2

from gateway.app import create_gateway
from gateway.start import gateway_options
from tests.support.service.running_api import TIMEOUT, RunningServer, running

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from runtime.settings import Settings


class RunningGateway(RunningServer):
    """A gateway that answers."""

    def client(self, key: str | None = None, **options: Any) -> httpx2.Client:
        """Return a client that presents `key` in the place of a provider's."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, **options)


def running_gateway(settings: Settings) -> AbstractContextManager[RunningGateway]:
    """Serve the gateway on a free port, as `gateway.start` does."""
    return running(RunningGateway, create_gateway(settings), gateway_options(settings))
