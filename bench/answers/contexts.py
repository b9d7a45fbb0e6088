"""The contexts that questions are asked of: a conversation at its end, as each way of making it shorter leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bench.fidelity.recall import characters
from bench.fidelity.strategies import keep_last
from bench.fidelity.talk import served
from compaction.coverage import Span
from compaction.pins.left_out import with_note
from compaction.recall.ranges import missing_ranges_note
from compaction.view import ViewMessage, view_tokens
from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.fidelity.recall import Message
    from bench.reach.talks import Talk
    from compaction.view import View
    from worker.summarizers.base import Summarizer

KEEP_LAST: Final = "keep last"
EXTRACT: Final = "extract"
SUMMARY: Final = "model's summary"


class Asked(NamedTuple):
    """What a model is given before a question: by itself, and where it may recall once.

    The latter says by which names what it does not show can be had back, as contexts of `recall_handles` do.
    """

    way: str
    plain: View
    recalling: View
    runs: int = 0
    """Summaries that it took."""

    @property
    def characters(self) -> int:
        """Characters without names of what is not shown."""
        return characters(message.as_message() for message in self.plain)

    def tokens(self, *, may_recall: bool) -> int:
        """Return its tokens by the estimate."""
        return view_tokens(self.recalling if may_recall else self.plain)


def extracted(talk: Talk, threshold: int) -> Asked:
    """Return the context with extracts for summaries."""
    return summarized(talk, threshold, ExtractiveSummarizer(), EXTRACT)


def summarized(talk: Talk, threshold: int, summarizer: Summarizer, way: str = SUMMARY) -> Asked:
    """Return the context with summaries by `summarizer`. Raises SummaryError."""
    end = served(talk.messages, threshold, summarizer)
    return Asked(way, end.plain, end.recalling, end.runs)


def newest(talk: Talk, most_characters: int) -> Asked:
    """Return the newest messages that fit into so many characters."""
    kept = keep_last(talk.messages, most_characters).context
    first = len(talk.messages) - len(kept)
    view = _view(kept, first)
    left = missing_ranges_note([Span(0, first - 1, "dropped", None)], {}) if first else ""
    return Asked(KEEP_LAST, view, with_note(view, left) if left else view)


def _view(messages: Sequence[Message], first: int) -> View:
    return tuple(ViewMessage(each["role"], each["content"], first + at) for at, each in enumerate(messages))
