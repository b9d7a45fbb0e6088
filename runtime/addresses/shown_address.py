"""Addresses of servers for logs and commands: host, port and database, never a login or a password."""

from __future__ import annotations

import re
from typing import Final

_URL: Final = re.compile(
    r"[\w+]+://(?:[^/?#]*@)?(?P<hosts>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?", re.DOTALL
)
_QUERY_HOST: Final = re.compile(r"(?:^|&)host=([^&]*)")
_WITH_PORT: Final = re.compile(r".*\]:\d+|[^:]*:\d+", re.DOTALL)
DATABASE_PORT: Final = 5432
BROKER_PORT: Final = 6379


def shown_address(url: str, default_port: int) -> str:
    """Return host, port and database of a URL, as `db.example:5432/palimpsest`; several hosts with commas between.

    A URL without a host is that of a socket on this machine. What is no URL is not shown at all.
    """
    parts = _URL.fullmatch(url)
    if parts is None:
        return "an address that cannot be read"
    hosts = parts["hosts"].split(",") if parts["hosts"] else _QUERY_HOST.findall(parts["query"] or "")
    named = [host if _WITH_PORT.fullmatch(host) or "/" in host else f"{host}:{default_port}" for host in hosts if host]
    return (", ".join(named) or "localhost") + (parts["path"] or "")
