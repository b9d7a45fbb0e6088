"""What `palimpsest doctor` asks Redis."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.retry import Retry

from cli.doctor.database import clock
from cli.doctor.findings import ok, problem
from runtime.addresses.redis_clients import redis_client
from runtime.addresses.shown_address import BROKER_PORT, shown_address
from runtime.broker import QUEUES, queue_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from cli.doctor.findings import Finding
    from runtime.settings import Settings

OLDEST_REDIS: Final = (6, 2)
FULL: Final = 0.9
"""Share of its memory in use from which Redis may refuse the next message."""
_SECONDS: Final = 5.0


def broker_findings(settings: Settings) -> Iterator[Finding]:
    """Yield what is found; without Redis, only that."""
    address = f"{shown_address(settings.broker_url.get_secret_value(), BROKER_PORT)} (PALIMPSEST_BROKER_URL)"
    try:
        client = redis_client(
            settings.broker_url.get_secret_value(),
            socket_timeout=_SECONDS,
            socket_connect_timeout=_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        yield _unreachable(address, str(error))
        return
    try:
        yield from _server(client, address)
    except (AuthenticationError, NoPermissionError) as error:
        yield problem(
            "broker",
            f"Redis at {address} answers, and refuses the login: {error}",
            why="wake-ups wait for the sweep, and workers take no tasks",
            mend="correct user and password in PALIMPSEST_BROKER_URL: redis://user:password@host:port/0",
        )
    except (RedisError, OSError) as error:
        yield _unreachable(address, str(error))
    finally:
        client.close()


def _unreachable(address: str, reason: str) -> Finding:
    return problem(
        "broker",
        f"Redis does not answer at {address}: {reason.splitlines()[0] if reason else 'no reason given'}",
        why="wake-ups wait for the sweep, and workers take no tasks",
        mend="start Redis, or set PALIMPSEST_BROKER_URL",
    )


def _server(client: Redis, address: str) -> Iterator[Finding]:
    before = time.time()
    seconds, microseconds = client.time()
    after = time.time()
    info: dict[str, Any] = client.info()
    release = str(info.get("redis_version", "0"))
    yield ok("broker", f"Redis {release} answers at {address}")
    if tuple(int(part) for part in release.split(".")[:2]) < OLDEST_REDIS:
        yield problem(
            "broker_version",
            f"Redis {release} is too old",
            why="the service is made for 6.2 and newer",
            mend="upgrade Redis",
        )
    if info.get("role") != "master":
        yield problem(
            "broker_primary",
            "this Redis is a replica",
            why="it takes no messages",
            mend="let PALIMPSEST_BROKER_URL name the primary",
        )
    now = float(seconds) + float(microseconds) / 1e6
    yield clock("broker_clock", "Redis' clock", max(before - now, now - after, 0.0))
    yield from _memory(info)
    waiting = {queue: sum(int(client.llen(key)) for key in queue_keys(queue)) for queue in QUEUES}
    yield ok("queues", ", ".join(f"{count:,} messages wait in {queue}" for queue, count in waiting.items()))


def _memory(info: dict[str, Any]) -> Iterator[Finding]:
    eviction, limit, used = info.get("maxmemory_policy"), info.get("maxmemory", 0), info.get("used_memory", 0)
    if eviction not in {None, "noeviction"}:
        yield problem(
            "eviction",
            f"Redis removes keys when its memory is full (maxmemory-policy {eviction})",
            why="a queue may vanish, and with it every wake-up until the sweep finds what is due",
            mend="redis-cli config set maxmemory-policy noeviction, and the same in redis.conf",
        )
    else:
        yield ok("eviction", "Redis removes no keys by itself")
    if limit and used / limit > FULL:
        yield problem(
            "broker_memory",
            f"Redis uses {used:,} of {limit:,} bytes",
            why="once it is full it takes no more messages",
            mend="raise maxmemory, and see why messages wait: palimpsest stats",
        )
