"""`palimpsest inspect`: one conversation's life, from the audit calls: sizes, runs, snapshots. The console plots it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console
from rich.text import Text

from api.console.views.layers import gave_way
from cli.client.client import ServiceClient
from cli.conversations.snapshots import snapshots_table
from cli.output import print_json
from cli.tables import PlainTable, columns, print_table
from compaction.steps.runs import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from cli.client.types import Assembly, Context, Conversation, Run, Snapshot, StoredMessage


_STYLES: Final[dict[str, str]] = {
    RunState.COMMITTED: "green",
    RunState.DEGRADED: "yellow",
    RunState.FAILED: "red",
    RunState.DEAD: "red",
    RunState.SKIPPED: "dim",
}
"""How a state is shown; those of steps are called the same."""


class Point(NamedTuple):
    """The context's tokens after a message."""

    seq: int
    tokens: int
    is_compacted: bool = False
    """Whether a snapshot came after it."""


class Life(NamedTuple):
    """Everything that is shown of one conversation."""

    conversation: Conversation
    context: Context | None
    messages: list[StoredMessage]
    runs: list[Run]
    snapshots: list[Snapshot]

    @property
    def tokens_stored(self) -> int:
        """Tokens of the originals in force, as `store.operations.statistics.TOKENS_STORED` counts them."""
        return sum(message.tokens for message in self.messages if message.superseded_at is None)


def run_inspect(conversation_id: str, *, url: str, key: str, as_json: bool = False) -> int:
    """Print one conversation's tokens, runs and snapshots. Raises ServiceError and `httpx2.TransportError`."""
    with ServiceClient(url, key) as client:
        life = Life(
            client.conversation(conversation_id),
            client.context(conversation_id),
            list(client.messages(conversation_id)),
            client.runs(conversation_id),
            client.snapshots(conversation_id),
        )
    if as_json:
        print_json(_as_json(life))
    else:
        _print_life(life, Console(), url)
    return 0


def context_history(messages: Sequence[StoredMessage], snapshots: Sequence[Snapshot]) -> list[Point]:
    """Return the context's tokens after every message, in the order in which messages and snapshots came.

    A snapshot counts from the first message that was stored after it: times are the database's, so they compare.
    Superseded messages are part of the history for as long as nothing tells when they left it.
    """
    points: list[Point] = []
    waiting = sorted(snapshots, key=lambda snapshot: snapshot.version)
    base, covered, tail = 0, -1, [0]
    for message in messages:
        while waiting and _is_before(waiting[0], message):
            base, covered = waiting[0].tokens or 0, waiting[0].covers_through
            points = [*points[:-1], points[-1]._replace(is_compacted=True)] if points else points
            waiting = waiting[1:]
        tail.append(tail[-1] + message.tokens)
        points.append(Point(message.seq, base + tail[-1] - tail[min(covered + 1, len(tail) - 1)]))
    if waiting and points:
        last = waiting[-1]
        tokens = (last.tokens or 0) + tail[-1] - tail[min(last.covers_through + 1, len(tail) - 1)]
        points.append(Point(points[-1].seq, tokens))
        points[-2] = points[-2]._replace(is_compacted=True)
    return points


def _is_before(snapshot: Snapshot, message: StoredMessage) -> bool:
    if snapshot.created_at is None or message.created_at is None:
        return snapshot.covers_through < message.seq
    # A snapshot cannot cover a message that came after it, whatever the clocks say of the same instant.
    return snapshot.covers_through < message.seq and _time(snapshot.created_at) <= _time(message.created_at)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _as_json(life: Life) -> dict[str, Any]:
    return {
        "conversation": life.conversation,
        "messages": len(life.messages),
        "tokens_stored": life.tokens_stored,
        "tokens": life.context.tokens if life.context else None,
        "warnings": life.context.warnings if life.context else [],
        "runs": life.runs,
        "snapshots": life.snapshots,
        "history": [point._asdict() for point in context_history(life.messages, life.snapshots)],
    }


def _print_life(life: Life, console: Console, url: str) -> None:
    grid = PlainTable.grid(padding=(0, 2))
    conversation, context = life.conversation, life.context
    rows = [
        ("conversation", conversation.id),
        ("external id", conversation.external_id),
        ("user", conversation.user_ref),
        ("messages", f"{len(life.messages):,}, {life.tokens_stored:,} tokens"),
        ("head", f"version {conversation.head_version or 0}"),
        ("context", f"{context.tokens.context:,} tokens" if context else "unknown"),
        ("measured", f"{context.tokens.measured:,} tokens" if context and context.tokens.measured else None),
    ]
    for name, value in rows:
        if value is not None:
            grid.add_row(Text(name, style="dim"), value)
    console.print(grid)
    for warning in context.warnings if context else []:
        console.print(f"warning: {warning}", style="yellow", markup=False)
    if conversation.last_assembly is not None:
        _print_assembly(conversation.last_assembly, console)
    console.print()
    print_table(_runs_table(life.runs), console)
    print_table(snapshots_table(life.snapshots, life.conversation.head_version), console)
    console.print(f"Plot and messages: {url.rstrip('/')}/console/conversations/{conversation.id}", markup=False)


def _print_assembly(assembly: Assembly, console: Console) -> None:
    """Print the layers of the last payload or fitted context, and what gave way."""
    within = assembly.budget - assembly.reserved_output
    totals = f"Last {assembly.call}: {assembly.total:,} of {within:,} tokens, {assembly.reserved_output:,} reserved"
    over = f", {assembly.total - within:,} over" if assembly.total > within else ""
    console.print(Text.assemble((totals, "bold"), (over, "bold red"), (f"  {assembly.at}", "dim")))
    grid = PlainTable.grid(padding=(0, 2))
    for name in ("layer", "tokens", "share"):
        grid.add_column(name, justify="left" if name == "layer" else "right")
    for name, tokens in assembly.layers.items():
        share = f"{tokens / assembly.total:.0%}" if assembly.total else ""
        grid.add_row(name.replace("_", " "), f"{tokens:,}", share)
    console.print(grid)
    for line in gave_way(assembly):
        console.print(line, style="yellow", markup=False)
    console.print()


def _runs_table(runs: Sequence[Run]) -> Table:
    counts = ("before", "after", "messages", "ms")
    table = columns(("trigger, steps", "state", *counts, "reason, by, run"), numbers=counts, title="Runs")
    for run in runs:
        table.add_row(run.trigger or "", _state(run.state), *_sizes(run), _note(run.reason, run.id), style="bold")
        for step in run.steps:
            note = _note(step.reason, step.model or step.summarizer)
            table.add_row(f"  {step.name}", _state(step.state), *_sizes(step), note)
    return table


def _sizes(entry: Any) -> tuple[str, str, str, str]:
    counts = (entry.tokens_before, entry.tokens_after, entry.duration_ms)
    before, after, milliseconds = ("" if n is None else f"{n:,}" for n in counts)
    if entry.messages_before is None or entry.messages_after is None:
        return before, after, "", milliseconds
    return before, after, f"{entry.messages_before:,} → {entry.messages_after:,}", milliseconds


def _note(*parts: str | None) -> str:
    return ", ".join(filter(None, parts))


def _state(state: str) -> Text:
    style = _STYLES.get(state, "yellow")
    return Text(state, style=style)
