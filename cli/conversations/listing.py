"""`palimpsest conversations`: which there are, newest first, as far as filters take them."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cli.client.client import ServiceClient
from cli.output import print_json
from cli.tables import columns, print_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cli.client.types import Conversation
    from cli.options import Service

_NUMBERS: Final = ("messages", "tokens", "head")


class Wanted(NamedTuple):
    """What a conversation has to be like; None = whatever it is."""

    user_ref: str | None = None
    external_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    compacted: bool | None = None
    limit: int = 20


def run_conversations(service: Service, wanted: Wanted, *, as_json: bool) -> int:
    """List conversations, newest first; 0."""
    with ServiceClient(*service) as client:
        listed = client.conversations(user_ref=wanted.user_ref, external_id=wanted.external_id)
        fitting = list(islice(_fitting(listed, wanted), wanted.limit))
    if as_json:
        print_json({"conversations": fitting})
        return 0
    table = columns(("id", "external id", "user", "created", *_NUMBERS), numbers=_NUMBERS, title="Conversations")
    for each in fitting:
        table.add_row(
            each.id,
            each.external_id or "",
            each.user_ref or "",
            f"{datetime.fromisoformat(each.created_at):%Y-%m-%d %H:%M}" if each.created_at else "",
            f"{0 if each.last_seq is None else each.last_seq + 1:,}",
            f"{each.context_tokens:,}",
            "" if each.head_version is None else f"{each.head_version:,}",
        )
    print_table(table)
    return 0


def _fitting(listed: Iterable[Conversation], wanted: Wanted) -> Iterator[Conversation]:
    """Yield those that fit; the list is by time of creation, newest first, so it ends at the first that is too old."""
    for each in listed:
        created = datetime.fromisoformat(each.created_at) if each.created_at else None
        if created and wanted.since and created < wanted.since:
            return
        if created and wanted.until and created >= wanted.until:
            continue
        if wanted.compacted is None or wanted.compacted == bool(each.head_version):
            yield each
