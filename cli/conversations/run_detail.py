"""One run in full: how it came about, how long it took, and every step with its sizes, model and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from cli.output import print_json, printable
from cli.tables import PlainTable, columns, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from store.tables import AnyRow

_STEP: Final = (
    "step_no",
    "name",
    "state",
    "reason",
    "detail",
    "error",
    "attempt",
    "snapshot_version",
    "tokens_before",
    "tokens_after",
    "messages_before",
    "messages_after",
    "results_cut",
    "summarizer",
    "model",
    "prompt_version",
    "model_calls",
    "model_input_tokens",
    "model_output_tokens",
    "duration_ms",
    "created_at",
)
_OWN: Final = ("strategy", "parent_version", "snapshot_version", "tokens_before", "tokens_after", "worker", "policy")


def show_run(listed: Mapping[str, Any], row: AnyRow, steps: Sequence[AnyRow], *, as_json: bool) -> None:
    """Print a run; `listed` is what a list of runs says of it."""
    whole = {**listed, **{name: getattr(row, name) for name in _OWN}}
    if as_json:
        cost = [{"cost_usd": None if step.cost_usd is None else f"{step.cost_usd:.6f}"} for step in steps]
        fields = [{name: getattr(step, name) for name in _STEP} for step in steps]
        print_json({**whole, "steps": [one | other for one, other in zip(fields, cost, strict=True)]})
        return
    console = Console()
    grid = PlainTable.grid(padding=(0, 2))
    for name, value in whole.items():
        if value is not None and name != "policy":
            written = f"{value:,}" if isinstance(value, int) else str(value)
            grid.add_row(Text(name.replace("_", " "), style="dim"), written)
    console.print(grid)
    print_table(_table(steps), console)
    for step in steps:
        for name in ("detail", "error"):
            if (text := getattr(step, name)) is not None:
                console.print(Text(printable(f"step {step.step_no}, {name}: {text}")), soft_wrap=True)


def _table(steps: Sequence[AnyRow]) -> Table:
    texts, numbers = ("step", "state"), ("attempt", "before", "after", "messages", "ms", "read", "written", "USD")
    table = columns((*texts, *numbers, "reason", "by"), numbers=numbers, title="Steps")
    for step in steps:
        table.add_row(
            step.name,
            step.state,
            str(step.attempt),
            f"{step.tokens_before:,}",
            f"{step.tokens_after:,}",
            f"{step.messages_before:,} → {step.messages_after:,}",
            f"{step.duration_ms:,}",
            *("" if count is None else f"{count:,}" for count in (step.model_input_tokens, step.model_output_tokens)),
            "" if step.cost_usd is None else f"{step.cost_usd:.6f}",
            step.reason or "",
            " ".join(filter(None, (step.model or step.summarizer, step.prompt_version))),
        )
    return table
