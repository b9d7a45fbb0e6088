"""One run in full: how it came about, how long it took, and every step with its sizes, model and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def show_run(told: Mapping[str, Any], row: AnyRow, steps: Sequence[AnyRow], *, as_json: bool) -> None:
    """Print a run; `told` is what a list of runs says of it."""
    whole = {**told, **{name: getattr(row, name) for name in _OWN}}
    if as_json:
        cost = [{"cost_usd": None if step.cost_usd is None else f"{step.cost_usd:.6f}"} for step in steps]
        shown = [{name: getattr(step, name) for name in _STEP} for step in steps]
        print_json({**whole, "steps": [one | other for one, other in zip(shown, cost, strict=True)]})
        return
    console = Console()
    grid = Table.grid(padding=(0, 2))
    for name, value in whole.items():
        if value is not None and name != "policy":
            grid.add_row(Text(name.replace("_", " "), style="dim"), Text(str(value)))
    console.print(grid)
    console.print(_table(steps))
    for step in steps:
        for name in ("detail", "error"):
            if (text := getattr(step, name)) is not None:
                console.print(Text(f"step {step.step_no}, {name}: {text}"), soft_wrap=True)


def _table(steps: Sequence[AnyRow]) -> Table:
    table = Table(title="Steps", box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in ("step", "state", "reason"):
        table.add_column(name)
    for name in ("attempt", "before", "after", "messages"):
        table.add_column(name, justify="right")
    table.add_column("by", overflow="fold")
    for name in ("read", "written", "USD", "ms"):
        table.add_column(name, justify="right")
    for step in steps:
        numbers = (step.model_input_tokens, step.model_output_tokens)
        table.add_row(
            step.name,
            step.state,
            step.reason or "",
            str(step.attempt),
            f"{step.tokens_before:,}",
            f"{step.tokens_after:,}",
            f"{step.messages_before:,} → {step.messages_after:,}",
            " ".join(filter(None, (step.model or step.summarizer, step.prompt_version))),
            *("" if number is None else f"{number:,}" for number in numbers),
            "" if step.cost_usd is None else f"{step.cost_usd:.6f}",
            f"{step.duration_ms:,}",
        )
    if not steps:
        table.add_row("none")
    return table
