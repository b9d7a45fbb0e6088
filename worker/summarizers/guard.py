"""The quality guard around a model's summaries: what it is asked to hold, and next to which texts it will be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from compaction.quality.verdict import gather, judge, mend, most_chars
from compaction.summary.frames import FRAMES
from compaction.summary.transcript import SECTIONS, SYSTEM_PROMPT
from worker.metrics import METRICS

if TYPE_CHECKING:
    from compaction.quality.verdict import Verdict
    from worker.summarizers.base import SummaryRequest

_TAGS: Final = tuple(f"{opening}{name}-" for name in FRAMES for opening in ("<", "</"))


class QualityGuard:
    """Judges the summaries of one request; what they replace is read once."""

    def __init__(self, request: SummaryRequest) -> None:
        self._request = request
        self._evidence = gather(
            request.zone, request.previous, other_texts=request.other_texts, names=request.names, tail=request.tail
        )
        self._max_chars = most_chars(request.policy.summary_max_tokens)

    def of(self, text: str) -> Verdict:
        """Return what is wrong with a summary."""
        verdict = judge(
            text,
            self._evidence,
            sections=SECTIONS,
            canary=self._request.canary,
            prompt=SYSTEM_PROMPT,
            max_chars=self._max_chars,
            frames=_TAGS,
            other_texts=self._request.other_texts,
        )
        METRICS.judged(verdict.reasons)
        return verdict

    def mend(self, text: str, verdict: Verdict) -> str:
        """Return a summary with what it lacks added, word for word from the conversation."""
        return mend(text, verdict, self._evidence, max_chars=self._max_chars)
