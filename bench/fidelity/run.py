"""Measures how much of a conversation survives compaction, and prints tables; see README.md here."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Final

import structlog
import typer

from bench.fidelity.chained import chains_of, compact_ten_times
from bench.fidelity.look_ahead import BUDGETS, cuts_of, score
from bench.fidelity.plot import plot
from bench.fidelity.report import Findings, document, print_findings
from bench.fidelity.sources import ROOT, sources
from bench.fidelity.speed import time_extracts
from bench.fidelity.strategies import strategies
from bench.fidelity.talk import TalkScore, measure, threshold_of
from bench.measure import progress
from bench.reach.talks import sources as talk_sources
from cli.transcripts.readers import TranscriptError
from compaction.shapes.inner import Shape  # noqa: TC001 - the same
from runtime.settings import Settings
from worker.summarizers.extractive import ExtractiveSummarizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.fidelity.chained import Chain
    from bench.fidelity.look_ahead import Score
    from bench.fidelity.sources import Source
    from worker.summarizers.base import Summarizer

CUTS: Final = 12
SHORT_CUTS: Final = 2
SHORT_CONVERSATIONS: Final = 2
CHAINS: Final = 3
MADE_UP_TALKS: Final = 3
MODEL_VARIABLES: Final = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "PALIMPSEST_ANTHROPIC_API_KEY")


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
    shape: Annotated[Shape, typer.Option(help="The API in whose messages the conversations are.")] = "messages",
    plot_file: Annotated[Path, typer.Option("--plot", help="Where the plot goes, an SVG file.")] = ROOT
    / "bench/out/fidelity.svg",
) -> None:
    """Measure look-ahead recall, rule survival and drift of every strategy."""
    # What the product logs on the way may not stand among the figures.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    model = None if no_model else _model()
    findings = Findings(talk=_talk(talk or (), short=short), model=model.model if model else None)
    if not talk_only:
        conversation_sources = _conversations(transcripts or (), SHORT_CONVERSATIONS if short else conversations, shape)
        findings = findings._replace(
            scores=[
                row
                for source in conversation_sources
                for row in _scores(source, model, SHORT_CUTS if short else cuts, short=short)
            ],
            chains=[row for source in conversation_sources for row in _chains(source, model, 1 if short else CHAINS)],
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


def _talk(files: Sequence[Path], *, short: bool) -> list[TalkScore]:
    """Measure talk: that of files, the recorded one where none is named, and the benchmark's own."""
    rows: list[TalkScore] = []
    for source in talk_sources(files, count=MADE_UP_TALKS) if not short else talk_sources(files, count=1)[-1:]:
        threshold = threshold_of(source.talks)
        rows.append(measure(source.name, source.talks, threshold))
        progress(f"{source.name}: {rows[-1].served} answers near, by the newest alone {rows[-1].keep_last}")
    return rows


def _model() -> Summarizer | None:
    """Return the summarizer that asks a model, where the environment says which."""
    if not any(os.environ.get(name) for name in MODEL_VARIABLES):
        progress(f"model: skipped, none of {', '.join(MODEL_VARIABLES)} is set")
        return None
    # The SDK takes longer to load than all the rest.
    from worker.parts import choose_summarizer  # noqa: PLC0415

    make = choose_summarizer(Settings(summarizer="anthropic"))
    return make() if make else None


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
