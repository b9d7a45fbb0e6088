"""A summarizer whose calls do what a test wants: answer, fail, or let something happen meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from worker.summarizers import Summary, SummaryError, SummaryRequest
from worker.summarizers.base import Spent

if TYPE_CHECKING:
    from collections.abc import Callable

SPENT: Final = Spent(calls=1, input_tokens=1_000, output_tokens=50)


class StubSummarizer:
    """Answers `text`, or raises `error`, after `act` has run."""

    name = "stub"
    model: str | None = "stub-model"

    def __init__(
        self,
        text: str = "They spoke about many things.",
        *,
        error: Exception | None = None,
        act: Callable[[], None] | None = None,
    ) -> None:
        self.text = text
        self.error = error
        self.act = act
        self.requests: list[SummaryRequest] = []

    def summarize(self, request: SummaryRequest) -> Summary:
        self.requests.append(request)
        if self.act is not None:
            self.act()
        if self.error is not None:
            raise self.error
        return Summary(self.text, self.model, "stub-1", SPENT)


def refusing(code: str = "model_refused") -> StubSummarizer:
    """Return a summarizer whose model declines."""
    return StubSummarizer(error=SummaryError(code, "the model declined to summarize", SPENT))
