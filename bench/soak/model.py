"""The model behind a soak: the loopback Messages API, faults switched on and off, calls counted, nothing kept."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from bench.soak.speech import MARK
from tests.support.servers.loopback_model import LoopbackModel
from tests.support.servers.loopback_steps import (
    cut,
    empty,
    garbage,
    hang_up,
    html,
    max_tokens,
    ok,
    refusal,
    slow_headers,
    stall,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers.loopback_http import Received
    from tests.support.servers.loopback_steps import Step

LATENCY_SECONDS: Final = 0.15

FAULTS: Final[dict[str, Callable[[threading.Event], Step]]] = {
    "429": lambda _: status(429, retry_after=1),
    "500": lambda _: status(500),
    "529": lambda _: status(529),
    "hangs": slow_headers,
    "half a body": stall,
    "cut": lambda _: cut(reset=True),
    "hangs up": lambda _: hang_up(),
    "garbage": lambda _: garbage(),
    "a proxy's page": lambda _: html(502),
    "refuses": lambda _: refusal(),
    "empty": lambda _: empty(),
    "cut short": lambda _: max_tokens(),
    "makes things up": lambda _: ok("I cannot know. See https://invented.example/17 and ask again tomorrow."),
}
"""Ways of failing; the event ends those that would wait for ever."""


class SoakModel(LoopbackModel):
    """Counts its calls by the family of conversations that they are about."""

    def __init__(self) -> None:
        super().__init__(latency=LATENCY_SECONDS)
        self._lock = threading.Lock()
        self._fault: Step | None = None
        self._healed = threading.Event()
        self._calls: Counter[int] = Counter()

    def fail(self, name: str) -> None:
        """Fail in this way from now on."""
        self.heal()
        with self._lock:
            self._healed = threading.Event()
            self._fault = FAULTS[name](self._healed)

    def heal(self) -> None:
        """Answer again; calls that were left hanging come to their end."""
        with self._lock:
            self._fault = None
            self._healed.set()

    @property
    def calls(self) -> Counter[int]:
        """Calls so far by family; -1 are those that named none."""
        with self._lock:
            return self._calls.copy()

    def admit(self, received: Received, *, scripted: bool) -> Step:
        """Count a call and return what answers it."""
        step = super().admit(received, scripted=scripted)
        mark = MARK.search(received.prompt)
        with self._lock:
            self._calls[int(mark[1]) if mark else -1] += 1
            return self._fault or step

    def finished(self, received: Received) -> None:
        """Forget a call that is over: hours of them would fill the memory."""
        super().finished(received)
        with self._changed:
            self._received.remove(received)
