"""Curves: what a request, a check and a compaction cost by length, by size of a tool result, and side by side."""

from __future__ import annotations

import http.client
import statistics
import time
from itertools import count
from typing import TYPE_CHECKING, Final

import msgspec

from bench import data
from bench.load.http_load import percentiles, run_client
from bench.measure import progress
from bench.plots import Curve, Series
from bench.rows.compaction import conversation, fastest, plan_and_cut
from bench.rows.http import append_request, context_request
from compaction.coverage import Span
from compaction.policy import Policy
from compaction.steps.snapshot import Snapshot, load_view
from store.runs.runs import LeaseHolder
from worker.checks import Checker
from worker.database import Database

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from bench.load.http_load import Request
    from bench.load.load_client import Outcome
    from bench.plan import Plan
    from store.runs.runs import Lease

LENGTHS: Final = {10: 200, 100: 200, 1_000: 50, 10_000: 10, 100_000: 2}
"""Messages in a conversation, and how many such conversations there are."""
RESULT_CHARS: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
CONNECTIONS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONVERSATIONS: Final = (1, 10, 100, 1_000, 10_000)
CONTEXT_BYTES: Final = (50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000)
_POSTS: Final = 20
_CHECKS: Final = 200
_RESULT_CHARS: Final = 4_000
_PACE_SECONDS: Final = 0.3
_BUDGET_TOKENS: Final = 5_000
"""Small, so that the smallest of the contexts is over it."""
_firsts: Final = count(900_000_000_000, 1_000_000)
"""First numbers of groups of conversations; other rows' are below."""


def by_length(plan: Plan) -> list[Curve]:
    """Cost of a context, of a check and of an append in conversations of 10 to 100,000 messages.

    All have a snapshot of 40 KB with eight messages behind it. Appends come last: they make the tails longer.
    """
    lengths = dict(list(LENGTHS.items())[: 2 if plan.short else None])
    groups = {length: data.Group(next(_firsts), size) for length, size in lengths.items()}
    with plan.servers.connect() as connection:
        for length, group in groups.items():
            data.add_compacted(connection, plan.servers.tenant_id, group, messages=length)
    series = [
        Series("GET context", _by_requests(plan, context_request(), groups)),
        Series("check", _by_checks(plan, groups)),
    ]
    with plan.servers.checks_cleared():
        series.append(Series("POST turns", _by_requests(plan, append_request(data.turn_body()), groups)))
    title = "40 KB snapshot and 8 messages behind it, one at a time"
    return [Curve("by-length", title, "messages in the conversation", "p50, ms", series)]


def by_result_size(plan: Plan) -> list[Curve]:
    """Cost of a turn with one tool result, and of the context after it, by the characters of the result."""
    sizes = RESULT_CHARS[: 2 if plan.short else None]
    appends, contexts = [], []
    with plan.servers.checks_cleared():
        for size in sizes:
            group = data.Group(next(_firsts), 3 if plan.short else _POSTS)
            with plan.servers.connect() as connection:
                data.add_conversations(connection, plan.servers.tenant_id, group)
            appends.append((float(size), _latency(plan, append_request(_tool_turn(size)), group)))
            contexts.append((float(size), _latency(plan, context_request(), group)))
            progress(f"  {size:,} characters: append {appends[-1][1]:.3g} ms, context {contexts[-1][1]:.3g} ms")
    series = [Series("POST turns", appends), Series("GET context", contexts)]
    title = "One turn with one tool result, one at a time"
    return [Curve("by-result-size", title, "characters of the tool result", "p50, ms", series)]


def by_connections(plan: Plan) -> list[Curve]:
    """Rate and slowest hundredth of appends and contexts, by connections and by conversations they go to."""
    many = 20 if plan.short else 1_000
    reads = data.Group(next(_firsts), many)
    writes = data.Group(next(_firsts), many)
    with plan.servers.connect() as connection:
        data.add_compacted(connection, plan.servers.tenant_id, reads, messages=48)
        data.add_conversations(connection, plan.servers.tenant_id, writes)
    requests = {"GET context": (context_request(), reads), "POST turns": (append_request(data.turn_body()), writes)}
    rates: list[Series] = []
    slowest: list[Series] = []
    with plan.servers.checks_cleared():
        for name, (request, group) in requests.items():
            rates_by_connections = {
                number: _median_load(plan, request, group, number)
                for number in CONNECTIONS[: 2 if plan.short else None]
            }
            rates.append(Series(name, [(number, rate) for number, (rate, _) in rates_by_connections.items()]))
            slowest.append(Series(name, [(number, p99) for number, (_, p99) in rates_by_connections.items()]))
        spread = _by_conversations(plan)
    many_conversations = f"{many:,} conversations"
    return [
        Curve("by-connections-rate", many_conversations, "connections", "requests a second", rates),
        Curve("by-connections-p99", many_conversations, "connections", "p99, ms", slowest),
        Curve("by-conversations", "32 connections, POST turns", "conversations", "turns a second", [spread]),
    ]


def by_context_size(plan: Plan) -> list[Curve]:
    """CPU time of a compaction in this process: by the bytes of the context, and by what was compacted before."""
    policy = Policy(input_token_budget=_BUDGET_TOKENS, max_context_bytes=10 * CONTEXT_BYTES[-1])
    seconds = plan.seconds if plan.short else _PACE_SECONDS
    sizes = CONTEXT_BYTES[: 2 if plan.short else None]
    covered = [10**power for power in range(2, 4 if plan.short else 6)]
    with plan.servers.cores.on(plan.servers.cores.measured):
        tails = {size: conversation(size, _RESULT_CHARS) for size in sizes}
        by_size = [
            (float(size), fastest(lambda tail=tail: plan_and_cut(Snapshot(), tail, policy), seconds).value)  # type: ignore[misc]  # a default binds the loop's value
            for size, tail in tails.items()
        ]
        by_length = [(float(length), _compaction_after(length, policy, seconds)) for length in covered]
    return [
        Curve(
            "compaction-by-size",
            "Compaction without a model: read, plan, cut, settle",
            "bytes of the context",
            "CPU, ms",
            [Series("compaction", by_size)],
        ),
        Curve(
            "compaction-by-length",
            "The same with a snapshot of 60 messages and 40 behind it",
            "messages compacted before",
            "CPU, ms",
            [Series("compaction", by_length)],
        ),
    ]


def _compaction_after(length: int, policy: Policy, seconds: float) -> float:
    """Return the CPU milliseconds of a compaction where `length` messages are gone, a hundred by each earlier run."""
    rows = conversation(200_000, _RESULT_CHARS)[:100]
    kept, tail = rows[:60], [row._replace(seq=length + 60 + number) for number, row in enumerate(rows[60:])]
    messages = data.json_text([{"role": row.role, "content": msgspec.Raw(row.content.encode())} for row in kept])
    gone = [Span(start, start + 99, "dropped", str(data.conversation_id(start))) for start in range(0, length, 100)]
    snapshot = Snapshot(
        version=len(gone),
        covers_through=length + 59,
        messages=load_view(messages, range(length, length + 60)),
        coverage=(*gone, Span(length, length + 59, "kept")),
    )
    return fastest(lambda: plan_and_cut(snapshot, tuple(tail), policy), seconds).value


def _by_conversations(plan: Plan) -> Series:
    points = []
    for number in CONVERSATIONS[: 2 if plan.short else None]:
        group = data.Group(next(_firsts), number)
        with plan.servers.connect() as connection:
            data.add_conversations(connection, plan.servers.tenant_id, group)
        rate, _ = _median_load(plan, append_request(data.turn_body()), group, 32)
        points.append((float(number), rate))
    return Series("POST turns", points)


def _by_requests(plan: Plan, request: Request, groups: Mapping[int, data.Group]) -> list[tuple[float, float]]:
    """Return the median latency of each group over one connection, requests going to every group in turn."""
    api = plan.servers.api()
    rounds: list[Outcome] = [
        run_client(api, request, list(groups.values()), seconds=plan.seconds, connections=1)
        for _ in range(plan.rounds + 1)
    ][1:]  # the first warms up
    points = [
        (float(length), statistics.median(statistics.median(outcome.latencies[place]) for outcome in rounds))
        for place, length in enumerate(groups)
    ]
    progress(f"  {request.method} {request.after}: {', '.join(f'{x:,g}: {y:.3g} ms' for x, y in points)}")
    return points


def _median_load(plan: Plan, request: Request, group: data.Group, connections: int) -> tuple[float, float]:
    """Return the medians over the rounds of requests a second and of the 99th percentile in milliseconds."""
    api = plan.servers.api()
    outcomes = [
        run_client(api, request, [group], seconds=plan.seconds, connections=connections) for _ in range(plan.rounds)
    ]
    rate = statistics.median(outcome.requests / outcome.seconds for outcome in outcomes)
    p99 = statistics.median(percentiles(outcome.latencies[0])["p99 ms"] for outcome in outcomes)
    progress(f"  {request.method} {request.after}, {connections} connections: {rate:,.0f}/s, p99 {p99:.3g} ms")
    return rate, p99


def _by_checks(plan: Plan, groups: Mapping[int, data.Group]) -> list[tuple[float, float]]:
    """Return the median milliseconds of a check of one conversation of each group, in this process, in turn."""
    took: dict[int, list[float]] = {length: [] for length in groups}
    checked: list[UUID] = []
    database = Database(plan.servers.settings, "bench")
    checker = Checker(database, {}, holder=lambda: LeaseHolder("bench"), lease_seconds=45)
    with plan.servers.connect() as connection, plan.servers.cores.on(plan.servers.cores.measured):
        for number in range(10 if plan.short else _CHECKS):
            for length, group in groups.items():
                identifier = data.conversation_id(group.first + number % group.size)
                connection.execute("update conversations set check_due_at = now() where id = %s", [identifier])
                started = time.perf_counter()
                checker.check([identifier], _no_run)
                took[length].append((time.perf_counter() - started) * 1000)
                checked.append(identifier)
    database.close()
    _expect_checked(plan, checked)
    points = [(float(length), statistics.median(times)) for length, times in took.items()]
    progress(f"  check: {', '.join(f'{x:,g}: {y:.3g} ms' for x, y in points)}")
    return points


def _expect_checked(plan: Plan, ids: Sequence[UUID]) -> None:
    with plan.servers.connect() as connection:
        left = connection.execute(
            "select count(*) from conversations where id = any(%s) and check_due_at is not null", [list(set(ids))]
        ).fetchone()
    if left != (0,):
        raise AssertionError(f"checks that are still due: {left}")


def _latency(plan: Plan, request: Request, group: data.Group) -> float:
    """Return the median latency in milliseconds of one request to each conversation, by a client that waits.

    The load generator sends what fits a socket's buffer; this one sends anything.
    """
    api = plan.servers.api()
    connection = http.client.HTTPConnection(api.host, api.port, timeout=60)
    took: list[float] = []
    for number in range(group.first, group.first + group.size):
        headers = {"authorization": f"Bearer {api.key}", "content-type": "application/json"}
        if request.unique_key:
            headers["idempotency-key"] = f"curve-{number}"
        body = request.body.encode() if request.body else None
        started = time.perf_counter()
        connection.request(request.method, f"{request.before}{number}{request.after}", body, headers)
        response = connection.getresponse()
        response.read()
        took.append((time.perf_counter() - started) * 1000)
        if response.status != request.expected_status:
            raise AssertionError(f"{request.method} {request.after} answered {response.status}")
    connection.close()
    return statistics.median(took)


def _tool_turn(characters: int) -> str:
    """Return the body of a turn with one tool result of so many characters."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"query": data.prose(60)}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": data.prose(characters)}
    return data.json_text(
        {
            "messages": [
                {"role": "user", "content": data.prose(400)},
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [result]},
                {"role": "assistant", "content": data.prose(400)},
            ]
        }
    )


def _no_run(lease: Lease) -> None:
    raise AssertionError(f"a compaction was due: {lease.run_id}")
