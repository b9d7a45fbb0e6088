"""Measures what recall gives back, what it costs and how long it takes, through a running service; prints tables."""

from __future__ import annotations

import io
import json
import os
import sys
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bench.fidelity.sources import scenario, transcripts_folder
from bench.fidelity.sources import sources as conversations
from bench.machine import processor
from bench.measure import progress
from bench.reach.evidence import evidence, sums
from bench.reach.goals import print_table
from bench.reach.later import CUTS, later
from bench.reach.service import Measured
from bench.reach.talks import sources
from bench.reach.timing import LEFT, REPEATS, SIZES, TRIALS, latency, preparing
from cli.client.client import ServiceClient
from cli.local.serve import running_service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.reach.goals import Row

MADE_UP: Final = 3
SHORT_QUESTIONS: Final = 5
LATER_FILE: Final = "airline-long.jsonl"


Tables = dict[str, list["Row"]]


class Part(StrEnum):
    """What can be measured by itself."""

    EVIDENCE = "evidence"
    LATER = "later"
    LATENCY = "latency"
    PREPARED = "prepared"


TITLES: Final = {
    "evidence": "Evidence: of the messages that answer a question, the share among those given back in so many tokens",
    "later": "Values used later: of the exact values used again after a point, the share that the model sees",
    "stored": "Stored: bytes on disk for a byte of text",
    "latency": "Latency: milliseconds of a request over HTTP, by messages of the conversation",
    "prepared": "Prepared: milliseconds from leaving the context to being prepared",
}


def main(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Files of recorded talk with questions.", exists=True, dir_okay=False)
    ] = None,
    *,
    only: Annotated[list[Part] | None, typer.Option(help="Measure this part; may be repeated.")] = None,
    transcripts: Annotated[
        list[Path] | None,
        typer.Option(help="A file of conversations for the values used later.", exists=True, dir_okay=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the tables.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Only find out whether everything runs.")] = False,
) -> None:
    """Measure evidence and values used later against plain BM25 and keep-last; latency, bytes and preparing."""
    parts = set(only or Part)
    tables: Tables = {}
    with (
        running_service(durable=False, summarizer="extractive", log=io.StringIO()) as service,
        ServiceClient(service.url, service.api_key) as client,
    ):
        measured = Measured(service, client)
        # First, while nothing else is under way in the background.
        if Part.LATENCY in parts:
            sizes = SIZES[:1] if short else SIZES
            tables["latency"] = [latency(measured, size, 3 if short else REPEATS) for size in sizes]
        if Part.PREPARED in parts:
            tables["prepared"] = [preparing(measured, 300 if short else LEFT, 1 if short else TRIALS)]
        if Part.EVIDENCE in parts:
            _evidence(measured, files or (), tables, short=short)
        if Part.LATER in parts:
            _later(measured, transcripts or (), tables, short=short)
    if as_json:
        json.dump(tables, sys.stdout, indent=2)
        print()
        return
    print(f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    for name, title in TITLES.items():
        if tables.get(name):
            print_table(title, tables[name])


def _evidence(measured: Measured, files: Sequence[Path], tables: Tables, *, short: bool) -> None:
    """Add what is found of the evidence, and what is stored of its conversations."""
    talk = sources(files, count=1 if short else MADE_UP)
    _say_if_absent("talk-*.jsonl", is_absent=len(talk) == 1)
    rows, stored = evidence(measured, talk, most_questions=SHORT_QUESTIONS if short else None)
    tables["conversations"] = rows
    tables["evidence"] = list(sums(rows))
    tables.setdefault("stored", []).extend(stored)


def _later(measured: Measured, files: Sequence[Path], tables: Tables, *, short: bool) -> None:
    """Add what is found of the values used later, and what is stored of their conversations."""
    recorded = transcripts_folder() / LATER_FILE
    named = files or [file for file in (recorded,) if file.is_file()]
    _say_if_absent(LATER_FILE, is_absent=not named)
    for source in conversations(named, most=1 if short else None) if named else [scenario()]:
        rows, stored = later(measured, source, cuts=2 if short else CUTS)
        tables.setdefault("later", []).extend(rows)
        tables.setdefault("stored", []).append(stored)


def _say_if_absent(names: str, *, is_absent: bool) -> None:
    if is_absent:
        progress(f"{names}: not in {transcripts_folder()}, so conversations of the benchmark's own are measured alone")


if __name__ == "__main__":
    typer.run(main)
