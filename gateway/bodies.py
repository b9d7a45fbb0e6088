"""Bodies of requests that come compressed."""

from __future__ import annotations

import zlib
from typing import Final

_READ_HERE: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
_EITHER: Final = 32 + zlib.MAX_WBITS
"""Of zlib: whether a body is gzip's or zlib's, its head says."""


def plain(body: bytes, encoding: bytes, most: int) -> bytes | None:
    """Return a body without its encoding; None for none, for one that is not read here, and for what is not in it.

    No more than `most` bytes and one come of it, whatever it holds.
    """
    if encoding.strip().lower() not in _READ_HERE:
        return None
    decompress = zlib.decompressobj(_EITHER)
    try:
        decoded = decompress.decompress(body, most + 1)
    except zlib.error:
        return None
    return decoded if len(decoded) > most or (decompress.eof and not decompress.unused_data) else None
