"""Compaction by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import msgspec
from litestar import Request, Response, post

from api.auth.guards import demand, requires
from api.auth.principals import Principal
from api.http.bodies import read_body, read_policy
from api.http.problem_types import EVERY_BODY
from api.http.problems import ProblemError, invalid, not_found
from api.schema import examples
from api.schema.compactions import CompactionIn, CompactionOut, PlannedStepOut, PlanOut
from api.schema.documentation import ConversationId, answers, operation, problems
from compaction.cache_marks import Marked, keep_last
from compaction.steps.ladder import Strategy, must_wait
from compaction.steps.rehearsal import plan_run
from compaction.steps.runs import RunReason
from runtime import ids, strategies
from runtime.broker import CHECKS, SUMMARIES
from store.conversations import conversations, snapshots
from store.runs import requested
from store.runs.requested import ManualRun

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from compaction.policy import Policy
    from compaction.steps.rehearsal import RunPlan
    from store.conversations.snapshots import Material
    from store.runs.runs import Queue

RETRY_AFTER_SECONDS: Final = 1
"""Seconds after which to look at a queued run; `?wait=` is better."""
TO_A_MODEL: Final = frozenset({"auto", "summary"})
"""Strategies that may ask a model: what instructions are for."""


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
    services: Services = request.app.state.services
    wanted = await read_body(request, CompactionIn, if_empty=b"{}")
    check_strategy(wanted.strategy)
    if wanted.instructions is not None and wanted.strategy not in TO_A_MODEL:
        raise invalid(f"The strategy {wanted.strategy} asks no model, so nothing would follow them.", "/instructions")
    identifier, tenant = ids.parse("conv", conversation_id), request.user.tenant_id
    if wanted.dry_run:
        demand(request.user, "context:read")
        found = await services.run(tenant, find_material, request.user, identifier, wanted.policy or {})
        plan = await asyncio.to_thread(plan_out, found, wanted, services.settings.chosen_summarizer)
        return Response(plan, status_code=200)
    return await _queue(services, request, identifier, wanted)


def check_strategy(strategy: str) -> None:
    """Raise the problem of a strategy that there is not."""
    known = get_args(Strategy)
    if strategy not in known and strategy not in (installed := strategies.names()):
        raise invalid(f"The strategies are {', '.join((*known, *installed))}.", "/strategy")


class DryRun(NamedTuple):
    """A conversation as a dry run finds it, and the policy of the run."""

    material: Material
    policy: Policy


async def _queue(
    services: Services, request: Request[Principal, Any, Any], identifier: UUID | None, wanted: CompactionIn
) -> Response[CompactionOut]:
    queue: Queue = SUMMARIES if wanted.strategy == "summary" else CHECKS
    tenant = request.user.tenant_id
    run_id, is_ours = await services.run(tenant, request_run, request, identifier, wanted, queue)
    name = ids.external("run", run_id)
    if not is_ours:
        detail = "Another run of this conversation has not ended yet; wait for it, then ask again."
        raise ProblemError(409, "compaction_running", detail, run_id=name)
    services.wakeups.add_run(tenant, run_id, queue)
    headers = {"location": f"/v1/runs/{name}", "retry-after": str(RETRY_AFTER_SECONDS)}
    return Response(CompactionOut(name), status_code=202, headers=headers)


def request_run(
    connection: Connection,
    request: Request[Principal, Any, Any],
    conversation_id: UUID | None,
    wanted: CompactionIn,
    queue: Queue,
) -> tuple[UUID, bool]:
    """Queue a run; return as `requested_runs.request` does, or raise the problem of what is wanted."""
    policy = policy_of_run(connection, request.user, conversation_id, wanted.policy or {})
    assert conversation_id is not None  # noqa: S101 - policy_of_run has found it
    return requested.request(
        connection,
        request.user.tenant_id,
        conversation_id,
        ManualRun(wanted.strategy, wanted.instructions, policy),
        queue=queue,
        request_id=request.scope["state"]["request_uuid"],
    )


def find_material(
    connection: Connection, principal: Principal, conversation_id: UUID | None, overrides: Mapping[str, Any]
) -> DryRun:
    """Read what a dry run needs; raise the problem of what is wanted."""
    policy = policy_of_run(connection, principal, conversation_id, overrides)
    assert conversation_id is not None  # noqa: S101 - policy_of_run has found it
    return DryRun(snapshots.load(connection, principal.tenant_id, conversation_id, lock="read"), policy)


def policy_of_run(
    connection: Connection, principal: Principal, conversation_id: UUID | None, overrides: Mapping[str, Any]
) -> Policy:
    """Return the policy of one run over a conversation; raise the problem that it has."""
    row = conversations.get(connection, principal.tenant_id, conversation_id) if conversation_id else None
    if row is None:
        raise not_found()
    below = principal.in_force(row.policy, row.model)
    read_policy(overrides, below.overrides)
    return principal.policy_for({**below.overrides, **overrides}, row.model)


def plan_out(found: DryRun, wanted: CompactionIn, summarizer: str) -> PlanOut:
    """Return what a run would do; it computes for a while.

    Of a policy it is asked what that would do: then no step is taken by hand.
    """
    material, policy = found
    by_hand = not (wanted.policy and wanted.strategy == "auto")
    stage = material.stage(policy)
    tokens = (material.context_tokens + material.fixed_tokens) * material.token_ratio
    waits = must_wait(tokens, policy, in_signed_loop=material.in_signed_loop)
    summaries = summarizer != "none" and policy.compaction_enabled
    native = summarizer == "anthropic-native"
    plan = plan_run(
        stage,
        policy,
        strategy=wanted.strategy if by_hand else None,
        summaries=summaries,
        waits=waits,
        native=native,
        load=strategies.load,
    )
    return PlanOut(
        strategy=wanted.strategy,
        by_hand=by_hand,
        policy=msgspec.to_builtins(policy),
        steps=[
            PlannedStepOut(
                name=step.step,
                state=step.result,
                reason=step.reason,
                detail=step.detail,
                tokens_before=step.tokens_before,
                tokens_after=step.tokens_after,
                messages_before=step.messages_before,
                messages_after=step.messages_after,
                zone_seqs=list(step.zone_seqs),
                summary_tokens=step.summary_tokens,
            )
            for step in plan.steps
        ],
        tokens_before=stage.tokens,
        tokens_after=plan.tokens,
        messages_before=len(stage.view),
        messages_after=len(plan.view),
        messages=[message.as_message() for message in keep_last(Marked(None, None, plan.view)).messages],
        summary_is_placeholder=plan.placeholder,
        warnings=_warnings(plan, material),
    )


def _warnings(plan: RunPlan, material: Material) -> list[str]:
    found: list[str] = []
    if material.pending_version:
        found.append(
            f"snapshot {material.pending_version} waits for the end of a tool loop: until then a run would be skipped"
        )
    if plan.placeholder:
        found.append("no summary was made: where it would stand, a placeholder says so")
    if not plan.steps:
        found.append("nothing is over a threshold of this policy: a check would do nothing")
    if any(step.reason == RunReason.SUMMARIES_DISABLED for step in plan.steps):
        found.append("summaries are off here")
    return found
