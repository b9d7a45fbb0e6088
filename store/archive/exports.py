"""All that is stored of a user, row by row, in portions that fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, Text, case, cast, func, literal, select

from store.bytes_held import page_of_sizes
from store.tables import (
    context_blocks,
    conversations,
    gateway_prefixes,
    gateway_recalls,
    messages,
    pins,
    recall_requests,
    run_steps,
    runs,
    snapshots,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import ColumnElement, Table

Kind = Literal[
    "message", "snapshot", "context_block", "pin", "run", "run_step", "recall", "gateway_request", "gateway_recall"
]


class _Source(NamedTuple):
    table: Table
    key: ColumnElement[Any]
    """Unique within a conversation, and the order of its rows."""
    size: ColumnElement[int]
    """Bytes of a row's text: a portion has PAGE_BYTES."""
    rows: int = 100
    """Most rows of a portion."""


_SOURCES: Final[Mapping[Kind, _Source]] = {
    "message": _Source(
        messages,
        messages.c.seq,
        messages.c.bytes + func.coalesce(func.octet_length(cast(messages.c.sent, Text)) + messages.c.bytes, 0),
    ),
    "snapshot": _Source(snapshots, snapshots.c.version, snapshots.c.bytes),
    "context_block": _Source(context_blocks, context_blocks.c.id, func.octet_length(context_blocks.c.text)),
    "pin": _Source(pins, pins.c.id, func.octet_length(pins.c.text)),
    "run": _Source(runs, runs.c.id, literal(1_024)),
    "recall": _Source(recall_requests, recall_requests.c.id, func.octet_length(recall_requests.c.asked)),
    "gateway_request": _Source(gateway_prefixes, gateway_prefixes.c.seq, literal(256), 1_000),
    "gateway_recall": _Source(
        gateway_recalls,
        gateway_recalls.c.seq,
        func.octet_length(cast(gateway_recalls.c.shown, Text))
        + func.octet_length(cast(gateway_recalls.c.results, Text)),
    ),
}
KINDS: Final[tuple[Kind, ...]] = tuple(_SOURCES)
"""What a conversation has; the steps of a run come with it."""
_WHOLE: Final[Mapping[ColumnElement[Any], ColumnElement[Any]]] = {
    messages.c.sent: case(
        (messages.c.sent.is_not(None), func.as_sent(messages.c.role, messages.c.content, messages.c.sent))
    ).label("sent")
}
"""What is stored in part, and how it is read whole."""
_OF_THE_SERVICE: Final = frozenset({"tenant_id", "lease_token", "lease_expires_at", "worker", "process_id", "rules"})
"""Columns that say nothing of the user."""


class Portion(NamedTuple):
    """Some rows, each with its kind, and where to go on: None at the end."""

    rows: Sequence[tuple[Kind, Mapping[str, Any]]]
    last: Any


def conversation_after(
    connection: Connection, tenant_id: UUID, user_ref: str, after: UUID | None
) -> Mapping[str, Any] | None:
    """Return a user's next conversation, oldest first; None at the end."""
    query = select(*_columns(conversations)).where(
        conversations.c.tenant_id == tenant_id, conversations.c.user_ref == user_ref
    )
    if after is not None:
        query = query.where(conversations.c.id > after)
    row = connection.execute(query.order_by(conversations.c.id).limit(1)).mappings().one_or_none()
    return None if row is None else dict(row)


def conversation(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Mapping[str, Any] | None:
    """Return a conversation by its id; None if the tenant has no such one (any more), whatever the login may see."""
    query = select(*_columns(conversations)).where(
        conversations.c.tenant_id == tenant_id,
        conversations.c.id == conversation_id,
        conversations.c.erased_at.is_(None),
    )
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def portion(connection: Connection, tenant_id: UUID, conversation_id: UUID, kind: Kind, after: Any) -> Portion:
    """Return a conversation's next rows of a kind in order, those behind the key `after`."""
    table, key, size, limit = _SOURCES[kind]
    rest = [table.c.tenant_id == tenant_id, table.c.conversation_id == conversation_id]
    if after is not None:
        rest.append(key > after)
    sizes = connection.execute(select(key, size).where(*rest).order_by(key).limit(limit)).all()
    chosen = page_of_sizes(sizes, limit)
    if not chosen:
        return Portion((), None)
    query = select(*_columns(table)).where(*rest, key <= chosen[-1][0]).order_by(key)
    exported = [dict(row) for row in connection.execute(query).mappings()]
    rows: list[tuple[Kind, Mapping[str, Any]]] = [(kind, row) for row in exported]
    if kind == "run" and exported:
        steps = select(*_columns(run_steps)).where(run_steps.c.run_id.in_([row["id"] for row in exported]))
        ordered = connection.execute(steps.order_by(run_steps.c.run_id, run_steps.c.step_no)).mappings()
        rows += [("run_step", dict(row)) for row in ordered]
    return Portion(rows, exported[-1][key.key] if len(chosen) < len(sizes) or len(sizes) == limit else None)


def _columns(table: Table) -> list[ColumnElement[Any]]:
    return [_WHOLE.get(column, column) for column in table.c if column.name not in _OF_THE_SERVICE]
