"""Commands about conversations: which there are, one's life and versions, the way back, out and in, and its end."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - Typer reads the annotations of commands when they run
from typing import Annotated

import typer

from cli.options import CONVERSATIONS, Conversation, Json, Key, Url, Yes, read_settings, service

conversation_commands = typer.Typer()

Version = Annotated[int, typer.Argument(help="Version of a snapshot; 0 is no compaction.", min=0, show_default=False)]


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
def conversations(
    user: Annotated[str | None, typer.Option(help="Only those with this user_ref.")] = None,
    external_id: Annotated[str | None, typer.Option(help="Only the one with this external id.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only those created then or later, UTC.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only those created before then, UTC.")] = None,
    compacted: Annotated[
        bool | None,
        typer.Option("--compacted/--not-compacted", help="Only those with a snapshot, or without."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Conversations to list.", min=1, max=10_000)] = 20,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,  # noqa: FBT002 - an option, always named
) -> None:
    """List conversations, newest first.

    Example: palimpsest conversations --user anna --since 2026-05-01
    """
    from cli.conversations.listing import Wanted, run_conversations  # noqa: PLC0415 - commands need not load what others need

    since, until = (None if time is None else time.replace(tzinfo=UTC) for time in (since, until))
    wanted = Wanted(user, external_id, since, until, compacted, limit)
    raise typer.Exit(run_conversations(service(url, key), wanted, as_json=as_json))


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
def erase(
    conversation: Annotated[
        str | None, typer.Argument(help="Id of the conversation, as conv_….", show_default=False)
    ] = None,
    user: Annotated[str | None, typer.Option(help="All conversations with this user_ref instead.")] = None,
    yes: Yes = False,  # noqa: FBT002
    url: Url = None,
    key: Key = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Remove every text of a conversation, or of a user's conversations, for good. Needs a key with the scope admin.

    It says how much that is, and asks. A tombstone without content stays for the audit.

    Example: palimpsest erase conv_0197f2c08d1e7b1fa3c5d2e4f6a80911
    """
    from cli.archive.erase import run_erase  # noqa: PLC0415

    if (conversation is None) == (user is None):
        raise typer.BadParameter("give either a conversation or --user")
    raise typer.Exit(run_erase(service(url, key), conversation, user, yes=yes, as_json=as_json))


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
def inspect(conversation: Conversation, url: Url = None, key: Key = None, as_json: Json = False) -> None:  # noqa: FBT002 - an option, always named
    """Show one conversation's life: runs, snapshots, and a plot of its context.

    Example: palimpsest inspect conv_0197f2c08d1e7b1fa3c5d2e4f6a80911
    """
    from cli.conversations.inspect import run_inspect  # noqa: PLC0415 - commands need not load what only others need

    asked = service(url, key)
    raise typer.Exit(run_inspect(conversation, url=asked.url, key=asked.key, as_json=as_json))


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
def recall(
    conversation: Annotated[
        str | None, typer.Argument(help="The conversation's id; left out with --user.", show_default=False)
    ] = None,
    words: Annotated[str | None, typer.Argument(help="What to search for.", show_default=False)] = None,
    user: Annotated[str | None, typer.Option(help="Search all conversations with this user_ref instead.")] = None,
    ref: Annotated[
        str | None, typer.Option(help="A place instead: m12, m12.1 (a block), m12-m18, c12.0 (context).")
    ] = None,
    pattern: Annotated[str | None, typer.Option(help="A regular expression instead (RE2).")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of what is given back.", min=1, max=20_000)] = 2_000,
    offset: Annotated[int, typer.Option(help="Characters to skip, with --ref.", min=0)] = 0,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Give back what was said in a conversation, whether its context still has it or not.

    With --user, in all of a user's: the key needs the scope recall:user, and a place has its conversation before it
    (conv_…:m12).

    Example: palimpsest recall conv_0197f2c08d1e7b1fa3c5d2e4f6a80911 "flights to lisbon"
    """
    from cli.conversations.recall import Place, run_recall  # noqa: PLC0415

    if user is not None and words is None:
        conversation, words = None, conversation
    if (conversation is None) == (user is None):
        raise typer.BadParameter("give either a conversation or --user")

    given = {"query": words, "ref": ref, "pattern": pattern}
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) != 1:
        raise typer.BadParameter("give either words, --ref or --pattern")
    limits = {"max_tokens": max_tokens, **({"offset": offset} if offset else {})}
    where = Place(conversation, user)
    raise typer.Exit(run_recall(service(url, key), where, {**asked, **limits}, as_json=as_json))


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
def bisect(
    conversation: Conversation,
    text: Annotated[str, typer.Option(help="The text or value, spelled as it was said.", show_default=False)],
    url: Url = None,
    key: Key = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Find the snapshot from which on a text did not stand any more, and which step of which run took it out.

    Example: palimpsest bisect conv_0197f2c08d1e7b1fa3c5d2e4f6a80911 --text "QX-48213"
    """
    from cli.conversations.bisect import run_bisect  # noqa: PLC0415

    raise typer.Exit(run_bisect(service(url, key), conversation, text, as_json=as_json))


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
def mcp(
    conversation: Annotated[
        str | None,
        typer.Argument(
            envvar="PALIMPSEST_CONVERSATION", help="The conversation's id; left out with --user.", show_default=False
        ),
    ] = None,
    user: Annotated[str | None, typer.Option(help="All conversations with this user_ref instead.")] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Serve recall of one conversation as an MCP server over stdin and stdout, for a client that starts it.

    With --user, of all of a user's: the key needs the scope recall:user.

    Example: palimpsest mcp conv_0197f2c08d1e7b1fa3c5d2e4f6a80911
    """
    from cli.conversations.mcp import run_mcp  # noqa: PLC0415

    if (conversation is None) == (user is None):
        raise typer.BadParameter("give either a conversation or --user")
    raise typer.Exit(run_mcp(service(url, key), conversation, user))


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
def snapshots(conversation: Conversation, url: Url = None, key: Key = None, as_json: Json = False) -> None:  # noqa: FBT002
    """List a conversation's snapshots; the one in force has a star.

    Example: palimpsest snapshots conv_0197f2c08d1e7b1fa3c5d2e4f6a80911 --json
    """
    from cli.conversations.snapshots import run_snapshots  # noqa: PLC0415

    raise typer.Exit(run_snapshots(service(url, key), conversation, as_json=as_json))


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
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
    from cli.conversations.diff import run_diff  # noqa: PLC0415

    raise typer.Exit(run_diff(service(url, key), conversation, start, to, as_json=as_json))


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
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
    from cli.archive.restore import run_restore  # noqa: PLC0415

    raise typer.Exit(run_restore(service(url, key), conversation, version, yes=yes, as_json=as_json))


@conversation_commands.command(rich_help_panel=CONVERSATIONS)
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
    from cli.archive.exports import run_export  # noqa: PLC0415

    raise typer.Exit(run_export(read_settings(), conversation, out, tenant=tenant))


@conversation_commands.command("import", rich_help_panel=CONVERSATIONS)
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
    from cli.archive.imports import run_import  # noqa: PLC0415

    raise typer.Exit(run_import(read_settings(), file, tenant, external_id=external_id, as_json=as_json))
