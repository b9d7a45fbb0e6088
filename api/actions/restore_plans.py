"""What a restore would really give the model: the old version and its tail, as far as they fit the budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.exc import NoResultFound

from api.schema.types import RestorePlanOut
from compaction.payload.assembly import drop_warnings
from compaction.shorten.fitting import count_exchanges, fit_history
from compaction.steps.snapshot import build
from compaction.view import view_tokens
from store.conversations import branches, conversations, snapshots

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from api.auth.principals import Principal
    from compaction.policy import Policy
    from store.conversations.snapshots import Material


class FoundVersion(NamedTuple):
    """A version that may be gone back to, and everything that came since."""

    version: int
    material: Material
    carried_tokens: int
    policy: Policy


def find_version(
    connection: Connection, principal: Principal, conversation_id: UUID | None, version: int
) -> FoundVersion | None:
    """Read what a plan needs, None without the conversation or the version. Raises SupersededError."""
    tenant = principal.tenant_id
    row = conversations.get(connection, tenant, conversation_id) if conversation_id else None
    if row is None or conversation_id is None:
        return None
    branches.check_shown(connection, conversation_id, version)
    try:
        material = snapshots.load(connection, tenant, conversation_id, base_version=version, lock="read")
    except NoResultFound:
        return None
    return FoundVersion(version, material, row.carried_tokens, principal.policy_for(row.policy, row.model))


def restore_plan(found: FoundVersion) -> RestorePlanOut:
    """Return what `GET …/context` would answer after a restore, in numbers; it computes for a while."""
    material, policy = found.material, found.policy
    ratio = material.token_ratio
    working = build(
        material.snapshot, material.tail, policy, strip_thinking_through=len(material.tail) and material.tail[-1].seq
    )
    fixed = math.ceil((material.fixed_tokens - found.carried_tokens) * ratio)
    fitted = fit_history(
        working.view,
        policy.context_limit_tokens - fixed,
        lambda message: message.tokens * ratio,
        carries_summary=material.snapshot.summary is not None or bool(material.snapshot.pins),
    )
    exchanges = count_exchanges(working.view)
    return RestorePlanOut(
        version=found.version,
        tokens=fixed + math.ceil(view_tokens(working.view) * ratio),
        tokens_served=fixed + fitted.tokens,
        budget=policy.context_limit_tokens,
        messages=len(working.view),
        messages_served=len(fitted.view),
        held_tokens=policy.min_savings_tokens * branches.HOLD_FACTOR,
        warnings=drop_warnings(fitted, exchanges),
    )
