"""The sizing table: its queueing formulas against a simulation, its proportions, and the page that quotes it."""

from __future__ import annotations

import heapq
import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scaling import SIZES, Ceilings, Load, UnitCosts, erlang_c, limits, size, table, wait_quantile
from tests.support.places import ROOT


def simulated_waits(servers: int, arrivals: float, service: float, count: int = 400_000) -> list[float]:
    """Return the waits in a queue with Poisson arrivals and exponential service, first come first served."""
    chance = random.Random(7)  # noqa: S311 - a simulation, the same every time
    free = [0.0] * servers
    now, waits = 0.0, []
    for _ in range(count):
        now += chance.expovariate(arrivals)
        begins = max(now, heapq.heappop(free))
        waits.append(begins - now)
        heapq.heappush(free, begins + chance.expovariate(1 / service))
    return sorted(waits[count // 10 :])


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (2, 0.6), (2, 0.9), (4, 0.8), (16, 0.85)])
def test_waits_are_those_of_a_simulated_queue(servers: int, load: float) -> None:
    service = 0.25
    arrivals = load * servers / service
    waits = simulated_waits(servers, arrivals, service)
    assert erlang_c(servers, load * servers) == pytest.approx(sum(wait > 0 for wait in waits) / len(waits), abs=0.03)
    for quantile in (0.9, 0.99):
        expected = wait_quantile(servers, arrivals, service, quantile)
        assert waits[int(len(waits) * quantile)] == pytest.approx(expected, rel=0.15, abs=0.02 * service)


def test_a_queue_that_cannot_keep_up_grows_without_end() -> None:
    assert wait_quantile(2, 10, 0.25) == math.inf
    assert erlang_c(2, 2.5) == 1
    assert wait_quantile(1, 10, 0.25) == math.inf


@given(st.floats(1, 1e7), st.floats(1.0, 20))
def test_a_larger_load_never_needs_less(conversations: float, factor: float) -> None:
    small, large = size(Load(conversations)), size(Load(conversations * factor))
    for name in ("turns_a_second", "api_processes", "checks_processes", "summaries_workers", "postgres_cores",
                 "connections", "gigabytes_a_day", "wal_megabytes_a_second", "model_tokens_a_minute"):  # fmt: skip
        assert getattr(small, name) <= getattr(large, name)
    assert large.turns_a_second == pytest.approx(small.turns_a_second * factor)


@given(st.floats(1e3, 1e8))
def test_nothing_is_fuller_than_allowed(conversations: float) -> None:
    load, costs = Load(conversations), UnitCosts()
    row = size(load, costs)
    busy = row.turns_a_second * (costs.append_api + costs.context_api) / 1e6 / row.api_processes
    assert busy <= 0.6 + 1e-9
    assert row.summaries_at_once <= row.summaries_workers * 64
    assert row.api_wait_p99_ms < 10


def test_what_breaks_first_follows_the_ceilings() -> None:
    load = Load(0)
    names = [name for name, _ in limits(load)]
    assert len(set(names)) == len(names) == 4
    assert [count for _, count in limits(load)] == sorted(count for _, count in limits(load))
    no_models = limits(replace(load, summaries=0.0001), ceilings=Ceilings())
    assert no_models[0][0] == "the database's disk"
    for name, count in limits(load):
        if name == "the database's disk":
            row = size(replace(load, conversations=count))
            assert row.gigabytes_a_day * Ceilings().days_kept == pytest.approx(Ceilings().disk_gigabytes)


def test_the_page_quotes_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "scaling.md").read_text()
    done = subprocess.run([sys.executable, ROOT / "bench" / "scaling.py"], check=True, capture_output=True, text=True)
    assert table([size(Load(count)) for count in SIZES]) in done.stdout
    printed = [line for line in done.stdout.splitlines() if line.strip()]
    assert len(printed) == 2 + len(SIZES) + 4
    for line in printed:
        assert line.strip() in page
