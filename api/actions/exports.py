"""A user's data as JSON lines, one row a line, made while they are sent."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from api.http.bytes_under_way import BusyError
from runtime import ids
from store.archive import exports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from api.http.bytes_under_way import HeldBytes
    from api.services import Services
    from store.archive.exports import Kind, Portion

BUSY_SECONDS: Final = 0.1
"""Seconds until an export asks again for bytes that others have under way."""
_OWN: Final[Mapping[str, ids.Prefix]] = {"conversation": "conv", "pin": "pin", "run": "run"}
_NAMED: Final[Mapping[str, ids.Prefix]] = {
    "conversation_id": "conv",
    "run_id": "run",
    "request_id": "req",
    "check_request_id": "req",
}
_BREAK: Final = re.compile(r"[\r\n]")
_RAW: Final = {("message", "content"), ("snapshot", "messages")}
"""Columns that hold JSON as the text it came as."""


async def lines(services: Services, hold: HeldBytes, tenant_id: UUID, user_ref: str) -> AsyncIterator[bytes]:
    """Yield every line of a user's export: a conversation, then all that belongs to it, and an end that counts them.

    Each portion is read in a transaction of its own, so that a slow reader holds no connection, once its bytes may be
    under way and the one before was sent. What is erased meanwhile is not in it any more.
    """
    count, row = 0, await services.run(tenant_id, exports.conversation_after, tenant_id, user_ref, None)
    while row is not None:
        count += 1
        async for part in _whole(services, hold, tenant_id, row):
            yield part
        row = await services.run(tenant_id, exports.conversation_after, tenant_id, user_ref, row["id"])
    yield line("end", {"conversations": count})


async def _portion(services: Services, tenant_id: UUID, conversation_id: UUID, kind: Kind, last: Any) -> Portion:
    while True:
        try:
            return await services.run(tenant_id, exports.portion, tenant_id, conversation_id, kind, last)
        except BusyError:
            await asyncio.sleep(BUSY_SECONDS)


async def lines_of_one(
    services: Services, hold: HeldBytes, tenant_id: UUID, row: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    """Yield every line of an export of one conversation, given its row; see `lines`."""
    async for part in _whole(services, hold, tenant_id, row):
        yield part
    yield line("end", {"conversations": 1})


async def _whole(services: Services, hold: HeldBytes, tenant_id: UUID, row: Mapping[str, Any]) -> AsyncIterator[bytes]:
    yield line("conversation", row)
    for kind in exports.KINDS:
        last: Any = None
        while True:
            rows, last = await _portion(services, tenant_id, row["id"], kind, last)
            for each, found in rows:
                yield line(each, found)
            hold.give_back()
            if last is None:
                break


def line(kind: str, row: Mapping[str, Any]) -> bytes:
    """Return a row as one line; stored JSON keeps its bytes, but for line breaks between its tokens.

    Where it has some, the text as it came stands beside it, as a string.
    """
    shown = {name: _shown(kind, name, value) for name, value in row.items()}
    for name, value in row.items():
        if (kind, name) in _RAW and _BREAK.search(value):
            shown[f"{name}_text"] = value
    return msgspec.json.encode({"type": kind, **shown}) + b"\n"


def _shown(kind: str, name: str, value: Any) -> Any:
    if (kind, name) in _RAW:
        # Within JSON's strings line breaks are escaped: these stand between tokens and mean nothing.
        return msgspec.Raw(value.replace("\r", " ").replace("\n", " ").encode())
    if isinstance(value, UUID):
        prefix = _OWN.get(kind) if name == "id" else _NAMED.get(name)
        return ids.external(prefix, value) if prefix else value.hex
    return value.hex() if isinstance(value, bytes) else value
