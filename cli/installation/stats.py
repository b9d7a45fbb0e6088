"""`palimpsest stats`: what an installation holds, saves, spends and has left to do; or what the API tells a tenant."""

from __future__ import annotations

from collections import Counter
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.exceptions import RedisError
from rich.console import Console
from rich.text import Text

from cli.client.client import ServiceClient
from cli.output import failed, print_json
from cli.tables import PlainTable, columns, money_of_calls, print_table
from runtime.addresses.shown_address import BROKER_PORT, DATABASE_PORT, shown_address
from runtime.broker import QUEUES, QueueDepths
from store.conversations import usages
from store.conversations.usages import SavedDay
from store.engine import owner_engine, transaction
from store.operations import diagnosis, processes, statistics
from store.operations.statistics import Day, Sizes
from store.recall import requests
from store.tenants import tenants

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Engine

    from cli.options import Service
    from runtime.settings import Settings
    from store.operations.diagnosis import ProcessSeen
    from store.operations.processes import Backlog

_GONE: Final = "gone"
PRICES_HINT: Final = (
    "name the conversation's `model`, or set a price by the policy key `model_prices` or PALIMPSEST_SUMMARIZER_PRICES"
)
_NO_CALLS: Final = SavedDay(date.min, 0, 0, 0, 0, 0, 0, 0, None, None, None)


class Statistics(NamedTuple):
    """An installation, or one tenant of it; `days` are the newest first."""

    tenants: int
    sizes: Sizes
    runs: Mapping[tuple[str, str | None], int]
    """How many ended, or stand, with a state and a reason."""
    days: Sequence[Day]
    backlog: Backlog
    depths: Mapping[str, int | None]
    """Messages that wait in the broker's queues; None where it does not answer."""
    processes: Sequence[ProcessSeen]
    recalls: Mapping[str, int]
    """Of the API that were written down: how many, those that found something, those that needed what had left."""
    regret: Mapping[str, int]
    """Messages that came back, by the step that had taken them out of the context."""
    calls: SavedDay
    """Of turns that came with their usage, in all these days: what their calls took in, and what was saved of it."""


def run_stats(settings: Settings, tenant: str | None, days: int, *, as_json: bool) -> int:
    """Print the figures of all tenants, or of one; 1 if there is no such one."""
    engine = owner_engine(settings.database_url.get_secret_value())
    try:
        figures = _read(engine, settings, tenant, days)
    finally:
        engine.dispose()
    if figures is None:
        return failed(f"there is no tenant {tenant!r}")
    alive = settings.heartbeat_seconds * processes.MISSED_BEATS
    if as_json:
        print_json(_document(figures, alive))
    else:
        console = Console()
        console.print(_describe_source(settings, tenant), style="dim", markup=False, highlight=False, soft_wrap=True)
        _print(figures, alive, console)
    return 0


def _describe_source(settings: Settings, tenant: str | None) -> str:
    """Return where the figures are from."""
    database = shown_address(settings.database_url.get_secret_value(), DATABASE_PORT)
    broker = shown_address(settings.broker_url.get_secret_value(), BROKER_PORT)
    whose = "all tenants" if tenant is None else f"the tenant {tenant}"
    return f"Of {whose}, from the database at {database} (PALIMPSEST_DATABASE_URL) and Redis at {broker}."


def run_tenant_stats(service: Service, days: int, *, as_json: bool) -> int:
    """Print what the API tells a tenant of itself: its days, its budget, and whether the service is whole."""
    with ServiceClient(*service) as client:
        usage, parts = client.usage(days), client.readiness()
    if as_json:
        print_json({"usage": usage, "services": parts})
        return 0
    console = Console()
    console.print(
        f"Of the tenant of this key, from the API at {service.url}. Conversations, runs and processes are not among "
        "it: without --url and --key, palimpsest stats has them from the database.",
        style="dim",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    today, limits = usage["today"], usage["today"]["limits"]
    of = {name: "" if limits[name] is None else f" of {limits[name]}" for name in limits}
    console.print(
        f"Today: {today['spent']['tokens']:,} tokens{of['tokens']} and {_spent(today)} USD{of['cost_usd']} for "
        f"summaries; {today['waiting_summaries']:,} wait for another day's budget",
        markup=False,
    )
    counts = ("calls", "read", "written", "USD")
    table = columns(("day", *counts), numbers=counts, title="Models, by day (UTC)")
    for day in usage["days"]:
        numbers = (day["model_calls"], day["input_tokens"], day["output_tokens"])
        money = money_of_calls(day["cost_usd"], day["model_calls"], day["unpriced_calls"])
        table.add_row(day["day"], *(f"{number:,}" for number in numbers), money)
    print_table(table, console)
    states = ", ".join(f"{name} {state}" for name, state in parts.items())
    console.print(f"Service: {states}", markup=False, soft_wrap=True)
    return 0


def _read(engine: Engine, settings: Settings, tenant: str | None, days: int) -> Statistics | None:
    with engine.begin() as connection:
        owners = tenants.named(connection, tenant)
        backlog = processes.backlog(connection)
        seen = diagnosis.processes_seen(connection)
    if tenant is not None and not owners:
        return None
    sizes: Counter[str] = Counter()
    outcomes: Counter[tuple[str, str | None]] = Counter()
    by_day: dict[Any, Day] = {}
    calls = _NO_CALLS
    recalls: Counter[str] = Counter(recalls=0, found=0, missed=0)
    regret: Counter[str] = Counter()
    for owner in owners:
        with transaction(engine, owner.id, one_moment=True) as connection:
            sizes.update(statistics.sizes(connection, owner.id)._asdict())
            outcomes.update(
                {(row.state, row.reason): row.runs for row in statistics.outcomes(connection, owner.id, days)}
            )
            for day in statistics.daily(connection, owner.id, days):
                earlier = by_day.get(day.day)
                by_day[day.day] = day if earlier is None else _plus(earlier, day)
            for saved in usages.saved_daily(connection, owner.id, days):
                calls = calls.plus(saved)
            asked = requests.read_figures(connection, owner.id, days)
            recalls.update(asked.totals._asdict())
            for each in asked.regrets:
                regret[each.step] += each.messages
    depths = _depths(settings)
    return Statistics(
        len(owners), Sizes(**sizes), outcomes, list(by_day.values()), backlog, depths, seen, recalls, regret, calls
    )


def _plus(one: Day, other: Day) -> Day:
    counts = zip(one._fields[1:], one[1:], other[1:], strict=True)
    sums: dict[str, Any] = {name: a + b for name, a, b in counts}  # type: ignore[operator] # all but the day are numbers
    return one._replace(**sums)


def _depths(settings: Settings) -> dict[str, int | None]:
    depths = QueueDepths(settings)
    try:
        return {queue: depths.of(queue) for queue in QUEUES}
    except (RedisError, OSError):
        return dict.fromkeys(QUEUES)
    finally:
        depths.close()


def _document(figures: Statistics, alive_seconds: float) -> dict[str, Any]:
    return {
        "tenants": figures.tenants,
        **figures.sizes._asdict(),
        "tokens_cut": sum(day.tokens_cut for day in figures.days),
        "tokens_saved_per_call": figures.sizes.tokens_stored - figures.sizes.tokens_served,
        "runs": [{"state": state, "reason": reason, "runs": count} for (state, reason), count in _most(figures.runs)],
        "days": [day._asdict() | {"cost_usd": _usd(day.known_cost_usd)} for day in figures.days],
        "calls": {
            name: f"{value:.6f}" if isinstance(value, Decimal) else value
            for name, value in figures.calls._asdict().items()
            if name != "day"
        },
        "recalls": {**figures.recalls} | {"regret": dict(figures.regret)},
        "backlog": figures.backlog._asdict(),
        "queues": figures.depths,
        "processes": [
            each._asdict() | {"id": each.id.hex, "is_alive": each.seen_seconds <= alive_seconds}
            for each in figures.processes
        ],
    }


def _spent(today: Mapping[str, Any]) -> str:
    usd: str | None = today["spent"]["cost_usd"]
    return usd or f"an unknown number of (no price for {today['unpriced_calls']:,} calls)"


def _most(runs: Mapping[tuple[str, str | None], int]) -> list[tuple[tuple[str, str | None], int]]:
    return sorted(runs.items(), key=lambda each: (-each[1], each[0][0], each[0][1] or ""))


def _usd(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:.6f}"


def _saved(calls: SavedDay) -> str:
    """Return what the calls with a usage were saved, in tokens and in money as far as prices are known."""
    tokens = f"{calls.saved_tokens:,} tokens of {calls.calls:,} calls with a usage"
    if calls.saved_usd is not None:
        tokens += f", {calls.saved_usd:.6f} USD ({calls.saved_uncached_usd:.6f} without a cache)"
    if calls.unpriced_calls:
        tokens += f"; no price for {calls.unpriced_calls:,} of {calls.calls:,} calls: {PRICES_HINT}"
    return tokens


def _caches(calls: SavedDay) -> str:
    missed = (
        f"; {calls.missed_tokens:,} of {calls.expected_tokens:,} expected ones missed" if calls.expected_tokens else ""
    )
    return f"{calls.cached_tokens:,} of {calls.input_tokens:,} tokens of input{missed}"


def _asked_back(figures: Statistics) -> str:
    left = ", ".join(f"{step} {count:,}" for step, count in sorted(figures.regret.items(), key=lambda each: -each[1]))
    totals = f"{figures.recalls['recalls']:,} times, {figures.recalls['missed']:,} what had left"
    return f"{totals} ({left})" if left else totals


def _print(figures: Statistics, alive_seconds: float, console: Console) -> None:
    sizes, backlog = figures.sizes, figures.backlog
    saved = sizes.tokens_stored - sizes.tokens_served
    share = f" ({saved / sizes.tokens_stored:.0%})" if sizes.tokens_stored else ""
    grid = PlainTable.grid(padding=(0, 2))
    oldest = f", the oldest for {backlog.oldest_due_check_seconds:,.0f} s" if backlog.due_checks else ""
    for name, value in (
        ("tenants", f"{figures.tenants:,}"),
        ("conversations", f"{sizes.conversations:,}"),
        ("messages", f"{sizes.messages:,}"),
        ("tokens stored", f"{sizes.tokens_stored:,}"),
        ("tokens served", f"{sizes.tokens_served:,}, {saved:,} less{share}"),
        ("saved", _saved(figures.calls)),
        ("from caches", _caches(figures.calls)),
        ("asked back", _asked_back(figures)),
        ("checks due", f"{backlog.due_checks:,}{oldest}"),
        ("runs", f"{backlog.queued_runs:,} queued, {backlog.running_runs:,} running, {backlog.dead_runs:,} dead"),
        ("leases expired", f"{backlog.expired_leases:,}"),
        *((f"queue {queue}", "unknown" if n is None else f"{n:,} messages") for queue, n in figures.depths.items()),
    ):
        grid.add_row(Text(name, style="dim"), value)
    console.print(grid)
    runs = columns(("state", "reason", "runs"), numbers=("runs",), title="Runs")
    for (state, reason), count in _most(figures.runs):
        runs.add_row(state, reason or "", f"{count:,}")
    counts = ("runs", "cut", "model calls", "read", "written", "USD")
    days = columns(("day", *counts), numbers=counts, title="Days (UTC)")
    for day in figures.days:
        if any(day[1:]):
            numbers = (day.runs, day.tokens_cut, day.model_calls, day.model_input_tokens, day.model_output_tokens)
            money = money_of_calls(_usd(day.known_cost_usd), day.model_calls, day.unpriced_calls)
            days.add_row(str(day.day), *(f"{number:,}" for number in numbers), money)
    names = ("kind", "queues", "host", "pid", "version", "busy", "slots", "seen")
    alive = sum(each.seen_seconds <= alive_seconds for each in figures.processes)
    title = f"Processes, {alive:,} of {len(figures.processes):,} alive"
    seen = columns(names, numbers=("pid", "busy", "slots", "seen"), title=title)
    for each in figures.processes:
        last = f"{each.seen_seconds:.0f} s ago" if each.seen_seconds <= alive_seconds else _GONE
        # Servers have no slots for tasks.
        counted = (f"{each.busy:,}", f"{each.slots:,}", last) if each.slots else ("", "", last)
        seen.add_row(each.kind, ", ".join(each.queues), each.host, str(each.pid), each.version, *counted)
    for table in (runs, days, seen):
        print_table(table, console)
