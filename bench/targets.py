"""What every row is to reach, by its name; a row that is not listed here is shown for comparison, or states its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.measure import Row, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TARGETS: Final[Mapping[str, Target]] = {
    "append": Target(">=", 1.0),
    "context": Target(">=", 1.1),
    "database": Target(">=", 0.85),
    "revalidation": Target(">=", 2.5),
    "handles-context": Target(">=", 0.98),
    "handles-capped": Target(">=", 0.98),
    "append-chat": Target(">=", 0.95),
    "append-responses": Target(">=", 0.95),
    "context-chat": Target(">=", 0.95),
    "context-responses": Target(">=", 0.95),
    "checks": Target(">=", 10_000, of="measured"),
    "wakeups": Target("<=", 1.05),
    "length-append": Target("<=", 1.2),
    "length-context": Target("<=", 1.2),
    "append-under-summaries": Target("<=", 1.5),
    "compaction": Target("<=", 2, reason="Planning and cutting"),
    "compaction-again": Target("<=", 3),
    "gateway-50-p50": Target("<=", 4, of="measured"),
    "gateway-50-p99": Target("<=", 15, of="measured"),
    "gateway-2000-p50": Target("<=", 25, of="measured"),
    "gateway-2000-p99": Target("<=", 60, of="measured"),
    "gateway-held": Target("<=", 400, of="measured"),
    "summaries-held": Target(">=", 64, of="measured"),
    "summaries-memory": Target("<=", 300, of="measured"),
    "staleness": Target("<=", 150, of="measured"),
    "written-bytes": Target("<=", 2.5),
    "summary-input": Target("<=", 1.3),
}


def aimed(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with the targets of this table, which go before their own."""
    return [row._replace(target=TARGETS.get(row.name, row.target)) for row in rows]


def not_measured(rows: Sequence[Row]) -> list[str]:
    """Return the names in the table that no row has."""
    names = {row.name for row in rows}
    return [name for name in TARGETS if name not in names]
