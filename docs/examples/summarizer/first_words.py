"""An example of a summarizer from outside: it keeps the first words of every message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.messages import blocks
from worker.summarizers import Summary, SummaryError
from worker.summarizers.base import Spent

if TYPE_CHECKING:
    from runtime.settings import Settings
    from worker.summarizers import SummaryRequest

WORDS = 8
"""Words of each message that are kept."""


class FirstWords:
    """A summarizer is a class that is made with the settings and has these three members."""

    name = "first-words"
    model = None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def summarize(self, request: SummaryRequest) -> Summary:
        """Return the summary of `request.zone`; raise SummaryError where there is none, and an extract takes its place.

        It is called outside any transaction and from many threads at once. What it returns takes the place of the zone
        if that saves enough; pins, the first message and the protected tail are kept beside it in any case.
        """
        lines = [request.previous] if request.previous else []
        for message in request.zone:
            text = " ".join(str(block.get("text", "")) for block in blocks(message.content))
            if words := text.split()[:WORDS]:
                lines.append(f"{message.role}: {' '.join(words)}")
        if not lines:
            raise SummaryError("empty_summary", "there were no words")
        most = request.policy.summary_max_tokens * 4
        return Summary("\n".join(lines)[-most:], None, "first-words-1", Spent())
