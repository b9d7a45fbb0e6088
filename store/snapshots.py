"""Snapshots: read for a compaction or the audit, and committed by compare-and-swap."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy import Connection, and_, func, insert, select, text, update

from compaction.coverage import Coverage
from compaction.snapshot import NewSnapshot, Original, Snapshot, load_view
from store.tables import conversations, messages, runs, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from compaction.ladder import Step
    from compaction.policy import Policy
    from store.runs import Lease
    from store.tables import AnyRow

_c, _s, _m = conversations.c, snapshots.c, messages.c
_SUMMARY = (
    _s.version,
    _s.parent_version,
    _s.run_id,
    _s.step,
    _s.covers_through,
    _s.summarizer,
    _s.tokens,
    _s.message_count,
    _s.created_at,
)


class Material(NamedTuple):
    """All that a compaction reads of a conversation, from one moment."""

    snapshot: Snapshot
    tail: tuple[Original, ...]
    strip_thinking_through: int
    token_ratio: float
    fixed_tokens: int
    context_bytes: int
    edits: int
    measured: int | None
    pending_version: int | None


class Outcome(NamedTuple):
    """What a commit did: `version` is the new snapshot's, `pending` that it waits for the end of a tool loop.

    Without a version the commit came too late: `lost` says to what.
    """

    version: int | None
    pending: bool = False
    lost: str | None = None


def load(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Material:
    """Read the head and the tail of a conversation, in a transaction that sees one moment."""
    row = connection.execute(
        select(
            _c.head_version,
            _c.covers_through,
            _c.strip_thinking_through,
            _c.token_ratio,
            _c.fixed_tokens,
            _c.context_bytes,
            _c.edits,
            _c.pending_version,
            _c.measured_tokens,
            _c.measured_version,
        ).where(_c.tenant_id == tenant_id, _c.id == conversation_id)
    ).one()
    tail = connection.execute(
        select(_m.seq, _m.role, _m.content)
        .where(_m.conversation_id == conversation_id, _m.seq > row.covers_through, _m.superseded_at.is_(None))
        .order_by(_m.seq)
    )
    return Material(
        snapshot=_read(connection, conversation_id, row.head_version),
        tail=tuple(Original(*found) for found in tail),
        strip_thinking_through=row.strip_thinking_through,
        token_ratio=row.token_ratio,
        fixed_tokens=row.fixed_tokens,
        context_bytes=row.context_bytes,
        edits=row.edits,
        measured=row.measured_tokens if row.measured_version == row.head_version else None,
        pending_version=row.pending_version,
    )


def _read(connection: Connection, conversation_id: UUID, version: int) -> Snapshot:
    if version == 0:
        return Snapshot()
    row = connection.execute(
        select(snapshots).where(_s.conversation_id == conversation_id, _s.version == version)
    ).one()
    return Snapshot(
        version=row.version,
        covers_through=row.covers_through,
        messages=load_view(row.messages, row.seqs),
        summary=row.summary,
        coverage=msgspec.convert(row.coverage, Coverage),
        prefix_hash=row.prefix_hash,
    )


def commit(
    connection: Connection,
    lease: Lease,
    material: Material,
    new: NewSnapshot,
    *,
    step: Step,
    summarizer: str | None,
    policy: Policy,
) -> Outcome:
    """Make a new snapshot the head, if nothing it was made from has changed.

    The lease has to be held still, the head to be the parent, and no message of the prefix superseded; otherwise
    nothing is written. Messages that came meanwhile are the tail. While a tool loop with signed thinking is running
    the snapshot waits as pending, unless the context has passed the trim threshold.
    """
    row = connection.execute(
        select(
            _c.head_version,
            _c.last_version,
            _c.edits,
            _c.pending_version,
            _c.in_loop,
            _c.loop_has_thinking,
            _c.context_tokens,
        )
        .where(_c.tenant_id == lease.tenant_id, _c.id == lease.conversation_id)
        .with_for_update()
    ).one_or_none()
    held = connection.scalar(
        select(runs.c.id)
        .where(runs.c.id == lease.run_id, runs.c.lease_token == lease.token, runs.c.state == "running")
        .with_for_update()
    )
    if held is None or row is None:
        return Outcome(None, lost="lease_lost")
    if row.head_version != material.snapshot.version or row.edits != material.edits or row.pending_version:
        return Outcome(None, lost="head_moved")
    version = row.last_version + 1
    connection.execute(
        insert(snapshots).values(
            tenant_id=lease.tenant_id,
            conversation_id=lease.conversation_id,
            version=version,
            parent_version=material.snapshot.version,
            run_id=lease.run_id,
            step=step,
            covers_through=new.covers_through,
            messages=new.messages_json,
            seqs=list(new.seqs),
            coverage=msgspec.to_builtins(new.coverage),
            summary=new.summary,
            summarizer=summarizer,
            tokens=new.tokens,
            message_count=len(new.seqs),
            bytes=new.bytes,
            exchanges=new.exchanges,
            prefix_hash=new.prefix_hash,
        )
    )
    waits = (
        row.in_loop
        and row.loop_has_thinking
        and row.context_tokens * material.token_ratio < policy.trim_threshold_tokens
    )
    if waits:
        connection.execute(
            update(conversations)
            .where(_c.id == lease.conversation_id)
            .values(pending_version=version, last_version=version)
        )
    else:
        move_head(connection, lease.conversation_id, version)
    return Outcome(version, pending=waits)


def move_head(connection: Connection, conversation_id: UUID, version: int) -> None:
    """Make a snapshot the head; see the database function move_head."""
    connection.execute(
        text("select move_head(:conversation, :version)"),
        {"conversation": conversation_id, "version": version},
    )


def page(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    *,
    limit: int,
    after: int | None = None,
    before: int | None = None,
) -> Sequence[AnyRow]:
    """Return up to `limit` snapshots, newest first; `after` continues to older versions, `before` to newer."""
    query = select(*_SUMMARY).where(_s.tenant_id == tenant_id, _s.conversation_id == conversation_id)
    if before is not None:
        newer = query.where(_s.version > before).order_by(_s.version).limit(limit)
        return list(reversed(connection.execute(newer).all()))
    if after is not None:
        query = query.where(_s.version < after)
    return connection.execute(query.order_by(_s.version.desc()).limit(limit)).all()


def get(connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int) -> AnyRow | None:
    """Return one snapshot in full."""
    return connection.execute(
        select(snapshots).where(_s.tenant_id == tenant_id, _s.conversation_id == conversation_id, _s.version == version)
    ).one_or_none()


class Weight(NamedTuple):
    """Messages and their estimated tokens."""

    messages: int
    tokens: int


def weigh_tail(connection: Connection, conversation_id: UUID, *, after: int, through: int) -> Weight:
    """Return what the stored messages in `after < seq <= through` weigh in the context."""
    row = connection.execute(
        select(func.count(), func.coalesce(func.sum(_m.view_tokens), 0)).where(
            _m.conversation_id == conversation_id,
            _m.seq > after,
            _m.seq <= through,
            _m.superseded_at.is_(None),
        )
    ).one()
    return Weight(*row)


def chain(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Sequence[AnyRow]:
    """Return version and coverage of every snapshot that the head came from, oldest first, the head last."""
    link = (
        select(_s.version, _s.parent_version, _s.coverage)
        .join(conversations, and_(_c.id == _s.conversation_id, _c.head_version == _s.version))
        .where(_c.tenant_id == tenant_id, _c.id == conversation_id)
        .cte("link", recursive=True)
    )
    link = link.union_all(
        select(_s.version, _s.parent_version, _s.coverage).where(
            _s.conversation_id == conversation_id, _s.version == link.c.parent_version
        )
    )
    return connection.execute(select(link).order_by(link.c.version)).all()


def promote_pending(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> int | None:
    """Make the pending snapshot the head; return its version, None if none is pending."""
    version: int | None = connection.scalar(
        select(_c.pending_version).where(_c.tenant_id == tenant_id, _c.id == conversation_id).with_for_update()
    )
    if version is not None:
        move_head(connection, conversation_id, version)
    return version
