"""Work that takes longer than other requests may wait goes to a thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES: Final = 256 * 1024
"""Bytes from which on parsing takes tens of milliseconds."""
SWITCH_SECONDS: Final = 0.001
"""Seconds after which a thread that computes lets the event loop go on; Python has five times that."""


async def run_aside(size: int, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `compute` on `size` bytes; in a thread from LARGE_BYTES on."""
    if size < LARGE_BYTES:
        return compute(*args, **kwargs)
    return await asyncio.to_thread(compute, *args, **kwargs)
