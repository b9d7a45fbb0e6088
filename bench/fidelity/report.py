"""The report: tables for people, one document for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from bench.answers.scores import AnswerScore
    from bench.fidelity.chained import Chain
    from bench.fidelity.look_ahead import Score
    from bench.fidelity.speed import Timing
    from bench.fidelity.talk import TalkScore

_WIDTH: Final = 130
_SHOWN: Final = (1, 2, 5, 10)
"""Compactions of a chain that the table shows; the plot has all."""


class Answered(NamedTuple):
    """What a model answered about talk; `stopped` says that the limit was reached before all was asked."""

    scores: Sequence[AnswerScore]
    spent: Decimal
    """USD of this run; answers that were kept from an earlier one cost nothing again."""
    stopped: bool


class Findings(NamedTuple):
    """Everything that was measured."""

    scores: Sequence[Score] = ()
    chains: Sequence[Chain] = ()
    timings: Sequence[Timing] = ()
    talk: Sequence[TalkScore] = ()
    answered: Answered | None = None
    model: str | None = None
    """The model that was asked; None: none was."""


def print_findings(findings: Findings) -> None:
    """Print the tables."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH  # a file or a pipe has none
    tables = (
        _recall_table(findings.scores),
        _chain_table(findings.chains),
        _talk_table(findings.talk),
        _answers_table(findings.answered.scores if findings.answered else ()),
        _speed_table(findings.timings),
    )
    for table in tables:
        if table.rows:
            console.print(table)
    console.print(
        f"Model: {findings.model}."
        if findings.model
        else "Model: none was asked; set ANTHROPIC_BASE_URL or ANTHROPIC_API_KEY, OPENAI_BASE_URL or OPENAI_API_KEY."
    )


def document(findings: Findings) -> dict[str, Any]:
    """Return everything that was measured."""
    return {
        "model": findings.model,
        "look_ahead": [
            {
                **score._asdict(),
                "recall": round(score.recall, 4),
                "bound_recall": round(score.bound_recall, 4),
                "bound_recall_within": score.bound_recall_within,
                "characters_kept": round(score.share_kept, 4),
            }
            for score in findings.scores
        ],
        "talk": [{**row._asdict(), "ratio": round(row.ratio, 3)} for row in findings.talk],
        "answers": None
        if findings.answered is None
        else {
            "spent_usd": float(round(findings.answered.spent, 6)),
            "stopped_at_limit": findings.answered.stopped,
            "rows": [row.as_json() for row in findings.answered.scores],
        },
        "chains": [chain._asdict() for chain in findings.chains],
        "extractive_speed": [timing._asdict() for timing in findings.timings],
    }


def _recall_table(scores: Sequence[Score]) -> Table:
    table = Table(
        title="Look-ahead recall: exact values used again after a cut that the context still has",
        caption="over: cuts after which what has to stay is larger than the budget; within: bound recall at the others",
    )
    for name in ("conversations", "budget", "strategy"):
        table.add_column(name)
    for name in ("recall", "bound recall", "characters kept", "values", "cuts", "over", "within", "failed"):
        table.add_column(name, justify="right")
    order = sorted(scores, key=lambda score: (score.source, -(score.budget or 1)))
    for before, score in zip([None, *order], order, strict=False):
        if before and (before.source, before.budget) != (score.source, score.budget):
            table.add_section()
        within = score.bound_recall_within
        table.add_row(
            score.source,
            f"{score.budget:g}" if score.budget else "none",
            score.strategy,
            f"{score.recall:.3f}",
            f"[bold]{score.bound_recall:.3f}[/bold]",
            f"{score.share_kept:.3f}",
            f"{score.wanted:,}",
            f"{score.cuts:,}",
            f"{score.over:,}" if score.budget else "-",
            "-" if within is None or not score.budget else f"{within:.3f}",
            f"{score.failed:,}",
        )
    return table


def _chain_table(chains: Sequence[Chain]) -> Table:
    numbers = " / ".join(map(str, _SHOWN))
    table = Table(title=f"Chained compactions: what is left after {numbers} of them")
    for name in ("conversations", "summarizer", "pins"):
        table.add_column(name)
    for name in ("rules word for word", "values of the first stretch", "those spoken of", "characters kept", "failed"):
        table.add_column(name, justify="right")
    for chain in chains:
        curves = (chain.rules, chain.values, chain.spoken, chain.share_kept)
        table.add_row(
            f"{chain.source} ({chain.conversations})",
            chain.summarizer,
            "yes" if chain.pinned else "no",
            *(" ".join(f"{curve[number - 1]:.2f}" for number in _SHOWN) for curve in curves),
            f"{chain.failed}",
        )
    return table


def _talk_table(scores: Sequence[TalkScore]) -> Table:
    table = Table(
        title="Everyday talk: questions whose answers stand together in the context at the end",
        caption="whole: in the whole conversation; newest: in the newest messages of as many characters",
    )
    table.add_column("conversations")
    for name in (
        "threshold",
        "questions",
        "whole",
        "context",
        "newest",
        "ratio",
        "characters kept",
        "runs",
        "ms a run",
    ):
        table.add_column(name, justify="right")
    for score in scores:
        table.add_row(
            f"{score.source} ({score.conversations})",
            f"{score.threshold:,}",
            f"{score.questions:,}",
            f"{score.whole:,}",
            f"[bold]{score.served:,}[/bold]",
            f"{score.keep_last:,}",
            f"{score.ratio:.2f}",
            f"{score.characters / max(1, score.past):.3f}",
            f"{score.runs:,}",
            f"{score.seconds / max(1, score.runs) * 1e3:,.0f}",
        )
    return table


def _answers_table(scores: Sequence[AnswerScore]) -> Table:
    table = Table(
        title="Questions about talk: what a model answers by the context at the end",
        caption="right: of all answers, lowest and highest replicate; judged: by rules / by the model / by neither",
    )
    for name in ("conversations", "context", "recall"):
        table.add_column(name)
    for name in ("characters", "questions", "right", "judged", "failed", "recalls", "USD"):
        table.add_column(name, justify="right", no_wrap=True)
    for before, score in zip([None, *scores], scores, strict=False):
        if before and before.source != score.source:
            table.add_section()
        table.add_row(
            f"{score.source} ({score.conversations})",
            score.context,
            "once" if score.may_recall else "-",
            f"{score.characters:,}",
            f"{score.questions:,} x {score.replicates}",
            f"[bold]{score.right:.3f}[/bold] ({score.lowest:.2f}-{score.highest:.2f})",
            f"{score.by_rules} / {score.by_model} / {score.undecided}",
            f"{score.failed + score.stopped:,}",
            f"{score.recalls:,}",
            "?" if score.usd is None else f"{score.usd:.2f}",
        )
    return table


def _speed_table(timings: Sequence[Timing]) -> Table:
    table = Table(title="Extractive summarizer: time for one extract")
    for name in ("characters of past", "messages", "seconds", "seconds a million"):
        table.add_column(name, justify="right")
    for timing in timings:
        rate = timing.seconds / timing.characters * 1e6
        table.add_row(f"{timing.characters:,}", f"{timing.messages:,}", f"{timing.seconds:.2f}", f"{rate:.2f}")
    return table
