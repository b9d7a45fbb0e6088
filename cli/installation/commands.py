"""Commands about a whole installation: its runs, its figures, and what is wrong with it."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import OPERATE, Json, Key, TenantName, Url, read_settings, service
from compaction.steps.runs import RunState

installation_commands = typer.Typer()


@installation_commands.command(rich_help_panel=OPERATE)
def migrate(
    revision: Annotated[str, typer.Argument(help="Revision to bring the schema to; head is the newest.")] = "head",
    service_login: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also make this login for the services, or set its password."),
    ] = None,
) -> None:
    """Bring the database's schema up to date and print the revisions that were applied.

    With --service-login services get a login of their own, which may do nothing but act in their role; its password is
    PALIMPSEST_SERVICE_PASSWORD, or the file palimpsest_service_password in /run/secrets.

    Example: palimpsest migrate --service-login palimpsest_app
    """
    from cli.local.migrating import run_migrate  # noqa: PLC0415 - commands need not load what only others need

    raise typer.Exit(run_migrate(read_settings(), revision, service_login))


@installation_commands.command(rich_help_panel=OPERATE)
def runs(
    run: Annotated[
        str | None, typer.Argument(help="Id of one run, as run_…, to see in full.", show_default=False)
    ] = None,
    conversation: Annotated[str | None, typer.Option(help="Only those of this conversation.")] = None,
    state: Annotated[str | None, typer.Option(help=f"Only those in a state: {', '.join(RunState)}.")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Only those that are out of attempts.")] = False,  # noqa: FBT002 - an option, always named
    tenant: TenantName = None,
    limit: Annotated[int, typer.Option(help="Runs to list.", min=1, max=10_000)] = 20,
    retry: Annotated[list[str] | None, typer.Option(help="Queue this dead run again; may be given repeatedly.")] = None,
    retry_all: Annotated[bool, typer.Option("--retry-all", help="Queue all dead runs again.")] = False,  # noqa: FBT002
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """List runs, newest first, show one in full, or begin dead ones over. Needs the database.

    Example: palimpsest runs --state failed --limit 5
    """
    from cli.conversations.runs import Wanted, run_runs  # noqa: PLC0415 - commands need not load what only others need

    if retry and retry_all:
        raise typer.BadParameter("--retry-all and --retry exclude each other", param_hint="--retry-all")
    if state is not None and state not in tuple(RunState):
        raise typer.BadParameter(f"there are {', '.join(RunState)}", param_hint="--state")
    if dead and state not in {None, RunState.DEAD}:
        raise typer.BadParameter("--dead and --state exclude each other", param_hint="--dead")
    wanted = Wanted(
        tenant,
        state=RunState.DEAD if dead else state,
        conversation=conversation,
        run=run,
        limit=limit,
        retry=retry or (),
        retry_all=retry_all,
    )
    raise typer.Exit(run_runs(read_settings(), wanted, as_json=as_json))


@installation_commands.command(rich_help_panel=OPERATE)
def stats(
    tenant: TenantName = None,
    days: Annotated[int, typer.Option(help="Days to look back on.", min=1, max=366)] = 30,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Show what is stored, saved and spent, runs by outcome, queues and processes.

    Reads the database. With --url and --key it asks the API instead, which tells a tenant of its own usage, unless
    --tenant names one.

    Example: palimpsest stats --days 7 --json
    """
    from cli.installation.stats import run_stats, run_tenant_stats  # noqa: PLC0415

    if url is not None and key is not None and tenant is None:
        raise typer.Exit(run_tenant_stats(service(url, key), days, as_json=as_json))
    raise typer.Exit(run_stats(read_settings(), tenant, days, as_json=as_json))


@installation_commands.command(rich_help_panel=OPERATE)
def trace(
    request: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="As in the header request-id, req_….")],
    tenant: TenantName = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Follow a request to the turn that it stored, the turn's check and runs, and the commit. Needs the database.

    Example: palimpsest trace req_01a2227ef0cd76fe9f474838196fa385
    """
    from cli.installation.trace import run_trace  # noqa: PLC0415

    raise typer.Exit(run_trace(read_settings(), request, tenant, as_json=as_json))


@installation_commands.command(rich_help_panel=OPERATE)
def retention(tenant: TenantName = None, as_json: Json = False) -> None:  # noqa: FBT002 - an option, always named
    """List what `message_retention_days` is about to erase; a dry run, which erases nothing. Needs the database.

    The sweep erases these conversations, each once more checked.

    Example: palimpsest retention --tenant acme
    """
    from cli.installation.retention import run_retention  # noqa: PLC0415

    raise typer.Exit(run_retention(read_settings(), tenant, as_json=as_json))


@installation_commands.command(rich_help_panel=OPERATE)
def doctor(
    ask_model: Annotated[bool, typer.Option("--model", help="Also ask the model for a word.")] = False,  # noqa: FBT002
    url: Url = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Find what is wrong with an installation, and say how to mend it; ends with 1 if there is a problem.

    Example: palimpsest doctor --model
    """
    from cli.doctor.command import run_doctor  # noqa: PLC0415

    raise typer.Exit(run_doctor(ask_model=ask_model, url=url, as_json=as_json))
