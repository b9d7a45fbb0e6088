"""Runs the whole service under mixed load and random faults and checks its invariants; see ../README.md."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from bench.measure import progress
from bench.soak.course import Options, soak
from bench.soak.report import verdict, write

OUT: Final = Path(__file__).parents[1] / "out" / "soak"
MINUTES: Final = 3.0


def main(
    *,
    minutes: Annotated[float | None, typer.Option(help="Minutes of load; 3 by default.", min=0.2)] = None,
    hours: Annotated[float | None, typer.Option(help="Hours of load, instead of minutes.", min=0.01)] = None,
    faults_every: Annotated[float, typer.Option(help="Seconds from fault to fault, on average.", min=0.5)] = 5.0,
    seed: Annotated[int | None, typer.Option(help="Makes the same faults and clients again.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.md, report.json, plot.svg and service.log.")] = OUT,
) -> None:
    """Soak an installation of its own; exit with 1 when an invariant did not hold."""
    if minutes is not None and hours is not None:
        raise typer.BadParameter("minutes or hours, not both", param_hint="--hours")
    seconds = hours * 3_600 if hours is not None else (minutes if minutes is not None else MINUTES) * 60
    chosen = seed if seed is not None else random.SystemRandom().randrange(1_000_000)
    progress(f"seed {chosen}, {seconds:g} s of load, a fault every {faults_every:g} s")
    out.mkdir(parents=True, exist_ok=True)
    outcome = soak(Options(seconds, faults_every, chosen), out / "service.log")
    path = write(outcome, out)
    print(verdict(outcome))
    progress(f"report: {path}")
    sys.exit(1 if outcome.breach_count else 0)


if __name__ == "__main__":
    typer.run(main)
