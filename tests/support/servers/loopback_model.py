"""A server on the loopback interface that speaks the Messages API and Chat Completions: for tests and benchmarks.

    with LoopbackModel([status(529), ok("a summary")]) as model:
        client = anthropic.Anthropic(base_url=model.url, api_key="any", max_retries=0)

Every `POST /v1/messages`, and `/v1/chat/completions` (`loopback_chat`), takes the next step of the script, in order of
arrival; when none is left, `default` answers (a short summary that quotes the first line and the URLs of the prompt).
Requests that the API itself would refuse get its 400 and take no step.
`python -m tests.support.servers.loopback_model --port N` runs one by itself, with `--fault NAME` one that always fails
in that way (`loopback_faults`).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from tests.support.eventually import PATIENCE_SECONDS
from tests.support.servers.loopback_chat import CHAT, Dialect
from tests.support.servers.loopback_faults import FAULTS
from tests.support.servers.loopback_http import COUNT_TOKENS, MESSAGES, Received, Server
from tests.support.servers.loopback_steps import Step, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType


class LoopbackModel:
    """The server; a context manager. Keys, models and prices are not looked at, only that they are there.

    script: steps for the first requests, in order of arrival; `then` adds more while it runs.
    default: the step for every request after those.
    validate: refuse what the API refuses (`tests.support.messages_api`), with its 400.
    context_tokens: the window; larger prompts get "prompt is too long". None = no limit.
    latency: seconds before every answer, for benchmarks.
    dialect: what it knows of Chat Completions.
    """

    def __init__(
        self,
        script: Iterable[Step] = (),
        *,
        default: Step | None = None,
        validate: bool = True,
        context_tokens: int | None = 200_000,
        latency: float = 0.0,
        port: int = 0,
        dialect: Dialect | None = None,
    ) -> None:
        self.default = default or summary()
        self.validate = validate
        self.context_tokens = context_tokens
        self.latency = latency
        self.dialect = dialect or Dialect()
        self.closing = threading.Event()
        self._script = deque(script)
        self._changed = threading.Condition()
        self._received: list[Received] = []
        self._permits: int | None = None
        self._events: set[threading.Event] = set()
        self._server = Server(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def requests(self) -> list[Received]:
        """The requests to `/v1/messages` and `/v1/chat/completions` so far, in order of arrival."""
        with self._changed:
            return [each for each in self._received if each.path in {MESSAGES, CHAT}]

    @property
    def counted(self) -> list[Received]:
        """The requests to `/v1/messages/count_tokens` so far."""
        with self._changed:
            return [each for each in self._received if each.path == COUNT_TOKENS]

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop: calls in flight are cut off, no thread and no socket is left."""
        self.closing.set()
        with self._changed:
            events = list(self._events)
            self._changed.notify_all()
        for event in events:
            event.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.finish()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def then(self, *steps: Step) -> None:
        """Add steps to the end of the script."""
        with self._changed:
            self._script.extend(steps)

    def hold(self) -> None:
        """From now on record requests but do not answer them."""
        with self._changed:
            self._permits = 0

    def release(self, count: int | None = None) -> None:
        """Answer `count` of the held requests and go on holding; without a count, stop holding."""
        with self._changed:
            self._permits = None if count is None else (self._permits or 0) + count
            self._changed.notify_all()

    def wait_for_requests(self, count: int, timeout: float = PATIENCE_SECONDS) -> list[Received]:
        """Return the requests once `count` have arrived, answered or not; raises TimeoutError."""
        return self._wait(count, timeout, lambda each: True)

    def wait_for_answers(self, count: int, timeout: float = PATIENCE_SECONDS) -> list[Received]:
        """Return the requests once `count` of them are over; raises TimeoutError."""
        return self._wait(count, timeout, lambda each: each.answered.is_set())

    def _wait(self, count: int, timeout: float, wanted: Callable[[Received], bool]) -> list[Received]:
        with self._changed:
            if not self._changed.wait_for(lambda: sum(map(wanted, self.requests)) >= count, timeout):
                raise TimeoutError(f"{sum(map(wanted, self.requests))} of {count} requests in {timeout} s")
            return self.requests

    def admit(self, received: Received, *, scripted: bool) -> Step:
        """Record a request; return the step that is its turn. One lock: arrival and script stay in step."""
        with self._changed:
            received.index = len(self._received)
            self._received.append(received)
            self._changed.notify_all()
            return self._script.popleft() if scripted and self._script else self.default

    def finished(self, received: Received) -> None:
        with self._changed:
            received.answered.set()
            self._changed.notify_all()

    def pass_gate(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._permits != 0 or self.closing.is_set())
            if self._permits:
                self._permits -= 1

    def wait_on(self, event: threading.Event) -> None:
        with self._changed:
            if self.closing.is_set():
                return
            self._events.add(event)  # close() sets it, so that no handler outlives the server
        event.wait()


def main() -> None:
    """Run one server in the foreground; print its URL as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.servers.loopback_model", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 = any free port")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before every answer")
    parser.add_argument("--fault", choices=sorted(FAULTS), help="the fault to answer every request with")
    parser.add_argument("--no-validate", action="store_true", help="accept what the API would refuse")
    given = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    fault = FAULTS[given.fault].step() if given.fault else None
    with LoopbackModel(default=fault, port=given.port, latency=given.latency, validate=not given.no_validate) as model:
        sys.stdout.write(json.dumps({"url": model.url}) + "\n")
        sys.stdout.flush()
        stop.wait()


if __name__ == "__main__":
    main()
