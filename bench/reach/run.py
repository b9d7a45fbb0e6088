"""Measures what recall gives back, and how long it takes, through a running service; prints two tables."""

from __future__ import annotations

import io
import json
import statistics
import sys
import time
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from bench.measure import progress
from bench.reach.baselines import PlainSearch, keep_last, text_of
from bench.reach.talks import made_up, recorded
from cli.client.client import ServiceClient
from cli.client.types import Message
from cli.local.serve import running_service

if TYPE_CHECKING:
    from bench.reach.talks import Talk

TOKENS: Final = (1_000, 2_000, 4_000)
CHARS_PER_TOKEN: Final = 4
SIZES: Final = (100, 1_000, 10_000)
REPEATS: Final = 30
TURN: Final = 500
"""Messages that are appended at a time."""

Row = dict[str, Any]


def main(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of recorded talk with questions.", exists=True, dir_okay=False)
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the tables.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Only find out whether everything runs.")] = False,
) -> None:
    """Measure evidence in 1,000, 2,000 and 4,000 tokens against plain BM25 and keep-last, and latency by length."""
    talks = [talk for file in files or () for talk in recorded(file)]
    talks = talks or [made_up(seed) for seed in range(1 if short else 3)]
    sizes = SIZES[:1] if short else SIZES
    with (
        running_service(durable=False, summarizer="none", log=io.StringIO()) as service,
        ServiceClient(service.url, service.api_key) as client,
    ):
        reach = [row for talk in talks for row in _reach(client, talk, 5 if short else None)]
        latency = [_latency(client, size, 3 if short else REPEATS) for size in sizes]
    if as_json:
        json.dump({"reach": reach, "latency": latency}, sys.stdout, indent=2)
        print()
        return
    _print(reach)
    _print(latency)


def _stored(client: ServiceClient, talk: Talk) -> str:
    conversation = client.create_conversation(policy={"compaction_enabled": False}).id
    messages = [Message(each["role"], msgspec.Raw(msgspec.json.encode(each["content"]))) for each in talk.messages]
    for start in range(0, len(messages), TURN):
        client.append_turn(conversation, messages[start : start + TURN])
    return conversation


def _reach(client: ServiceClient, talk: Talk, most: int | None) -> list[Row]:
    """Return a row for each number of tokens: shares of the evidence that are among what is given back."""
    progress(f"reach: {talk.name}, {len(talk.messages):,} messages, {len(talk.questions):,} questions")
    conversation = _stored(client, talk)
    texts = [text_of(message) for message in talk.messages]
    plain = PlainSearch(texts)
    rows = []
    for tokens in TOKENS:
        shares: dict[str, list[float]] = {"recall": [], "BM25": [], "keep-last": []}
        last = keep_last(texts, tokens * CHARS_PER_TOKEN)
        for question in talk.questions[:most]:
            found = client.recall(conversation, {"query": question.text, "max_tokens": tokens})
            seqs = [int(part.ref[1:].split(".")[0]) for passage in found.passages for part in passage.parts]
            shares["recall"].append(question.found(seqs))
            shares["BM25"].append(question.found(plain.search(question.text, tokens * CHARS_PER_TOKEN)))
            shares["keep-last"].append(question.found(last))
        figures = {name: round(statistics.mean(each), 3) for name, each in shares.items()}
        rows.append({"conversation": talk.name, "questions": len(shares["BM25"]), "tokens": tokens, **figures})
    return rows


def _latency(client: ServiceClient, size: int, repeats: int) -> Row:
    """Return the milliseconds of recalls by words, by reference and by pattern in a conversation of `size` messages."""
    progress(f"latency: {size:,} messages")
    talk = made_up(size, size)
    conversation = _stored(client, talk)
    client.wait_settled(conversation)
    questions = talk.questions or made_up(1).questions
    row: Row = {"messages": size}
    for name, asked in (
        ("words", [{"query": question.text} for question in questions]),
        ("ref", [{"ref": f"m{size // 2}"}]),
        ("pattern", [{"pattern": r"[A-H]\d{3}\b"}]),
    ):
        times = []
        for number in range(repeats + 1):
            started = time.perf_counter()
            client.recall(conversation, asked[number % len(asked)])
            times.append((time.perf_counter() - started) * 1_000)
        row[f"{name} p50 ms"] = round(statistics.median(times[1:]), 1)
        row[f"{name} p95 ms"] = round(statistics.quantiles(times[1:], n=20)[-1], 1)
    return row


def _print(rows: list[Row]) -> None:
    names = list(rows[0])
    table = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(names))]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()


if __name__ == "__main__":
    typer.run(main)
