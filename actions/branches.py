"""Going back to an old version, what that would really give the model, and branching off."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.exc import NoResultFound

from actions.errors import ConflictError, InvalidError, NotFoundError, or_not_found
from actions.types.core import RestorePlanOut
from compaction.payload.assembly import drop_warnings
from compaction.pins.pinned import masked_pins, rules_in
from compaction.pins.serving import fit_with_rules
from compaction.shorten.fitting import count_exchanges, fit_history
from compaction.steps.snapshot import build
from compaction.view import view_tokens
from store.conversations import branches, conversations, repinning, snapshots

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.auth.principals import Principal
    from actions.caller import Caller
    from actions.types.core import ForkIn
    from compaction.policy import Policy
    from runtime.errors import RequestError
    from store.conversations.snapshots import Material
    from store.tables import AnyRow


def superseded(pointer: str | None = "/version") -> RequestError:
    """Return the problem of a version that nobody may go back to; `pointer` leads to it in the request."""
    detail = "This version shows messages that were replaced since."
    return ConflictError("superseded", detail, pointer=pointer)


def restore_version(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    caller: Caller,
    version: int,
    pointer: str | None = "/version",
) -> AnyRow:
    """Go back to a version and return the conversation; raise the problem of what is wanted.

    `pointer` leads to the version in the request.
    """
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id))
    policy = caller.principal.policy_for(row.policy, row.model).reserving(row.requested_output)
    try:
        restored = branches.restore(connection, tenant_id, conversation_id, version, policy, caller.request_id)
    except branches.SupersededError:
        raise superseded(pointer) from None
    if restored is None:
        or_not_found(conversations.get(connection, tenant_id, conversation_id))
        raise NotFoundError(pointer)
    repinning.keep_up(connection, tenant_id, conversation_id, policy=policy, request_id=caller.request_id)
    return or_not_found(conversations.get(connection, tenant_id, conversation_id))


async def fork(caller: Caller, conversation_id: UUID, wanted: ForkIn) -> AnyRow:
    """Branch off a conversation and return the new one; raise the problem of what is wanted."""
    try:
        row = or_not_found(await caller.run(_fork, conversation_id, caller, wanted))
    except branches.ExternalIdTakenError:
        detail = "A conversation has this external_id."
        raise ConflictError("external_id_taken", detail, pointer="/external_id") from None
    # Its first turn finds a check due, and leaves the wake-up to whoever asked for that.
    caller.services.wakeups.add(row.id, caller.tenant_id)
    return row


def _fork(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, caller: Caller, wanted: ForkIn
) -> AnyRow | None:
    row = conversations.get(connection, tenant_id, conversation_id)
    if row is None:
        return None
    policy = caller.principal.policy_for(row.policy, row.model)
    fork_id = branches.fork(
        connection,
        tenant_id,
        conversation_id,
        wanted.through_seq,
        wanted.external_id,
        policy,
        caller.request_id,
    )
    if fork_id is None:
        raise InvalidError("There is no message with this seq, or another has replaced it.", "/through_seq")
    repinning.keep_up(connection, tenant_id, fork_id, policy=policy, request_id=caller.request_id)
    return conversations.get(connection, tenant_id, fork_id)


async def plan_restore(caller: Caller, conversation_id: UUID, version: int) -> RestorePlanOut | None:
    """Return what a restore would give, None of a version that is superseded; raise the problem of what is wanted."""
    try:
        stored = await caller.run(_read_version, conversation_id, caller.principal, version)
    except branches.SupersededError:
        return None
    return await asyncio.to_thread(_plan, stored)


class StoredVersion(NamedTuple):
    """A version that may be gone back to, and everything that came since."""

    version: int
    material: Material
    carried_tokens: int
    policy: Policy


def _read_version(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, principal: Principal, version: int
) -> StoredVersion:
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id))
    try:
        branches.check_shown(connection, conversation_id, version)
        policy = principal.policy_for(row.policy, row.model).reserving(row.requested_output)
        material = snapshots.load(
            connection,
            tenant_id,
            conversation_id,
            base_version=version,
            lock="read",
            dated=policy.recall_handles,
        )
    except NoResultFound:
        raise NotFoundError("/version") from None
    return StoredVersion(version, material, row.carried_tokens, policy)


def _plan(stored: StoredVersion) -> RestorePlanOut:
    """Return what `GET …/context` would answer after a restore, in numbers; it computes for a while."""
    material, policy = stored.material, stored.policy
    ratio = material.token_ratio
    last = len(material.tail) and material.tail[-1].seq
    working = build(
        material.snapshot,
        material.tail,
        policy,
        strip_thinking_through=last,
        other_model_through=material.other_model_through,
        frame_code=material.frame_code,
    )
    view, framed = working.view, material.snapshot.pins
    if material.pinned or framed:
        stage = material._replace(strip_thinking_through=last).stage(policy)
        pinned = stage.pinned(stage.view, policy)
        if rules_in(pinned.framed) != rules_in(framed):
            view, framed = pinned.view, pinned.framed
    fixed = math.ceil((material.fixed_tokens - stored.carried_tokens) * ratio)
    fit = partial(
        fit_history,
        view,
        weigh=lambda message: message.tokens * ratio,
        carries_summary=material.snapshot.summary is not None or bool(framed),
        handles=working.handles,
    )
    room = policy.context_limit_tokens - fixed
    rules = sorted(masked_pins(material.pinned, policy), key=lambda rule: (rule.seq, rule.id))
    fitted = fit_with_rules(
        fit,
        room,
        view,
        rules,
        factor=ratio,
        max_tokens=policy.pinned_max_tokens,
        frame_language=policy.frame_language,
        frame_code=working.frame_code,
    )
    exchanges = count_exchanges(view)
    return RestorePlanOut(
        version=stored.version,
        tokens=fixed + math.ceil(view_tokens(view) * ratio),
        tokens_served=fixed + fitted.tokens,
        budget=policy.context_limit_tokens,
        messages=len(view),
        messages_served=len(fitted.view),
        held_tokens=policy.min_savings_tokens * branches.HOLD_FACTOR,
        warnings=drop_warnings(fitted, exchanges),
    )
