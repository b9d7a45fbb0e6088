"""Compaction by hand: a run queued, or a dry run that says what it would do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from actions.errors import ConflictError, InvalidError, or_not_found
from actions.input.checks import read_policy, read_summarizer_model
from actions.types.compactions import PlannedStepOut, PlanOut
from compaction.cache_marks import MarkableParts, keep_last
from compaction.shapes import serving
from compaction.steps.catalogue import STRATEGY_NAMES
from compaction.steps.ladder import must_wait
from compaction.steps.rehearsal import plan_run
from compaction.steps.runs import RunReason
from runtime import ids, strategies
from runtime.broker import CHECKS, SUMMARIES
from runtime.queues import Queue
from store.conversations import conversations, snapshots
from store.runs import requested
from store.runs.requested import ManualRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.auth.principals import Principal
    from actions.caller import Caller
    from actions.types.compactions import CompactionIn
    from compaction.policy import Policy
    from compaction.steps.rehearsal import RunPlan
    from runtime.errors import RequestError
    from runtime.queues import Queue
    from store.conversations.snapshots import Material

TO_A_MODEL: Final = frozenset({"auto", "summary"})
"""Strategies that may ask a model: what instructions are for."""


def strategy_names() -> tuple[str, ...]:
    """Return the strategies that there are, the installed ones too."""
    return (*STRATEGY_NAMES, *strategies.names())


def check_wanted(wanted: CompactionIn, pointer: str = "/instructions") -> None:
    """Raise the problem of a strategy that there is not, or of instructions that nothing would follow.

    `pointer` leads to the instructions.
    """
    if wanted.strategy not in STRATEGY_NAMES and wanted.strategy not in (known := strategy_names()):
        raise InvalidError(f"The strategies are {', '.join(known)}.", "/strategy")
    if wanted.instructions is not None and wanted.strategy not in TO_A_MODEL:
        raise InvalidError(f"The strategy {wanted.strategy} asks no model, so nothing would follow them.", pointer)


async def plan_compaction(caller: Caller, conversation_id: UUID, wanted: CompactionIn) -> PlanOut:
    """Return what a run would do; raise the problem of what is wanted."""
    read_summarizer_model(wanted.policy, caller.services.settings)
    dry_run = await caller.run(_read_material, conversation_id, caller.principal, wanted.policy or {})
    return await asyncio.to_thread(_plan, dry_run, wanted, caller.services.settings.chosen_summarizer)


async def queue_compaction(
    caller: Caller, conversation_id: UUID, wanted: CompactionIn, request: Callable[..., tuple[UUID, bool]] | None = None
) -> tuple[UUID, bool]:
    """Queue a run by `request_run`, or what calls it, and tell the workers; return as it does."""
    read_summarizer_model(wanted.policy, caller.services.settings)
    queue = SUMMARIES if wanted.strategy == "summary" else CHECKS
    run_id, is_ours = await caller.run(request or request_run, conversation_id, caller, wanted, queue)
    if is_ours:
        caller.services.wakeups.add_run(caller.tenant_id, run_id, queue)
    return run_id, is_ours


def request_run(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, wanted: CompactionIn, queue: Queue
) -> tuple[UUID, bool]:
    """Queue a run; return its id, or that of the one that is active and that it is that. Raises what is wrong."""
    policy = _policy_of_run(connection, caller.principal, conversation_id, wanted.policy or {})
    return requested.request(
        connection,
        tenant_id,
        conversation_id,
        ManualRun(wanted.strategy, wanted.instructions, policy),
        queue=queue,
        request_id=caller.request_id,
    )


def busy(run_id: UUID) -> RequestError:
    """Return the problem of a conversation that has an active run."""
    detail = "Another run of this conversation has not ended yet; wait for it, then ask again."
    return ConflictError("compaction_running", detail, run_id=ids.external("run", run_id))


class DryRun(NamedTuple):
    """A conversation as a dry run finds it, and the policy of the run."""

    material: Material
    policy: Policy


def _read_material(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, principal: Principal, overrides: Mapping[str, Any]
) -> DryRun:
    policy = _policy_of_run(connection, principal, conversation_id, overrides)
    material = snapshots.load(connection, tenant_id, conversation_id, lock="read", dated=policy.recall_handles)
    return DryRun(material, policy)


def _policy_of_run(
    connection: Connection, principal: Principal, conversation_id: UUID, overrides: Mapping[str, Any]
) -> Policy:
    """Return the policy of one run over a conversation; raise the problem that it has."""
    row = or_not_found(conversations.get(connection, principal.tenant_id, conversation_id))
    below = principal.in_force(row.policy, row.model)
    read_policy(overrides, below.overrides)
    return principal.policy_for({**below.overrides, **overrides}, row.model).reserving(row.requested_output)


def _plan(dry_run: DryRun, wanted: CompactionIn, summarizer: str) -> PlanOut:
    """Return what a run would do; it computes for a while.

    Of a policy it is asked what that would do: then no step is taken by hand.
    """
    material, policy = dry_run
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
                name=step.name,
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
        messages=serving.as_messages(
            keep_last(MarkableParts(None, None, plan.view)).messages, in_pieces=material.in_pieces
        ),
        summary_is_placeholder=plan.placeholder,
        warnings=_warnings(plan, material),
    )


def _warnings(plan: RunPlan, material: Material) -> list[str]:
    warnings: list[str] = []
    if material.pending_version:
        warnings.append(
            f"snapshot {material.pending_version} waits for the end of a tool loop: until then a run would be skipped"
        )
    if plan.placeholder:
        warnings.append("no summary was made: where it would stand, a placeholder says so")
    if not plan.steps:
        warnings.append("nothing is over a threshold of this policy: a check would do nothing")
    if any(step.reason == RunReason.SUMMARIES_DISABLED for step in plan.steps):
        warnings.append("summaries are off here")
    return warnings
