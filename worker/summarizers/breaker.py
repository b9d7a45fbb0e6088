"""The circuit breaker: while a model's service is down, or refuses a key, no worker asks it in vain.

The state is shared in Redis; a process that cannot reach Redis goes on with a state of its own.
"""

from __future__ import annotations

import hashlib
import math
import random
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard
from uuid import uuid4

import msgspec
import structlog
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, WatchError
from redis.retry import Retry

from compaction.steps.runs import RunReason
from runtime.addresses.redis_clients import redis_client
from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.client import Pipeline

    from runtime.settings import Settings
    from runtime.summarizers import Provider

log = structlog.get_logger()

COUNTED: Final = frozenset(
    {
        RunReason.MODEL_RATE_LIMITED,
        RunReason.MODEL_OVERLOADED,
        RunReason.MODEL_ERROR,
        RunReason.MODEL_TIMEOUT,
        RunReason.MODEL_UNREACHABLE,
        RunReason.MODEL_GARBAGE,
    }
)
"""Reasons that speak of the service, not of the request: so many in a row open the circuit."""
AT_ONCE: Final = frozenset({RunReason.MODEL_AUTH, RunReason.MODEL_BILLING})
"""Reasons that any other request would meet with as well: the first one opens the circuit."""
OUTAGE: Final = COUNTED | AT_ONCE | {RunReason.CIRCUIT_OPEN}
"""Reasons for which no model has read what was to be summarized."""
JITTER: Final = 0.25
"""Share of a cooldown by which it may be longer."""
REDIS_SECONDS: Final = 0.25
"""Longest wait for a connection to Redis, and for one answer of it."""
REDIS_PAUSE_SECONDS: Final = 5.0
"""Seconds that a process goes without Redis after it failed."""
_TRIES: Final = 200
"""Whoever loses a race lost it to somebody who got on, so that nobody loses this many in a row."""
_PREFIX: Final = "palimpsest:breaker:"
_MOST_BYTES: Final = 1_024
"""Of a state; one has some hundred."""


class State(msgspec.Struct, frozen=True):
    """Closed while `cooldown` is 0; else open until `open_until`, and after that half-open: one probe at a time."""

    failures: int = 0
    """Failures in a row."""
    cooldown: float = 0.0
    """Seconds of the last opening, without its jitter."""
    open_until: float = 0.0
    probe: str = ""
    """The call that tries whether the service is back."""
    probe_until: float = 0.0
    """When that call counts as lost."""


class Permit(NamedTuple):
    """Leave for one call; `probe` is empty unless the call is the one that tries a half-open circuit."""

    probe: str = ""


CLOSED: Final = State()


class CircuitBreaker:
    """One circuit for a key at a service. Safe to use from many threads and processes; never raises RedisError.

    name: whose circuit it is, of any length; Redis sees its hash.
    failures: failures in a row that open it; 0 switches it off.
    cooldown, longest: seconds that it stays open at first, and at most.
    probe_seconds: seconds after which a probe that did not report counts as lost.
    clock: seconds since the epoch. None takes those of Redis, so that the clocks of workers may differ.
    """

    def __init__(
        self,
        redis_url: str,
        name: str,
        *,
        failures: int,
        cooldown: float,
        longest: float,
        probe_seconds: float,
        clock: Callable[[], float] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.id = hashlib.sha256(name.encode()).hexdigest()[:32]
        """What the circuit is called in Redis and in logs."""
        self._key = _PREFIX + self.id
        self._failures, self._cooldown, self._longest = failures, min(cooldown, longest), longest
        self._probe_seconds = probe_seconds
        self._clock, self._jitter = clock, jitter
        self._stopwatch = clock or time.monotonic
        self._client = redis_client(
            redis_url,
            socket_connect_timeout=REDIS_SECONDS,
            socket_timeout=REDIS_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._lock = threading.Lock()
        self._own = CLOSED
        """The state that this process last saw or, while Redis is away, made."""
        self._was_away = False
        """Whether Redis may not know of that state."""
        self._without_redis_until = -math.inf

    @classmethod
    def of(cls, settings: Settings, provider: Provider) -> CircuitBreaker:
        """Return the circuit of the installation's key for a provider's API, at its base URL."""
        door = settings.model_access(provider)
        return cls(
            settings.broker_url.get_secret_value(),
            f"{door.base_url or ''}\0{door.key}",
            failures=settings.breaker_failures,
            cooldown=settings.breaker_cooldown_seconds,
            longest=settings.breaker_max_cooldown_seconds,
            probe_seconds=probe_seconds(settings),
        )

    def seconds_left(self) -> float:
        """Return the seconds until a call may be made, 0 if it may be made now; nothing is changed by asking."""
        _, state, now = self._change(lambda state, _: state)
        return seconds_closed_to_calls(state, now)

    def admit(self) -> Permit:
        """Return leave for one call; raises SummaryError `circuit_open` where there is none."""
        if not self._failures:
            return Permit()
        token = uuid4().hex
        before, after, now = self._change(lambda state, now: admitted(state, now, token, self._probe_seconds))
        if after.probe == token:
            log.info("circuit.probed", circuit=self.id)
            return Permit(token)
        if wait := seconds_closed_to_calls(before, now):
            raise SummaryError(RunReason.CIRCUIT_OPEN, f"the model is not asked for another {wait:.0f} s")
        return Permit()

    def report(self, permit: Permit, code: str | None = None, retry_after: float | None = None) -> None:
        """Take note of how a call ended: `code` is why it failed, None that it did not.

        A code that does not speak of the service counts as success, because the service answered. `retry_after` is
        the patience in seconds that the service asked for: it opens the circuit for as long.
        """
        if not self._failures:
            return
        if code in AT_ONCE:
            wanted = self._longest
        elif code in COUNTED:
            wanted = min(retry_after, self._longest) if retry_after else 0.0
        else:
            before, after, _ = self._change(lambda state, _: succeeded(state, permit.probe))
            if before.cooldown and not after.cooldown:
                log.info("circuit.closed", circuit=self.id)
            return
        spread = 1 + JITTER * self._jitter()
        before, after, now = self._change(lambda state, now: self._failed(state, now, permit.probe, wanted, spread))
        if after.open_until != before.open_until:
            seconds = round(after.open_until - now, 1)
            log.warning("circuit.opened", circuit=self.id, code=code, failures=after.failures, seconds=seconds)

    def _failed(self, state: State, now: float, probe: str, wanted: float, spread: float) -> State:
        if not state.cooldown:
            failures = state.failures + 1
            if failures < self._failures and not wanted:
                return State(failures)
            cooldown = max(self._cooldown, wanted)
        elif probe and probe == state.probe:
            failures = state.failures + 1
            cooldown = min(max(state.cooldown * 2, wanted), self._longest)
        else:
            # The call began before the circuit opened.
            return state
        return State(failures, cooldown, now + cooldown * spread)

    def _change(self, step: Callable[[State, float], State]) -> tuple[State, State, float]:
        """Apply `step` to the state and return it before and after, and the time in seconds since the epoch."""
        if self._stopwatch() >= self._without_redis_until:
            try:
                return self._change_shared(step)
            except (RedisError, OSError) as error:
                log.warning("circuit.local", circuit=self.id, error=type(error).__name__)
                with self._lock:
                    self._was_away, self._without_redis_until = True, self._stopwatch() + REDIS_PAUSE_SECONDS
        with self._lock:
            now = (self._clock or time.time)()
            before = self._own
            self._own = step(before, now)
            return before, self._own, now

    def _change_shared(self, step: Callable[[State, float], State]) -> tuple[State, State, float]:
        with self._client.pipeline() as pipe:
            for _ in range(_TRIES):
                pipe.watch(self._key)  # type: ignore[no-untyped-call] # redis-py left it without
                now = self._now(pipe)
                # No more of it than a state has: whoever can write there may have put half a gigabyte.
                stored = self._credible(_decode(pipe.getrange(self._key, 0, _MOST_BYTES)), now)
                with self._lock:
                    own = self._own if self._was_away else CLOSED
                before = max(stored or CLOSED, own, key=lambda state: (state.open_until, state.failures))
                after = step(before, now)
                try:
                    self._store(pipe, stored, after)
                except WatchError:
                    continue
                with self._lock:
                    self._own, self._was_away, self._without_redis_until = after, False, -math.inf
                return before, after, now
        raise WatchError("the state changed too often")

    def _credible(self, stored: State | None, now: float) -> State | None:
        """Return a state that was read, None for one that no breaker makes: anybody may have written it."""
        return stored if is_credible(stored, now, self._longest, self._probe_seconds) else None

    def _now(self, pipe: Pipeline) -> float:
        if self._clock:
            return self._clock()
        seconds, microseconds = pipe.time()
        return float(seconds) + float(microseconds) / 1e6

    def _store(self, pipe: Pipeline, stored: State | None, after: State) -> None:
        """Write `after` unless somebody wrote since the key was watched: raises WatchError."""
        if after == (stored or CLOSED):
            pipe.unwatch()
            return
        pipe.multi()
        if after == CLOSED:
            pipe.delete(self._key)
        else:
            # Failures that lie further apart than this are not in a row, and a circuit nobody asks is forgotten.
            seconds = 3 * self._longest + self._probe_seconds
            pipe.set(self._key, msgspec.json.encode(after), px=int(seconds * 1000))
        pipe.execute()


def probe_seconds(settings: Settings) -> float:
    """Return the seconds after which a probe counts as lost."""
    return settings.summarizer_deadline_seconds + 30


def longest_wait(settings: Settings) -> float:
    """Return the seconds until every circuit of the installation lets a call through, whatever key it is for.

    For those who have not the workers' key. Nothing is changed by asking. Raises RedisError and OSError.
    """
    url = settings.broker_url.get_secret_value()
    client = redis_client(url, socket_connect_timeout=REDIS_SECONDS, socket_timeout=REDIS_SECONDS)
    longest, patience = settings.breaker_max_cooldown_seconds, probe_seconds(settings)
    try:
        seconds, microseconds = client.time()
        now = float(seconds) + float(microseconds) / 1e6
        states = [
            _decode(client.getrange(key, 0, _MOST_BYTES))
            for key in client.scan_iter(f"{_PREFIX}*", count=1_000, _type="string")
        ]
    finally:
        client.close()
    waits = (seconds_closed_to_calls(each, now) for each in states if is_credible(each, now, longest, patience))
    return max(waits, default=0.0)


def is_credible(state: State | None, now: float, longest: float, probe_seconds: float) -> TypeGuard[State]:
    """Return whether a breaker may have made a state that was read."""
    if state is None or state.open_until > now + longest * (1 + JITTER) + 1:
        return False
    return state.probe_until <= now + probe_seconds + 1


def seconds_closed_to_calls(state: State, now: float) -> float:
    """Return the seconds until a call may be made, 0 if it may be made now."""
    if not state.cooldown:
        return 0.0
    return max(0.0, state.open_until - now, state.probe_until - now if state.probe else 0.0)


def admitted(state: State, now: float, token: str, probe_seconds: float) -> State:
    """Return the state after somebody asked for leave: `token` becomes the probe if the circuit is half-open."""
    if not state.cooldown or seconds_closed_to_calls(state, now):
        return state
    return msgspec.structs.replace(state, probe=token, probe_until=now + probe_seconds)


def succeeded(state: State, probe: str) -> State:
    """Return the state after a call that the service answered; only the probe closes an open circuit."""
    if state.cooldown and not (probe and probe == state.probe):
        return state
    return CLOSED


def _decode(stored: bytes | str) -> State | None:
    """Return what is stored, None where that is nothing, or no state."""
    try:
        return msgspec.json.decode(stored, type=State)
    except msgspec.MsgspecError:
        return None
