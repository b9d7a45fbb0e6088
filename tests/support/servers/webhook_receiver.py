"""A receiver of webhooks on the loopback interface, which answers as a script says and verifies every signature."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from standardwebhooks import Webhook

from tests.support.threaded_http import QuietHandler, ThreadedServer

if TYPE_CHECKING:
    from collections.abc import Iterable

OK: Final = 204


class Drip(QuietHandler):
    """Begins an answer at once and ends it after five seconds, a byte at a time."""

    def do_POST(self) -> None:
        self.close_connection = True
        with suppress(OSError):  # whoever asked has hung up
            self.wfile.write(b"HTTP/1.1 204 No Content\r\nslow: ")
            for _ in range(100):
                self.wfile.write(b"z")
                threading.Event().wait(0.05)
            self.wfile.write(b"\r\n\r\n")


class Receiver:
    """Answers each POST with the next status of the script, and with 204 when none is left."""

    def __init__(self, script: Iterable[int] = ()) -> None:
        self.script = deque(script)
        self.received: list[tuple[dict[str, str], str]] = []
        receiver = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.read_body().decode()
                receiver.received.append(({key.lower(): value for key, value in self.headers.items()}, body))
                status = receiver.script.popleft() if receiver.script else OK
                moved = {"location": f"{receiver.url}/elsewhere"} if status in {301, 302, 307, 308} else {}
                self.answer(status, headers=moved)

        self._server = ThreadedServer(Handler)
        self.url = self._server.url

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def verified(self, secret: str) -> list[dict[str, Any]]:
        """Return every event that came; raise for one that `secret` did not sign."""
        return [Webhook(secret).verify(body, headers) for headers, body in self.received]
