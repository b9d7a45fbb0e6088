"""Commands about one conversation: its life, its versions, what changed between them, the way back, and out and in."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - Typer reads the annotations of commands when they run
from typing import Annotated

import typer

from cli.options import CONVERSATIONS, Conversation, Json, Key, Url, Yes, read_settings, service

commands = typer.Typer()

Version = Annotated[int, typer.Argument(help="Version of a snapshot; 0 is no compaction.", min=0, show_default=False)]


@commands.command(rich_help_panel=CONVERSATIONS)
def inspect(conversation: Conversation, url: Url = None, key: Key = None, as_json: Json = False) -> None:  # noqa: FBT002 - an option, always named
    """Show one conversation's life: runs, snapshots, and a plot of its context.

    Example: palimpsest inspect conv_0197f2c08d1e7b1fa3c5d2e4f6a80911
    """
    from cli.inspect import run_inspect  # noqa: PLC0415 - commands need not load what only others need

    asked = service(url, key)
    raise typer.Exit(run_inspect(conversation, url=asked.url, key=asked.key, as_json=as_json))


@commands.command(rich_help_panel=CONVERSATIONS)
def snapshots(conversation: Conversation, url: Url = None, key: Key = None, as_json: Json = False) -> None:  # noqa: FBT002
    """List a conversation's snapshots; the one in force has a star.

    Example: palimpsest snapshots conv_0197f2c08d1e7b1fa3c5d2e4f6a80911 --json
    """
    from cli.snapshots import run_snapshots  # noqa: PLC0415

    raise typer.Exit(run_snapshots(service(url, key), conversation, as_json=as_json))


@commands.command(rich_help_panel=CONVERSATIONS)
def diff(
    conversation: Conversation,
    start: Annotated[
        int,
        typer.Argument(metavar="FROM", help="The older version; 0 is no compaction.", min=0, show_default=False),
    ],
    to: Annotated[int | None, typer.Argument(help="The newer version.", min=0, show_default="the head")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Show what became of each message from one version to another, and how the summary changed.

    Example: palimpsest diff conv_0197f2c08d1e7b1fa3c5d2e4f6a80911 0 3
    """
    from cli.diff import run_diff  # noqa: PLC0415

    raise typer.Exit(run_diff(service(url, key), conversation, start, to, as_json=as_json))


@commands.command(rich_help_panel=CONVERSATIONS)
def restore(
    conversation: Conversation,
    version: Version,
    yes: Yes = False,  # noqa: FBT002
    url: Url = None,
    key: Key = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Go back to an old version, after a look at what that changes. Nothing is deleted.

    Example: palimpsest restore conv_0197f2c08d1e7b1fa3c5d2e4f6a80911 2
    """
    from cli.restore import run_restore  # noqa: PLC0415

    raise typer.Exit(run_restore(service(url, key), conversation, version, yes=yes, as_json=as_json))


@commands.command(rich_help_panel=CONVERSATIONS)
def export(
    conversation: Conversation,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, for its owner's eyes alone.", dir_okay=False, show_default="stdout"),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Name of the tenant; without it, all are looked at.")] = None,
) -> None:
    """Write a conversation with its whole history as JSON lines, all of one moment. Needs the database.

    Example: palimpsest export conv_0197f2c08d1e7b1fa3c5d2e4f6a80911 --out ticket-7.jsonl
    """
    from cli.exports import run_export  # noqa: PLC0415

    raise typer.Exit(run_export(read_settings(), conversation, out, tenant=tenant))


@commands.command("import", rich_help_panel=CONVERSATIONS)
def import_(
    file: Annotated[Path, typer.Argument(help="What `palimpsest export` wrote; - for stdin.", show_default=False)],
    tenant: Annotated[str, typer.Option(help="Name of the tenant that it is for.")],
    external_id: Annotated[
        str | None,
        typer.Option(help="External id of the new conversation.", show_default="the export's, where it is free"),
    ] = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Make a conversation of an export: the same past under new ids. Needs the database.

    Example: palimpsest import ticket-7.jsonl --tenant acme
    """
    from cli.imports import run_import  # noqa: PLC0415

    raise typer.Exit(run_import(read_settings(), file, tenant, external_id=external_id, as_json=as_json))
