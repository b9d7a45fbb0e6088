"""The circuit breaker: several workers on a real Redis, with the time passed in."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import redis
from structlog.testing import capture_logs

from cli.local.embedded import EmbeddedRedis
from runtime.settings import Settings
from tests.support.servers.tcp_gate import Gate, gate
from worker.summarizers.base import SummaryError
from worker.summarizers.breaker import AT_ONCE, COUNTED, REDIS_PAUSE_SECONDS, CircuitBreaker, Permit

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "sk-ant-nobody-may-see-this"
FAILURES, COOLDOWN, LONGEST, PROBE = 3, 30.0, 100.0, 50.0


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def worker(url: str, clock: Clock | None, **changes: Any) -> CircuitBreaker:
    given: dict[str, Any] = {
        "failures": FAILURES,
        "cooldown": COOLDOWN,
        "longest": LONGEST,
        "probe_seconds": PROBE,
        "jitter": lambda: 0.0,
        "clock": clock,
    }
    return CircuitBreaker(url, SECRET, **given | changes)


def fail(breaker: CircuitBreaker, times: int = 1, code: str = "model_error", after: float | None = None) -> None:
    for _ in range(times):
        breaker.report(breaker.admit(), code, after)


def refused(breaker: CircuitBreaker) -> str | None:
    """Return what is said instead of a permit that is no probe's, None if there is one."""
    try:
        permit = breaker.admit()
    except SummaryError as error:
        return error.detail if (error.code, error.spent.calls) == ("circuit_open", 0) else repr(error)
    assert not permit.probe
    return None


def test_failures_in_a_row_over_all_workers_open_the_circuit_for_all(broker_url: str, clock: Clock) -> None:
    one, two, three = (worker(broker_url, clock) for _ in range(3))
    fail(one)
    fail(two)
    one.report(one.admit())  # an answer in between: the row begins anew
    fail(one, 2)
    assert refused(three) is None
    with capture_logs() as events:
        fail(two, code="model_timeout")
    assert [(event["event"], event["failures"], event["seconds"]) for event in events] == [("circuit.opened", 3, 30.0)]
    clock.now += 9
    assert {refused(each) for each in (one, two, three)} == {"the model is not asked for another 21 s"}


def test_what_somebody_else_has_written_is_not_read_to_its_end(broker_url: str, clock: Clock) -> None:
    one = worker(broker_url, clock)
    fail(one)
    with redis.Redis.from_url(broker_url) as client:
        client.set(f"palimpsest:breaker:{one.id}", bytes(32_000_000))
    tracemalloc.start()
    assert refused(one) is None
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000
    fail(one, FAILURES)
    assert refused(worker(broker_url, clock)) == "the model is not asked for another 30 s"


def test_one_probe_over_all_workers_closes_it_or_opens_it_for_twice_as_long(broker_url: str, clock: Clock) -> None:
    workers = [worker(broker_url, clock) for _ in range(4)]
    fail(workers[0], FAILURES)
    for open_for in (COOLDOWN, 60.0, LONGEST, LONGEST):
        clock.now += open_for - 1
        assert all(refused(each) for each in workers)
        clock.now += 1
        probe = one_of(workers)
        assert all(refused(each) for each in workers), "one probe at a time"
        workers[1].report(probe, "model_overloaded")
        assert all(refused(each) for each in workers)
    clock.now += LONGEST
    workers[2].report(one_of(workers))
    assert not any(refused(each) for each in workers)
    fail(workers[0], FAILURES)
    assert refused(workers[3]) == "the model is not asked for another 30 s", "a closed circuit begins anew"


def one_of(workers: list[CircuitBreaker]) -> Permit:
    """Let every worker ask for leave from several threads at once; return the only permit, a probe's."""
    given: list[Permit] = []
    start = threading.Barrier(len(workers) * 3)

    def ask(breaker: CircuitBreaker) -> None:
        start.wait()
        with suppress(SummaryError):
            given.append(breaker.admit())

    with ThreadPoolExecutor(len(workers) * 3) as pool:
        list(pool.map(ask, workers * 3))
    (permit,) = given
    assert permit.probe
    return permit


def test_a_probe_that_never_reports_makes_way_for_another(broker_url: str, clock: Clock) -> None:
    one, two = worker(broker_url, clock), worker(broker_url, clock)
    fail(one, FAILURES)
    clock.now += COOLDOWN
    lost = one.admit()
    clock.now += PROBE - 1
    assert refused(two) == "the model is not asked for another 1 s"
    clock.now += 1
    probe = two.admit()
    assert probe.probe
    one.report(lost)
    assert refused(one), "what the lost one has to say comes too late"
    two.report(probe)
    assert refused(one) is None


def test_calls_from_before_the_opening_change_nothing(broker_url: str, clock: Clock) -> None:
    one, two = worker(broker_url, clock), worker(broker_url, clock)
    early = [two.admit() for _ in range(3)]
    fail(one, FAILURES)
    two.report(early[0])
    two.report(early[1], "model_timeout")
    two.report(early[2], "model_auth")
    assert refused(two) == "the model is not asked for another 30 s"
    clock.now += COOLDOWN
    probe = one.admit()
    two.report(early[0])
    assert refused(two)
    one.report(probe)
    assert refused(two) is None


@pytest.mark.fault("F20")
@pytest.mark.parametrize("code", sorted(AT_ONCE))
def test_a_refused_key_opens_it_at_once_for_longest(broker_url: str, clock: Clock, code: str) -> None:
    one, two = worker(broker_url, clock), worker(broker_url, clock)
    fail(one, code=code)
    assert refused(two) == "the model is not asked for another 100 s"


def test_patience_that_the_service_asks_for_is_granted_up_to_the_longest(broker_url: str, clock: Clock) -> None:
    one = worker(broker_url, clock)
    fail(one, code="model_rate_limited", after=45.0)
    assert refused(one) == "the model is not asked for another 45 s"
    clock.now += 45
    one.report(one.admit(), "model_rate_limited", 3_600.0)
    assert refused(one) == "the model is not asked for another 100 s"


def test_reasons_that_speak_of_the_request_are_answers(broker_url: str, clock: Clock) -> None:
    one = worker(broker_url, clock)
    for code in ("model_rejected", "prompt_too_long", "model_refused", "empty_summary", "summary_cut"):
        fail(one, FAILURES - 1)
        fail(one, code=code)
    assert refused(one) is None
    for code in COUNTED:
        fail(one, FAILURES, code)
        assert refused(one)
        clock.now += LONGEST
        one.report(one.admit(), "model_rejected")
        assert refused(one) is None


def test_the_opening_is_spread_and_the_switch_works(broker_url: str, clock: Clock) -> None:
    spread = worker(broker_url, clock, jitter=lambda: 1.0)
    fail(spread, FAILURES)
    assert refused(spread) == "the model is not asked for another 38 s"
    off = worker(broker_url, clock, failures=0)
    fail(off, 10)
    assert refused(off) is None


def test_redis_learns_neither_the_key_nor_for_ever(broker_url: str, clock: Clock) -> None:
    given: dict[str, Any] = {"broker_url": broker_url, "ANTHROPIC_API_KEY": SECRET}
    settings = Settings(**given)
    same, other = (
        CircuitBreaker.of(settings, "anthropic"),
        CircuitBreaker.of(settings.model_copy(update={"anthropic_base_url": "x"}), "anthropic"),
    )
    fail(same, code="model_auth")
    assert refused(CircuitBreaker.of(settings, "anthropic"))
    assert refused(other) is None
    with redis.Redis.from_url(broker_url) as client:
        (key,) = client.keys("*")
        assert key == f"palimpsest:breaker:{same.id}".encode()
        assert SECRET not in key.decode() + str(client.get(key))
        assert 0 < client.ttl(key) <= 3 * settings.breaker_max_cooldown_seconds + 150


def test_without_a_clock_the_time_is_that_of_redis(broker_url: str) -> None:
    one, two = worker(broker_url, None), worker(broker_url, None)
    fail(one, FAILURES)
    assert refused(two) in {f"the model is not asked for another {seconds} s" for seconds in range(31)}


@pytest.mark.parametrize(
    "stored",
    [
        b"not a state",
        b'{"failures": "many"}',
        b"\xff",
        b'{"failures": 9, "cooldown": 30, "open_until": 1e308}',
        b'{"failures": 9, "cooldown": 30, "open_until": 1, "probe": "mine", "probe_until": 1e308}',
    ],
)
def test_what_is_no_state_is_a_closed_circuit(broker_url: str, clock: Clock, stored: bytes) -> None:
    one = worker(broker_url, clock)
    with redis.Redis.from_url(broker_url) as client:
        client.set(f"palimpsest:breaker:{one.id}", stored)
    assert refused(one) is None
    fail(one, FAILURES)
    assert refused(worker(broker_url, clock))


@pytest.fixture
def gated(redis_server: EmbeddedRedis, broker_url: str) -> Iterator[tuple[str, Gate]]:
    """The URL of Redis through a gate, and the gate."""
    parts = urlsplit(broker_url)
    assert parts.port is not None
    with gate(parts.port) as opened:
        yield broker_url.replace(f":{parts.port}", f":{opened.port}"), opened


@pytest.mark.parametrize("how", ["gone", "silent"])
def test_without_redis_every_worker_goes_on_alone(gated: tuple[str, Gate], clock: Clock, how: str) -> None:
    url, way = gated
    one, two = worker(url, clock), worker(url, clock)
    fail(one, FAILURES - 1)
    assert refused(two) is None
    if how == "gone":
        way.shut()
    else:
        way.silence()
    with capture_logs() as events:
        fail(one)
        assert refused(one), "what it saw before counts"
        assert refused(two) is None, "the other knows of two failures only"
        fail(two)
        assert refused(two)
        clock.now += COOLDOWN
        probe = one.admit()
        assert probe.probe
        assert refused(one)
        one.report(probe)
        assert refused(one) is None
    lost = [event for event in events if event["event"] == "circuit.local"]
    assert len(lost) in {2, 3, 4}, "a failed Redis is left alone for a while"
    assert SECRET not in str(events)


def test_when_redis_is_back_it_learns_what_a_worker_saw_meanwhile(gated: tuple[str, Gate], clock: Clock) -> None:
    url, way = gated
    one, two = worker(url, clock), worker(url, clock)
    fail(one)
    way.shut()
    fail(one, FAILURES - 1)
    assert refused(one)
    way.open()
    assert refused(two) is None
    clock.now += REDIS_PAUSE_SECONDS
    assert refused(one)
    assert refused(two)


def test_a_redis_that_comes_back_empty_is_told(gated: tuple[str, Gate], broker_url: str, clock: Clock) -> None:
    url, way = gated
    one, two, stranger = (worker(url, clock) for _ in range(3))
    fail(one, FAILURES)
    assert refused(two)
    way.shut()
    with redis.Redis.from_url(broker_url) as client:
        client.flushall()
    assert refused(two), "it saw the opening"
    way.open()
    clock.now += REDIS_PAUSE_SECONDS
    assert refused(stranger) is None
    assert refused(two)
    assert refused(stranger)


def test_a_redis_that_is_killed(clock: Clock) -> None:
    with EmbeddedRedis() as server:
        one, two = worker(server.url, clock), worker(server.url, clock)
        fail(one, FAILURES)
        assert refused(two)
    assert refused(two)
    clock.now += COOLDOWN
    one.report(one.admit())
    assert refused(one) is None
    assert two.admit().probe, "each is on its own now"


def test_many_failures_at_once_are_all_counted(broker_url: str, clock: Clock) -> None:
    workers = [worker(broker_url, clock, failures=40) for _ in range(4)]
    permits = [(each, each.admit()) for each in workers for _ in range(10)]
    start = threading.Barrier(len(permits))

    def report(pair: tuple[CircuitBreaker, Permit]) -> None:
        start.wait()
        pair[0].report(pair[1], "model_error")

    with ThreadPoolExecutor(len(permits)) as pool:
        list(pool.map(report, permits))
    assert all(refused(each) for each in workers)
