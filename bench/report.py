"""The report: one table for people, one document for programs, and the machine that it holds for."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.load.http_load import has_wrk
from bench.machine import processor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import redis

    from bench.measure import Row, Spread, Target
    from bench.plan import Plan
    from bench.plots import Curve

_LARGE: Final = 1_000
_WIDTH: Final = 150
_REASONS: Final = "docs/performance.md"
"""Where it is said why a target is not met."""


class Machine(NamedTuple):
    """What the figures were measured on."""

    processor: str
    cores: str
    load_average: float
    python: str
    postgres: str
    redis: str
    synchronous_commit: str
    fsync: str
    load_generator: str
    reference: str
    seconds: float
    rounds: int


def machine(plan: Plan, load_average: float) -> Machine:
    """Ask everybody for their version and settings."""
    with plan.servers.connect() as connection, plan.servers.broker() as broker:
        server_settings = {}
        for name in ("server_version", "synchronous_commit", "fsync"):
            row = connection.execute(f"show {name}").fetchone()
            server_settings[name] = str(row[0]) if row else ""
        return Machine(
            processor=processor(),
            cores=plan.servers.cores.describe(),
            load_average=load_average,
            python=platform.python_version(),
            postgres=server_settings["server_version"],
            redis=_redis_version(broker),
            synchronous_commit=server_settings["synchronous_commit"],
            fsync=server_settings["fsync"],
            load_generator="wrk" if has_wrk() and plan.seconds == int(plan.seconds) else "bench/load/load_client.py",
            reference=str(plan.pgbench or "bench/load/driver.py"),
            seconds=plan.seconds,
            rounds=plan.rounds,
        )


def print_table(rows: Sequence[Row], on: Machine, not_measured: Sequence[str] = ()) -> None:
    """Print the table, and the names of the rows that have a target and were not measured."""
    table = Table(title="Palimpsest: medians over the rounds (least to greatest)", title_style="bold", show_lines=True)
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("reference", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("target", justify="right")
    for row in rows:
        table.add_row(
            f"[bold]{row.name}[/bold]\n{row.what}",
            _side(row, 0),
            _side(row, 1),
            _spread(row.ratio),
            _target(row.target, met=row.meets_target),
        )
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH  # a file or a pipe has none
    if rows:
        console.print(table)
    if not_measured:
        console.print(f"not measured: {', '.join(not_measured)}")
    console.print(
        f"{on.processor}, {on.cores}, load average before {on.load_average:.1f} · Python {on.python} · "
        f"PostgreSQL {on.postgres}, synchronous_commit {on.synchronous_commit}, fsync {on.fsync} · Redis {on.redis}"
    )
    console.print(
        f"{on.rounds} rounds of {on.seconds:g} s a side, sides interleaved · load from {on.load_generator} · "
        f"reference by {on.reference}"
    )


def document(rows: Sequence[Row], on: Machine, curves: Sequence[Curve] = ()) -> dict[str, Any]:
    """Return everything that was measured."""
    return {
        "machine": on._asdict(),
        "curves": [curve.document() for curve in curves],
        "rows": [
            {
                "name": row.name,
                "what": row.what,
                "unit": row.unit.strip(),
                "measured": _figures(row, 0, row.measured),
                "reference": _figures(row, 1, row.reference),
                "ratio": row.ratio._asdict(),
                "target": row.target._asdict() if row.target else None,
                "meets_target": row.meets_target,
            }
            for row in rows
        ],
    }


def load_average() -> float:
    """Return how many processes wanted to run in the last minute, 0 where nobody knows."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _figures(row: Row, index: Literal[0, 1], name: str) -> Mapping[str, Any]:
    return {
        "name": name,
        **row.side(index)._asdict(),
        "details": row.details(index),
        "rounds": [pair[index].value for pair in row.samples],
    }


def _side(row: Row, index: Literal[0, 1]) -> str:
    """Return one side's figures, and below them who made them and at what cost."""
    figure = row.side(index)
    digits = ",.0f" if figure.median >= _LARGE else ",.3g"
    lines = [
        f"[bold]{figure.median:{digits}}{row.unit}[/bold] ({figure.low:{digits}} to {figure.high:{digits}})",
        (row.measured, row.reference)[index],
        *(f"[dim]{name} {_short(value)}[/dim]" for name, value in row.details(index).items()),
    ]
    return "\n".join(lines)


def _spread(figure: Spread) -> str:
    return f"[bold]{figure.median:.2f}[/bold]\n({figure.low:.2f} to {figure.high:.2f})"


def _target(target: Target | None, *, met: bool | None) -> str:
    if target is None:
        return "-"
    sign = "≥" if target.bound == ">=" else "≤"
    of = "" if target.of == "ratio" else " measured"
    word = "[green]met[/green]" if met else f"[yellow]not met[/yellow]: {_REASONS}"
    section = f"\n{target.reason}" if target.reason and not met else ""
    return f"{sign} {target.value:,g}{of}\n{word}{section}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _redis_version(broker: redis.Redis) -> str:
    info = broker.info("server")
    return str(info["redis_version"]) if isinstance(info, dict) else ""
