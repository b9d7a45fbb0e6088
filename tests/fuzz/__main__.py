"""Fuzzing for as long as one likes: `make fuzz ARGS="--minutes 60"`; see docs/security.md."""

from __future__ import annotations

import argparse
import secrets
import sys
import traceback
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import structlog
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from cli.local.embedded import EmbeddedPostgres, EmbeddedRedis
from migrations.run import upgrade
from runtime.settings import Settings
from tests.conftest import create_database, make_tenants
from tests.fuzz.api_calls import ApiFuzz, Failures
from tests.fuzz.core import invariants
from tests.fuzz.crafted_exports import CraftedExports
from tests.fuzz.gateway_doors import door_bodies, door_heads, gateway_doors
from tests.fuzz.trace_headers import TraceHeaders, trace_headers
from tests.fuzz.transcript_files import reads_or_says_where, transcript_files
from tests.fuzz.turn_calls import Turns, lives_of_turns
from tests.support.service.running_api import Service, running_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTS: Final = ("api", "turns", "core", "transcripts", "exports", "traces", "gateway")
API_EXAMPLES: Final = 40
"""Calls of each operation, of each kind, in one round."""
PIECE: Final = 200
"""Examples of a property in one round; each round has a seed of its own."""


def main() -> int:
    """Fuzz the parts that are asked for, print what was seen, and return 1 if anything failed."""
    asked = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    asked.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    asked.add_argument("--minutes", type=float, default=3.0, help="for each part (default: %(default)s)")
    asked.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="of the first round")
    given_arguments = asked.parse_args()
    parts = given_arguments.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        asked.error(f"there is no part {unknown.pop()}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(f"seed {given_arguments.seed}, {given_arguments.minutes:g} minutes a part")  # noqa: T201 - it reports
    failed = 0
    for part in parts:
        with _service() as service:
            failures = _FUZZ[part](service, given_arguments.seed, monotonic() + 60 * given_arguments.minutes)
        print(f"{part}: {len(failures)} unique failures", failures.report(), sep="\n", flush=True)  # noqa: T201
        failed += len(failures)
    return 1 if failed else 0


@contextmanager
def _service() -> Iterator[Service]:
    """Serve the API on servers of its own, to two tenants."""
    with EmbeddedPostgres(durable=False) as postgres, EmbeddedRedis() as redis:
        url = create_database(postgres.url, "fuzz")
        upgrade(url)
        set_up = Settings(
            database_url=SecretStr(url),
            broker_url=SecretStr(redis.url),
            summarizer="extractive",
            max_body_bytes=1 << 20,
        )
        tenant, other = make_tenants(url, "acme", "rival")
        with running_api(set_up) as api, api.client(tenant.key) as client, api.client(other.key) as stranger:
            yield Service(api, set_up, url, tenant.id, client, stranger)


def _api(service: Service, number: int, until: float) -> Failures:
    fuzz = ApiFuzz(service, number)
    while monotonic() < until:
        fuzz.run(API_EXAMPLES, until=until)
    if fuzz.planted.changed() or fuzz.planted.reads_differently():
        fuzz.failures.note("all calls", "changed what another tenant has", str(fuzz.planted.changed()))
    statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(fuzz.statuses.items()))
    print(f"api: {fuzz.requests:,} requests ({statuses}), {fuzz.foreign:,} with another tenant's id")  # noqa: T201
    return fuzz.failures


def _turns(service: Service, number: int, until: float) -> Failures:
    client, failures = Turns(service), Failures()
    drawn = st.tuples(lives_of_turns(), st.integers(0, 2**16))
    lives = _search(drawn, lambda each: client.live(*each), "turns", number, until, failures)
    statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(client.statuses.items()))
    print(f"turns: {lives:,} conversations, {client.statuses.total():,} turns ({statuses})")  # noqa: T201
    return failures


def _core(_service: Service, number: int, until: float) -> Failures:
    failures, found = Failures(), invariants()
    begun = monotonic()
    for place, (name, (drawn, holds)) in enumerate(found.items()):
        end = begun + (until - begun) * (place + 1) / len(found)
        examples = _search(drawn, holds, name, number, end, failures)
        print(f"core, {name}: {examples:,} examples")  # noqa: T201
    return failures


def _search(
    strategy: st.SearchStrategy[Any],
    holds: Callable[[Any], None],
    name: str,
    number: int,
    until: float,
    failures: Failures,
) -> int:
    """Search for examples of which it does not hold, and return how many were tried."""
    tried = 0

    def attempt(example: Any) -> None:
        nonlocal tried
        tried += 1
        holds(example)

    while monotonic() < until:
        number += 1
        try:
            _property(strategy, attempt, number)()
        except Exception as error:  # noqa: BLE001 - whatever fails is what is looked for
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = "".join(traceback.format_exception(error))[-200_000:]
            failures.note(name, f"{type(error).__name__} in {frame.name}, line {frame.lineno}", text)
    return tried


def _property(strategy: st.SearchStrategy[Any], attempt: Callable[[Any], None], number: int) -> Callable[[], None]:
    @seed(number)
    @settings(
        max_examples=PIECE,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        # Not shrunk: against servers that takes longer than the search.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(example: Any) -> None:
        attempt(example)

    return draw


def _transcripts(_service: Service, number: int, until: float) -> Failures:
    failures = Failures()
    files = _search(transcript_files(), reads_or_says_where, "transcripts", number, until, failures)
    print(f"transcripts: {files:,} files")  # noqa: T201
    return failures


def _exports(service: Service, number: int, until: float) -> Failures:
    crafted, failures = CraftedExports(service), Failures()
    files = _search(crafted.drawn(), crafted.imported_or_refused, "exports", number, until, failures)
    crafted.close()
    outcomes = ", ".join(f"{outcome}: {count:,}" for outcome, count in sorted(crafted.outcomes.items()))
    print(f"exports: {files:,} files ({outcomes})")  # noqa: T201
    return failures


def _traces(service: Service, number: int, until: float) -> Failures:
    headers, failures = TraceHeaders(service), Failures()
    drawn = _search(trace_headers(), headers.traced, "traces", number, until, failures)
    headers.stop()
    print(f"traces: {drawn:,} examples, {headers.spans:,} spans")  # noqa: T201
    return failures


def _gateway(service: Service, number: int, until: float) -> Failures:
    failures = Failures()
    with gateway_doors(service) as doors:
        left = max(0.0, until - monotonic())
        quarter, half = until - left * 3 / 4, until - left / 2
        heads = _search(door_heads(), doors.read_once, "gateway heads", number, quarter, failures)
        heads += _search(door_heads(), doors.read_as_framed, "gateway kept heads", number, half, failures)
        bodies = _search(door_bodies(), doors.answered_or_refused, "gateway", number, until, failures)
    statuses = ", ".join(f"{path} {status}: {count:,}" for (path, status), count in sorted(doors.statuses.items()))
    print(f"gateway: {heads:,} heads, {bodies:,} bodies ({statuses})")  # noqa: T201
    return failures


_FUZZ: Final[dict[str, Callable[[Service, int, float], Failures]]] = {
    "api": _api,
    "turns": _turns,
    "core": _core,
    "transcripts": _transcripts,
    "exports": _exports,
    "traces": _traces,
    "gateway": _gateway,
}

if __name__ == "__main__":
    sys.exit(main())
