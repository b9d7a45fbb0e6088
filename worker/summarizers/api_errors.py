"""What errors of models' servers mean: their reason codes, whether to ask again, and how long to wait.

The words are searched for whoever is asked: gateways pass on those of the server behind them.
"""

from __future__ import annotations

import math
import re
import time
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from compaction.steps.refusals import read_refusal
from compaction.steps.runs import RunReason
from worker.summarizers.base import Spent, SummaryError

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUEST_ID: Final = re.compile(r"[\w-]{1,64}")
"""What the id of a request at the provider looks like; anything else is not repeated."""
_PASSING: Final = frozenset({408, 409, 429})
"""The statuses below 500 that another attempt may mend (API reference, "Errors"); so may all from 500 on."""
_UNPAID: Final = re.compile(
    r"credit balance"  # Claude, with a 400
    # OpenAI, with a 429 that no patience mends (docs, "Error codes": "You exceeded your current quota")
    r"|insufficient_quota|exceeded your current quota|billing_not_active|billing_hard_limit_reached",
    re.IGNORECASE,
)
_UNPAID_STATUSES: Final = frozenset({400, 403, 429})
_FILTERED: Final = re.compile(r"content_filter|content_policy_violation|responsible ?ai ?policy", re.IGNORECASE)
"""Azure OpenAI and OpenAI where the prompt itself is refused, with a 400."""
_NOT_THIS_MODEL: Final = re.compile(
    r"model_not_found|model_access_denied"  # the codes of OpenAI, with a 403, and of LiteLLM, with a 401
    r"|access(?: to)?(?: the| this)? model",  # their words, and those of DashScope and Bedrock
    re.IGNORECASE,
)
"""The key is good, and not for the model that was named: a policy, or a conversation, may name another one."""
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
"""Characters of an error's text that are read: it may be a page."""


class StatusError(Protocol):
    """An error of an SDK that represents a status; those of Anthropic and OpenAI are made alike."""

    status_code: int
    message: str
    request_id: str | None

    @property
    def response(self) -> HasHeaders:
        """The whole answer."""


class HasHeaders(Protocol):
    """An answer."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers, by names in small letters."""


class Trouble(NamedTuple):
    """What went wrong with a request, whoever was asked."""

    kind: Literal["status", "timeout", "unreachable", "garbage"]
    name: str
    """The error's class."""
    status: int = 0
    text: str = ""
    """What the server said, in small letters, to look for words in; it goes nowhere else."""
    headers: Mapping[str, str] = MappingProxyType({})
    request_id: str | None = None


def trouble_of_status(error: StatusError) -> Trouble:
    """Return what an SDK's error for a status says."""
    text = f"{error.message!s:.{_ERROR_TEXT_CHARS}}".lower()
    return Trouble("status", type(error).__name__, error.status_code, text, error.response.headers, error.request_id)


def failure(trouble: Trouble, calls: int) -> SummaryError:
    """Return what an error is called; nothing of its text, which may quote the request."""
    spent = Spent(calls)
    match trouble.kind:
        case "status":
            detail = f"status {trouble.status}"
            if REQUEST_ID.fullmatch(trouble.request_id or ""):
                detail += f", request {trouble.request_id}"
            return SummaryError(_code(trouble), detail, spent)
        case "timeout":
            return SummaryError(RunReason.MODEL_TIMEOUT, "the connection timed out", spent)
        case "unreachable":
            return SummaryError(RunReason.MODEL_UNREACHABLE, trouble.name, spent)
        case "garbage":
            return SummaryError(RunReason.MODEL_GARBAGE, trouble.name, spent)


def may_pass(trouble: Trouble) -> bool:
    """Return whether the same request may be answered another time."""
    if is_too_long(trouble) or _is_unpaid(trouble):
        return False
    said = trouble.headers.get("x-should-retry")
    if said in {"true", "false"}:
        return said == "true"
    return trouble.status in _PASSING or trouble.status >= 500  # noqa: PLR2004 - a server error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds of patience a server asks for, at least 0; None if it does not say so."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            asked = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if not math.isnan(asked):
            return max(0.0, asked)
    asked_until = _moment(headers.get("retry-after", ""))
    if asked_until is None:
        return None
    # By the server's own clock where it tells: the one here may be another hour's.
    now = _moment(headers.get("date", ""))
    return max(0.0, asked_until - (time.time() if now is None else now))


def _moment(date: str) -> float | None:
    """Return the seconds since the epoch of an HTTP date, None for what is none."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def is_too_long(trouble: Trouble) -> bool:
    """Return whether a smaller prompt is what the server asks for."""
    if trouble.kind != "status":
        return False
    refusal = read_refusal(trouble.text, status=trouble.status)
    return refusal is not None and refusal.is_of_history


def _is_unpaid(trouble: Trouble) -> bool:
    return trouble.status in _UNPAID_STATUSES and _UNPAID.search(trouble.text) is not None


def _code(trouble: Trouble) -> str:
    status = trouble.status
    if is_too_long(trouble):
        return RunReason.PROMPT_TOO_LONG
    if _is_unpaid(trouble):
        return RunReason.MODEL_BILLING
    if status in {401, 403} and _NOT_THIS_MODEL.search(trouble.text):
        return RunReason.MODEL_REJECTED
    if code := _CODES.get(status):
        return code
    if status == 400 and _FILTERED.search(trouble.text):  # noqa: PLR2004 - status codes name themselves
        return RunReason.MODEL_REFUSED
    return RunReason.MODEL_ERROR if status >= 500 else RunReason.MODEL_REJECTED  # noqa: PLR2004 - as above
