"""Measures the service against what its database does by itself, and prints one table; see README.md here."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bench.assembly_rows import assembly
from bench.compaction_rows import compaction
from bench.database_rows import database
from bench.estimate_rows import estimate
from bench.http_rows import append, context, length, revalidation, wakeups
from bench.machine import Cores
from bench.measure import progress
from bench.plan import Plan
from bench.reference import find_pgbench
from bench.report import document, load_average, machine, print_table
from bench.servers import Servers
from bench.worker_rows import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measure import Row

ROWS: Final[dict[str, Callable[[Plan], list[Row]]]] = {
    "append": append,
    "context": context,
    "revalidation": revalidation,
    "database": database,
    "checks": checks,
    "wakeups": wakeups,
    "length": length,
    "assembly": assembly,
    "compaction": compaction,
    "estimate": estimate,
}
TRANSCRIPTS: Final = Path(
    os.environ.get("PALIMPSEST_TRANSCRIPTS", Path(__file__).parents[1].parent / "shared" / "data")
)
SHORT_SECONDS: Final = 0.3


def main(
    *,
    seconds: Annotated[int, typer.Option(help="Seconds that each side runs in each round.", min=1)] = 2,
    rounds: Annotated[int, typer.Option(help="Rounds; the medians over them are shown.", min=1)] = 5,
    only: Annotated[list[str] | None, typer.Option(help=f"A row, may be repeated: {', '.join(ROWS)}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with every round instead of the table.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Only find out whether everything runs.")] = False,
    no_pgbench: Annotated[bool, typer.Option("--no-pgbench", help="Use asyncpg for the reference.")] = False,
) -> None:
    """Measure the service against the bare database, on servers of its own."""
    if unknown := sorted(set(only or ()) - set(ROWS)):
        raise typer.BadParameter(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}", param_hint="--only")
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
        for name in only or ROWS:
            progress(f"{name}:")
            rows += ROWS[name](plan)
        on = machine(plan, before)
    if as_json:
        json.dump(document(rows, on), sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        print_table(rows, on)


if __name__ == "__main__":
    typer.run(main)
