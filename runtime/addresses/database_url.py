"""A database's URL: one host, or several of which one is the primary."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

_PORT: Final = 5432
_LAST_PORT: Final = 65_535
_EXPECTED: Final = "expected postgresql://login:password@host:port/database, with commas between several host:port"
_PARTS: Final = re.compile(r"([\w+]+://(?:[^:/]*(?::[^@]*)?@)?)([^/?]*)(.*)", re.DOTALL)
"""What stands before the hosts, the hosts, and the rest; as SQLAlchemy reads a URL."""
_WITHOUT_PASSWORD: Final = re.compile(r"([\w+]+://[^:/?#]+)(@[^@/?#]*(?:[/?#].*)?)", re.DOTALL)
"""A login that has none, and the rest."""


def with_password(database_url: str, password: str) -> str:
    """Return the URL with a password for its login, as it is where it has no login, or one with a password."""
    parts = _WITHOUT_PASSWORD.fullmatch(database_url)
    return database_url if parts is None else f"{parts[1]}:{quote(password, safe='')}{parts[2]}"


def hosts_of(database_url: str) -> tuple[URL, ...]:
    """Return the URL of each host that a database's URL names, in its order.

    Several are written as libpq takes them: `postgresql://login@one:5432,two:5432/database`, or as SQLAlchemy does,
    `?host=one:5432&host=two:5432`. Unless the URL says otherwise, only a host that takes writes will do then
    (`target_session_attrs=read-write`).
    Raises ValueError, whose text has nothing of the URL.
    """
    try:
        hosts, url = _split(database_url)
        urls = tuple(_at(url, host) for host in hosts) if len(hosts) > 1 else (url,)
    except (ArgumentError, ValueError):
        raise ValueError(_EXPECTED) from None
    if not all(each.drivername.startswith("postgres") and (each.port or 0) <= _LAST_PORT for each in urls):
        raise ValueError(_EXPECTED)
    return urls


def _split(database_url: str) -> tuple[list[str], URL]:
    parts = _PARTS.fullmatch(database_url)
    if parts is not None and "," in parts[2]:
        return parts[2].split(","), make_url(parts[1] + parts[3])
    url = make_url(database_url)
    named = url.query.get("host", ())
    hosts = [named] if isinstance(named, str) else [*named]
    return hosts, url.difference_update_query(["host"]) if len(hosts) > 1 else url


def _at(url: URL, host: str) -> URL:
    """Return the URL with one host, which is told to be the primary."""
    if "target_session_attrs" not in url.query:
        url = url.update_query_dict({"target_session_attrs": "read-write"})
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?", host)
    name, _, port = (bracketed[1], "", bracketed[2]) if bracketed else host.partition(":")
    if not name:
        raise ValueError(_EXPECTED)
    return url.set(host=name, port=int(port or _PORT))
