"""`palimpsest trace`: one request from the API or the gateway to the stored turn, its check, its run and the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from cli.output import failed, print_json
from cli.tables import PlainTable, columns, print_table
from runtime import ids
from runtime.addresses.shown_address import DATABASE_PORT, shown_address
from store.console import find
from store.engine import owner_engine, transaction
from store.operations.traces import trace_request
from store.tenants import tenants

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from runtime.settings import Settings
    from store.console.find import Match
    from store.operations.traces import Trace, TracedRun, TracedTurn


def run_trace(settings: Settings, request: str, tenant: str | None, *, as_json: bool) -> int:
    """Print what a request left in the database; 1 if it left nothing, 2 if `request` is no request id."""
    sought = find.wanted(request)
    if sought is None or sought.id is None or sought.prefix not in {None, "req"}:
        return failed(f"{request!r} is no request id: it is req_ and 32 hexadecimal digits, as in request-id", code=2)
    url = settings.database_url.get_secret_value()
    engine = owner_engine(url)
    try:
        with engine.begin() as connection:
            owners = tenants.named(connection, tenant)
        if tenant is not None and not owners:
            return failed(f"there is no tenant {tenant!r}")
        # Of more than one tenant only where a conversation was exported from one and imported into another.
        traces: dict[str, Trace] = {}
        for owner in owners:
            with transaction(engine, owner.id, one_moment=True) as connection:
                trace = trace_request(connection, owner.id, sought.id)
            if trace.turns or trace.others:
                traces[owner.name] = trace
    finally:
        engine.dispose()
    if not traces:
        return failed(_unknown(sought.id, shown_address(url, DATABASE_PORT), tenant))
    if as_json:
        print_json(_document(sought.id, traces))
        return 0
    for name, trace in traces.items():
        _print(sought.id, name, trace)
    return 0


def _unknown(request_id: UUID, address: str, tenant: str | None) -> str:
    of_tenant = f" of the tenant {tenant}" if tenant else ""
    made_at = ids.time_of(request_id)
    when = "" if made_at is None else f" Its id is of {made_at:%Y-%m-%d %H:%M:%S} UTC."
    return (
        f"nothing{of_tenant} in the database at {address} came of {ids.external('req', request_id)}: no turn, run, pin "
        f"or erasure.{when} Requests that only read or were refused leave nothing; the access log has them "
        "(request.answered, with this request_id). A turn that was sent again has the id of the request that stored it."
    )


def _document(request_id: UUID, traces: Mapping[str, Trace]) -> dict[str, Any]:
    return {
        "request_id": ids.external("req", request_id),
        "made_at": ids.time_of(request_id),
        "turns": [{"tenant": name} | _turn_document(each) for name, trace in traces.items() for each in trace.turns],
        "others": [{"tenant": name} | _other_document(each) for name, trace in traces.items() for each in trace.others],
    }


def _turn_document(traced: TracedTurn) -> dict[str, Any]:
    turn = traced.turn
    covering = traced.covering
    return {
        **turn._asdict() | {"conversation_id": ids.external("conv", turn.conversation_id)},
        "gateway": traced.gateway and traced.gateway._asdict(),
        "runs": [run._asdict() | {"id": ids.external("run", run.id)} for run in traced.runs],
        "covered_by": covering and covering._asdict() | {"run_id": ids.external("run", covering.run_id)},
    }


def _other_document(match: Match) -> dict[str, Any]:
    return {
        "kind": match.kind,
        "id": match.id.hex,
        "conversation_id": match.conversation_id and ids.external("conv", match.conversation_id),
        "run_id": match.run_id and ids.external("run", match.run_id),
        "at": match.at,
        "name": match.name,
    }


def _print(request_id: UUID, tenant: str, trace: Trace) -> None:
    console = Console()
    for traced in trace.turns:
        grid = PlainTable.grid(padding=(0, 2))
        for name, value in (
            ("request", ids.external("req", request_id)),
            ("tenant", tenant),
            ("conversation", ids.external("conv", traced.turn.conversation_id)),
            *_turn_lines(traced),
        ):
            grid.add_row(Text(name, style="dim"), value)
        console.print(grid, soft_wrap=True)
        table = columns(
            ("run", "why", "trigger", "state", "reason", "version", "before", "after", "ended"),
            numbers=("version", "before", "after"),
        )
        for run in traced.runs:
            table.add_row(*_run_cells(run))
        if traced.runs:
            print_table(table, console)
    if trace.others:
        others = columns(("kind", "id", "conversation", "at"), title=f"Also of {ids.external('req', request_id)}")
        for match in trace.others:
            conversation = ids.external("conv", match.conversation_id) if match.conversation_id else ""
            others.add_row(match.kind, match.id.hex, conversation, f"{match.at:%Y-%m-%d %H:%M:%S}" if match.at else "")
        print_table(others, console)


def _turn_lines(traced: TracedTurn) -> list[tuple[str, str]]:
    turn = traced.turn
    lines = [
        ("turn", f"messages {turn.first_seq} to {turn.last_seq}, stored at {turn.stored_at:%Y-%m-%d %H:%M:%S} UTC")
    ]
    if turn.superseded_at is not None:
        lines.append(("", f"replaced by an edit at {turn.superseded_at:%Y-%m-%d %H:%M:%S} UTC"))
    if (gateway := traced.gateway) is not None:
        saved = f", {gateway.saved_tokens:,} tokens saved" if gateway.saved_tokens else ""
        ended = ", the client went away" if gateway.aborted else ""
        lines.append(
            ("gateway", f"{gateway.outcome}{saved}{', sent again with less' if gateway.retried else ''}{ended}")
        )
    if turn.check_due_at is not None:
        lines.append(("check", f"due since {turn.check_due_at:%Y-%m-%d %H:%M:%S} UTC, not done yet"))
    elif traced.runs:
        lines.append(("check", "done"))
    else:
        lines.append(("check", "done: nothing was due"))
    if traced.covering is not None:
        covering = traced.covering
        lines.append(("commit", f"version {covering.version} at {covering.created_at:%Y-%m-%d %H:%M:%S} UTC covers it"))
    else:
        lines.append(("commit", "no version covers it: the context has it as it came"))
    return lines


def _run_cells(run: TracedRun) -> tuple[str, ...]:
    return (
        ids.external("run", run.id),
        run.relation,
        run.trigger,
        run.state,
        run.reason or "",
        "" if run.snapshot_version is None else str(run.snapshot_version),
        "" if run.tokens_before is None else f"{run.tokens_before:,}",
        "" if run.tokens_after is None else f"{run.tokens_after:,}",
        f"{run.finished_at:%Y-%m-%d %H:%M:%S}" if run.finished_at else "",
    )
