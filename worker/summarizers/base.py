"""The interface of a summarizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from compaction.policy import Policy
    from compaction.view import ViewMessage


class SummaryRequest(NamedTuple):
    """The messages to summarize, the summary that stands before them, and the policy in force."""

    zone: Sequence[ViewMessage]
    previous: str | None
    policy: Policy


class Spent(NamedTuple):
    """What a summary cost; calls that failed count."""

    calls: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: Decimal | None = None


class Summary(NamedTuple):
    """A finished summary and how it was made."""

    text: str
    model: str | None
    prompt_version: str
    spent: Spent


class SummaryError(Exception):
    """No summary could be made; `code` is the reason that the run records."""

    def __init__(self, code: str, detail: str, spent: Spent | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.spent = spent or Spent()


class Summarizer(Protocol):
    """Makes summaries. Called outside any transaction, from many threads at once."""

    @property
    def name(self) -> str:
        """Name for the audit."""

    @property
    def model(self) -> str | None:
        """The model it calls, None where it calls none."""

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return a summary; raise SummaryError if none can be made."""
