"""The list of conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from api.console.views.budgets import Fill, fill

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from actions.auth.principals import Principal
    from store.tables import AnyRow


class LastRun(NamedTuple):
    """How the last run of a conversation ended, or where it is."""

    id: UUID
    state: str
    reason: str | None
    trigger: str
    at: datetime


class Listed(NamedTuple):
    """A conversation in the list."""

    id: UUID
    external_id: str | None
    user_ref: str | None
    model: str | None
    client: str | None
    """What the gateway calls the client that it was begun by; None for others."""
    messages: int
    version: int
    fill: Fill
    active_at: datetime
    is_check_due: bool
    run: LastRun | None


def listed(rows: Sequence[AnyRow], principal: Principal) -> list[Listed]:
    """Return the rows of the list."""
    return [
        Listed(
            id=row.id,
            external_id=row.external_id,
            user_ref=row.user_ref,
            model=row.model,
            client=row.client,
            messages=row.next_seq,
            version=row.head_version,
            fill=fill(row.context_tokens, principal.policy_for(row.policy, row.model)),
            active_at=row.last_message_at or row.created_at,
            is_check_due=row.check_due_at is not None,
            run=None
            if row.run_id is None
            else LastRun(row.run_id, row.run_state, row.run_reason, row.run_trigger, row.run_at),
        )
        for row in rows
    ]
