"""How the demo looks: a live view on a terminal, plain lines elsewhere, and the report at the end."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import msgspec
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.installation.accounting import CACHE_READ_FACTOR, CACHE_WRITE_FACTOR, USD_PER_MILLION_INPUT
from cli.output import printable
from cli.tables import print_table
from compaction.policy import Policy
from compaction.recall.tool import NAME

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import RenderableType

    from cli.demo.report import Event, Recollection, Report, Survival
    from cli.local.own_service import Endpoint

EXPECTED_TOKENS: Final = 250_000
"""Tokens at the right end of the bars: a little more than the whole conversation."""
PLAIN_BAR: Final = 30
"""Characters of a bar outside a terminal."""
LABEL_WIDTH: Final = 24
SNAPSHOTS_QUERY: Final = "select version, step, covers_through, tokens, message_count from snapshots"


class Progress(NamedTuple):
    """Where the conversation is; tokens of the context served and of everything stored, both with system and tools."""

    turn: int
    label: str
    context_tokens: int
    stored_tokens: int


class DemoView:
    """Shows turns and events as they come; a context manager, because a live view has to be left tidy."""

    def __init__(self, turns: int, console: Console) -> None:
        self._turns = turns
        self._console = console
        self._policy = Policy()
        self._conversation = ""
        self._at = Progress(0, "starting", 0, 0)
        self._events: list[Event] = []
        self._live = Live(console=console, refresh_per_second=12) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, conversation: str, policy: Policy) -> None:
        """Name the conversation and the policy in force."""
        self._conversation, self._policy = conversation, policy
        if self._live is None:
            self._console.print(
                f"{conversation}: {self._turns} turns; tool results are cut over "
                f"{policy.input_token_budget:,} tokens, a summary is made over "
                f"{policy.compaction_threshold_tokens:,}",
                highlight=False,
                soft_wrap=True,
            )

    def advanced(self, at: Progress) -> None:
        """Show that a turn was appended."""
        self._at = at
        if self._live is not None:
            self._live.update(self._picture())
            return
        self._console.print(
            f"turn {at.turn:>3}  {at.label:<{LABEL_WIDTH}} context {at.context_tokens:>7,} of "
            f"{at.stored_tokens:>7,}"
            f"  {_plain_bar(at)}",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )

    def measured(self, context_tokens: int) -> None:
        """Show the context's size after a check."""
        self._at = self._at._replace(context_tokens=context_tokens)
        if self._live is not None:
            self._live.update(self._picture())

    def happened(self, events: list[Event]) -> None:
        """Show what a run did."""
        self._events += events
        if self._live is not None:
            self._live.update(self._picture())
            return
        for event in events:
            kept = event.kept(self._policy)
            line = f"          {event.what}{_tokens(event)}{f'; kept: {kept}' if kept else ''}"
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _picture(self) -> RenderableType:
        at, policy = self._at, self._policy
        width = max(20, min(100, self._console.width - 30))
        over = at.context_tokens > policy.input_token_budget
        bars = Table.grid(padding=(0, 1))
        bars.add_row("context", _bar(at.context_tokens, width, "red" if over else "green"), f"{at.context_tokens:>9,}")
        bars.add_row("stored", _bar(at.stored_tokens, width, "blue"), f"{at.stored_tokens:>9,}")
        bars.add_row("", _marks(policy, width), "")
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        table.add_column("turn", justify="right")
        table.add_column("what was compacted")
        table.add_column("tokens", justify="right")
        table.add_column("what was kept", style="dim")
        room = max(4, self._console.height - 10)
        for event in self._events[-room:]:
            tokens = _tokens(event).strip(", ")
            style = "" if event.is_commit else "yellow"
            table.add_row(str(event.turn), Text(event.what, style=style), tokens, event.kept(policy))
        title = Text.assemble(
            ("Palimpsest  ", "bold"), f"turn {at.turn} of {self._turns}, {at.label}", (f"  {self._conversation}", "dim")
        )
        return Group(title, "", bars, table)


def _bar(tokens: int, width: int, style: str) -> Text:
    filled = min(width, round(width * tokens / EXPECTED_TOKENS))
    return Text.assemble(("█" * filled, style), ("·" * (width - filled), "dim"))


def _marks(policy: Policy, width: int) -> Text:
    line = [" "] * (width + 16)
    for tokens, name in ((policy.input_token_budget, "results"), (policy.compaction_threshold_tokens, "summary")):
        start = round(width * tokens / EXPECTED_TOKENS)
        label = f"╵{tokens // 1000}k {name}"
        line[start : start + len(label)] = label
    return Text("".join(line)[:width], style="dim")


def _plain_bar(at: Progress) -> str:
    stored = min(PLAIN_BAR, round(PLAIN_BAR * at.stored_tokens / EXPECTED_TOKENS))
    context = min(stored, max(1, round(PLAIN_BAR * at.context_tokens / EXPECTED_TOKENS)))
    return "#" * context + "." * (stored - context)


def _tokens(event: Event) -> str:
    if event.tokens_before is None or event.tokens_after is None or not event.is_commit:
        return ""
    return f", {event.tokens_before:,} → {event.tokens_after:,}"


def print_report(report: Report, service: Endpoint, *, keep: bool) -> None:
    """Print before and after, what survived, and where to look next."""
    console = Console()
    table = Table(title="The conversation, stored and served", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    table.add_column("as stored", justify="right")
    table.add_column("as served", justify="right", style="green")
    table.add_column("saved", justify="right")
    counts = (
        ("messages", report.messages_stored, report.messages_in_context),
        ("tokens at the end", report.tokens_stored, report.tokens_in_context),
        ("largest model call", report.largest_call_uncompacted, report.largest_call),
        (f"input of all {report.turns} calls", report.input_tokens_uncompacted, report.input_tokens),
    )
    for label, before, after in counts:
        table.add_row(label, f"{before:,}", f"{after:,}", f"{1 - after / before:.0%}" if before else "")
    costs = (
        ("cost without prompt cache", report.usd_uncompacted, report.usd),
        ("cost with prompt cache", report.usd_cached_uncompacted, report.usd_cached),
    )
    for label, dollars_before, dollars_after in costs:
        saved = f"${dollars_before - dollars_after:.2f}"
        table.add_row(label, f"${dollars_before:.2f}", f"${dollars_after:.2f}", saved)
    console.print()
    print_table(table, console)
    runs = ", ".join(f"{count} {state}" for state, count in sorted(report.runs.items())) or "none"
    lines = [f"Runs: {runs}, for {report.turns} turns, in {report.seconds:.1f} s."]
    lines.append(
        f"Price: ${USD_PER_MILLION_INPUT:.2f} a million input tokens, {CACHE_READ_FACTOR} of that read from the cache, "
        f"{CACHE_WRITE_FACTOR} written to it."
    )
    if report.window_passed_at_turn is not None:
        lines.append(
            f"As stored, turn {report.window_passed_at_turn} would have passed the model's window of "
            f"{report.window_tokens:,} tokens."
        )
    for line in lines:
        console.print(line, style="dim", highlight=False, soft_wrap=True)
    console.print()
    print_table(_survival_table(report), console)
    if report.recalled is not None:
        _print_recollection(console, report.recalled)
    _print_where_next(console, report.conversation_id, service, keep=keep)


def _survival_table(report: Report) -> Table:
    table = Table(title="What can still be read", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    places: list[tuple[str, Survival]] = [("in the context", report.in_context)]
    if report.in_summary is not None:
        places.insert(0, ("in the summary", report.in_summary))
    for name, _ in places:
        table.add_column(name, justify="right", no_wrap=True)
    for label, field in (
        ("criteria of the first message", "first_criteria"),
        ("criteria changed later", "later_criteria"),
        ("scores with reference", "scores"),
        ("URLs of scored vacancies", "urls"),
    ):
        table.add_row(label, *("{} of {}".format(*getattr(survival, field)) for _, survival in places))
    return table


def _print_recollection(console: Console, asked: Recollection) -> None:
    table = Table(title="What only recall can answer", box=box.SIMPLE_HEAD, title_justify="left", show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("")
    call = f"{NAME} {msgspec.json.encode(asked.call).decode()}"
    back = f"“{asked.answer}”" if asked.is_found else "not what was asked for"
    where = f"{asked.ref}, {asked.characters:,} characters, read again in {asked.milliseconds:.0f} ms"
    for label, text in (
        ("asked", asked.question),
        ("in the context", asked.handle),
        ("the model calls", call),
        ("the original", f"{back} ({where})"),
    ):
        table.add_row(label, Text(printable(text)))
    console.print()
    print_table(table, console)


def _print_where_next(console: Console, conversation: str, service: Endpoint, *, keep: bool) -> None:
    url, key, database_url, _ = service
    lines = [
        f"palimpsest inspect {conversation} --url {shlex.quote(url)} --key {key}",
        f"curl -H 'authorization: Bearer {key}' {shlex.quote(f'{url}/v1/conversations/{conversation}/context')}",
    ]
    if database_url:
        identifier = conversation.partition("_")[2]
        query = f"{SNAPSHOTS_QUERY} where conversation_id = '{identifier}' order by version"
        lines.append(f'psql "{database_url}" -c "{query}"')
    console.print()
    if database_url is not None and not keep:
        hint = "The services stop now. `palimpsest demo --keep` leaves them up and says where to look."
        console.print(hint, soft_wrap=True)
        return
    console.print("Look next (Ctrl-C stops the services):" if keep else "Look next:", style="bold")
    for line in lines:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
