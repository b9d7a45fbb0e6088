"""Requests, repeated as far as it is safe and in time."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from palimpsest_client.errors import ApiError, AuthenticationError, PermissionDeniedError, UnreachableError, error_of
from palimpsest_client.steps import Answer, Flow, Pause, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ATTEMPTS: Final = 3
"""Times one call is sent before its error counts."""
FIRST_PAUSE_SECONDS: Final = 0.1
"""The most that is waited after the first attempt; twice as much after each more, and a random part of it."""
LEAST_SECONDS: Final = 0.02
"""Time left in which no further attempt is begun."""
COOL_OFF_SECONDS: Final = 1.0
"""Time for which a service that did not answer is not asked by those who can do without; doubled each time."""
LONGEST_COOL_OFF_SECONDS: Final = 30.0
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""Statuses that may pass by themselves."""
UNDONE: Final = frozenset({429, 503})
"""Those of them after which nothing was done, so that any call may be sent again."""
_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class NotSentError(UnreachableError):
    """The request never reached the service."""


def path_of(*parts: str | int) -> str:
    """Return a path under `/v1` whose parts may hold any character."""
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def plain(value: Any) -> Any:
    """Return JSON values: the blocks and the usage of the SDKs are models of pydantic."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "model_dump"):
        # What was not sent is not to be stored: the API refuses some of its own nulls.
        return value.model_dump(mode="json", exclude_unset=True)
    return value


def storable(value: Any) -> Any:
    """Return JSON values with U+FFFD in the place of what no text may have that is stored: NUL, and lone surrogates.

    Tools return such texts, of binary files and of text that was cut, and the models' APIs take some of them.
    """
    if isinstance(value, str):
        return _NOT_STORABLE.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {storable(name): storable(inner) for name, inner in value.items()}
    return [storable(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def is_in_a_header(text: str) -> bool:
    """Tell whether a header may have a text: some ASCII characters, blanks within them at the most."""
    return text.isascii() and text.isprintable() and text != "" and text == text.strip()


def encode(body: Any) -> bytes:
    """Return the JSON of a body, each time the same bytes: the hash of a turn's goes with its idempotency key."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def decode(answer: Answer) -> Any:
    """Return what an answer says."""
    try:
        return json.loads(answer.body) if answer.body else None
    except ValueError as error:
        raise UnreachableError("the answer is not JSON: something else answers at this address") from error


@contextlib.contextmanager
def as_documented() -> Iterator[None]:
    """Read what an answer says; one of another shape is not the service's, and raises UnreachableError."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise UnreachableError("the answer has another shape: something else answers at this address") from error


def _check_status(answer: Answer) -> None:
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise error_of(answer.status, answer.headers, answer.body)
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES and answer.status != HTTPStatus.NOT_MODIFIED:
        raise UnreachableError(f"a redirect ({answer.status}): something else answers at this address")


def is_passing(error: Exception) -> bool:
    """Tell whether a turn that failed so is to be kept: the fault is not the turn's own."""
    if isinstance(error, ApiError):
        return error.status in PASSING or isinstance(error, (AuthenticationError, PermissionDeniedError))
    return isinstance(error, UnreachableError)


class Caller:
    """Sends requests with retries, and knows when it is no use.

    clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._away_until = 0.0
        self._cool_off = COOL_OFF_SECONDS

    def check(self) -> None:
        """Raise if the service failed to answer a moment ago."""
        if self._clock() < self._away_until:
            raise UnreachableError("the service did not answer a moment ago")

    def ends_in(self, seconds: float) -> float:
        """Return when so many seconds will have passed."""
        return self._clock() + seconds

    def left(self, ends: float, at_least: float = LEAST_SECONDS) -> float:
        """Return the seconds until `ends`; raise if there are not even so many."""
        seconds = ends - self._clock()
        if seconds < at_least:
            raise UnreachableError("the time is up")
        return seconds

    def send(self, request: Request, *, safe: bool = True) -> Flow[Answer]:
        """Send until there is an answer, an error that stays, or no time left.

        safe: sent twice it does what it does once, so that it is repeated even when nobody knows whether it arrived.
        """
        ends = self._clock() + request.deadline
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer: Answer = yield replace(request, deadline=max(ends - self._clock(), LEAST_SECONDS))
                _check_status(answer)
            except (ApiError, UnreachableError) as error:
                pause = self._pause(error, attempt, safe=safe)
                if pause is None or attempt == ATTEMPTS or self._clock() + pause + LEAST_SECONDS > ends:
                    self._note(error)
                    raise
            else:
                self._cool_off, self._away_until = COOL_OFF_SECONDS, 0.0
                return answer
            yield Pause(pause)
        raise AssertionError  # pragma: no cover - the last attempt returns or raises

    @staticmethod
    def _pause(error: ApiError | UnreachableError, attempt: int, *, safe: bool) -> float | None:
        """Return the seconds to wait before the next attempt; None if there is to be none."""
        pause = random.uniform(0.5, 1) * FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)  # noqa: S311 - no secret
        if isinstance(error, ApiError):
            if error.status not in (PASSING if safe else UNDONE):
                return None
            return pause if error.retry_after is None else error.retry_after
        return pause if safe or isinstance(error, NotSentError) else None

    def _note(self, error: ApiError | UnreachableError) -> None:
        if isinstance(error, ApiError) and error.status not in PASSING:
            return
        wait = (error.retry_after if isinstance(error, ApiError) else None) or self._cool_off
        self._away_until = self._clock() + wait
        self._cool_off = min(self._cool_off * 2, LONGEST_COOL_OFF_SECONDS)
