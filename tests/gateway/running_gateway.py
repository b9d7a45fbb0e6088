"""The gateway behind real sockets: uvicorn in a thread of the test process."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import uvicorn

from gateway.app import create_gateway
from gateway.start import gateway_options
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.settings import Settings

TIMEOUT = 30.0


class RunningGateway(NamedTuple):
    """A gateway that answers."""

    url: str
    server: uvicorn.Server
    thread: Thread

    def client(self, key: str | None = None, **options: Any) -> httpx2.Client:
        """Return a client that presents `key` in the place of a provider's."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, **options)

    def stop(self) -> None:
        """End as SIGTERM would end it, and wait until it has."""
        self.server.should_exit = True
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive()


@contextmanager
def running_gateway(settings: Settings) -> Iterator[RunningGateway]:
    """Serve the gateway on a free port, as `gateway.start` does."""
    config = uvicorn.Config(create_gateway(settings), lifespan="on", **gateway_options(settings))
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    ended = Event()

    def serve() -> None:
        try:
            server.run([listener])
        finally:
            ended.set()

    thread = Thread(target=serve, name="gateway", daemon=True)
    thread.start()
    gateway = RunningGateway(f"http://127.0.0.1:{listener.getsockname()[1]}", server, thread)
    try:
        eventually(lambda: server.started or ended.is_set())
        assert not ended.is_set(), "the gateway did not start"
        yield gateway
    finally:
        gateway.stop()
        listener.close()
