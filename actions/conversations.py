"""Conversations: created, read and changed, and what of them a key may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from actions.auth.scopes import has_scope, require_scope
from actions.errors import or_not_found
from actions.input.checks import check_metadata, read_changes, read_model, read_overrides, read_summarizer_model
from actions.types.core import ConversationBrief, ConversationOut, last_assembly
from compaction.overrides import policy_warnings
from compaction.recall.tool import is_declared
from runtime import ids
from store.conversations import assemblies, conversations, repinning

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.auth.principals import Principal
    from actions.caller import Caller
    from actions.types.core import ConversationIn, ConversationPatch
    from compaction.policy import Policy
    from store.conversations.assemblies import AssemblyRecord
    from store.tables import AnyRow


_HANDLES: Final = "recall_handles"
"""The policy's key that is on where the recall tool is declared and nobody has set it."""


async def create_conversation(caller: Caller, body: ConversationIn) -> tuple[ConversationOut | ConversationBrief, bool]:
    """Make a conversation, or find the one with its `external_id`; return it, and whether it is new."""
    wanted, of_tenant = msgspec.structs.asdict(body), caller.principal.overrides
    check_metadata(wanted["metadata"], caller.services.strict.limits)
    _require_leave_to_erase(caller, wanted["policy"])
    read_summarizer_model(wanted["policy"], caller.services.settings)
    named = wanted.pop("policy_preset")
    wanted["policy"] = read_overrides(wanted["policy"], named, of_tenant, model=wanted["model"])
    read_model(wanted["model"], of_tenant, wanted["policy"])
    if is_declared(wanted["tools"]) and _HANDLES not in of_tenant:
        wanted["policy"] = {_HANDLES: True} | wanted["policy"]
    row, is_new = await caller.run(conversations.create, wanted)
    return changed_out(row, caller.principal), is_new


def _require_leave_to_erase(caller: Caller, policy: Mapping[str, Any] | None) -> None:
    """Raise RequestError if a policy decides when messages are erased and the key may not erase them."""
    if policy and "message_retention_days" in policy:
        require_scope(caller.principal, "admin")


async def read_conversation(caller: Caller, conversation_id: UUID) -> ConversationOut:
    """Return a conversation with its last assembly; raise the problem that there is no such one."""
    row, assembly = or_not_found(await caller.run(_with_assembly, conversation_id))
    answer = conversation_out(row, caller.principal)
    answer.last_assembly = last_assembly(assembly) if assembly else None
    return answer


def _with_assembly(
    connection: Connection, tenant_id: UUID, conversation_id: UUID
) -> tuple[AnyRow, AssemblyRecord | None] | None:
    row = conversations.get(connection, tenant_id, conversation_id)
    return (row, assemblies.last(connection, tenant_id, conversation_id)) if row is not None else None


async def change_conversation(
    caller: Caller, conversation_id: UUID | None, body: ConversationPatch
) -> ConversationOut | ConversationBrief:
    """Change what a body names; raise the problem that it has, before that of no such conversation."""
    wanted = msgspec.to_builtins(body)
    check_metadata(wanted.get("metadata"), caller.services.strict.limits)
    _require_leave_to_erase(caller, wanted.get("policy"))
    read_summarizer_model(wanted.get("policy"), caller.services.settings)
    row = or_not_found(await caller.services.run(caller.tenant_id, _change, caller, conversation_id, wanted))
    if "policy" in wanted:
        caller.services.wakeups.add(row.id, caller.tenant_id)
    return changed_out(row, caller.principal)


def _change(
    connection: Connection, caller: Caller, conversation_id: UUID | None, wanted: dict[str, Any]
) -> AnyRow | None:
    """Change a conversation; None if there is no such one. What is written is in `wanted` afterwards."""
    principal = caller.principal
    named = wanted.pop("policy_preset", None)
    # Locked: a policy that another change makes meanwhile is not taken back by this one.
    stored = conversations.get(connection, principal.tenant_id, conversation_id, lock=True) if conversation_id else None
    model = wanted.get("model", stored.model if stored else None)
    if named is not None or "policy" in wanted:
        had = stored.policy if stored else {}
        wanted["policy"] = read_changes(wanted.get("policy", {}), named, had, principal.overrides, model=model)
    if stored is None or conversation_id is None:
        return None
    if "tools" in wanted and is_declared(wanted["tools"]) and not is_declared(stored.tools):
        policy = wanted.get("policy", stored.policy)
        if _HANDLES not in policy and _HANDLES not in principal.overrides:
            wanted["policy"] = {**policy, _HANDLES: True}
    if not {"policy", "model"}.isdisjoint(wanted):
        read_model(model, principal.overrides, wanted.get("policy", stored.policy))
    before = principal.policy_for(stored.policy, stored.model)
    after = principal.policy_for(wanted.get("policy", stored.policy), model)
    if after != before:
        # Another window makes another policy.
        wanted.setdefault("policy", stored.policy)
    elif wanted.get("policy") == stored.policy:
        # What is sent again lifts no hold.
        del wanted["policy"]
    if not wanted:
        return stored
    changed = conversations.change(
        connection,
        principal.tenant_id,
        conversation_id,
        wanted,
        result_cap=after.max_tool_result_chars if "policy" in wanted else None,
        view_changes=_cuts(before) != _cuts(after),
    )
    if after.pinned_max_tokens <= before.pinned_max_tokens:
        return changed
    # There may be room now for rules that had none.
    repinning.keep_up(connection, principal.tenant_id, conversation_id, policy=after, request_id=caller.request_id)
    return conversations.get(connection, principal.tenant_id, conversation_id)


def _cuts(policy: Policy) -> tuple[Any, ...]:
    """Return what of a policy decides how inline tool results are shown."""
    return (policy.inline_tool_tags, policy.inline_tool_tags and policy.tool_result_retention_chars)


def changed_out(row: AnyRow, principal: Principal) -> ConversationOut | ConversationBrief:
    """Return a conversation that was made, found or changed, as far as the key may read it."""
    whole = conversation_out(row, principal)
    if has_scope(principal, "context:read"):
        return whole
    return ConversationBrief(**{name: getattr(whole, name) for name in ConversationBrief.__struct_fields__})


def conversation_out(row: AnyRow, principal: Principal) -> ConversationOut:
    """Return a conversation as clients see it; one from a list has no system prompt and tools."""
    stored = row._mapping  # noqa: SLF001 - SQLAlchemy's name for a row as a mapping, and public
    policy, _, ignored = principal.in_force(row.policy, row.model)
    return ConversationOut(
        id=ids.external("conv", row.id),
        external_id=row.external_id,
        user_ref=row.user_ref,
        model=row.model,
        shape=row.shape or "messages",
        policy=msgspec.to_builtins(policy),
        policy_overrides=row.policy,
        warnings=[*ignored, *policy_warnings(policy)],
        metadata=stored["metadata"],
        created_at=row.created_at,
        last_seq=row.next_seq - 1,
        head_version=row.head_version,
        pending_version=row.pending_version,
        context_tokens=int(row.context_tokens),
        context_messages=row.context_messages,
        check_due_at=row.check_due_at,
        system=stored.get("system", msgspec.UNSET),
        tools=stored.get("tools", msgspec.UNSET),
    )
