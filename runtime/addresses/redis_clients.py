"""Clients of the Redis that a broker's URL names: one server, or whichever Sentinels say is the master."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

if TYPE_CHECKING:
    import redis.asyncio
    from redis import Redis

SCHEME: Final = "sentinel"
_PORT: Final = 26_379
_PARTS: Final = re.compile(rf"{SCHEME}://([^/?#]*)([^?#]*)\??([^#]*)", re.IGNORECASE)
"""What stands before the path, the path, and the query: newer urlsplits refuse an IPv6 address beside other hosts."""
_EXPECTED: Final = (
    "expected redis://user:password@host:port/0, rediss:// for TLS, or sentinel://one:26379,two:26379/0?master_name=…"
)


class Sentinels(NamedTuple):
    """What a URL `sentinel://user:password@one:26379,two:26379/0?master_name=…&sentinel_password=…` says.

    User and password are those of Redis; `sentinel_password` is that of the Sentinels, where they have one.
    """

    places: tuple[tuple[str, int], ...]
    master_name: str
    redis: dict[str, Any]
    """Of connections to the master: username, password, db."""
    own: dict[str, Any]
    """Of connections to the Sentinels: password."""

    def kombu_url(self) -> str:
        """Return the URL of each Sentinel as kombu takes them; it has the rest in its options."""
        user, password = (quote(self.redis.get(name) or "", safe="") for name in ("username", "password"))
        login = f"{user}:{password}@" if user or password else ""
        places = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.places]
        return ";".join(f"{SCHEME}://{login}{place}/{self.redis['db']}" for place in places)


def check_broker_url(url: str) -> None:
    """Raise ValueError, whose text has nothing of the URL, where no client could be made of it."""
    try:
        if sentinels_of(url) is None:
            parts = urlsplit(url)
            is_one = parts.scheme in {"redis", "rediss"} and parts.port != 0
        else:
            is_one = True
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError(_EXPECTED)


def sentinels_of(url: str) -> Sentinels | None:
    """Return the Sentinels that a URL names, None for a Redis itself. Raises ValueError."""
    parts = _PARTS.match(url)
    if parts is None:
        return None
    authority, path, queried = parts.groups()
    login, _, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    query = dict(parse_qsl(queried, strict_parsing=bool(queried)))
    master_name, sentinel_password = query.pop("master_name", ""), query.pop("sentinel_password", None)
    places = tuple((place.hostname or "", place.port or _PORT) for place in map(urlsplit, _each(hosts)))
    if not master_name or query or not all(host for host, _ in places):
        raise ValueError(_EXPECTED)
    return Sentinels(
        places,
        master_name,
        {"username": unquote(user) or None, "password": unquote(password) or None, "db": int(path[1:] or 0)},
        {"password": sentinel_password} if sentinel_password else {},
    )


def _each(hosts: str) -> list[str]:
    return [f"//{host}" for host in hosts.split(",")]


def redis_client(url: str, **options: Any) -> Redis:
    """Return a client with those options of redis-py. With Sentinels each connection asks them where to go."""
    # Whoever reads settings alone need not load the library.
    from redis import Redis, Sentinel  # noqa: PLC0415

    if (of := sentinels_of(url)) is None:
        return Redis.from_url(url, **options)
    sentinel = Sentinel(of.places, sentinel_kwargs=_own(of, options), **options, **of.redis)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(of.master_name)  # type: ignore[no-untyped-call]
    return client


def async_redis_client(url: str, **options: Any) -> redis.asyncio.Redis:
    """Return the same for asyncio."""
    from redis.asyncio import Sentinel, from_url  # noqa: PLC0415 - as above

    if (of := sentinels_of(url)) is None:
        return from_url(url, **options)
    sentinel = Sentinel(of.places, sentinel_kwargs=_own(of, options), **options, **of.redis)  # type: ignore[no-untyped-call]
    master: redis.asyncio.Redis = sentinel.master_for(of.master_name)
    return master


def async_blocking_pool(url: str, **options: Any) -> redis.asyncio.BlockingConnectionPool:
    """Return a pool for asyncio whose callers wait for a connection; `max_connections` and `timeout` are its own."""
    from redis.asyncio import BlockingConnectionPool, Sentinel, SentinelConnectionPool  # noqa: PLC0415 - as above

    if (of := sentinels_of(url)) is None:
        return BlockingConnectionPool.from_url(url, **options)

    class Pool(SentinelConnectionPool, BlockingConnectionPool):
        """Both: the first says where a connection goes, the second who waits for one."""

    return Pool(of.master_name, Sentinel(of.places, sentinel_kwargs=_own(of, options)), **options, **of.redis)  # type: ignore[no-untyped-call]


def _own(of: Sentinels, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of connections to Sentinels: as patient as those to the master, and no more persistent."""
    kept = {name: value for name, value in options.items() if name.startswith("socket_") or name == "retry"}
    return kept | of.own
