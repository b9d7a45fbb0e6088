"""The two clients: the same calls, one blocking, one for asyncio."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import httpx2

from palimpsest_client.calls import NotSentError, encode, is_in_a_header
from palimpsest_client.errors import UnreachableError
from palimpsest_client.flows import REMEMBERED_BYTES, Fallback
from palimpsest_client.forks import in_a_fork
from palimpsest_client.operations import Operations
from palimpsest_client.refusals import is_too_long
from palimpsest_client.steps import Acquire, Answer, Flow, Pause, Request, drive, drive_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import TracebackType

    from typing_extensions import Self

    from palimpsest_client.answers import Shape
    from palimpsest_client.outbox import Outbox
    from palimpsest_client.results import Context, ModelCall

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
L = TypeVar("L")

CONNECT_SECONDS: Final = 1.0
"""A service in the same network accepts a connection in milliseconds."""
AGENT: Final = "palimpsest-client/0.1.0"
OCCUPIED: Final = "other turns of the conversation are still being sent"


def _blocking(flow: Callable[Concatenate[Operations, P], Flow[T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(flow)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(flow(self.core, *args, **kwargs), self.perform)

    return method


def _awaited(
    flow: Callable[Concatenate[Operations, P], Flow[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(flow)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await drive_async(flow(self.core, *args, **kwargs), self.perform)

    return method


class _Locks(Generic[L]):
    """A lock for each name, for as long as somebody has it or waits for it."""

    def __init__(self, make: Callable[[], L]) -> None:
        self._make = make
        self._locks: weakref.WeakValueDictionary[str, L] = weakref.WeakValueDictionary()
        self._guard = threading.Lock()

    def get(self, name: str) -> L:
        with self._guard:
            lock = self._locks.get(name)
            if lock is None:
                lock = self._locks[name] = self._make()
            return lock


class Client:
    """Calls under `/v1` with one API key; a context manager, and safe to use from several threads.

    A process that is forked has connections of its own, and none of the turns that wait here.

    url, key: as `palimpsest serve` prints them. Raises ValueError for one that is none.
    outbox: where turns wait that could not be delivered; by default in memory, a thousand of them.
    remembered_bytes: contexts that are kept, so that one that has not changed is not sent again.
    """

    def __init__(
        self, url: str, key: str, *, outbox: Outbox | None = None, remembered_bytes: int = REMEMBERED_BYTES
    ) -> None:
        self.core = Operations(outbox, remembered_bytes)
        self._connection = _connection(url, key)
        self._begin()
        in_a_fork(self, Client._begin)

    def _begin(self) -> None:
        # Connections come with the first call: between the fork of a process and its program little may be done.
        self._opened: httpx2.Client | None = None
        self._guard = threading.Lock()
        self._locks: _Locks[Any] = _Locks(threading.Lock)

    @property
    def outbox(self) -> Outbox:
        """The turns that wait to be sent."""
        return self.core.outbox

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Turns that still wait stay in the outbox; `flush` first."""
        self._http.close()

    @property
    def _http(self) -> httpx2.Client:
        with self._guard:
            if self._opened is None:
                self._opened = httpx2.Client(**self._connection)
            return self._opened

    def perform(self, step: Any) -> Any:
        """Take one step of a flow."""
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        if isinstance(step, Acquire):
            lock = self._locks.get(step.name)
            if not lock.acquire(timeout=-1 if step.deadline is None else step.deadline):
                raise UnreachableError(OCCUPIED)
            return lock
        return self._send(step)

    def _send(self, request: Request) -> Answer:
        ends = time.monotonic() + request.deadline
        try:
            with self._http.stream(**_arguments(request)) as response:
                parts = []
                for part in response.iter_bytes():
                    parts.append(part)
                    _check(ends)
                return _answer(response, b"".join(parts))
        except httpx2.HTTPError as error:
            raise _unreachable(error) from error

    context = _blocking(Operations.context)
    append = _blocking(Operations.append)
    deliver = _blocking(Operations.deliver)
    flush = _blocking(Operations.flush)
    overflow = _blocking(Operations.overflow)
    create_conversation = _blocking(Operations.create_conversation)
    list_conversations = _blocking(Operations.list_conversations)
    get_conversation = _blocking(Operations.get_conversation)
    change_conversation = _blocking(Operations.change_conversation)
    erase_conversation = _blocking(Operations.erase_conversation)
    erase_user = _blocking(Operations.erase_user)
    fork = _blocking(Operations.fork)
    restore = _blocking(Operations.restore)
    restore_plan = _blocking(Operations.restore_plan)
    payload = _blocking(Operations.payload)
    recall = _blocking(Operations.recall)
    recall_user = _blocking(Operations.recall_user)
    recall_tool = _blocking(Operations.recall_tool)
    answer_recall = _blocking(Operations.answer_recall)
    compact = _blocking(Operations.compact)
    plan_compaction = _blocking(Operations.plan_compaction)
    list_runs = _blocking(Operations.list_runs)
    get_run = _blocking(Operations.get_run)
    wait_for_run = _blocking(Operations.wait_for_run)
    list_snapshots = _blocking(Operations.list_snapshots)
    get_snapshot = _blocking(Operations.get_snapshot)
    list_claims = _blocking(Operations.list_claims)
    list_messages = _blocking(Operations.list_messages)
    list_pins = _blocking(Operations.list_pins)
    pin = _blocking(Operations.pin)
    unpin = _blocking(Operations.unpin)
    list_rules = _blocking(Operations.list_rules)
    decide_rule = _blocking(Operations.decide_rule)
    compare = _blocking(Operations.compare)
    bisect = _blocking(Operations.bisect)

    def call_model(
        self,
        conversation_id: str,
        call: Callable[[Context], R],
        *,
        fallback: Fallback | None = None,
        shape: Shape | None = None,
        is_overflow: Callable[[Exception], bool] = is_too_long,
    ) -> ModelCall[R]:
        """Call a model with the context, and again with a smaller one when it refuses the prompt as too long."""
        flow: Flow[ModelCall[R]] = self.core.call_model(
            conversation_id, call, fallback=fallback, shape=shape, is_overflow=is_overflow
        )
        return drive(flow, self.perform)


class AsyncClient:
    """As Client, for asyncio; in each event loop with connections of its own."""

    def __init__(
        self, url: str, key: str, *, outbox: Outbox | None = None, remembered_bytes: int = REMEMBERED_BYTES
    ) -> None:
        self.core = Operations(outbox, remembered_bytes)
        self._connection = _connection(url, key)
        self._is_closed = False
        self._begin()
        in_a_fork(self, AsyncClient._begin)

    def _begin(self) -> None:
        self._connected: dict[asyncio.AbstractEventLoop, httpx2.AsyncClient] = {}
        self._locks: _Locks[asyncio.Lock] = _Locks(asyncio.Lock)

    @property
    def outbox(self) -> Outbox:
        """The turns that wait to be sent."""
        return self.core.outbox

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Turns that still wait stay in the outbox; `flush` first."""
        self._is_closed = True
        if (http := self._connected.get(asyncio.get_running_loop())) is not None:
            await http.aclose()

    async def perform(self, step: Any) -> Any:
        """Take one step of a flow."""
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        http = self._http
        if isinstance(step, Acquire):
            lock = self._locks.get(step.name)
            try:
                await asyncio.wait_for(lock.acquire(), step.deadline)
            except asyncio.TimeoutError as error:
                raise UnreachableError(OCCUPIED) from error
            return lock
        return await self._send(http, step)

    @property
    def _http(self) -> httpx2.AsyncClient:
        """The connections of the loop that runs; those of a loop that was closed can't even be closed any more.

        Locks belong to a loop as well, so that it is asked for before any of them is.
        """
        loop = asyncio.get_running_loop()
        http = self._connected.get(loop)
        if http is None:
            if self._is_closed:
                raise RuntimeError("the client was closed")
            self._connected = {each: its for each, its in self._connected.items() if not each.is_closed()}
            if not self._connected:
                self._locks = _Locks(asyncio.Lock)
            http = self._connected[loop] = httpx2.AsyncClient(**self._connection)
        return http

    async def _send(self, http: httpx2.AsyncClient, request: Request) -> Answer:
        ends = time.monotonic() + request.deadline
        try:
            async with http.stream(**_arguments(request)) as response:
                parts = []
                async for part in response.aiter_bytes():
                    parts.append(part)
                    _check(ends)
                return _answer(response, b"".join(parts))
        except httpx2.HTTPError as error:
            raise _unreachable(error) from error

    context = _awaited(Operations.context)
    append = _awaited(Operations.append)
    deliver = _awaited(Operations.deliver)
    flush = _awaited(Operations.flush)
    overflow = _awaited(Operations.overflow)
    create_conversation = _awaited(Operations.create_conversation)
    list_conversations = _awaited(Operations.list_conversations)
    get_conversation = _awaited(Operations.get_conversation)
    change_conversation = _awaited(Operations.change_conversation)
    erase_conversation = _awaited(Operations.erase_conversation)
    erase_user = _awaited(Operations.erase_user)
    fork = _awaited(Operations.fork)
    restore = _awaited(Operations.restore)
    restore_plan = _awaited(Operations.restore_plan)
    payload = _awaited(Operations.payload)
    recall = _awaited(Operations.recall)
    recall_user = _awaited(Operations.recall_user)
    recall_tool = _awaited(Operations.recall_tool)
    answer_recall = _awaited(Operations.answer_recall)
    compact = _awaited(Operations.compact)
    plan_compaction = _awaited(Operations.plan_compaction)
    list_runs = _awaited(Operations.list_runs)
    get_run = _awaited(Operations.get_run)
    wait_for_run = _awaited(Operations.wait_for_run)
    list_snapshots = _awaited(Operations.list_snapshots)
    get_snapshot = _awaited(Operations.get_snapshot)
    list_claims = _awaited(Operations.list_claims)
    list_messages = _awaited(Operations.list_messages)
    list_pins = _awaited(Operations.list_pins)
    pin = _awaited(Operations.pin)
    unpin = _awaited(Operations.unpin)
    list_rules = _awaited(Operations.list_rules)
    decide_rule = _awaited(Operations.decide_rule)
    compare = _awaited(Operations.compare)
    bisect = _awaited(Operations.bisect)

    async def call_model(
        self,
        conversation_id: str,
        call: Callable[[Context], Awaitable[R]],
        *,
        fallback: Fallback | None = None,
        shape: Shape | None = None,
        is_overflow: Callable[[Exception], bool] = is_too_long,
    ) -> ModelCall[R]:
        """Call a model with the context, and again with a smaller one when it refuses the prompt as too long."""
        flow: Flow[ModelCall[R]] = self.core.call_model(
            conversation_id, call, fallback=fallback, shape=shape, is_overflow=is_overflow
        )
        return await drive_async(flow, self.perform)


def _connection(url: str, key: str) -> dict[str, Any]:
    """Return what connections are made with, each time there are to be new ones. Raises ValueError."""
    return {"base_url": _address(url), "headers": _headers(key), "verify": httpx2.create_ssl_context()}


def _address(url: str) -> str:
    """Return where the service is; raise ValueError for what no call would ever reach.

    A fallback hides that a service cannot be reached, which passes; an address that is none does not.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError("the service's url begins with http:// or https://, as `palimpsest serve` prints it")
    return url.rstrip("/").removesuffix("/v1")


def _headers(key: str) -> dict[str, str]:
    """Return what every request has beside its own; raise ValueError for a key that none can present.

    One that was read from a file has the file's line break behind it.
    """
    key = key.strip()
    if key and not is_in_a_header(key):
        raise ValueError("the key has characters that no key has")
    return {"authorization": f"Bearer {key}", "accept": "application/json", "user-agent": AGENT}


def _arguments(request: Request) -> dict[str, Any]:
    body = None if request.body is None else encode(request.body)
    return {
        "method": request.method,
        "url": request.path,
        "params": request.query,
        "headers": {**request.headers, **({"content-type": "application/json"} if body is not None else {})},
        "content": body,
        "timeout": httpx2.Timeout(request.deadline, connect=min(CONNECT_SECONDS, request.deadline)),
    }


def _answer(response: httpx2.Response, body: bytes) -> Answer:
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, body)


def _check(ends: float) -> None:
    if time.monotonic() > ends:
        raise UnreachableError("the answer did not end in time")


def _unreachable(error: httpx2.HTTPError) -> UnreachableError:
    kind = NotSentError if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)) else UnreachableError
    return kind(f"{type(error).__name__}: {error}")
