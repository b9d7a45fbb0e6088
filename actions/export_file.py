"""Export of one conversation as JSON lines: the file that `palimpsest import` takes back."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from migrations.revisions import HEAD
from runtime import release
from store.archive import exports
from store.archive.export_lines import line

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO
    from uuid import UUID

    from sqlalchemy import Connection

FORMAT: Final = "palimpsest.conversation"
VERSION: Final = 3
"""Of the format; a number over it is of a later release, and is not read."""


def write_export(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    file: IO[bytes],
    on_line: Callable[[], None] = lambda: None,
) -> int:
    """Write a conversation as an export file and return how many lines it has; `on_line` is called after each line.

    The transaction decides of which moment the lines are: a snapshot, or a lock on the conversation, makes it one.
    """
    digest = hashlib.sha256()
    count = 0

    def put(kind: str, row: Any) -> None:
        nonlocal count
        text = line(kind, row)
        digest.update(text)
        count += 1
        file.write(text)
        on_line()

    header = {"format": FORMAT, "version": VERSION, "revision": HEAD, "release": release.VERSION}
    put("export", header | {"exported_at": datetime.now(UTC)})
    put("conversation", exports.conversation(connection, tenant_id, conversation_id))
    for kind in exports.KINDS:
        last: Any = None
        while True:
            rows, last = exports.portion(connection, tenant_id, conversation_id, kind, last)
            for each, row in rows:
                put(each, row)
            if last is None:
                break
    file.write(msgspec.json.encode({"type": "end", "lines": count, "sha256": digest.hexdigest()}) + b"\n")
    return count + 1
