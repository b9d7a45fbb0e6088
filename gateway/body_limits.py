"""What of a body is read: as many values, levels and keys as the API takes, and so many rows. The rest passes unread.

Reading costs some microseconds and a hundred bytes a value, and a body of 32 MB has room for sixteen million.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar
from uuid import UUID

from gateway.tenant_slots import NoSlotError
from runtime.threads import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from actions.caller import Caller
    from actions.input.strict_json import Limits
    from gateway.services import GatewayServices

P = ParamSpec("P")
T = TypeVar("T")

MAX_ROWS: Final = 50_000
"""Rows of a list of the body; each takes some 15 microseconds to be recognized, and no window holds as many."""
LARGE_VALUES: Final = 1_000
"""Values from which on reading takes more than a few milliseconds, as LARGE_BYTES are."""
READING_SECONDS: Final = 5.0
"""Seconds that one waits for its turn."""
REST: Final = 3
"""Times as long as one took until the next of its tenant begins: the interpreter is free for others meanwhile."""
_ROWS_LEVEL: Final = 2
_BESIDE_STRUCTURE: Final = bytes(set(range(256)) - set(b"[]{}:,"))
_OPENING: Final = frozenset(b"[{")
_CLOSING: Final = frozenset(b"]}")
_COLON: Final = ord(":")
_NOBODY: Final = UUID(int=0)


class OverLimitsError(Exception):
    """A body that is not read: it has more in it than is, or its tenant has as many being read as may be."""


async def read_body_aside(
    services: GatewayServices,
    caller: Caller | None,
    body: bytes,
    read: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Return what `read` makes of a body; in a thread if that takes more than a few milliseconds.

    Raises OverLimitsError, before anything is made of the body.
    """
    limits = services.core.strict.limits

    def checked() -> T:
        if exceeds_limits(body, limits):
            raise OverLimitsError
        return read(*args, **kwargs)

    if len(body) < LARGE_BYTES and _values(body) < LARGE_VALUES:
        return checked()
    try:
        slot = await services.readings.acquire(_NOBODY if caller is None else caller.tenant_id, READING_SECONDS)
    except NoSlotError:
        raise OverLimitsError from None
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        return await asyncio.to_thread(checked)
    finally:
        loop.call_later(REST * (loop.time() - began), slot.release)


def exceeds_limits(body: bytes, limits: Limits) -> bool:
    """Tell whether a body has more values, levels, keys of an object or rows than are read."""
    colons, commas = body.count(b":"), body.count(b",")
    levels = body.count(b"[") + body.count(b"{")
    if levels <= limits.json_depth and colons <= limits.object_keys and commas < MAX_ROWS:
        return False
    structure = _structure(body, 4 * limits.body_values)
    if structure is None or len(structure) - structure.count(b":") > 2 * limits.body_values:
        return True
    if structure.count(b",") + structure.count(b"[") + structure.count(b"{") > limits.body_values:
        return True
    return _exceeds(structure, limits.json_depth, limits.object_keys)


def _structure(body: bytes, most_quotes: int) -> bytes | None:
    """Return the brackets, colons and commas outside of strings; None where there are too many strings."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') > most_quotes:
        return None
    return b"".join(body.split(b'"')[::2]).translate(None, _BESIDE_STRUCTURE)


def _exceeds(structure: bytes, most_levels: int, most_keys: int) -> bool:
    above: list[int] = []
    keys = rows = level = 0
    for each in structure:
        if each in _OPENING:
            above.append(keys)
            keys = 0
            level += 1
            if level > most_levels:
                return True
        elif each in _CLOSING:
            if not above:
                return False
            keys = above.pop()
            level -= 1
        elif each == _COLON:
            keys += 1
            if keys > most_keys:
                return True
        elif level == _ROWS_LEVEL:
            rows += 1
            if rows >= MAX_ROWS:
                return True
    return False


def _values(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")
