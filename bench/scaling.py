#!/usr/bin/env python3
"""A sizing table from unit costs, by queueing theory: `make scaling`. docs/scaling.md says what to make of it.

Nothing is run: the unit costs were measured (`make bench`) or are said to be assumed, so is the load, and the rest is
arithmetic. Stations are M/M/c queues, after Erlang (1917) as in Kleinrock, "Queueing Systems" (1975), volume 1, section
3.5; what is under way at the same time is Little's law (1961).
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_A_DAY: Final = 86_400


@dataclass(frozen=True)
class UnitCosts:
    """CPU µs of each process for each piece of work, and bytes; medians of `make bench` on two virtual cores."""

    append_api: float = 283
    append_postgres: float = 303
    context_api: float = 183
    context_postgres: float = 214
    check_worker: float = 27
    check_postgres: float = 17
    """The two statements by themselves; the database's share of a batch is not measured apart."""
    compaction_worker: float = 15_000
    """A run without a model: 2.8 ms of it are computing on 500 KB (row `compaction-run`); the rest, its statements, is
    assumed."""
    compaction_postgres: float = 10_000
    """Assumed: reading and writing some hundred KB, and ten statements."""
    summary_seconds: float = 20
    """Seconds that a model takes for a summary of 4,096 tokens at some 200 a second: assumed, not measured."""
    summary_worker: float = 40_000
    """Assumed: rendering, the guard, JSON and TLS of a summary's calls."""
    summary_tokens: float = 29_000
    """Tokens of a summary's call: 100,000 characters read (`summary_input_max_chars`), 4,096 written."""
    row_bytes: float = 120
    """Bytes in Postgres of a message beside its content, index included (`python -m bench.partitioning`)."""
    wal_factor: float = 2.5
    """Bytes of log for each byte stored, full-page images included: assumed; measure yours."""


@dataclass(frozen=True)
class Load:
    """What a day brings."""

    conversations: float
    turns: float = 20
    """Turns of a conversation, each with one context and one append of two messages."""
    message_bytes: float = 1_500
    """Bytes of a message."""
    compactions: float = 0.5
    """Runs without a model in a conversation: most conversations never reach a threshold."""
    summaries: float = 0.1
    peak: float = 3.0
    """Rate of the busiest hour over the day's mean."""


@dataclass(frozen=True)
class Rules:
    """How full things may be."""

    utilization: float = 0.6
    """Of a processor core, at the peak."""
    pool: int = 8
    """Connections of each of an API process's two uses, and of a worker's one (PALIMPSEST_DATABASE_POOL_SIZE)."""
    threads: int = 64
    """Summaries of a worker at a time (PALIMPSEST_SUMMARIES_CONCURRENCY)."""


@dataclass(frozen=True)
class Sizing:
    """A row of the table; all of it at the peak, but for bytes."""

    conversations_a_day: float
    turns_a_second: float
    api_processes: int
    api_wait_p99_ms: float
    checks_processes: int
    summaries_at_once: float
    summaries_workers: int
    postgres_cores: float
    connections: int
    model_tokens_a_minute: float
    gigabytes_a_day: float
    wal_megabytes_a_second: float


def erlang_c(servers: int, offered: float) -> float:
    """Return the probability that who comes has to wait, with `offered` = arrivals x service time (erlangs)."""
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def wait_quantile(servers: int, arrivals: float, service: float, quantile: float = 0.99) -> float:
    """Return the seconds that `quantile` of those who come do not wait longer than; infinite where the queue grows."""
    offered = arrivals * service
    if offered >= servers:
        return math.inf
    waits = erlang_c(servers, offered)
    if waits <= 1 - quantile:
        return 0.0
    return math.log(waits / (1 - quantile)) * service / (servers - offered)


def size(load: Load, costs: UnitCosts | None = None, rules: Rules | None = None) -> Sizing:
    """Return what a load needs."""
    costs, rules = costs or UnitCosts(), rules or Rules()
    conversations = load.conversations / SECONDS_A_DAY * load.peak
    turns = conversations * load.turns
    compactions, summaries = conversations * load.compactions, conversations * load.summaries

    api = turns * (costs.append_api + costs.context_api) / 1e6
    api_processes = max(2, math.ceil(api / rules.utilization))
    checks = (turns * costs.check_worker + compactions * costs.compaction_worker) / 1e6
    checks_processes = max(2, math.ceil(checks / rules.utilization))
    at_once = summaries * costs.summary_seconds
    # As many places as 99 of 100 that come find free, or the computing around the calls if that takes more.
    places = math.ceil(at_once)
    while erlang_c(places, at_once) > 1 / 100:
        places += 1
    workers = max(2, math.ceil(places / rules.threads), math.ceil(summaries * costs.summary_worker / 1e6))
    postgres = (
        turns * (costs.append_postgres + costs.context_postgres + costs.check_postgres)
        + (compactions + summaries) * costs.compaction_postgres
    ) / 1e6
    stored = load.conversations * load.turns * 2 * (load.message_bytes + costs.row_bytes)
    # Each its pool, and one for its heartbeat: of a checks worker's processes only one has it, so this is the most.
    background = (checks_processes + workers + 1) * (rules.pool + 1)
    return Sizing(
        conversations_a_day=load.conversations,
        turns_a_second=turns,
        api_processes=api_processes,
        api_wait_p99_ms=1e3 * wait_quantile(api_processes, turns * 2, api / (turns * 2)),
        checks_processes=checks_processes,
        summaries_at_once=at_once,
        summaries_workers=workers,
        postgres_cores=postgres / rules.utilization,
        connections=api_processes * 2 * rules.pool + background,
        model_tokens_a_minute=summaries * costs.summary_tokens * 60,
        gigabytes_a_day=stored / 1e9,
        wal_megabytes_a_second=stored / SECONDS_A_DAY * load.peak * costs.wal_factor / 1e6,
    )


@dataclass(frozen=True)
class Ceilings:
    """What one installation may have; examples, to be replaced by yours."""

    model_tokens_a_minute: float = 4_000_000
    disk_gigabytes: float = 16_000
    days_kept: float = 365
    postgres_cores: float = 32
    connections: float = 500


def limits(load: Load, costs: UnitCosts | None = None, ceilings: Ceilings | None = None) -> list[tuple[str, float]]:
    """Return what is reached first, second and so on, and at how many conversations a day."""
    ceilings = ceilings or Ceilings()
    # At a size where no minimum counts; everything but processes grows in proportion.
    at = size(replace(load, conversations=1e8), costs)
    use = {
        "the model account's tokens a minute": at.model_tokens_a_minute / ceilings.model_tokens_a_minute,
        "the database's disk": at.gigabytes_a_day * ceilings.days_kept / ceilings.disk_gigabytes,
        "the database's cores": at.postgres_cores / ceilings.postgres_cores,
        "connections without PgBouncer": at.connections / ceilings.connections,
    }
    return sorted(((name, at.conversations_a_day / share) for name, share in use.items()), key=lambda each: each[1])


COLUMNS: Final[tuple[tuple[str, Callable[[Sizing], str]], ...]] = (
    ("conversations a day", lambda row: f"{row.conversations_a_day:,.0f}"),
    ("turns/s", lambda row: f"{row.turns_a_second:,.1f}"),
    ("API processes", lambda row: f"{row.api_processes}"),
    ("wait p99 ms", lambda row: f"{row.api_wait_p99_ms:.1f}"),
    ("checks processes", lambda row: f"{row.checks_processes}"),
    ("summaries at once", lambda row: f"{row.summaries_at_once:,.1f}"),
    ("summaries workers", lambda row: f"{row.summaries_workers}"),
    ("model tokens/min", lambda row: f"{row.model_tokens_a_minute:,.0f}"),
    ("Postgres cores", lambda row: f"{row.postgres_cores:.2f}"),
    ("connections", lambda row: f"{row.connections}"),
    ("GB a day", lambda row: f"{row.gigabytes_a_day:,.1f}"),
    ("WAL MB/s", lambda row: f"{row.wal_megabytes_a_second:.2f}"),
)
SIZES: Final = (1_000, 10_000, 100_000, 300_000, 1_000_000)


def table(rows: list[Sizing]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| " + " | ".join(name for name, _ in COLUMNS) + " |",
        "|" + "---:|" * len(COLUMNS),
        *("| " + " | ".join(cell(row) for _, cell in COLUMNS) + " |" for row in rows),
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table, and what is reached first."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = Load(conversations=0)
    for name, value in asdict(given).items():
        if name != "conversations":
            arguments.add_argument(f"--{name.replace('_', '-')}", type=float, default=value)
    wanted = vars(arguments.parse_args())
    as_json = wanted.pop("json")
    load = replace(given, **wanted)
    rows = [size(replace(load, conversations=count)) for count in SIZES]
    if as_json:
        print(json.dumps({"load": wanted, "costs": asdict(UnitCosts()), "rows": [asdict(row) for row in rows]}))
        return
    print(table(rows))
    print()
    for name, count in limits(load):
        print(f"{count:>14,.0f} conversations a day: {name}")


if __name__ == "__main__":
    main()
