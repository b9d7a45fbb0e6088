"""Looking whether a server can listen on a port, before it says that it has started."""

from __future__ import annotations

import socket


class CannotListenError(Exception):
    """No server can listen there; the message is one line for people."""


def check_port_is_free(host: str, port: int, mend: str = "") -> None:
    """Raise CannotListenError if a server could not listen on the port; `mend` says what sets another one."""
    hint = f"; {mend}" if mend else ""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers' own sockets have it
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as asyncio has it
                probe.bind(address)
    except OSError as error:
        raise CannotListenError(f"cannot listen on port {port} of {host}: {error.strerror}{hint}") from None
