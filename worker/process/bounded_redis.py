"""Connections to Redis on which no value takes more memory than a message may.

A list may hold half a gigabyte in one item, and a client reads the whole of it before anybody can look at it.
"""

from __future__ import annotations

from typing import Any, Final

import redis
from redis._parsers.base import _RESPBase
from redis._parsers.socket import SocketBuffer
from redis.sentinel import SentinelManagedConnection

MOST_BYTES: Final = 1 << 20
"""Bytes of a value that are read; of a larger one nothing is kept."""
TOO_LARGE: Final = b'"too large"'
"""Stands for a value that was passed over: JSON, and no message."""
_CHUNK: Final = 1 << 16


class _BoundedBuffer(SocketBuffer):
    def read(self, length: int, *args: Any, **kwargs: Any) -> bytes:
        """Return the next `length` bytes; a value that is too large is read off and forgotten."""
        if length <= MOST_BYTES:
            return super().read(length, *args, **kwargs)
        left = length + len(b"\r\n")
        while left:
            data = self._buffer.read(min(left, _CHUNK))
            left -= len(data)
            if left and not data:
                self._buffer.seek(0)
                self._buffer.truncate()
                self._read_from_socket(*args, **kwargs)
        return TOO_LARGE


class _BoundedParser:
    def on_connect(self, connection: Any) -> None:
        """Read by a buffer that is bounded."""
        super().on_connect(connection)  # type: ignore[misc] # of the parser beside it
        self._buffer = _BoundedBuffer(connection._sock, self.socket_read_size, connection.socket_timeout)  # type: ignore[attr-defined] # noqa: SLF001


class _Bounded:
    def set_parser(self, parser_class: type) -> None:
        """Take the parser for the protocol, bounded; one in C has no buffer of its own, and is not installed."""
        if issubclass(parser_class, _RESPBase):
            parser_class = type(parser_class.__name__, (_BoundedParser, parser_class), {})
        super().set_parser(parser_class)  # type: ignore[misc] # of the connection beside it


class BoundedConnection(_Bounded, redis.Connection):
    """A connection over TCP."""


class BoundedSSLConnection(_Bounded, redis.SSLConnection):
    """A connection over TLS."""


class BoundedSentinelConnection(_Bounded, SentinelManagedConnection):
    """A connection over TCP to the master that Sentinels name."""
