"""`palimpsest bisect`: which step of which run took a text out of a conversation's context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from cli.client.client import ServiceClient
from cli.output import print_json, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.client.types import Bisected, TextLoss
    from cli.options import Service


def run_bisect(service: Service, conversation: str, text: str, *, as_json: bool) -> int:
    """Print what took a text out of the context; 1 if it was never said."""
    with ServiceClient(*service) as client:
        bisected = client.bisect(conversation, text)
    if as_json:
        print_json(bisected)
    else:
        console = Console()
        for line in _lines(bisected):
            console.print(line)
    return 0 if bisected.seqs else 1


def _lines(bisected: Bisected) -> Sequence[Text]:
    if not bisected.seqs:
        return [Text("No message that is in force has this text, word for word.")]
    said = Text.assemble("said in ", (_messages(bisected.seqs), "cyan"))
    now = Text("The context has it now." if bisected.in_context else "The context does not have it now.", "bold")
    if bisected.loss is None:
        return [said, now, Text(f"No snapshot took it out: {len(bisected.searched_versions):,} were looked at.", "dim")]
    return [said, *_loss(bisected.loss), now]


def _loss(loss: TextLoss) -> Sequence[Text]:
    step = loss.step or loss.trigger or "no step that is recorded"
    first = Text.assemble(
        "first missing in version ",
        (str(loss.version), "bold"),
        f" (version {loss.parent_version} had it), made by step ",
        (step, "bold"),
        f" of {loss.run_id}",
    )
    fates = ", ".join(f"m{each.seq} {each.fate}" for each in loss.messages)
    detail = "; ".join(part for part in (loss.summarizer and f"by {loss.summarizer}", loss.detail, fates) if part)
    back = [Text(f"back in version {loss.back_in}")] if loss.back_in is not None else []
    return [first, Text("  " + printable(detail), "dim"), *back]


def _messages(seqs: Sequence[int]) -> str:
    shown = ", ".join(f"m{seq}" for seq in seqs[:5])
    return f"{shown} and {len(seqs) - 5:,} more" if len(seqs) > len(seqs[:5]) else shown
