"""Runs: every execution of compaction, with its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from litestar import Request, get

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.paging import AfterId, BeforeId, Limit, Window, page_of, window
from api.http.problems import not_found
from api.schema.context_blocks import ContextBlockRef
from api.schema.documentation import ConversationId, RunId, Wait, problems
from api.schema.types import Page, RunOut, StepOut
from runtime import ids
from store.conversations import conversations
from store.runs import runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.tables import AnyRow

ENDED: Final = frozenset({"committed", "skipped", "failed", "dead"})


@get(
    "/conversations/{conversation_id:str}/runs",
    guards=[requires("audit:read")],
    summary="List a conversation's runs",
    responses=problems("bad_cursor", "not_found"),
)
async def list_runs(
    request: Request[Principal, Any, Any],
    conversation_id: ConversationId,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[RunOut]:
    """List runs, newest first."""
    services: Services = request.app.state.services
    span: Window[Any] = window(limit, after_id, before_id, lambda text: ids.parse("run", text))
    identifier = ids.parse("conv", conversation_id)
    found = await services.run(request.user.tenant_id, _page, request.user.tenant_id, identifier, span)
    if found is None:
        raise not_found()
    return page_of(found, span, lambda item: item.id)


@get("/runs/{run_id:str}", guards=[requires("audit:read")], summary="Read a run", responses=problems("not_found"))
async def get_run(
    request: Request[Principal, Any, Any],
    run_id: RunId,
    wait: Wait = 0,
) -> RunOut:
    """Answer with one run; with `wait`, once it has ended or after that many seconds."""
    services: Services = request.app.state.services
    identifier, tenant = ids.parse("run", run_id), request.user.tenant_id
    found = await services.run(tenant, _one, tenant, identifier) if identifier else None
    if found and identifier and wait and found.state not in ENDED:
        await services.run_waits.wait(tenant, identifier, wait)
        found = await services.run(tenant, _one, tenant, identifier)
    if found is None:
        raise not_found()
    return found


def run_out(row: AnyRow, steps: Sequence[AnyRow]) -> RunOut:
    """Return a run as clients see it."""
    costs = [step.cost_usd for step in steps if step.cost_usd is not None]
    return RunOut(
        id=ids.external("run", row.id),
        conversation_id=ids.external("conv", row.conversation_id),
        kind=row.kind,
        trigger=row.trigger,
        state=row.state,
        queue=row.queue,
        strategy=row.strategy,
        instructions=row.instructions,
        context_block=None
        if row.block_seq is None
        else ContextBlockRef(row.block_seq, row.block_position, row.block_source),
        reason=row.reason,
        error=row.error,
        request_id=ids.external("req", row.request_id) if row.request_id else None,
        policy=row.policy,
        attempts=row.attempts,
        worker=row.worker,
        snapshot_version=row.snapshot_version,
        tokens_before=row.tokens_before,
        tokens_after=row.tokens_after,
        messages_before=row.messages_before,
        messages_after=row.messages_after,
        model_input_tokens=sum(step.model_input_tokens or 0 for step in steps),
        model_output_tokens=sum(step.model_output_tokens or 0 for step in steps),
        cost_usd=_money(sum(costs)) if costs else None,
        duration_ms=round((row.finished_at - row.started_at).total_seconds() * 1000)
        if row.finished_at and row.started_at
        else None,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        not_before=row.not_before,
        steps=[step_out(step) for step in steps],
    )


def step_out(row: AnyRow) -> StepOut:
    """Return a step as clients see it."""
    named = {name: getattr(row, name) for name in StepOut.__struct_fields__ if name != "cost_usd"}
    return StepOut(**named, cost_usd=None if row.cost_usd is None else _money(row.cost_usd))


def _money(amount: Decimal | int) -> str:
    return f"{amount:.6f}"


def run_page(
    connection: Connection, tenant_id: UUID, conversation_id: UUID | None, span: Window[UUID], state: str | None = None
) -> list[RunOut]:
    """Return the runs of a window, of one conversation or of all; one more than the page has."""
    rows = runs.page(
        connection,
        tenant_id,
        conversation_id=conversation_id,
        limit=span.limit + 1,
        state=state,
        after=span.after,
        before=span.before,
    )
    steps = runs.steps_of(connection, [row.id for row in rows])
    return [run_out(row, [step for step in steps if step.run_id == row.id]) for row in rows]


def _page(
    connection: Connection, tenant_id: UUID, conversation_id: UUID | None, span: Window[UUID]
) -> list[RunOut] | None:
    if conversation_id is None or conversations.get(connection, tenant_id, conversation_id) is None:
        return None
    return run_page(connection, tenant_id, conversation_id, span)


def _one(connection: Connection, tenant_id: UUID, run_id: UUID) -> RunOut | None:
    row = runs.get(connection, tenant_id, run_id)
    return run_out(row, runs.steps_of(connection, [run_id])) if row else None
