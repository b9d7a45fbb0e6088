"""`palimpsest recall`: what was said in a conversation, by words, by reference or by pattern."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.text import Text

from cli.client.client import ServiceClient
from cli.output import print_json, printable
from compaction.text.dates import TIME_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.client.types import RecalledPart
    from cli.options import Service


class Place(NamedTuple):
    """Where to search: one conversation, or all of a user's."""

    conversation: str | None
    user: str | None


def run_recall(service: Service, place: Place, asked: Mapping[str, Any], *, as_json: bool) -> int:
    """Print what is recalled, the best first; 1 if there is nothing."""
    with ServiceClient(*service) as client:
        if place.user is not None:
            recalled = client.recall_user(place.user, asked)
        else:
            recalled = client.recall(place.conversation or "", asked)
    if as_json:
        print_json(recalled)
        return 0 if recalled.passages else 1
    console = Console()
    for passage in recalled.passages:
        where = "in the context" if passage.in_context else "not in the context"
        console.print(Text.assemble((passage.ref, "bold"), ("  " + where, "dim")))
        for part in passage.parts:
            console.print(_line(part))
    more = ", and there is more" if recalled.more else ""
    among = f" in {recalled.conversations:,} conversations" if isinstance(recalled.conversations, int) else ""
    searched = f"{recalled.searched:,} messages{among}"
    counts = f"{len(recalled.passages):,} passages of {searched}, {recalled.tokens:,} tokens{more}"
    console.print(Text(counts, "dim"))
    return 0 if recalled.passages else 1


def _time(said: str | None) -> str:
    return f"{datetime.fromisoformat(said):%Y-%m-%d %H:%M}" if said else TIME_UNKNOWN


def _line(part: RecalledPart) -> Text:
    who = f" {_time(part.created_at)} {part.role}"
    who += f" ({part.name})" if part.name else ""
    who += f" {part.tool}" if part.tool else ""
    end = part.offset + len(part.text)
    left = f" [{part.offset:,}-{end:,} of {part.characters:,}]" if len(part.text) < part.characters else ""
    return Text.assemble("  ", (part.ref, "cyan"), (printable(who + left), "dim"), " ", printable(part.text))
