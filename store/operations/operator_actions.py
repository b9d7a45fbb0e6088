"""What operators did in the console: ids and numbers, for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import Connection, insert, select

from runtime import ids
from store.tables import api_keys, operator_actions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Select

    from store.tables import AnyRow

Action = Literal[
    "sign_in",
    "sign_out",
    "compact",
    "restore",
    "retry",
    "demo",
    "key_create",
    "key_rotate",
    "key_revoke",
    "erase",
    "export",
    "webhook_create",
    "webhook_remove",
    "delivery_retry",
]

_a = operator_actions.c


class Operator(NamedTuple):
    """Who acts: a key of a tenant, in a request."""

    tenant_id: UUID
    key_id: UUID
    request_id: UUID


def record(
    connection: Connection,
    operator: Operator,
    action: Action,
    outcome: str = "done",
    *,
    conversation_id: UUID | None = None,
    run_id: UUID | None = None,
    version: int | None = None,
    subject_key_id: UUID | None = None,
    subject_id: UUID | None = None,
) -> None:
    """Write down what an operator did, in the transaction in which it is done.

    `subject_key_id` is the key that was made or revoked; of a rotation it is the new one. `subject_id` is
    the webhook, or the delivery, that it was about.
    """
    connection.execute(
        insert(operator_actions).values(
            id=ids.new_id(),
            action=action,
            outcome=outcome,
            conversation_id=conversation_id,
            run_id=run_id,
            version=version,
            subject_key_id=subject_key_id,
            subject_id=subject_id,
            **operator._asdict(),
        )
    )


def page(connection: Connection, tenant_id: UUID, *, limit: int, after: UUID | None = None) -> Sequence[AnyRow]:
    """Return up to `limit` actions with the names of their keys, newest first; `after` continues to older ones."""
    query = _named().where(_a.tenant_id == tenant_id)
    if after is not None:
        query = query.where(_a.id < after)
    return connection.execute(query.order_by(_a.id.desc()).limit(limit)).all()


def on_keys(connection: Connection, tenant_id: UUID, key_ids: Sequence[UUID]) -> Sequence[AnyRow]:
    """Return the actions by which keys were made or revoked here, oldest first; other ways leave none."""
    query = _named().where(_a.tenant_id == tenant_id, _a.subject_key_id.in_(key_ids))
    # A key is made in the request that is written down, so that nothing older can be about it.
    if key_ids:
        query = query.where(_a.id >= min(key_ids))
    return connection.execute(query.order_by(_a.id)).all()


def _named() -> Select[Any]:
    subject = api_keys.alias("subject")
    return (
        select(operator_actions, api_keys.c.name.label("key_name"), subject.c.name.label("subject_name"))
        .outerjoin(api_keys, api_keys.c.id == _a.key_id)
        .outerjoin(subject, subject.c.id == _a.subject_key_id)
    )
