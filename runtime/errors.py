"""Errors that the sender of a request can act on, in no protocol's words.

Each has a code. `runtime.http.problem_types` has the status, the remedy and an example of every code.
"""

from __future__ import annotations

from typing import Any, Final

RETRY_AFTER_SECONDS: Final = 1


class RequestError(Exception):
    """A request that cannot be carried out, and why."""

    def __init__(
        self, code: str, detail: str, *, pointer: str | None = None, retry_after: int | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.pointer = pointer
        """A JSON pointer into the body, or the bare name of a query parameter."""
        self.retry_after = retry_after
        """Seconds."""
        self.members = members
        """Further facts, by name."""


class UnavailableError(RequestError):
    """A request that could be carried out a moment later."""

    def __init__(self, detail: str, *, retry_after: int = RETRY_AFTER_SECONDS) -> None:
        super().__init__("unavailable", detail, retry_after=retry_after)
