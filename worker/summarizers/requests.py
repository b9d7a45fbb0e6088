"""One request to the Messages API, told to the log, the metrics and the trace: ids and numbers, never a word of it."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Final, TypeVar

import anthropic
import structlog

from compaction.steps.runs import RunReason
from runtime import tracing
from worker.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

log = structlog.get_logger()

REQUEST_ID: Final = re.compile(r"[\w-]{1,64}")
"""What the id of a request at the provider looks like; anything else is not repeated."""


async def asked(answer: Awaitable[T], model: str, code_of: Callable[[anthropic.APIError], str]) -> T:
    """Return what a request is answered with; raise what it raises. `code_of` names errors by their reason codes."""
    started = time.monotonic()
    outcome: str = RunReason.MODEL_GARBAGE
    given = None
    with tracing.span("messages.create", kind="client", model=METRICS.model(model)) as span:
        try:
            found = await answer
            outcome, given = "ok", getattr(found, "_request_id", None)
        except anthropic.APIError as error:
            outcome, given = code_of(error), getattr(error, "request_id", None)
            raise
        except asyncio.CancelledError:
            outcome = RunReason.MODEL_TIMEOUT  # the deadline of the question
            raise
        finally:
            seconds = time.monotonic() - started
            provider_id = given if isinstance(given, str) and REQUEST_ID.fullmatch(given) else None
            METRICS.requested(model, outcome, seconds)
            span.set(outcome=outcome, provider_request_id=provider_id)
            log.info(
                "model.requested",
                model=METRICS.model(model),
                outcome=outcome,
                provider_request_id=provider_id,
                seconds=round(seconds, 3),
            )
    return found
