"""Loading the API over HTTP: with wrk where it is installed, else with the client of this directory."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.data import EXTERNAL_START
from bench.load.load_client import Order, Outcome
from bench.machine import cpu_seconds
from bench.measure import Sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.servers import Api, Servers

CONNECTIONS: Final = 32
_HERE: Final = Path(__file__).parent
_runs: Final = count()


class LoadError(Exception):
    """A load generator failed, or the API answered something else than expected."""


class Request(NamedTuple):
    """A kind of request: the path is `before`, a conversation's number, `after`."""

    method: str
    before: str
    after: str
    headers: Mapping[str, str]
    body: str = ""
    unique_key: bool = False
    expected_status: int = 200


def has_wrk() -> bool:
    """Tell whether wrk is on the PATH."""
    return shutil.which("wrk") is not None


def load(servers: Servers, api: Api, request: Request, numbers: tuple[int, int], seconds: float) -> Sample:
    """Send requests over 32 connections; return requests a second, latencies and CPU time a request.

    `numbers` are the first conversation's number and how many there are. Raises LoadError.
    """
    pids = {"API": api.pid, "Postgres": servers.postgres_pid}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    # wrk knows whole seconds only.
    if has_wrk() and seconds == int(seconds):
        rate, requests, details = _wrk(api, request, numbers, int(seconds))
    else:
        outcome = run_client(api, request, [numbers], seconds=seconds)
        rate, requests = outcome.requests / outcome.seconds, outcome.requests
        details = {**percentiles(outcome.latencies[0]), "load CPU %": 100 * outcome.cpu_seconds / outcome.seconds}
    for name, pid in pids.items():
        used = cpu_seconds(pid) - before[name]
        details |= {f"{name} CPU µs": 1e6 * used / requests, f"{name} busy %": 100 * used / seconds}
    return Sample(rate, details)


def run_client(
    api: Api,
    request: Request,
    groups: Sequence[tuple[int, int]],
    *,
    seconds: float,
    connections: int = CONNECTIONS,
) -> Outcome:
    """Run our own load generator, in a process of its own. Raises LoadError."""
    headers = {"host": f"{api.host}:{api.port}", **_headers(api, request)}
    if request.body:
        headers["content-length"] = str(len(request.body.encode()))
    order = Order(
        host=api.host,
        port=api.port,
        connections=connections,
        seconds=seconds,
        before=f"{request.method} {request.before}",
        after=f"{request.after} HTTP/1.1\r\n" + "\r\n".join(f"{name}: {value}" for name, value in headers.items()),
        body=request.body,
        unique_key=_key() if request.unique_key else "",
        groups=[list(group) for group in groups],
        expected_status=request.expected_status,
    )
    done = subprocess.run(
        [sys.executable, str(_HERE / "load_client.py")],
        input=json.dumps(order._asdict()),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LoadError(f"the load generator failed: {done.stderr.strip().splitlines()[-1]}")
    outcome = Outcome(**json.loads(done.stdout))
    if outcome.wrong or not outcome.requests:
        raise LoadError(f"{request.method} {request.after}: {outcome.requests} answers, statuses {outcome.wrong}")
    return outcome


def store_turn(api: Api, numbers: tuple[int, int], body: str) -> None:
    """Store the same turn in every conversation; `numbers` as for `load`. Raises LoadError."""
    connection = http.client.HTTPConnection(api.host, api.port, timeout=30)
    headers = {"authorization": f"Bearer {api.key}", "content-type": "application/json"}
    first, size = numbers
    for number in range(first, first + size):
        connection.request("POST", f"{EXTERNAL_START}{number}/turns", body.encode(), headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != http.HTTPStatus.CREATED:
            raise LoadError(f"POST /turns: {answer.status} {text.decode()}")
    connection.close()


def percentiles(latencies: Sequence[float]) -> dict[str, float]:
    """Return the latencies' median and 99th percentile by name."""
    cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [latencies[0]] * 99
    return {"p50 ms": cuts[49], "p99 ms": cuts[98]}


def _wrk(api: Api, request: Request, numbers: tuple[int, int], seconds: int) -> tuple[float, int, dict[str, float]]:
    with tempfile.NamedTemporaryFile("w") as body:
        body.write(request.body)
        body.flush()
        command = ["wrk", "--threads", "1", "--connections", str(CONNECTIONS), "--duration", f"{seconds}s"]
        command += ["--timeout", "30s", "--script", str(_HERE / "wrk.lua"), f"http://{api.host}:{api.port}", "--"]
        command += [request.method, request.before, request.after, str(numbers[0]), str(numbers[1])]
        command += ["\n".join(f"{name}: {value}" for name, value in _headers(api, request).items()), body.name]
        before = os.times()
        done = subprocess.run(
            [*command, _key() if request.unique_key else ""], capture_output=True, text=True, check=False
        )
        after = os.times()
    if done.returncode:
        raise LoadError(f"wrk failed: {(done.stderr or done.stdout).strip()}")
    measured = json.loads(done.stdout.strip().splitlines()[-1])
    if measured["failed"] or not measured["requests"]:
        raise LoadError(f"wrk, {request.method} {request.after}: {measured}")
    used = after.children_user - before.children_user + after.children_system - before.children_system
    details = {"p50 ms": measured["p50"], "p99 ms": measured["p99"], "load CPU %": 100 * used / measured["seconds"]}
    return measured["requests"] / measured["seconds"], measured["requests"], details


def _headers(api: Api, request: Request) -> dict[str, str]:
    headers = {"authorization": f"Bearer {api.key}", **request.headers}
    if request.body:
        headers["content-type"] = "application/json"
    return headers


def _key() -> str:
    """Return the start of keys that no earlier run has used."""
    return f"{os.getpid()}-{next(_runs)}-"
