"""`palimpsest snapshots`: the versions of a conversation's context, and which one is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from cli.client import ServiceClient
from cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.client_types import Snapshot
    from cli.options import Service


def run_snapshots(service: Service, conversation: str, *, as_json: bool) -> int:
    """List a conversation's snapshots by version."""
    with ServiceClient(*service) as client:
        head = client.conversation(conversation).head_version
        found = client.snapshots(conversation)
    if as_json:
        print_json({"head_version": head, "snapshots": found})
    else:
        Console().print(snapshots_table(found, head))
    return 0


def snapshots_table(snapshots: Sequence[Snapshot], head: int | None) -> Table:
    """Return a conversation's versions as a table; the head has a mark."""
    table = Table(title="Snapshots", box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in ("version", "parent", "covers through", "tokens", "messages"):
        table.add_column(name, justify="right")
    for name in ("step", "summarizer"):
        table.add_column(name)
    table.add_column("made at", no_wrap=True)
    for each in snapshots:
        version = f"* {each.version:,}" if each.version == head else f"{each.version:,}"
        numbers = (each.parent_version, each.covers_through, each.tokens, each.message_count)
        texts = (each.step, each.summarizer, each.created_at)
        row = (version, *("" if n is None else f"{n:,}" for n in numbers), *(text or "" for text in texts))
        table.add_row(*row, style="bold" if each.version == head else None)
    if not snapshots:
        table.add_row("none yet")
    return table
