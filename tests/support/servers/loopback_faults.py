"""The fault script: every way in which a model's server goes wrong, by name."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.servers.loopback_steps import (
    cut,
    echoed_injection,
    empty,
    empty_body,
    garbage,
    hang_up,
    html,
    invented,
    longer_than_input,
    max_tokens,
    ok,
    prompt_too_long,
    refusal,
    slow_headers,
    stall,
    status,
    trickle,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers.loopback_steps import Step


class Fault(NamedTuple):
    """A fault, made anew for each use, and what the client of the summarizers makes of it.

    code: the reason it gives; None where it has an answer, and the fault is for others to find.
    again: whether it tries again.
    hangs: whether only the deadline ends it.
    """

    step: Callable[[], Step]
    code: str | None = None
    again: bool = False
    hangs: bool = False


def _never() -> threading.Event:
    return threading.Event()


LATER: Final = 3_600
"""Seconds of patience that nobody has."""

FAULTS: Final[dict[str, Fault]] = {
    "307 to another host": Fault(
        lambda: status(307, headers={"location": "http://127.0.0.2:9/v1/messages"}), "model_rejected"
    ),
    "400": Fault(lambda: status(400), "model_rejected"),
    "400 prompt too long": Fault(prompt_too_long, "prompt_too_long"),
    "400 no window for the answer": Fault(
        lambda: status(400, "input length and `max_tokens` exceed context limit: 199000 + 4096 > 200000"),
        "prompt_too_long",
    ),
    "400 of llama.cpp": Fault(
        lambda: status(
            400,
            "request (6024 tokens) exceeds the available context size (4096 tokens), try increasing it",
            error_type="exceed_context_size_error",
        ),
        "prompt_too_long",
    ),
    "400 of vLLM": Fault(
        lambda: status(400, "This model's maximum context length is 4096 tokens. However, you requested 8000 tokens"),
        "prompt_too_long",
    ),
    "400 account empty": Fault(
        lambda: status(400, "Your credit balance is too low to access the Anthropic API."), "model_billing"
    ),
    "401": Fault(lambda: status(401), "model_auth"),
    "402": Fault(lambda: status(402), "model_billing"),
    "403": Fault(lambda: status(403), "model_auth"),
    "404": Fault(lambda: status(404), "model_rejected"),
    "408": Fault(lambda: status(408, retry_after=0), "model_timeout", again=True),
    "409": Fault(lambda: status(409, retry_after=0), "model_rejected", again=True),
    "413": Fault(lambda: status(413), "prompt_too_long"),
    "413 of a proxy": Fault(lambda: html(413, "Request Entity Too Large"), "prompt_too_long"),
    "422": Fault(lambda: status(422), "model_rejected"),
    "429": Fault(lambda: status(429), "model_rate_limited", again=True),
    "429 seconds": Fault(lambda: status(429, retry_after=0), "model_rate_limited", again=True),
    "429 milliseconds": Fault(
        lambda: status(429, retry_after=LATER, headers={"retry-after-ms": "1"}), "model_rate_limited", again=True
    ),
    "429 date in the past": Fault(
        lambda: status(429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"), "model_rate_limited", again=True
    ),
    "429 no number": Fault(lambda: status(429, retry_after="soon"), "model_rate_limited", again=True),
    "429 not a number": Fault(lambda: status(429, retry_after="nan"), "model_rate_limited", again=True),
    "429 in an hour": Fault(lambda: status(429, retry_after=LATER), "model_rate_limited"),
    "429 never": Fault(lambda: status(429, retry_after="inf"), "model_rate_limited"),
    "429 on a day far away": Fault(
        lambda: status(429, retry_after="Fri, 31 Dec 2999 23:59:59 GMT"), "model_rate_limited"
    ),
    "429 do not retry": Fault(lambda: status(429, headers={"x-should-retry": "false"}), "model_rate_limited"),
    "400 do retry": Fault(
        lambda: status(400, retry_after=0, headers={"x-should-retry": "true"}), "model_rejected", again=True
    ),
    "500": Fault(lambda: status(500, retry_after=0), "model_error", again=True),
    "500 of llama.cpp": Fault(lambda: status(500, "Context size has been exceeded."), "prompt_too_long"),
    "502": Fault(lambda: html(502), "model_error", again=True),
    "503": Fault(lambda: status(503, retry_after=0), "model_error", again=True),
    "503 in an hour": Fault(lambda: status(503, retry_after=LATER), "model_error"),
    "504": Fault(lambda: status(504, retry_after=0), "model_error", again=True),
    "529": Fault(lambda: status(529, retry_after=0), "model_overloaded", again=True),
    "500 without a body": Fault(lambda: empty_body(500), "model_error", again=True),
    "slow headers": Fault(lambda: slow_headers(_never()), "model_timeout", hangs=True),
    "half a body": Fault(lambda: stall(_never()), "model_timeout", hangs=True),
    "trickled body": Fault(trickle, "model_timeout", hangs=True),
    "connection closed": Fault(hang_up, "model_unreachable", again=True),
    "connection reset": Fault(lambda: hang_up(reset=True), "model_unreachable", again=True),
    "cut in the body": Fault(cut, "model_unreachable", again=True),
    "reset in the body": Fault(lambda: cut(reset=True), "model_unreachable", again=True),
    "empty body": Fault(empty_body, "model_garbage"),
    "empty page": Fault(lambda: empty_body(content_type="text/html"), "model_garbage"),
    "HTML page with 200": Fault(lambda: html(200, "Sign in"), "model_garbage"),
    "garbage": Fault(garbage, "model_garbage"),
    "garbage: an empty object": Fault(lambda: garbage(b"{}"), "model_garbage"),
    "garbage: null": Fault(lambda: garbage(b"null"), "model_garbage"),
    "garbage: a list": Fault(lambda: garbage(b'["a", "list"]'), "model_garbage"),
    "garbage: wrong types": Fault(
        lambda: garbage(b'{"type": "message", "content": [null], "usage": 7}'), "model_garbage"
    ),
    "garbage: deeply nested": Fault(lambda: garbage(b"[" * 200_000), "model_garbage"),
    "pause_turn": Fault(lambda: ok("wait", stop_reason="pause_turn"), "model_garbage"),
    "tool_use": Fault(lambda: ok("wait", stop_reason="tool_use"), "model_garbage"),
    "compaction": Fault(lambda: ok("wait", stop_reason="compaction"), "model_garbage"),
    "stop reason of another type": Fault(lambda: ok("text", stop_reason=["end_turn"]), "model_garbage"),
    "window full": Fault(lambda: ok("half", stop_reason="model_context_window_exceeded"), "prompt_too_long"),
    "refusal": Fault(refusal, "model_refused"),
    "refusal with text": Fault(lambda: refusal("I cannot help with that."), "model_refused"),
    "empty": Fault(empty, "empty_summary"),
    "blank": Fault(lambda: ok(" \n\t"), "empty_summary"),
    "max_tokens": Fault(max_tokens),
    "max_tokens before any text": Fault(lambda: max_tokens("")),
    "without usage": Fault(lambda: ok("a summary", usage=None)),
    "NUL and half a surrogate": Fault(lambda: ok("a\x00b\ud800c")),
    "longer than its input": Fault(longer_than_input),
    "invented identifiers": Fault(invented),
    "echoed injection": Fault(echoed_injection),
}
