"""The HTTP side of a soak's clients: requests, retries as a chat backend makes them, and what they took."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import httpx2

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from bench.soak.truth import Breaches

GIVE_UP_SECONDS: Final = 45.0
"""Time after which a client gives a call up: longer than any single fault."""
_TIMEOUT_SECONDS: Final = 10.0
_UNAVAILABLE: Final = 503


class Took(NamedTuple):
    """An answer: when it came, of which kind of call, its status, and the seconds it took; status 0 is none."""

    at: float
    kind: str
    status: int
    seconds: float


class Record:
    """What all clients saw; usable from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._took: list[Took] = []
        self.counts: dict[str, int] = {}
        """How often things happened that are no requests: retries, replays, turns given up."""

    def add(self, took: Took) -> None:
        """Note an answer."""
        with self._lock:
            self._took.append(took)

    def count(self, what: str) -> None:
        """Note that something happened."""
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    @property
    def took(self) -> list[Took]:
        """All answers so far."""
        with self._lock:
            return list(self._took)


class Caller:
    """Calls of one client with the key of each tenant."""

    def __init__(
        self,
        url: str,
        keys: Sequence[str],
        rng: random.Random,
        *,
        record: Record,
        breaches: Breaches,
        clock: Callable[[], float],
        stopping: threading.Event,
    ) -> None:
        self._rng = rng
        self._record = record
        self._breaches = breaches
        self._clock = clock
        self._stopping = stopping
        self._https = [
            httpx2.Client(
                base_url=f"{url}/v1",
                headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
                timeout=httpx2.Timeout(_TIMEOUT_SECONDS, connect=2.0),
            )
            for key in keys
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for http in self._https:
            http.close()

    def call(
        self,
        tenant: int,
        method: str,
        path: str,
        kind: str,
        *,
        expected: set[int],
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> httpx2.Response | None:
        """Return an answer of an expected status; None where there was none in time, or another one, which is noted.

        A call that is not repeatable is sent again only where it was answered 503: then nothing was done.
        """
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            begun = time.perf_counter()
            try:
                answer: httpx2.Response | None = self._https[tenant].request(
                    method, path, content=body, headers=headers, timeout=timeout
                )
            except httpx2.TransportError:
                answer = None
            status = answer.status_code if answer is not None else 0
            self._record.add(Took(self._clock(), kind, status, time.perf_counter() - begun))
            if answer is not None and status != _UNAVAILABLE:
                if status not in expected:
                    self._breaches.add("answers are expected ones", path, _describe(method, answer))
                    return None
                return answer
            if time.monotonic() > deadline or (answer is None and not repeatable) or self._stopping.is_set():
                return None
            self._record.count("retries")
            timeout = _TIMEOUT_SECONDS
            self._stopping.wait(self._rng.uniform(0.2, 1.0))

    def json(self, *arguments: Any, **options: Any) -> dict[str, Any] | None:
        """Do the same, and return the answer's document."""
        answer = self.call(*arguments, **options)
        body: dict[str, Any] | None = answer.json() if answer is not None else None
        return body


def _describe(method: str, answer: httpx2.Response) -> str:
    return f"{method} answered {answer.status_code}: {answer.text[:500]}"
