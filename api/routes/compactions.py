"""Compaction by hand."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, post

from actions import compact as compactions
from actions.auth.principals import Principal
from actions.auth.scopes import require_scope
from actions.errors import id_or_not_found
from actions.types.compactions import CompactionIn, CompactionOut, PlanOut
from api.auth.guards import requires
from api.callers import caller_of
from api.http.bodies import read_body
from api.schema import examples
from api.schema.documentation import ConversationId, answers, operation, problems
from runtime import ids
from runtime.http.problem_types import EVERY_BODY

RETRY_AFTER_SECONDS: Final = 1
"""Seconds after which to look at a queued run; `?wait=` is better."""


@post(
    "/conversations/{conversation_id:str}/compactions",
    status_code=202,
    guards=[requires("turns:write")],
    summary="Compact by hand",
    operation_class=operation(
        CompactionIn, example=examples.COMPACTION_IN, optional=True, headers={202: ("Location", "Retry-After")}
    ),
    responses={
        200: answers(PlanOut, "The plan of a dry run; nothing was changed."),
        202: answers(CompactionOut, "The run is queued.", example=examples.COMPACTION),
        **problems(*EVERY_BODY, "not_found", "compaction_running"),
    },
)
async def compact(
    request: Request[Principal, Any, Any], conversation_id: ConversationId
) -> Response[CompactionOut] | Response[PlanOut]:
    """Queue a run that the thresholds do not ask for, or answer with what it would do (scope `context:read` too)."""
    wanted, caller = await read_body(request, CompactionIn, if_empty=b"{}"), caller_of(request)
    compactions.check_wanted(wanted)
    if wanted.dry_run:
        require_scope(request.user, "context:read")
        plan = await compactions.plan_compaction(caller, id_or_not_found("conv", conversation_id), wanted)
        return Response(plan, status_code=200)
    run_id, is_ours = await compactions.queue_compaction(caller, id_or_not_found("conv", conversation_id), wanted)
    if not is_ours:
        raise compactions.busy(run_id)
    return _queued(ids.external("run", run_id))


def _queued(name: str) -> Response[CompactionOut]:
    headers = {"location": f"/v1/runs/{name}", "retry-after": str(RETRY_AFTER_SECONDS)}
    return Response(CompactionOut(name), status_code=202, headers=headers)
