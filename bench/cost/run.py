"""Prints what conversations cost under different schedules of compaction, cache included; see README.md here."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import structlog
import typer

from bench.cost.best import SwapPoints, best
from bench.cost.gaps import GAPS, HELD_OUT, TUNED, gaps
from bench.cost.ladder import recorded
from bench.cost.models import models, summarizer
from bench.cost.replay import Bill, Played
from bench.fidelity.sources import scenario, transcripts_folder
from bench.measure import progress
from cli.transcripts.readers import TranscriptError, read_transcripts
from compaction.cost.survival import Life
from compaction.policy import merge

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.cost.gaps import Habits
    from bench.cost.ladder import Recording
    from cli.transcripts.readers import Transcript
    from compaction.policy import Policy

STRATEGIES: Final = ("none", "keep_last", "thresholds", "break_even", "best")
HALVES: Final = {"all": (0, 1), "tuned": (0,), "held_out": (1,)}
"""Conversations by their place in a file, even or odd. The constants were chosen by the even ones, and by gaps that the
held-out half has none of."""


class Row(NamedTuple):
    """What the conversations of a file cost with one kind of gaps, one model and one strategy."""

    source: str
    gaps: str
    model: str
    strategy: str
    cost_usd: float
    prefix_breaks_per_100_turns: float


def main(
    *,
    transcripts: Annotated[
        list[Path] | None, typer.Option(help="A file of conversations; may be repeated.", exists=True, dir_okay=False)
    ] = None,
    policy: Annotated[str, typer.Option(help="Overrides of the policy, a JSON object.")] = "{}",
    half: Annotated[str, typer.Option(help="Conversations: all, tuned or held_out.")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Replay conversations with gaps between their turns and print what each schedule of compaction costs."""
    # What the product logs on the way may not stand among the figures.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if half not in HALVES:
        raise typer.BadParameter(f"one of {', '.join(HALVES)}", param_hint="--half")
    try:
        in_force = merge(msgspec.json.decode(policy, type=dict[str, Any]))
        sources = list(_sources(transcripts or (), in_force, HALVES[half]))
    except (TranscriptError, OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    habits = HELD_OUT if half == "held_out" else TUNED
    rows = [row for source, recordings in sources for row in _rows(source, recordings, habits)]
    if as_json:
        json.dump({"rows": [row._asdict() for row in rows]}, sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        _print(rows)


def _sources(paths: Sequence[Path], policy: Policy, places: Sequence[int]) -> Iterator[tuple[str, list[Recording]]]:
    """Yield the conversations of files, else the recorded ones that are there, else the demo's story."""
    taken = False
    for path in paths or sorted(transcripts_folder().glob("*.jsonl")):
        every = [_recorded(path, place, each, policy) for place, each in enumerate(read_transcripts(path))]
        chosen = every if len(places) > 1 else [each for at, each in enumerate(every) if at % 2 in places]
        if chosen:
            taken = True
            yield path.stem, chosen
    if not taken and not paths:
        story = scenario()
        yield story.name, [recorded(story.name, each, None, policy) for each in story.conversations]


def _recorded(path: Path, place: int, transcript: Transcript, policy: Policy) -> Recording:
    messages = [{"role": each.role, "content": msgspec.json.decode(each.content)} for each in transcript.messages]
    system = msgspec.json.decode(transcript.system) if transcript.system else None
    return recorded(f"{path.stem} {place}", messages, system, policy)


def _rows(source: str, recordings: Sequence[Recording], habits: Habits) -> list[Row]:
    progress(f"{source}: {len(recordings)} conversation(s), {sum(len(each.calls) for each in recordings):,} calls")
    bills: dict[tuple[str, str, str], Bill] = {}
    lives: list[Life] = []
    for recording in recordings:
        points = SwapPoints(recording)
        for kind in GAPS:
            between = gaps(kind, recording.requests, recording.name, habits)
            for model, prices in models():
                played = Played(recording, between, prices, summarizer())
                every = {
                    "none": played.none,
                    "keep_last": played.keep_last,
                    "thresholds": played.thresholds,
                    "break_even": played.break_even(lives),
                }
                # The grid of swap points is coarse: a schedule that another strategy came upon is a schedule as well.
                bounded = [every["thresholds"], every["break_even"], best(played, points)]
                every["best"] = min(bounded, key=lambda bill: bill.usd)
                for strategy, bill in every.items():
                    key = (kind, model, strategy)
                    bills[key] = bills.get(key, Bill()).plus(bill)
        lives.append(Life(len(recording.calls), has_ended=True))
    return [
        Row(source, kind, model, strategy, round(bill.usd, 6), round(100 * bill.breaks / max(1, bill.calls), 3))
        for (kind, model, strategy), bill in bills.items()
    ]


def _print(rows: Sequence[Row]) -> None:
    """Print a line for each file, kind of gaps and model, and what all of them come to."""
    print(f"{'USD':<46}" + "".join(f"{name:>12}" for name in STRATEGIES) + f"{'of best':>9}{'breaks':>16}")
    by_place: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        by_place.setdefault((row.source, row.gaps, row.model), {})[row.strategy] = row
    sums: dict[str, dict[str, float]] = {}
    for (source, kind, model), each in by_place.items():
        usd = {name: each[name].cost_usd for name in STRATEGIES}
        breaks = [f"{each[name].prefix_breaks_per_100_turns:.2f}" for name in ("thresholds", "break_even")]
        _line(f"{source}, {kind}, {model}", usd, " > ".join(breaks))
        before = sums.setdefault(kind, dict.fromkeys(STRATEGIES, 0.0))
        sums[kind] = {name: before[name] + usd[name] for name in STRATEGIES}
    for kind, total in sums.items():
        _line(f"all, {kind}", total, "")


def _line(name: str, usd: Mapping[str, float], breaks: str) -> None:
    share = usd["break_even"] / usd["best"] if usd["best"] else 1.0
    print(f"{name:<46}" + "".join(f"{usd[each]:>12.4f}" for each in STRATEGIES) + f"{share:>9.3f}{breaks:>16}")


if __name__ == "__main__":
    typer.run(main)
