"""Measures how much of a conversation survives compaction, and prints tables; see README.md here."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Final

import structlog
import typer

from bench.answers.asking import asker_of
from bench.answers.consent import LIMIT, Consent, consent
from bench.answers.kept import Kept
from bench.answers.measuring import QUESTIONS, REPLICATES, Measuring, estimate, plan
from bench.fidelity.chained import COMPACTIONS, chains_of, compact_ten_times
from bench.fidelity.look_ahead import BUDGETS, cuts_of, score
from bench.fidelity.model import asked_model, chains_cost, look_ahead_cost
from bench.fidelity.plot import plot
from bench.fidelity.report import Answered, Findings, document, print_findings
from bench.fidelity.sources import ROOT, sources
from bench.fidelity.speed import time_extracts
from bench.fidelity.strategies import strategies
from bench.fidelity.talk import TalkScore, measure, threshold_of
from bench.measure import progress
from bench.reach.talks import sources as talk_sources
from cli.transcripts.readers import TranscriptError
from compaction.shapes.inner import Shape  # noqa: TC001 - the same
from worker.summarizers.extractive import ExtractiveSummarizer
from worker.summarizers.prices import PriceTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.answers.measuring import Planned
    from bench.fidelity.chained import Chain
    from bench.fidelity.look_ahead import Score
    from bench.fidelity.model import AskedModel
    from bench.fidelity.sources import Source
    from bench.reach.talks import Source as TalkSource
    from worker.summarizers.base import Summarizer

CUTS: Final = 12
SHORT_CUTS: Final = 2
SHORT_CONVERSATIONS: Final = 2
CHAINS: Final = 3
MADE_UP_TALKS: Final = 3
SHORT_QUESTIONS: Final = 3


def main(
    *,
    transcripts: Annotated[
        list[Path] | None, typer.Option(help="A file of conversations; may be repeated.", exists=True, dir_okay=False)
    ] = None,
    talk: Annotated[
        list[Path] | None,
        typer.Option(help="A file of talk with questions; may be repeated.", exists=True, dir_okay=False),
    ] = None,
    talk_only: Annotated[bool, typer.Option("--talk-only", help="Measure everyday talk alone: seconds.")] = False,
    cuts: Annotated[int, typer.Option(help="Points at which each conversation is cut.", min=1)] = CUTS,
    conversations: Annotated[int | None, typer.Option(help="Take only so many of each file.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the tables.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Only find out whether everything runs.")] = False,
    no_model: Annotated[bool, typer.Option("--no-model", help="Ask no model, even where one is set up.")] = False,
    questions: Annotated[
        int, typer.Option(help="Questions of each talk that a model is asked; 0 for none.", min=0)
    ] = QUESTIONS,
    replicates: Annotated[int, typer.Option(help="How often each question is asked.", min=1)] = REPLICATES,
    limit: Annotated[float, typer.Option(help="USD that may be spent without a question.", min=0)] = LIMIT,
    yes: Annotated[bool, typer.Option("--yes", help="Spend whatever it costs.")] = False,
    answers_file: Annotated[
        Path, typer.Option("--answers", help="Where answers are kept: what stands there is not asked again.")
    ] = ROOT / "bench/out/answers.jsonl",
    shape: Annotated[Shape, typer.Option(help="The API in whose messages the conversations are.")] = "messages",
    plot_file: Annotated[Path, typer.Option("--plot", help="Where the plot goes, an SVG file.")] = ROOT
    / "bench/out/fidelity.svg",
) -> None:
    """Measure look-ahead recall, rule survival and drift of every strategy."""
    # What the product logs on the way may not stand among the figures.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    model = None if no_model else asked_model()
    conversation_sources = (
        [] if talk_only else _conversations(transcripts or (), SHORT_CONVERSATIONS if short else conversations, shape)
    )
    talks = _talks(talk or (), short=short)
    findings = Findings(talk=_talk(talks))
    cuts, chains = (SHORT_CUTS, 1) if short else (cuts, CHAINS)
    planned = (
        plan(_asked_about(talks), min(questions, SHORT_QUESTIONS) if short else questions)
        if model and questions
        else []
    )
    agreed = Consent(given=False)
    if model:
        asked, summaries = estimate(planned, replicates)
        costs = {"questions about talk": asked, "summaries of talk": summaries} | {
            f"{source.name}: summaries": look_ahead_cost(source, cuts) + chains_cost(source, chains, COMPACTIONS)
            for source in conversation_sources
        }
        prices = PriceTable.of(model.settings)
        agreed = consent(costs, model.name, prices, Decimal(str(limit)), is_yes=yes)
    if model and agreed.given:
        kept = Kept(answers_file)
        findings = findings._replace(model=model.name, answered=_answers(model, planned, kept, replicates, agreed))
    summarizer = model.summarizer if model and agreed.given else None
    if not talk_only:
        findings = findings._replace(
            scores=[row for source in conversation_sources for row in _scores(source, summarizer, cuts, short=short)],
            chains=[row for source in conversation_sources for row in _chains(source, summarizer, chains)],
            timings=time_extracts(conversation_sources, short=short),
        )
        _draw(findings, plot_file)
    if as_json:
        json.dump(document(findings), sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        print_findings(findings)


def _draw(findings: Findings, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(plot(findings), encoding="utf-8")
    progress(f"plot: {file}")


def _conversations(transcripts: Sequence[Path], most: int | None, shape: Shape) -> list[Source]:
    """Return what look-ahead recall is measured on. Raises BadParameter where there is nothing."""
    try:
        conversation_sources = sources(transcripts, most=most, shape=shape)
    except (TranscriptError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="--transcripts") from None
    if not conversation_sources:
        raise typer.BadParameter("no conversation of 20 messages or more", param_hint="--transcripts")
    return conversation_sources


def _talks(files: Sequence[Path], *, short: bool) -> list[TalkSource]:
    """Return talk: that of files, the recorded one where none is named, and the benchmark's own."""
    if short and not files:
        return talk_sources(files, count=1)[-1:]
    return talk_sources(files, count=1 if short else MADE_UP_TALKS)


def _talk(talks: Sequence[TalkSource]) -> list[TalkScore]:
    """Count the answers that stand in the contexts."""
    rows: list[TalkScore] = []
    for source in talks:
        rows.append(measure(source.name, source.talks, threshold_of(source.talks)))
        progress(f"{source.name}: {rows[-1].served} answers near, by the newest alone {rows[-1].keep_last}")
    return rows


def _asked_about(talks: Sequence[TalkSource]) -> Sequence[TalkSource]:
    """Return the talk that a model is asked about: recorded talk, the benchmark's own only where there is none."""
    if len(talks) == 1:
        progress("questions: no recorded talk (talk-*.jsonl), so that a model is asked about the benchmark's own")
    return talks[:-1] or talks


def _answers(model: AskedModel, planned: Sequence[Planned], kept: Kept, replicates: int, agreed: Consent) -> Answered:
    measuring = Measuring(
        asker_of(model.provider, model.settings), model.summarizer, kept, replicates=replicates, limit=agreed.limit
    )
    scores = list(measuring.scores(planned))
    if measuring.stopped:
        progress(f"questions: stopped at the limit of ${agreed.limit}; another run goes on with what is missing")
    return Answered(scores, measuring.spent, measuring.stopped)


def _scores(source: Source, model: Summarizer | None, cuts: int, *, short: bool) -> Sequence[Score]:
    at = [cut for messages in source.conversations for cut in cuts_of(messages, cuts, in_pieces=source.in_pieces)]
    rows: list[Score] = []
    for strategy in strategies(model, in_pieces=source.in_pieces):
        budgets = BUDGETS[1:2] if short else BUDGETS
        for budget in budgets if strategy.is_sized else (None,):
            row = score(source, at, strategy, budget)
            progress(f"{source.name}: {strategy.name} at {budget or 1:.2f}: bound recall {row.bound_recall:.3f}")
            rows.append(row)
    return rows


def _chains(source: Source, model: Summarizer | None, most: int) -> Sequence[Chain]:
    chains = chains_of(source, most=most)
    if not chains:
        progress(f"{source.name}: too short to be compacted ten times")
        return []
    summarizers = [ExtractiveSummarizer(), *([model] if model else [])]
    rows = [compact_ten_times(source, chains, one, pinned=pinned) for one in summarizers for pinned in (False, True)]
    progress(f"{source.name}: compacted ten times")
    return rows


if __name__ == "__main__":
    typer.run(main)
