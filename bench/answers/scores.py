"""What answers come to: right ones of each replicate, who judged, and what they cost."""

from __future__ import annotations

import statistics
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.answers.asking import Reply


class Judged(NamedTuple):
    """One answer; `by` says who judged it, or why nobody did."""

    replicate: int
    by: Literal["rules", "model", "undecided", "failed", "stopped"]
    right: bool | None = None
    reply: Reply | None = None


class AnswerScore(NamedTuple):
    """The answers of one kind of context of one source."""

    source: str
    context: str
    may_recall: bool
    conversations: int
    characters: int
    """Of a context, the mean over the conversations."""
    questions: int
    replicates: int
    right: float
    """Share of the answers that are right, undecided ones counted as wrong; the mean of the replicates."""
    lowest: float
    highest: float
    """Of the replicates."""
    answers: int
    by_rules: int
    by_model: int
    undecided: int
    failed: int
    """Questions that could not be asked; they count for nothing."""
    stopped: int
    """Questions that the limit left no money for; the same."""
    recalls: int
    calls: int
    input_tokens: int
    output_tokens: int
    usd: Decimal | None
    """None where the model's price is not known."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it, shares rounded."""
        shares = {name: round(getattr(self, name), 4) for name in ("right", "lowest", "highest")}
        return {**self._asdict(), **shares, "usd": None if self.usd is None else float(round(self.usd, 6))}


def score_of(
    source: str, context: str, judgements: Sequence[Judged], characters: Sequence[int], *, may_recall: bool
) -> AnswerScore:
    """Count the answers of one kind of context."""
    replicates = sorted({each.replicate for each in judgements})
    replies = [each.reply for each in judgements if each.reply is not None]
    shares = [share for number in replicates if (share := _share(judgements, number)) is not None]
    usd = [reply.usd for reply in replies]
    by = [each.by for each in judgements]
    return AnswerScore(
        source,
        context,
        may_recall,
        len(characters),
        round(statistics.mean(characters)),
        len(judgements) // max(1, len(replicates)),
        len(replicates),
        statistics.mean(shares) if shares else 0.0,
        min(shares, default=0.0),
        max(shares, default=0.0),
        len(replies),
        by.count("rules"),
        by.count("model"),
        by.count("undecided"),
        by.count("failed"),
        by.count("stopped"),
        sum(reply.recalled for reply in replies),
        sum(reply.calls for reply in replies),
        sum(reply.input_tokens for reply in replies),
        sum(reply.output_tokens for reply in replies),
        None if None in usd else sum(filter(None, usd), start=Decimal()),
    )


def _share(judgements: Sequence[Judged], replicate: int) -> float | None:
    answers = [each for each in judgements if each.replicate == replicate and each.reply is not None]
    return sum(each.right is True for each in answers) / len(answers) if answers else None
