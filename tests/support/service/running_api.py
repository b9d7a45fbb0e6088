"""The API behind real sockets: uvicorn in a thread of the test process."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
import traceback
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2
import uvicorn

from api.app import create_app
from api.start import server_options
from tests.support.eventually import eventually
from tests.support.service import documented_answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from runtime.settings import Settings

TIMEOUT = 30.0


class RunningApi(NamedTuple):
    """A server that answers."""

    url: str
    server: uvicorn.Server
    thread: Thread

    def client(self, key: str | None = None, **options: Any) -> httpx2.Client:
        """Return a client that presents `key`; what it is answered has to be documented."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        documented_answers.operations()  # here, once: threads that share a client would each begin to make them
        hooks = {"response": [documented_answers.check]}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, event_hooks=hooks, **options)

    def stop(self) -> None:
        """End as SIGTERM would end it, and wait until it has."""
        self.server.should_exit = True
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive(), self._whereabouts()

    def _whereabouts(self) -> str:
        """Return what the thread and the tasks of its loop are at."""
        told = io.StringIO()
        frame = sys._current_frames().get(self.thread.ident or 0)
        traceback.print_stack(frame, file=told)
        for task in asyncio.all_tasks(self.server.servers[0].get_loop()):
            task.print_stack(file=told)
        return told.getvalue()


class Service(NamedTuple):
    """A running API, its database, and clients of two tenants."""

    api: RunningApi
    settings: Settings
    database_url: str
    tenant_id: UUID
    client: httpx2.Client
    stranger: httpx2.Client
    """A client of another tenant."""

    def conversation(self, **fields: Any) -> str:
        """Make a conversation and return its path."""
        response = self.client.post("/v1/conversations", json=fields)
        assert response.status_code == 201, response.text
        return f"/v1/conversations/{response.json()['id']}"

    def append(self, path: str, *messages: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        """Append a turn and return the answer."""
        done = self.client.post(f"{path}/turns", json={"messages": messages, **fields})
        assert done.status_code == 201, done.text
        answer: dict[str, Any] = done.json()
        return answer


@contextmanager
def running_api(settings: Settings) -> Iterator[RunningApi]:
    """Serve the API on a free port, as `api.start` does."""
    config = uvicorn.Config(create_app(settings), lifespan="on", **server_options(settings))
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    ended = Event()

    def serve() -> None:
        try:
            server.run([listener])
        finally:
            ended.set()

    thread = Thread(target=serve, name="api", daemon=True)
    thread.start()
    api = RunningApi(f"http://127.0.0.1:{listener.getsockname()[1]}", server, thread)
    try:
        eventually(lambda: server.started or ended.is_set())
        assert not ended.is_set(), "the API did not start"
        yield api
    finally:
        api.stop()
        listener.close()
