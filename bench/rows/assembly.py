"""What it costs to serve a context and to assemble a payload: by messages stored, and by bytes returned."""

from __future__ import annotations

import http.client
import statistics
from typing import TYPE_CHECKING, Final, NamedTuple

from bench import data
from bench.load.http_load import Request, percentiles, run_client
from bench.measure import Row, Sample, Target
from bench.rows.http import context_request

if TYPE_CHECKING:
    from bench.plan import Plan
    from bench.servers import Api


class _Point(NamedTuple):
    """Conversations of so many messages, the last eight of them behind a snapshot of so many bytes."""

    messages: int
    snapshot_bytes: int = data.SNAPSHOT_BYTES

    @property
    def name(self) -> str:
        return f"{self.messages:,} messages, {self.snapshot_bytes // 1_000} KB snapshot"


START: Final = _Point(10)
BY_LENGTH: Final = tuple(_Point(messages) for messages in (100, 1_000, 10_000))
BY_SIZE: Final = tuple(_Point(10_000, size) for size in (10_000, 160_000))
_PATIENCE_SECONDS: Final = 30


def assembly(plan: Plan) -> list[Row]:
    """Assemble and read over one connection, requests going to every point of the curve in turn."""
    points = (START, *BY_LENGTH, *BY_SIZE)
    groups = [
        data.Group(data.ASSEMBLIES + 1_000_000 * number, 1 if plan.short else 20) for number in range(len(points))
    ]
    with plan.servers.connect() as connection:
        for point, group in zip(points, groups, strict=True):
            data.add_compacted(
                connection,
                plan.servers.tenant_id,
                group,
                messages=point.messages,
                snapshot_bytes=point.snapshot_bytes,
            )
    rows: list[Row] = []
    for name, request in (("post", payload_request()), ("get", context_request())):
        rows += _rows(plan, name, request, dict(zip(points, groups, strict=True)))
    return rows


def payload_request() -> Request:
    """Return the request that assembles a payload: 2 KB of system prompt and a question."""
    body = data.json_text({"system": data.prose(2_000), "user_message": data.prose(400)})
    return Request("POST", data.EXTERNAL_START, "/context", {}, body)


def _rows(plan: Plan, name: str, request: Request, groups: dict[_Point, data.Group]) -> list[Row]:
    api = plan.servers.api()
    sizes = {point: _bytes_returned(api, request, group) for point, group in groups.items()}
    samples: dict[_Point, list[Sample]] = {point: [] for point in groups}
    for number in range(plan.rounds + 1):
        outcome = run_client(api, request, list(groups.values()), seconds=plan.seconds, connections=1)
        if number:  # the first warms up
            for point, latencies in zip(groups, outcome.latencies, strict=True):
                details = {"bytes returned": sizes[point], **percentiles(latencies)}
                samples[point].append(Sample(statistics.median(latencies), details))
    return [
        Row(
            name=f"assembly-{name}-{point.messages}" + (f"-{point.snapshot_bytes // 1_000}kb" if by_size else ""),
            what=f"{request.method} …/context p50, one connection",
            measured=point.name,
            reference=against.name,
            unit=" ms",
            samples=list(zip(samples[point], samples[against], strict=True)),
            # What is stored must not matter; what is returned does.
            target=None if by_size else Target("<=", 1.2),
        )
        for curve, against, by_size in ((BY_LENGTH, START, False), (BY_SIZE, BY_LENGTH[-1], True))
        for point in curve
    ]


def _bytes_returned(api: Api, request: Request, group: data.Group) -> float:
    """Return the mean length of the answers for a group's conversations."""
    connection = http.client.HTTPConnection(api.host, api.port, timeout=_PATIENCE_SECONDS)
    headers = {"authorization": f"Bearer {api.key}", "content-type": "application/json"}
    lengths = []
    for number in range(group.first, group.first + group.size):
        connection.request(request.method, f"{request.before}{number}{request.after}", request.body or None, headers)
        lengths.append(len(connection.getresponse().read()))
    connection.close()
    return statistics.mean(lengths)
