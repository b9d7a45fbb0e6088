"""The summarizer that needs no model: it keeps what matters of the text itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compaction.extract import extract
from compaction.tokens import CHARS_PER_TOKEN
from compaction.view import WRITTEN
from worker.summarizers.base import Spent, Summary, SummaryError

if TYPE_CHECKING:
    from worker.summarizers.base import SummaryRequest

PROMPT_VERSION = "extract-1"


SHARE: Final = 8
"""An extract may fill this part of the threshold: a larger one would have the next summary due at once."""


class ExtractiveSummarizer:
    """Offline and deterministic; its text says that it is an extract."""

    name = "extractive"
    model = None

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return an extract of at most `summary_max_tokens`, and of no more than its share of the threshold."""
        most = min(request.policy.summary_max_tokens, request.policy.compaction_threshold_tokens // SHARE)
        text = extract(
            [message.as_message() for message in request.zone if message.seq != WRITTEN],
            max_chars=most * CHARS_PER_TOKEN,
            previous=request.previous,
        )
        if not text.strip():
            raise SummaryError("empty_summary", "there was nothing to extract")
        return Summary(text, None, PROMPT_VERSION, Spent())
