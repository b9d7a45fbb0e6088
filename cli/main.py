"""The `palimpsest` command."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.conversations.commands import conversation_commands
from cli.failures import Commands
from cli.installation.commands import installation_commands
from cli.options import OPERATE, RUN, Json, Key, TenantName, Url, Yes, read_settings, service
from cli.output import failed
from compaction.shapes.inner import Shape
from runtime.http.listening import CannotListenError
from runtime.release import VERSION
from runtime.summarizers import summarizer_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    cls=Commands,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Asynchronous background compaction for multi-user chat, whatever model answers.",
)
keys_app = typer.Typer(no_args_is_help=True, help="Make, list, rotate and revoke API keys.")
tenants_app = typer.Typer(no_args_is_help=True, help="List tenants, and set what each of them is allowed.")


def _print_version(is_asked: bool) -> None:  # noqa: FBT001 - as typer calls it
    if is_asked:
        print(VERSION)  # noqa: T201 - the command's output
        raise typer.Exit


@app.callback()
def palimpsest(
    _version: Annotated[  # noqa: FBT002 - an option, always named
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Take what precedes a command's name."""


Port = Annotated[int, typer.Option(help="Port to listen on; 0 = any free one.", min=0, max=65_535)]
MetricsPort = Annotated[
    int | None,
    typer.Option(help="Port of its own GET /metrics, instead of PALIMPSEST_METRICS_PORT.", min=0, max=65_535),
]
AnyShape = Annotated[Shape, typer.Option(help="The API whose messages it is played in.")]
KeysTenant = Annotated[str | None, typer.Option(help="Name of the tenant; without it, whichever has the key.")]
Expires = Annotated[str | None, typer.Option(help="When it expires: 90d, 12h, or a time as 2030-01-31T00:00:00Z.")]


@app.command(rich_help_panel=RUN)
def serve(
    port: Port = 8080,
    data_dir: Annotated[Path | None, typer.Option(help="Keep the data here; without it, it is temporary.")] = None,
    summarizer: Annotated[str | None, typer.Option(help="As PALIMPSEST_SUMMARIZER: docs/settings.md.")] = None,
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Print the API key and passwords.")] = False,  # noqa: FBT002 - an option, always named
    yes: Yes = False,  # noqa: FBT002
) -> None:
    """Run everything on this machine, in the foreground, until Ctrl-C.

    The API key and passwords are printed with --show-keys, or as one line of JSON where the output is no terminal.
    It asks before it uses a database or a Redis that PALIMPSEST_DATABASE_URL or PALIMPSEST_BROKER_URL names.
    """
    from cli.consent import RefusedError, agree_to_stores  # noqa: PLC0415 - the parts load nothing that only this needs

    if summarizer is not None and summarizer not in (known := summarizer_names()):
        raise typer.BadParameter(f"there are {', '.join(known)}", param_hint="--summarizer")
    try:
        agree_to_stores(os.environ, "serve", yes=yes)
    except RefusedError as error:
        raise typer.Exit(failed(str(error))) from None
    from cli.local.serve import run_serve  # noqa: PLC0415

    raise typer.Exit(run_serve(port, data_dir, summarizer, show_keys=show_keys))


@app.command(rich_help_panel=RUN)
def demo(
    as_json: Json = False,  # noqa: FBT002 - an option, always named
    keep: Annotated[bool, typer.Option(help="Leave the service up afterwards.")] = False,  # noqa: FBT002
    url: Annotated[str | None, typer.Option(help="An API to play it through, instead of one of its own.")] = None,
    key: Key = None,
    shape: AnyShape = "messages",
    gateway: Annotated[  # noqa: FBT002
        bool,
        typer.Option("--gateway", help="A client of the SDK, its base URL changed: what its provider received."),
    ] = False,
) -> None:
    """Play a long tool-heavy conversation and watch it being compacted, on servers of its own."""
    from cli.demo.command import own_environment, run_demo  # noqa: PLC0415

    if gateway:
        from cli.demo.through_gateway import run_gateway_demo  # noqa: PLC0415 - needs the SDK

        if url is not None or shape != "messages":
            raise typer.BadParameter("is a client of the Messages API on servers of its own", param_hint="--gateway")
        raise typer.Exit(run_gateway_demo(as_json=as_json, keep=keep, environ=own_environment()))
    where = None if url is None else service(url, key)
    raise typer.Exit(run_demo(as_json=as_json, keep=keep, where=where, shape=shape))


@app.command(rich_help_panel=RUN)
def replay(
    files: Annotated[list[Path], typer.Argument(help="Transcripts: JSONL or JSON.", exists=True, dir_okay=False)],
    url: Url = None,
    key: Key = None,
    concurrency: Annotated[int, typer.Option(help="Conversations played at a time.", min=1, max=64)] = 1,
    yes: Yes = False,  # noqa: FBT002
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Play transcripts through the API, turn by turn, and print what became of them.

    Without --url on a service of its own, which asks before it uses stores of the environment, as serve does.
    """
    from cli.transcripts.replay import run_replay  # noqa: PLC0415

    raise typer.Exit(run_replay(files, url=url, key=key, yes=yes, concurrency=concurrency, as_json=as_json))


app.add_typer(conversation_commands)


@app.command(rich_help_panel=RUN)
def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", min=1, max=65_535)] = None,
    workers: Annotated[int, typer.Option(help="Processes.", min=1, max=256)] = 1,
) -> None:
    """Run the HTTP API."""
    from api.start import run_api  # noqa: PLC0415

    try:
        run_api(read_settings(), host=host, port=port, workers=workers)
    except CannotListenError as error:
        raise typer.Exit(failed(str(error))) from None
    except SystemExit as end:
        # Uvicorn has a code of its own for a server that could not start.
        raise typer.Exit(1 if end.code else 0) from None


@app.command(rich_help_panel=RUN)
def gateway(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", min=1, max=65_535)] = None,
    workers: Annotated[int, typer.Option(help="Processes.", min=1, max=256)] = 1,
) -> None:
    """Run the gateway: compaction for any client by its base URL alone."""
    from gateway.start import run_gateway  # noqa: PLC0415

    try:
        run_gateway(read_settings(), host=host, port=port, workers=workers)
    except CannotListenError as error:
        raise typer.Exit(failed(str(error))) from None
    except SystemExit as end:
        # Uvicorn has a code of its own for a server that could not start.
        raise typer.Exit(1 if end.code else 0) from None


@app.command(rich_help_panel=RUN)
def worker(
    queues: Annotated[str, typer.Option(help="Queues to serve, separated by commas.")] = "checks,summaries",
    concurrency: Annotated[int | None, typer.Option(help="Processes or threads.", min=1, max=1_024)] = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Run a Celery worker."""
    from worker.process.start import run_worker  # noqa: PLC0415

    names = [name.strip() for name in queues.split(",") if name.strip()]
    try:
        code = run_worker(_scraped_at(metrics_port), names, concurrency)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--queues") from None
    raise typer.Exit(code)


@app.command(rich_help_panel=RUN)
def beat(metrics_port: MetricsPort = None) -> None:
    """Run Celery beat, which sends the periodic tasks: the sweep, webhooks, usages and housekeeping."""
    from worker.process.start import run_beat  # noqa: PLC0415

    _scraped_at(metrics_port)
    raise typer.Exit(run_beat())


app.command("sweeper", hidden=True, help="The old name of beat.", rich_help_panel=RUN)(beat)


app.add_typer(installation_commands)
app.add_typer(keys_app, name="keys", rich_help_panel=OPERATE)
app.add_typer(tenants_app, name="tenants", rich_help_panel=OPERATE)


@keys_app.command("create")
def keys_create(
    tenant: Annotated[str, typer.Option(help="Name of the tenant; made if there is none.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "default",
    scopes: Annotated[
        str | None,
        typer.Option(help="Scopes of the key, separated by commas.", show_default="turns:write,context:read"),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Give it every scope but those given by name alone.")] = False,  # noqa: FBT002
    expires: Annotated[
        str, typer.Option(help="When it expires: 90d, 12h, a time as 2030-01-31T00:00:00Z, or never.")
    ] = "90d",
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Make a key for a chat backend and print it, once; with --admin, one for the tenant's administrators."""
    from cli.installation.keys import Wanted, read_expiry, read_scopes, run_create  # noqa: PLC0415

    expires_at = read_expiry(None if expires.strip() == "never" else expires)
    wanted = Wanted(name, read_scopes(scopes, is_admin=admin), expires_at)
    raise typer.Exit(run_create(read_settings(), tenant, wanted, as_json=as_json))


@keys_app.command("list")
def keys_list(
    tenant: TenantName = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """List the keys of a tenant, or of all."""
    from cli.installation.keys import run_list  # noqa: PLC0415

    raise typer.Exit(run_list(read_settings(), tenant, as_json=as_json))


@keys_app.command("rotate")
def keys_rotate(
    key: Annotated[str, typer.Argument(help="The key's id, or the key itself.")],
    tenant: KeysTenant = None,
    overlap: Annotated[str, typer.Option(help="How long the old key goes on working, as 24h or 0s.")] = "24h",
    expires: Expires = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Make a key like another one, print it, once, and let the other expire after an overlap."""
    from cli.installation.keys import read_expiry, read_overlap, run_rotate  # noqa: PLC0415

    times = (read_overlap(overlap), read_expiry(expires))
    raise typer.Exit(run_rotate(read_settings(), tenant, key, *times, as_json=as_json))


@keys_app.command("revoke")
def keys_revoke(
    key: Annotated[str, typer.Argument(help="The key's id, or the key itself.")],
    tenant: KeysTenant = None,
) -> None:
    """Revoke a key; processes that have just seen it stop taking it within seconds."""
    from cli.installation.keys import run_revoke  # noqa: PLC0415

    raise typer.Exit(run_revoke(read_settings(), tenant, key))


@tenants_app.command("list")
def tenants_list(as_json: Json = False) -> None:  # noqa: FBT002
    """List the tenants."""
    from cli.installation.tenants import run_list  # noqa: PLC0415

    raise typer.Exit(run_list(read_settings(), as_json=as_json))


@tenants_app.command("limits")
def tenants_limits(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant.")],
    rate_limit_key: Annotated[str | None, typer.Option(help="Requests of each key, as 600/minute.")] = None,
    rate_limit_tenant: Annotated[str | None, typer.Option(help="Requests of all keys together.")] = None,
    daily_model_tokens: Annotated[str | None, typer.Option(help="Tokens of summaries a day (UTC).")] = None,
    daily_model_cost_usd: Annotated[str | None, typer.Option(help="USD for summaries a day (UTC).")] = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Show what a tenant is allowed, or change it. `default` = what the installation allows, `none` or 0 = no limit."""
    from cli.installation.tenants import Changes, run_limits  # noqa: PLC0415

    changes = Changes(rate_limit_key, rate_limit_tenant, daily_model_tokens, daily_model_cost_usd)
    try:
        code = run_limits(read_settings(), tenant, changes, as_json=as_json)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(code)


def _scraped_at(port: int | None) -> Settings:
    """Return the settings, with another port for the metrics if one was given. Celery's processes read them again."""
    if port is not None:
        os.environ["PALIMPSEST_METRICS_PORT"] = str(port)
    return read_settings()


@cache
def command() -> Callable[..., object]:
    """Return the command, made of the declarations above."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command."""
    command()()


if __name__ == "__main__":
    main()
