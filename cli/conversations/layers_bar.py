"""The layers of a payload in a terminal: one bar under its budget, and a row a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.client.types import Assembly

FULL: Final = "█"
FREE: Final = "░"
OVER: Final = "▓"
_STYLES: Final = {
    "system": "blue",
    "prior_context": "cyan",
    "turn_context": "green",
    "history": "yellow",
    "user_message": "magenta",
}


def layers_bar(assembly: Assembly, *, width: int) -> Text:
    """Return one line of `width` columns: each layer's share of what is larger, budget or total; then what is free.

    A layer with tokens has at least one column. The reserved output ends the bar.
    """
    whole = max(assembly.budget, assembly.total + assembly.reserved_output, 1)
    parts = [(tokens, FULL, _STYLES.get(name, "white")) for name, tokens in assembly.layers.items()]
    parts.append((max(0, assembly.budget - assembly.total - assembly.reserved_output), FREE, "dim"))
    parts.append((assembly.reserved_output, OVER, "dim"))
    columns = [max(1, round(tokens * width / whole)) if tokens else 0 for tokens, _, _ in parts]
    # What rounding added or took is the widest part's.
    widest = max(range(len(columns)), key=columns.__getitem__)
    columns[widest] += max(1 - columns[widest], width - sum(columns))
    return Text.assemble(
        *((sign * count, style) for count, (_, sign, style) in zip(columns, parts, strict=True) if count)
    )


def layer_rows(assembly: Assembly) -> Iterator[tuple[Text, str, str]]:
    """Yield for each layer its name in the colour of the bar, its tokens, and its share of the total."""
    for name, tokens in assembly.layers.items():
        share = f"{tokens / assembly.total:.0%}" if assembly.total else ""
        label = Text.assemble((FULL, _STYLES.get(name, "white")), " ", name.replace("_", " "))
        yield label, f"{tokens:,}", share
