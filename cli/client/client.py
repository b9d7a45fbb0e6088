"""A synchronous client of the HTTP API, as a chat backend or an operator's command uses it."""

from __future__ import annotations

import math
import re
import sys
import time
import uuid
from threading import Event
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import httpx2
import msgspec
import stamina
import structlog

from cli.client.types import (
    Appended,
    Bisected,
    Context,
    Conversation,
    Recalled,
    RestorePlan,
    Run,
    Snapshot,
    SnapshotInFull,
    StoredMessage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from cli.client.types import Message
    from compaction.shapes.inner import Shape

T = TypeVar("T")

PAGE_SIZE: Final = 100
"""Items asked for with one list call."""
ATTEMPTS: Final = 5
"""Times one call is sent before its error counts."""
MAX_RETRY_AFTER_SECONDS: Final = 10.0
"""A server that asks for a longer wait is reported, not waited for."""
READ_TIMEOUT_SECONDS: Final = 30.0
"""Time without a byte from the server; a long-poll adds its own wait."""

LONG_POLL_SECONDS: Final = 25
"""Time one call waits for a run; under the minute after which proxies give up."""
STOPPABLE_POLL_SECONDS: Final = 1
"""The same where the caller may want to stop: a call under way is not cut off."""
POLL_SECONDS: Final = 0.05
"""Time between two looks at a due check, which has nothing to long-poll."""
QUIET_SECONDS: Final = 1.0
"""Time without a new run after which a service that does not say what is due counts as settled."""


_THING: Final = re.compile(r"/v1/(?P<kind>conversations|runs)/(?P<id>[^/]+)")
"""What a path is about."""


class ServiceError(Exception):
    """The service answered with a problem document (RFC 9457), or with a status that has none.

    The message is one line for people. `retry_after` is in seconds, from the header, when the service sent one.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        pointer: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        field = f" ({pointer.strip('/').replace('/', '.')})" if pointer else ""
        # What is not there is nothing to look up in the log.
        request = f" (request {request_id})" if request_id and status != httpx2.codes.NOT_FOUND else ""
        super().__init__(f"{detail}{field}{request}")
        self.status = status
        self.code = code
        self.detail = detail
        self.pointer = pointer
        self.request_id = request_id
        self.retry_after = retry_after


class StoppedError(Exception):
    """The caller asked to wait no longer."""


class _Problem(msgspec.Struct):
    title: str = ""
    detail: str = ""
    code: str = ""
    pointer: str | None = None
    request_id: str | None = None


class _Readiness(msgspec.Struct):
    services: dict[str, str] = {}


class _Page(msgspec.Struct):
    data: list[msgspec.Raw]
    has_more: bool = False
    last_id: str | int | None = None


def _error_of(response: httpx2.Response) -> ServiceError:
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem()
    after = response.headers.get("retry-after", "")
    return ServiceError(
        response.status_code,
        problem.code or "http_error",
        _describe(response, problem),
        pointer=problem.pointer,
        request_id=problem.request_id or response.headers.get("request-id"),
        retry_after=float(after) if after.isdecimal() else None,
    )


def _describe(response: httpx2.Response, problem: _Problem) -> str:
    """Return what went wrong, in terms of what the caller asked for."""
    api = f"the API at {response.url.copy_with(path='/', query=None)}".rstrip("/")
    if not problem.code:
        return f"what answers at {response.url} is not the API: {response.status_code} {response.reason_phrase}"
    if response.status_code == httpx2.codes.UNAUTHORIZED:
        return f"{api} does not take this key: correct --key or PALIMPSEST_KEY"
    thing = _THING.search(response.url.path)
    if response.status_code == httpx2.codes.NOT_FOUND and thing is not None:
        return f"there is no {thing['kind'].removesuffix('s')} {thing['id']}"
    return problem.detail or problem.title or response.reason_phrase


def _read(content: bytes | msgspec.Raw, kind: type[T], status: int = httpx2.codes.OK) -> T:
    """Return an answer's content; a success that is none of this API's raises ServiceError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServiceError(status, "bad_answer", f"this is no answer of the API: {error}") from error


def _backoff_if_safe(error: Exception) -> bool | float:
    """Retry what the caller may repeat: a broken connection, or a 429 or 503 that says when to come back."""
    if isinstance(error, ServiceError):
        after = error.retry_after
        if error.status not in {httpx2.codes.TOO_MANY_REQUESTS, httpx2.codes.SERVICE_UNAVAILABLE} or after is None:
            return False
        return after if after <= MAX_RETRY_AFTER_SECONDS else False
    return isinstance(error, httpx2.TransportError)


def _backoff_if_unsent(error: Exception) -> bool | float:
    """Retry only what never reached the service."""
    return isinstance(error, httpx2.ConnectError) or (isinstance(error, ServiceError) and _backoff_if_safe(error))


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class ServiceClient:
    """Calls under `/v1` with one API key; usable as a context manager and from several threads.

    Every call raises ServiceError for an answer that is not a success, and `httpx2.TransportError` when the
    service could not be reached in a bounded number of attempts.
    """

    def __init__(self, url: str, key: str) -> None:
        if not structlog.is_configured():  # what is logged of retries: stdout is the command's output
            structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
        self._http = httpx2.Client(
            base_url=f"{url.rstrip('/')}/v1",
            headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
            timeout=httpx2.Timeout(READ_TIMEOUT_SECONDS, connect=5.0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def create_conversation(
        self,
        *,
        external_id: str | None = None,
        user_ref: str | None = None,
        model: str | None = None,
        system: Any = None,
        tools: Any = None,
        policy: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Conversation:
        """Create a conversation, or return the one that has this `external_id` already."""
        body = _given(
            external_id=external_id,
            user_ref=user_ref,
            model=model,
            system=system,
            tools=tools,
            policy=policy,
            metadata=metadata,
        )
        # Without an external id a repeated call would make a second conversation.
        response = self._send("POST", "/conversations", body=body, repeatable=external_id is not None)
        return _read(response.content, Conversation)

    def conversation(self, conversation_id: str) -> Conversation:
        """Return one conversation."""
        return self._get(f"/conversations/{conversation_id}", Conversation)

    def conversations(self, *, user_ref: str | None = None, external_id: str | None = None) -> Iterator[Conversation]:
        """Iterate over the tenant's conversations, newest first."""
        return self._paged("/conversations", Conversation, _given(user_ref=user_ref, external_id=external_id))

    def append_turn(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        *,
        usage: Any = None,
        snapshot_version: int | None = None,
        idempotency_key: str | None = None,
        expected_next_seq: int | None = None,
        shape: Shape | None = None,
    ) -> Appended:
        """Append one turn; with no `idempotency_key` given, one is made so that retries append once.

        `usage` is the API's object of the call that gave the turn's answer, `snapshot_version` the version of the
        context that the call was made with.
        """
        response = self._send(
            "POST",
            f"/conversations/{conversation_id}/turns",
            body={
                "messages": [message.as_sent for message in messages],
                **_given(
                    usage=usage, snapshot_version=snapshot_version, expected_next_seq=expected_next_seq, shape=shape
                ),
            },
            headers={"idempotency-key": idempotency_key or str(uuid.uuid4())},
            repeatable=True,
        )
        return _read(response.content, Appended)

    def context(self, conversation_id: str, *, etag: str | None = None, shape: Shape | None = None) -> Context | None:
        """Return what to send to the model, or None if it is unchanged since `etag`.

        `shape` None is the conversation's own.
        """
        headers, path = _given(**{"if-none-match": etag}), f"/conversations/{conversation_id}/context"
        response = self._send("GET", path, headers=headers, params=_given(shape=shape))
        if response.status_code == httpx2.codes.NOT_MODIFIED:
            return None
        context = _read(response.content, Context)
        return msgspec.structs.replace(context, etag=response.headers.get("etag"))

    def messages(self, conversation_id: str, *, after: int = -1) -> Iterator[StoredMessage]:
        """Iterate over the originals whose seq is greater than `after`, oldest first."""
        while True:
            page = self._get(f"/conversations/{conversation_id}/messages", _Page, {"after": after, "limit": PAGE_SIZE})
            for item in page.data:
                stored = _read(item, StoredMessage)
                yield stored
                after = stored.seq
            if not page.has_more or not page.data:
                return

    def recall(self, conversation_id: str, asked: Mapping[str, Any]) -> Recalled:
        """Return originals by `query`, `ref` or `pattern`."""
        response = self._send("POST", f"/conversations/{conversation_id}/recall", body=asked, repeatable=True)
        return _read(response.content, Recalled)

    def bisect(self, conversation_id: str, text: str) -> Bisected:
        """Return where a text was said, and what took it out of the context."""
        response = self._send("POST", f"/conversations/{conversation_id}/bisect", body={"text": text}, repeatable=True)
        return _read(response.content, Bisected)

    def recall_user(self, user_ref: str, asked: Mapping[str, Any]) -> Recalled:
        """Return originals of all conversations of a user; the key needs the scope `recall:user`."""
        response = self._send("POST", "/recall", params={"user_ref": user_ref}, body=asked, repeatable=True)
        return _read(response.content, Recalled)

    def runs(self, conversation_id: str) -> list[Run]:
        """Return the conversation's runs, oldest first."""
        runs = self._paged(f"/conversations/{conversation_id}/runs", Run, {})
        return sorted(runs, key=lambda run: run.id)

    def run(self, run_id: str, *, wait: int = 0) -> Run:
        """Return one run; `wait` is the seconds to hold the call until the run has settled."""
        params = {"wait": wait} if wait else {}
        return self._get(f"/runs/{run_id}", Run, params, extra_seconds=wait)

    def wait_settled(
        self, conversation_id: str, *, timeout_seconds: float = 180.0, stopping: Event | None = None
    ) -> list[Run]:
        """Wait until no check is due and no run is active, and return the runs, oldest first.

        Raises TimeoutError when that takes longer than `timeout_seconds`, StoppedError once `stopping` is set.
        """
        pause = stopping or Event()
        deadline = time.monotonic() + timeout_seconds
        quiet_since, seen = time.monotonic(), -1
        while time.monotonic() < deadline:
            # In this order: a check that is no longer due has made its run, if it makes one.
            due_at = self.conversation(conversation_id).check_due_at
            runs = self.runs(conversation_id)
            if len(runs) != seen:
                quiet_since, seen = time.monotonic(), len(runs)
            active = [run for run in runs if not run.settled]
            if active:
                self.run(active[0].id, wait=LONG_POLL_SECONDS if stopping is None else STOPPABLE_POLL_SECONDS)
            elif due_at is None or (due_at is msgspec.UNSET and time.monotonic() - quiet_since > QUIET_SECONDS):
                return runs
            else:
                pause.wait(POLL_SECONDS)
            if pause.is_set():
                raise StoppedError
        raise TimeoutError(f"conversation {conversation_id} has not settled in {timeout_seconds:.0f} s")

    def snapshots(self, conversation_id: str) -> list[Snapshot]:
        """Return the conversation's snapshots by version."""
        snapshots = self._paged(f"/conversations/{conversation_id}/snapshots", Snapshot, {})
        return sorted(snapshots, key=lambda snapshot: snapshot.version)

    def snapshot(self, conversation_id: str, version: int) -> SnapshotInFull:
        """Return one version with its messages; a version that is not there is named with the newest."""
        try:
            return self._get(f"/conversations/{conversation_id}/snapshots/{version}", SnapshotInFull)
        except ServiceError as error:
            if error.status != httpx2.codes.NOT_FOUND:
                raise
            versions = [snapshot.version for snapshot in self.snapshots(conversation_id)]
            newest = f"the newest is {versions[-1]}" if versions else f"{conversation_id} has no snapshots yet"
            reason = f"there is no version {version}; {newest}"
            raise ServiceError(error.status, error.code, reason, request_id=error.request_id) from None

    def restore_plan(self, conversation_id: str, version: int) -> RestorePlan:
        """Return what would be served after going back to an old version; nothing is changed."""
        body = {"version": version, "dry_run": True}
        response = self._send("POST", f"/conversations/{conversation_id}/restore", body=body)
        return _read(response.content, RestorePlan)

    def restore(self, conversation_id: str, version: int) -> Conversation:
        """Make a new head equal to an old version (0 = no compaction); return the conversation."""
        response = self._send("POST", f"/conversations/{conversation_id}/restore", body={"version": version})
        return _read(response.content, Conversation)

    def erase(self, conversation_id: str) -> dict[str, Any]:
        """Remove every text of a conversation for good, however long that takes; return its tombstone."""
        path = f"/conversations/{conversation_id}"
        response = self._send("DELETE", path, repeatable=True, extra_seconds=math.inf)
        return _read(response.content, dict[str, Any])

    def erase_user(self, user_ref: str) -> dict[str, Any]:
        """Remove every text of all conversations of a user for good, however long that takes; return how many."""
        # Asked again, the service would begin beside what it is at.
        params = {"user_ref": user_ref}
        response = self._send("DELETE", "/users", params=params, repeatable=True, extra_seconds=math.inf)
        return _read(response.content, dict[str, Any])

    def usage(self, days: int) -> dict[str, Any]:
        """Return what the tenant's model calls came to: today, and on the newest days that had any."""
        return self._get("/tenant/usage", dict[str, Any], {"days": days})

    def readiness(self) -> dict[str, str]:
        """Return the state of every part of the service, as `/readyz` tells it."""
        response = self._http.get(self._http.base_url.join("../readyz"))
        return _read(response.content, _Readiness, response.status_code).services

    def _paged(self, path: str, kind: type[T], params: dict[str, Any]) -> Iterator[T]:
        after: dict[str, Any] = {}
        while True:
            page = self._get(path, _Page, {**params, **after, "limit": PAGE_SIZE})
            for item in page.data:
                yield _read(item, kind)
            if not page.has_more or page.last_id is None:
                return
            after = {"after_id": page.last_id}

    def _get(self, path: str, kind: type[T], params: dict[str, Any] | None = None, *, extra_seconds: float = 0.0) -> T:
        response = self._send("GET", path, params=params, extra_seconds=extra_seconds)
        return _read(response.content, kind)

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        repeatable: bool | None = None,
        extra_seconds: float = 0.0,
    ) -> httpx2.Response:
        safe = method == "GET" if repeatable is None else repeatable
        content = None if body is None else msgspec.json.encode(body)
        seconds = READ_TIMEOUT_SECONDS + extra_seconds
        timeout = httpx2.Timeout(seconds if math.isfinite(seconds) else None, connect=5.0)
        for attempt in stamina.retry_context(
            on=_backoff_if_safe if safe else _backoff_if_unsent,
            attempts=ATTEMPTS,
            timeout=None,
            wait_max=2.0,
            wait_jitter=0.2,
        ):
            with attempt:
                response = self._http.request(
                    method, path, content=content, params=params, headers=headers, timeout=timeout
                )
                if response.is_success or response.status_code == httpx2.codes.NOT_MODIFIED:
                    return response
                raise _error_of(response)
        raise AssertionError("the last attempt returns or raises")  # pragma: no cover
