"""Measures the service against what its database does by itself, and prints one table; see README.md here."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import structlog
import typer

from bench.curves import by_connections, by_context_size, by_length, by_result_size
from bench.load.reference import find_pgbench
from bench.machine import Cores
from bench.measure import progress
from bench.plan import Plan
from bench.plots import write
from bench.report import document, load_average, machine, print_table
from bench.rows.amortization import amortization
from bench.rows.assembly import assembly
from bench.rows.compaction import compaction
from bench.rows.database import database
from bench.rows.estimate import estimate
from bench.rows.gateway import gateway
from bench.rows.handles import handles
from bench.rows.http import append, context, length, revalidation, wakeups
from bench.rows.shapes import shapes
from bench.rows.staleness import staleness
from bench.rows.summaries import append_under_summaries, summaries
from bench.rows.worker import checks
from bench.servers import Servers
from bench.targets import aimed, not_measured

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measure import Row
    from bench.plots import Curve

ROWS: Final[dict[str, Callable[[Plan], list[Row]]]] = {
    "append": append,
    "context": context,
    "revalidation": revalidation,
    "handles": handles,
    "shapes": shapes,
    "gateway": gateway,
    "database": database,
    "checks": checks,
    "wakeups": wakeups,
    "length": length,
    "assembly": assembly,
    "compaction": compaction,
    "summaries": summaries,
    "append-under-summaries": append_under_summaries,
    "staleness": staleness,
    "amortization": amortization,
    "estimate": estimate,
}
CURVES: Final[dict[str, Callable[[Plan], list[Curve]]]] = {
    "by-length": by_length,
    "by-result-size": by_result_size,
    "by-connections": by_connections,
    "by-context-size": by_context_size,
}
PLOTS: Final = Path(__file__).parent / "out"
TRANSCRIPTS: Final = Path(
    os.environ.get("PALIMPSEST_TRANSCRIPTS", Path(__file__).parents[1].parent / "shared" / "data")
)
SHORT_SECONDS: Final = 0.3


def main(
    *,
    seconds: Annotated[int, typer.Option(help="Seconds that each side runs in each round.", min=1)] = 2,
    rounds: Annotated[int, typer.Option(help="Rounds; the medians over them are shown.", min=1)] = 5,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Rows or curves, may be repeated: {', '.join((*ROWS, *CURVES))}."),
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="Every curve after the rows, with a plot of each.")] = False,
    out: Annotated[Path, typer.Option(help="Directory of the plots.")] = PLOTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with every round instead of the table.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Only find out whether everything runs.")] = False,
    no_pgbench: Annotated[bool, typer.Option("--no-pgbench", help="Use asyncpg for the reference.")] = False,
) -> None:
    """Measure the service against the bare database, on servers of its own."""
    if unknown := sorted(set(only or ()) - set(ROWS) - set(CURVES)):
        there = ", ".join((*ROWS, *CURVES))
        raise typer.BadParameter(f"no row or curve {', '.join(unknown)}; there are {there}", param_hint="--only")
    names = only or (*ROWS, *(CURVES if long else ()))
    # Some rows run the product's code in this process: what it logs is not to stand in the document.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("warning"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    before = load_average()
    cores = Cores()
    with cores.on(cores.rest), Servers(cores) as servers:
        plan = Plan(
            servers=servers,
            seconds=SHORT_SECONDS if short else seconds,
            rounds=1 if short else rounds,
            short=short,
            pgbench=None if no_pgbench else find_pgbench(),
            transcripts=TRANSCRIPTS,
        )
        rows: list[Row] = []
        curves: list[Curve] = []
        for name in names:
            progress(f"{name}:")
            if name in ROWS:
                rows += aimed(ROWS[name](plan))
            else:
                curves += CURVES[name](plan)
        on = machine(plan, before)
    for plot in write(curves, out):
        progress(f"wrote {plot}")
    if as_json:
        json.dump(document(rows, on, curves), sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        print_table(rows, on, not_measured=() if only else not_measured(rows))


if __name__ == "__main__":
    typer.run(main)
