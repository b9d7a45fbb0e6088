"""`palimpsest snapshots`: the versions of a conversation's context, and which one is in force."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from cli.client.client import ServiceClient
from cli.output import print_json
from cli.tables import columns, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from cli.client.types import Snapshot
    from cli.options import Service

_NUMBERS: Final = ("version", "parent", "covers", "tokens", "messages")


def run_snapshots(service: Service, conversation: str, *, as_json: bool) -> int:
    """List a conversation's snapshots by version."""
    with ServiceClient(*service) as client:
        head = client.conversation(conversation).head_version
        snapshots = client.snapshots(conversation)
    if as_json:
        print_json({"head_version": head, "snapshots": snapshots})
    else:
        print_table(snapshots_table(snapshots, head))
    return 0


def snapshots_table(snapshots: Sequence[Snapshot], head: int | None) -> Table:
    """Return a conversation's versions as a table; the head has a mark."""
    table = columns((*_NUMBERS, "made at", "by"), numbers=_NUMBERS, title="Snapshots")
    for each in snapshots:
        version = f"* {each.version:,}" if each.version == head else f"{each.version:,}"
        numbers = (each.parent_version, each.covers_through, each.tokens, each.message_count)
        created = f"{datetime.fromisoformat(each.created_at):%Y-%m-%d %H:%M:%S}" if each.created_at else ""
        by = ", ".join(filter(None, (each.step, each.summarizer)))
        row = (version, *("" if n is None else f"{n:,}" for n in numbers), created, by)
        table.add_row(*row, style="bold" if each.version == head else None)
    return table
