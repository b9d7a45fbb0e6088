"""`palimpsest replay`: recorded conversations through the HTTP API turn by turn, and what became of them."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import httpx2
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from cli.client.client import ServiceClient, ServiceError, StoppedError
from cli.client.types import UNCOMPACTED
from cli.consent import RefusedError, agree_to_stores
from cli.local.own_service import UnavailableError, service_at
from cli.output import failed, printable
from cli.tables import columns, print_table
from cli.transcripts.readers import Transcript, TranscriptError, read_transcripts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cli.client.types import Message, StoredMessage

SETTLE_SECONDS: Final = 300.0
"""Seconds that a conversation's checks are waited for once it is played."""
LISTED_IDS: Final = 10
"""Conversations up to which their ids are printed, for `palimpsest inspect`."""


class Outcome(msgspec.Struct):
    """What came of one conversation; tokens by the service's own estimate."""

    file: str
    transcript: str
    conversation_id: str = ""
    messages: int = 0
    turns: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    runs: dict[str, int] = {}
    warnings: list[Any] = []
    differing: list[int] = []
    errors: list[str] = []
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        """Whether every turn was accepted, every check ended and every original reads back as sent."""
        return not self.errors and not self.differing


def run_replay(
    files: Sequence[Path],
    *,
    url: str | None = None,
    key: str | None = None,
    yes: bool = False,
    as_json: bool = False,
    concurrency: int = 1,
) -> int:
    """Play the files' conversations and print a table; return 1 if a turn was refused or an original differs.

    Without `url` a service is started for the time of the replay; unless `yes`, somebody has to agree first where it
    would use stores that the environment names. `concurrency` conversations are played at once.
    """
    err = Console(stderr=True)
    try:
        transcripts = [(path, transcript) for path in files for transcript in read_transcripts(path)]
    except (TranscriptError, OSError) as error:
        err.print(printable(str(error)), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    try:
        if url is None:
            agree_to_stores(os.environ, "replay", yes=yes)
        with service_at(url, key) as service, ServiceClient(service.url, service.key) as client:
            outcomes = _play_all(client, transcripts, concurrency, err)
    except RefusedError as error:
        return failed(str(error))
    except UnavailableError as error:
        err.print(str(error), style="red", markup=False, highlight=False)
        return 1
    _print_outcomes(outcomes, as_json=as_json)
    return 0 if all(outcome.is_well for outcome in outcomes) else 1


def play(
    client: ServiceClient,
    transcript: Transcript,
    outcome: Outcome,
    progress: Progress,
    stopping: threading.Event,
) -> None:
    """Append a conversation turn by turn, wait for its checks, and compare the originals.

    Raises StoppedError between two calls once `stopping` is set.
    """
    name = printable(transcript.id)
    task = progress.add_task(name, total=len(transcript.turns))
    whole = progress.task_ids[0]
    started = time.monotonic()
    try:
        conversation = client.create_conversation(system=transcript.system, tools=transcript.tools)
        outcome.conversation_id = conversation.id
        for turn in transcript.turns:
            if stopping.is_set():
                raise StoppedError
            # A recorded usage counted the whole history, so it says nothing once a snapshot shortens it.
            version = None if turn.usage is None else UNCOMPACTED
            client.append_turn(
                conversation.id, turn.messages, usage=turn.usage, snapshot_version=version, shape=transcript.shape
            )
            outcome.turns += 1
            outcome.messages += len(turn.messages)
            progress.advance(task)
            progress.advance(whole)
        progress.update(task, description=f"{name}, waiting for checks")
        runs = client.wait_settled(conversation.id, timeout_seconds=SETTLE_SECONDS, stopping=stopping)
        outcome.runs = dict(Counter(run.state for run in runs))
        context = client.context(conversation.id)
        if context is not None:
            outcome.tokens_after = context.tokens.context
            outcome.warnings = context.warnings
        _compare(outcome, transcript.messages, client.messages(conversation.id))
    except (ServiceError, httpx2.TransportError, TimeoutError) as error:
        outcome.errors.append(f"after turn {outcome.turns}: {error}")
    outcome.seconds = round(time.monotonic() - started, 3)
    # One line a conversation would fill the screen: the table tells about those that are done.
    progress.remove_task(task)


def _compare(outcome: Outcome, sent: Iterator[Message], stored: Iterator[StoredMessage]) -> None:
    for seq, (mine, theirs) in enumerate(zip_longest(sent, stored)):
        outcome.tokens_before += theirs.tokens if theirs else 0
        if mine is None or theirs is None or seq != theirs.seq or not _is_same(mine, theirs):
            outcome.differing.append(seq)


def _is_same(mine: Message, theirs: StoredMessage) -> bool:
    if mine.original is not None:
        return bytes(mine.original) == bytes(theirs.original)
    return (mine.role, bytes(mine.content)) == (theirs.role, bytes(theirs.content))


def _play_all(
    client: ServiceClient,
    transcripts: Sequence[tuple[Path, Transcript]],
    concurrency: int,
    err: Console,
) -> list[Outcome]:
    stopping = threading.Event()
    outcomes = [Outcome(file=str(path), transcript=transcript.id) for path, transcript in transcripts]
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("turns"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err) as progress, ThreadPoolExecutor(concurrency) as pool:
        progress.add_task("replay", total=sum(len(transcript.turns) for _, transcript in transcripts))
        played = [
            pool.submit(play, client, transcript, outcome, progress, stopping)
            for (_, transcript), outcome in zip(transcripts, outcomes, strict=True)
        ]
        try:
            for future in played:
                future.result()
        except BaseException:
            # Ctrl-C reaches this thread alone, and the pool waits for the others.
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes


def _print_outcomes(outcomes: list[Outcome], *, as_json: bool) -> None:
    console = Console(soft_wrap=as_json)
    if as_json:
        is_well = all(outcome.is_well for outcome in outcomes)
        text = msgspec.json.encode({"well": is_well, "conversations": outcomes}).decode()
        console.out(text, highlight=False)
        return
    counts = ("messages", "turns", "tokens before", "tokens after", "warnings")
    table = columns(("conversation", *counts, "originals", "runs"), numbers=counts)
    for outcome in outcomes:
        table.add_row(
            outcome.transcript,
            *(f"{n:,}" for n in (outcome.messages, outcome.turns, outcome.tokens_before, outcome.tokens_after)),
            str(len(outcome.warnings)),
            Text(f"{len(outcome.differing)} differ", "red") if outcome.differing else Text("as sent", "green"),
            ", ".join(f"{count} {state}" for state, count in sorted(outcome.runs.items())) or "none",
        )
    print_table(table, console)
    if len(outcomes) <= LISTED_IDS:
        for outcome in outcomes:
            line = printable(f"{outcome.transcript} is {outcome.conversation_id}")
            console.print(line, style="dim", highlight=False, markup=False)
    turns, seconds = sum(each.turns for each in outcomes), sum(each.seconds for each in outcomes)
    console.print(f"{turns:,} turns in {len(outcomes)} conversations, {seconds:.1f} s in conversations")
    for outcome in outcomes:
        for line in [*outcome.errors, *outcome.warnings]:
            console.print(printable(f"{outcome.transcript}: {line}"), style="yellow", markup=False)
        if outcome.differing:
            line = printable(f"{outcome.transcript}: originals differ at {outcome.differing[:10]}")
            console.print(line, style="red", markup=False)
