"""The API behind real sockets: uvicorn in a thread of the test process."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
import traceback
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import httpx2
import uvicorn
from litestar.datastructures import State
from litestar.events import SimpleEventEmitter

from api.app import furnished, routed
from api.start import server_options
from runtime import ids
from tests.support.eventually import eventually
from tests.support.service import documented_answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from uuid import UUID

    from litestar import Litestar

    from runtime.settings import Settings

TIMEOUT = 30.0
S = TypeVar("S", bound="RunningServer")


@dataclass
class RunningServer:
    """An application that answers."""

    url: str
    server: uvicorn.Server
    thread: Thread

    def stop(self) -> None:
        """End as SIGTERM would end it, and wait until it has."""
        self.server.should_exit = True
        self.thread.join(TIMEOUT)
        assert not self.thread.is_alive(), self._whereabouts()

    def _whereabouts(self) -> str:
        """Return what the thread and the tasks of its loop are at."""
        stacks = io.StringIO()
        frame = sys._current_frames().get(self.thread.ident or 0)
        traceback.print_stack(frame, file=stacks)
        for task in asyncio.all_tasks(self.server.servers[0].get_loop()):
            task.print_stack(file=stacks)
        return stacks.getvalue()


class RunningApi(RunningServer):
    """An API that answers."""

    def client(self, key: str | None = None, **options: Any) -> httpx2.Client:
        """Return a client that presents `key`; what it is answered has to be documented."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        documented_answers.operations()  # here, once: threads that share a client would each begin to make them
        hooks = {"response": [documented_answers.check]}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, event_hooks=hooks, **options)


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


def conversation_at(path: str) -> UUID:
    """Return the id of the conversation that a path of the API, or of the console, leads to."""
    parsed = ids.parse("conv", path.rpartition("/")[2])
    assert parsed is not None, path
    return parsed


@contextmanager
def running(kind: type[S], app: Any, options: Mapping[str, Any]) -> Iterator[S]:
    """Serve an application on a free port, as its own start does."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", **options))
    listener = socket.create_server(("127.0.0.1", 0))
    ended = Event()

    def serve() -> None:
        try:
            server.run([listener])
        finally:
            ended.set()

    thread = Thread(target=serve, name=kind.__name__, daemon=True)
    thread.start()
    serving = kind(f"http://127.0.0.1:{listener.getsockname()[1]}", server, thread)
    try:
        eventually(lambda: server.started or ended.is_set())
        assert not ended.is_set(), f"{kind.__name__} did not start"
        yield serving
    finally:
        serving.stop()
        listener.close()


def running_api(settings: Settings) -> AbstractContextManager[RunningApi]:
    """Serve the API on a free port, as `api.start` does."""
    return running(RunningApi, furnished(_own(_routed(settings.max_body_bytes)), settings), server_options(settings))


_routed = cache(routed)
"""To register the routes takes longer than most tests that call them, and each has services of its own."""


def _own(app: Litestar) -> Litestar:
    """Return a copy that shares the routes alone."""
    own = copy(app)
    own.state, own.event_emitter = State(), SimpleEventEmitter([])
    own.asgi_router = copy(app.asgi_router)
    own.asgi_router.app = own
    return own
