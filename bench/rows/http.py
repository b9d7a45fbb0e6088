"""Rows over HTTP: append and context against the database alone, revalidation, wake-ups, long conversations."""

from __future__ import annotations

import http.client
import statistics
from typing import TYPE_CHECKING

from bench import data
from bench.load.http_load import Request, load, percentiles, run_client
from bench.load.reference import append_statement, call, context_statement
from bench.measure import Row, Sample, Target, interleave, pair

if TYPE_CHECKING:
    from bench.plan import Plan
    from bench.servers import Api

LONG = 10_000
SHORT = 10


def append(plan: Plan) -> list[Row]:
    """POST a turn, against the same database function called with the same arguments."""
    servers, body = plan.servers, data.turn_body()
    group = _appendable(plan)
    request, statement = append_request(body), append_statement(servers.tenant_id, body)
    api = servers.api()
    with servers.checks_cleared():
        samples = interleave(
            {
                "POST turns": lambda: load(servers, api, request, group, plan.seconds),
                plan.reference_name: lambda: call(servers, statement, group, plan.seconds, pgbench=plan.pgbench),
            },
            plan.rounds,
            warmed=servers.analyze,
        )
    return [
        Row(
            name="append",
            what="POST …/turns, 2 messages, 32 connections",
            measured="HTTP",
            reference=f"{plan.reference_name}, append_turn",
            unit="/s",
            samples=pair(samples, "POST turns", plan.reference_name),
            target=Target(">=", 0.80),
        )
    ]


def context(plan: Plan) -> list[Row]:
    """GET a context, against the same database function called with the same arguments."""
    servers, group = plan.servers, _readable(plan)
    api, statement = servers.api(), context_statement(servers.tenant_id)
    samples = interleave(
        {
            "GET context": lambda: load(servers, api, context_request(), group, plan.seconds),
            plan.reference_name: lambda: call(servers, statement, group, plan.seconds, pgbench=plan.pgbench),
        },
        plan.rounds,
        warmed=servers.analyze,
    )
    return [
        Row(
            name="context",
            what="GET …/context, 40 KB snapshot + 8 messages",
            measured="HTTP",
            reference=f"{plan.reference_name}, read_context",
            unit="/s",
            samples=pair(samples, "GET context", plan.reference_name),
            target=Target(">=", 0.90),
        )
    ]


def revalidation(plan: Plan) -> list[Row]:
    """GET a context that has not changed, with its ETag, against the whole one."""
    servers, group, api = plan.servers, _readable(plan), plan.servers.api()
    matching = context_request()._replace(headers={"if-none-match": _etag(api, group)}, expected_status=304)
    samples = interleave(
        {
            "304": lambda: load(servers, api, matching, group, plan.seconds),
            "200": lambda: load(servers, api, context_request(), group, plan.seconds),
        },
        plan.rounds,
        warmed=servers.analyze,
    )
    return [
        Row(
            name="revalidation",
            what="GET …/context with a matching If-None-Match",
            measured="304",
            reference="200, whole",
            unit="/s",
            samples=pair(samples, "304", "200"),
            target=Target(">=", 2.5),
        )
    ]


def wakeups(plan: Plan) -> list[Row]:
    """Compare the API CPU of a turn with wake-ups sent in batches and with none sent while it is measured."""
    servers, group, request = plan.servers, _appendable(plan), append_request(data.turn_body())
    batching, silent = servers.api(), servers.api("api-silent", wakeup_interval_seconds="86400")

    def cpu(api: Api) -> Sample:
        sample = load(servers, api, request, group, plan.seconds)
        return Sample(sample.details["API CPU µs"], {"turns/s": sample.value})

    with servers.checks_cleared():
        samples = interleave(
            {"on": lambda: cpu(batching), "off": lambda: cpu(silent)}, plan.rounds, warmed=servers.analyze
        )
    return [
        Row(
            name="wakeups",
            what="API CPU of a turn, wake-up batches",
            measured="sent",
            reference="not sent",
            unit=" µs",
            samples=pair(samples, "on", "off"),
            target=Target("<=", 1.05),
        )
    ]


def length(plan: Plan) -> list[Row]:
    """Latency over one connection in conversations of 10,000 messages, against 10; requests alternate between them."""
    servers, api = plan.servers, plan.servers.api()
    long = data.Group(data.LENGTHS, 20 if not plan.short else 1)
    # A few for every round, so that they are still short when the next one begins.
    each = 100 if not plan.short else 20
    shorts = [data.Group(data.LENGTHS + 1_000_000 * number, each) for number in range(1, plan.rounds + 2)]
    with servers.connect() as connection:
        data.add_compacted(connection, servers.tenant_id, long, messages=LONG)
        for short in shorts:
            data.add_compacted(connection, servers.tenant_id, short, messages=SHORT)
    requests = {"context": context_request(), "append": append_request(data.turn_body())}
    samples: dict[str, list[tuple[Sample, Sample]]] = {name: [] for name in requests}
    with servers.checks_cleared():
        # All contexts before the first append: what is appended to the few long ones would make their contexts larger.
        for name, request in requests.items():
            for number, short in enumerate(shorts):
                outcome = run_client(api, request, [long, short], seconds=plan.seconds, connections=1)
                at_length, at_start = (
                    Sample(statistics.median(latencies), percentiles(latencies)) for latencies in outcome.latencies
                )
                if number:  # the first group warms up
                    samples[name].append((at_length, at_start))
    return [
        Row(
            name=f"length-{name}",
            what=f"{what} p50, one connection, messages in the conversation",
            measured=f"{LONG:,}",
            reference=str(SHORT),
            unit=" ms",
            samples=samples[name],
            target=Target("<=", 1.2),
        )
        for name, what in (("append", "POST …/turns"), ("context", "GET …/context"))
    ]


def append_request(body: str) -> Request:
    """Return the request that appends a turn."""
    return Request("POST", data.EXTERNAL_START, "/turns", {}, body, unique_key=True, expected_status=201)


def context_request() -> Request:
    """Return the request that reads a context."""
    return Request("GET", data.EXTERNAL_START, "/context", {})


def _appendable(plan: Plan) -> data.Group:
    group = data.Group(data.APPENDS, plan.conversations)
    with plan.servers.connect() as connection:
        data.add_conversations(connection, plan.servers.tenant_id, group)
    return group


def _readable(plan: Plan) -> data.Group:
    group = data.Group(data.READS, plan.conversations // 20)
    with plan.servers.connect() as connection:
        known = connection.execute(
            "select 1 from snapshots where conversation_id = %s", [data.conversation_id(group.first)]
        )
        if known.fetchone() is None:
            data.add_compacted(connection, plan.servers.tenant_id, group, messages=48)
    return group


def _etag(api: Api, group: data.Group) -> str:
    """Return the ETag that all conversations of a group have: they were made alike."""
    connection = http.client.HTTPConnection(api.host, api.port, timeout=30)
    headers = {"authorization": f"Bearer {api.key}"}
    connection.request("GET", f"{data.EXTERNAL_START}{group.first}/context", headers=headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return str(response.headers["etag"])
