"""Tables of the command line: all of one look, and as wide as what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import RenderableType
    from rich.style import StyleType

_NO_LIMIT: Final = 10_000
"""Characters of a line: more than a table here can have."""


class PlainTable(Table):
    """A table whose cells show strings as they are: names are other people's, and Rich would read them as markup."""

    def add_row(
        self, *renderables: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        """Add a row; a cell that is to have a style is a Text."""
        cells = (Text(printable(cell)) if isinstance(cell, str) else cell for cell in renderables)
        super().add_row(*cells, style=style, end_section=end_section)


def columns(names: Sequence[str], *, numbers: Collection[str] = (), title: str | None = None) -> PlainTable:
    """Return a table without rows; the columns named in `numbers` are flush right."""
    table = PlainTable(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left")
    return table


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table at its full width, so that no id, state or number is ever cut.

    Where a terminal is too narrow for that, each row becomes a few lines, one for each of its cells that is not empty.
    """
    console = console or Console()
    if not table.row_count:
        table.add_row("none")
    options = console.options.update_width(_NO_LIMIT)
    width = Measurement.get(console, options, table).maximum
    if console.is_terminal and width > console.width:
        _print_records(table, console)
        return
    for line in console.render_lines(table, options.update_width(width), pad=False):
        text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
        # Columns are filled up with spaces, which a narrow terminal would wrap into lines of nothing.
        text.rstrip()
        console.print(text, soft_wrap=True)


def _print_records(table: Table, console: Console) -> None:
    names = [str(column.header) for column in table.columns]
    cells = [list(column.cells) for column in table.columns]
    if table.title:
        console.print(Text(str(table.title), "italic"))
    for row in range(table.row_count):
        console.rule(style="dim")
        for name, column in zip(names, cells, strict=True):
            cell = column[row]
            value = cell if isinstance(cell, Text) else Text(str(cell))
            if value.plain:
                console.print(Text.assemble((f"{name:<{max(map(len, names))}}  ", "dim"), value), soft_wrap=True)


def money_of_calls(usd: str | None, calls: int, unpriced_calls: int) -> str:
    """Return the USD of model calls, and how many of the calls have no known price."""
    if not unpriced_calls:
        return usd or ""
    return f"{usd or 'unknown'} (no price for {unpriced_calls:,} of {calls:,} calls)"
