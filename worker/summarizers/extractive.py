"""The summarizer that needs no model: it keeps what matters of the text itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.extract import extract
from compaction.tokens import CHARS_PER_TOKEN
from compaction.view import WRITTEN
from worker.summarizers.base import Spent, Summary, SummaryError

if TYPE_CHECKING:
    from worker.summarizers.base import SummaryRequest

PROMPT_VERSION = "extract-1"


class ExtractiveSummarizer:
    """Offline and deterministic; its text says that it is an extract."""

    name = "extractive"
    model = None

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return an extract of at most `summary_max_tokens`."""
        text = extract(
            [message.as_message() for message in request.zone if message.seq != WRITTEN],
            max_chars=request.policy.summary_max_tokens * CHARS_PER_TOKEN,
            previous=request.previous,
        )
        if not text.strip():
            raise SummaryError("empty_summary", "there was nothing to extract")
        return Summary(text, None, PROMPT_VERSION, Spent())
