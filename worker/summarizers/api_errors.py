"""What errors of the Messages API mean: their reason codes, whether to ask again, and how long to wait."""

from __future__ import annotations

import math
import re
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

import anthropic

from compaction.steps.runs import RunReason
from worker.summarizers.base import Spent, SummaryError

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUEST_ID: Final = re.compile(r"[\w-]{1,64}")
"""What the id of a request at the provider looks like; anything else is not repeated."""
_PASSING: Final = frozenset({408, 409, 429})
"""The statuses below 500 that another attempt may mend (API reference, "Errors"); so may all from 500 on."""
_TOO_LONG_STATUSES: Final = frozenset({400, 422, 500})
_TOO_LONG: Final = re.compile(
    r"too long"  # Claude: "prompt is too long: 210000 tokens > 200000 maximum"; Bedrock: "Input is too long"
    r"|context[ _](?:size|length|window|limit)"  # Claude, llama.cpp (also with a 500), vLLM, SGLang, OpenAI's wording
    r"|max(?:imum)?[ _]model[ _]len",  # vLLM
    re.IGNORECASE,
)
_CODES: Final = {
    401: RunReason.MODEL_AUTH,
    402: RunReason.MODEL_BILLING,
    403: RunReason.MODEL_AUTH,
    408: RunReason.MODEL_TIMEOUT,
    429: RunReason.MODEL_RATE_LIMITED,
    529: RunReason.MODEL_OVERLOADED,
}
"""Reason codes by status; the others are `model_error` from 500 on and `model_rejected` below."""
_ERROR_TEXT_CHARS: Final = 2_000
"""Characters of an error's text that are looked at: it may be a page."""


def failure(error: anthropic.APIError, calls: int) -> SummaryError:
    """Return what an error of the SDK is called; nothing of its text, which may quote the request."""
    spent = Spent(calls)
    if isinstance(error, anthropic.APIStatusError):
        detail = f"status {error.status_code}"
        if REQUEST_ID.fullmatch(error.request_id or ""):
            detail += f", request {error.request_id}"
        return SummaryError(_code(error), detail, spent)
    if isinstance(error, anthropic.APITimeoutError):
        return SummaryError(RunReason.MODEL_TIMEOUT, "the connection timed out", spent)
    if isinstance(error, anthropic.APIConnectionError):
        return SummaryError(RunReason.MODEL_UNREACHABLE, type(error).__name__, spent)
    return SummaryError(RunReason.MODEL_GARBAGE, type(error).__name__, spent)


def may_pass(error: anthropic.APIStatusError) -> bool:
    """Return whether the same request may be answered another time."""
    if _is_too_long(error):
        return False
    said = error.response.headers.get("x-should-retry")
    if said in {"true", "false"}:
        return said == "true"
    return error.status_code in _PASSING or error.status_code >= 500  # noqa: PLR2004 - a server error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds of patience a server asks for, at least 0; None if it does not say so."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            asked = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if not math.isnan(asked):
            return max(0.0, asked)
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _code(error: anthropic.APIStatusError) -> str:
    status = error.status_code
    if _is_too_long(error):
        return RunReason.PROMPT_TOO_LONG
    if code := _CODES.get(status):
        return code
    if status == 400 and "credit balance" in text_of(error):  # noqa: PLR2004 - status codes name themselves
        return RunReason.MODEL_BILLING
    return RunReason.MODEL_ERROR if status >= 500 else RunReason.MODEL_REJECTED  # noqa: PLR2004 - as above


def _is_too_long(error: anthropic.APIStatusError) -> bool:
    """Return whether a smaller prompt is what the server asks for."""
    if error.status_code == 413:  # noqa: PLR2004 - status codes name themselves
        return True
    return error.status_code in _TOO_LONG_STATUSES and _TOO_LONG.search(text_of(error)) is not None


def text_of(error: anthropic.APIStatusError) -> str:
    """Return the text to look for words in; it goes nowhere else."""
    return f"{error.message!s:.{_ERROR_TEXT_CHARS}}".lower()
