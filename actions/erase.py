"""What a user has: taken along as JSON lines, one row a line, made while they are sent; or erased."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from runtime.held_bytes import BusyError
from store.archive import erasures, exports
from store.archive.export_lines import line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from uuid import UUID

    from actions.caller import Caller
    from store.archive.exports import Kind, Portion

BUSY_SECONDS: Final = 0.1
"""Seconds until an export asks again for bytes that others have under way."""


async def lines(caller: Caller, user_ref: str) -> AsyncIterator[bytes]:
    """Yield every line of a user's export: a conversation, then all that belongs to it, and an end that counts them.

    Each portion is read in a transaction of its own, so that a slow reader holds no connection, once its bytes may be
    under way and the one before was sent. What is erased meanwhile is not in it any more.
    """
    count, row = 0, await caller.run(exports.conversation_after, user_ref, None)
    while row is not None:
        count += 1
        async for part in _whole(caller, row):
            yield part
        row = await caller.run(exports.conversation_after, user_ref, row["id"])
    yield line("end", {"conversations": count})


async def _portion(caller: Caller, conversation_id: UUID, kind: Kind, last: Any) -> Portion:
    while True:
        try:
            return await caller.run(exports.portion, conversation_id, kind, last)
        except BusyError:
            await asyncio.sleep(BUSY_SECONDS)


async def lines_of_one(caller: Caller, row: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """Yield every line of an export of one conversation, given its row; see `lines`."""
    async for part in _whole(caller, row):
        yield part
    yield line("end", {"conversations": 1})


async def _whole(caller: Caller, row: Mapping[str, Any]) -> AsyncIterator[bytes]:
    yield line("conversation", row)
    for kind in exports.KINDS:
        last: Any = None
        while True:
            rows, last = await _portion(caller, row["id"], kind, last)
            for each, stored in rows:
                yield line(each, stored)
            caller.hold.give_back()
            if last is None:
                break


async def erase_all_of(caller: Caller, user_ref: str) -> int:
    """Erase every conversation of a user, some in each transaction; return how many there were."""
    total = 0
    while erased := await caller.services.erase(caller.tenant_id, erasures.erase_of_user, caller.operator, user_ref):
        total += erased
    return total
