"""The report of a soak: Markdown for people, JSON for programs, a plot beside both."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from bench.soak.plot import plot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bench.soak.course import Outcome
    from bench.soak.resources import Sample
    from bench.soak.traffic import Took


def write(outcome: Outcome, folder: Path) -> Path:
    """Write report.md, report.json and plot.svg; return the first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(document(outcome), indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / "plot.svg").write_text(plot(outcome), encoding="utf-8")
    path = folder / "report.md"
    path.write_text(markdown(outcome), encoding="utf-8")
    return path


def verdict(outcome: Outcome) -> str:
    """Say in a line how it went."""
    if not outcome.breach_count:
        return f"passed: every invariant held, seed {outcome.options.seed}"
    first = outcome.breaches[0]
    return (
        f"failed: {outcome.breach_count} breaches, the first at {first.at:.1f} s: {first.invariant},"
        f" {first.conversation}: {first.detail} (seed {outcome.options.seed})"
    )


def document(outcome: Outcome) -> dict[str, Any]:
    """Return everything that was found out."""
    return {
        "verdict": verdict(outcome),
        "options": outcome.options._asdict(),
        "load_seconds": outcome.load_seconds,
        "rest_seconds": outcome.rest_seconds,
        "totals": _totals(outcome),
        "counts": dict(outcome.counts),
        "calls": _calls(outcome.took),
        "faults": [fault._asdict() for fault in outcome.faults],
        "breaches": [breach._asdict() for breach in outcome.breaches],
        "runs": list(outcome.runs),
        "process_ends": dict(outcome.ends),
        "resources": {"after_warm_up": _sample(outcome.warm), "at_rest": _sample(outcome.rest)},
        "tables": [table._asdict() for table in outcome.tables.tables] if outcome.tables else [],
        "redis_keys": dict(outcome.keys),
        "connections_left": outcome.connections_left,
        "samples": [_sample(sample) for sample in outcome.samples],
    }


def markdown(outcome: Outcome) -> str:
    """Return the report for people."""
    options = outcome.options
    parts = [
        "# Soak\n",
        f"**{verdict(outcome)}**\n",
        f"{options.seconds:g} s of load, a fault every {options.faults_every:g} s on average, seed {options.seed}.",
        f"At rest after {_seconds(outcome.rest_seconds)}.\n",
        "![plot](plot.svg)\n",
        "## Totals\n",
        _table(["what", "how many"], _totals(outcome).items()),
        "## Calls\n",
        _table(
            ["call", "answers", "a second", "p50 ms", "p99 ms", "statuses"],
            [
                (
                    kind,
                    calls["answers"],
                    f"{calls['answers'] / outcome.load_seconds:.1f}",
                    f"{calls['p50_ms']:.1f}",
                    f"{calls['p99_ms']:.1f}",
                    ", ".join(f"{status}: {count}" for status, count in calls["statuses"].items()),
                )
                for kind, calls in _calls(outcome.took).items()
            ],
        ),
        "Status 0 is no answer in time, or a connection that was refused or broke.\n",
        "## Breaches\n",
        _table(
            ["s", "invariant", "conversation", "what"],
            [(f"{at:.1f}", invariant, where, what) for at, invariant, where, what in outcome.breaches],
        )
        if outcome.breaches
        else "None.\n",
        "## Faults\n",
        _table(
            ["planned s", "begun s", "over s", "fault", "what it hit"],
            [(f"{f.planned_at:.1f}", f"{f.at:.1f}", f"{f.until:.1f}", f.kind, f.what) for f in outcome.faults],
        ),
        "## Runs\n",
        _table(["state", "reason", "runs"], [(row["state"], row["reason"] or "", row["runs"]) for row in outcome.runs]),
        "## Ends of processes\n",
        _table(["part and way", "times"], sorted(outcome.ends.items())),
        "## Resources\n",
        _resources(outcome),
        _leftovers(outcome),
    ]
    return "\n".join(parts)


def _resources(outcome: Outcome) -> str:
    if outcome.warm is None or outcome.rest is None:
        return "Not known.\n"
    peaks: dict[str, int] = defaultdict(int)
    for sample in outcome.samples:
        for name, held in sample.parts.items():
            peaks[name] = max(peaks[name], held.bytes)
    rows = []
    for name, now in outcome.rest.parts.items():
        then = outcome.warm.parts.get(name)
        if then is not None:
            rows.append(
                (
                    name,
                    f"{then.processes} / {now.processes}",
                    f"{then.bytes / 2**20:.0f} / {peaks[name] / 2**20:.0f} / {now.bytes / 2**20:.0f}",
                    f"{then.descriptors} / {now.descriptors}",
                )
            )
    header = ["part", "processes", "own memory, MB: warm / peak / at rest", "descriptors"]
    connections = f"Connections: {outcome.warm.connections} after the warm-up, {outcome.rest.connections} at rest.\n"
    return _table(header, rows) + "\n" + connections


def _leftovers(outcome: Outcome) -> str:
    keys = ", ".join(f"{key} ({length})" for key, length in sorted(outcome.keys.items())) or "none"
    parts = [f"After every service had ended: {outcome.connections_left} connections; keys in Redis: {keys}.\n"]
    if outcome.tables:
        parts += [
            f"Dead rows before the vacuum: {outcome.tables.dead_before}. Tables after it:\n",
            _table(
                ["table", "rows", "dead", "KB", "KB of values", "KB of indexes"],
                [
                    (t.name, t.live, t.dead, t.bytes >> 10, t.value_bytes >> 10, t.index_bytes >> 10)
                    for t in outcome.tables.tables
                ],
            ),
        ]
    return "\n".join(parts)


def _totals(outcome: Outcome) -> dict[str, int]:
    return {
        "conversations": outcome.conversations,
        "turns": outcome.turns,
        "messages": outcome.messages,
        "faults": len(outcome.faults),
        "checks of invariants during the load": outcome.checks,
        "calls of the model": outcome.model_calls,
        **outcome.counts,
    }


def _calls(took: Iterable[Took]) -> dict[str, dict[str, Any]]:
    by_kind: defaultdict[str, list[Took]] = defaultdict(list)
    for each in took:
        by_kind[each.kind].append(each)
    return {kind: _summary(of_kind) for kind, of_kind in sorted(by_kind.items())}


def _summary(took: Sequence[Took]) -> dict[str, Any]:
    p50, p99 = percentiles([each.seconds for each in took if each.status])
    statuses = Counter(each.status for each in took)
    return {"answers": len(took), "p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99, "statuses": dict(sorted(statuses.items()))}


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile; zeros for nothing."""
    if len(seconds) < 2:
        return (seconds[0], seconds[0]) if seconds else (0.0, 0.0)
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return cuts[49], cuts[98]


def _sample(sample: Sample | None) -> dict[str, Any] | None:
    if sample is None:
        return None
    return sample._asdict() | {"parts": {name: held._asdict() for name, held in sample.parts.items()}}


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _seconds(value: float | None) -> str:
    return "no time at all: it did not come to rest" if value is None else f"{value:.1f} s"
