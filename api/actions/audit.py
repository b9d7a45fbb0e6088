"""What was stored and what became of it: originals with their lineage, and what a snapshot changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from api.http.problems import or_not_found
from api.schema.snapshots import ChangeOut, ClaimOut, ClaimsOut, DiffOut
from api.schema.types import Lineage, MessageOut, message_out
from compaction.coverage import Coverage, changes, find_span
from runtime import ids
from store.conversations import messages, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from store.tables import AnyRow


def message_with_lineage(connection: Connection, tenant_id: UUID, conversation_id: UUID, seq: int) -> MessageOut:
    """Return an original and everything that compaction did to it; raise the problem that there is no such message."""
    row = or_not_found(messages.get(connection, tenant_id, conversation_id, seq))
    lineage = lineage_of(seq, snapshots.chain(connection, tenant_id, conversation_id))
    fate = lineage[-1].fate if lineage else "kept"
    return message_out(row, fate="superseded" if row.superseded_at else fate, lineage=lineage)


def lineage_of(seq: int, chain: Sequence[AnyRow]) -> list[Lineage]:
    """Return each change of a message's fate along a chain of snapshots, oldest first."""
    lineage: list[Lineage] = []
    for snapshot in chain:
        span = find_span(msgspec.convert(snapshot.coverage, Coverage), seq)
        if span is not None and span.fate != (lineage[-1].fate if lineage else "kept"):
            run = ids.external_text("run", span.run_id)
            lineage.append(Lineage(span.fate, snapshot.version, run))
    return lineage


def snapshot_claims(connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int) -> ClaimsOut:
    """Return what the lines of a snapshot's summary rest on; raise the problem that there is no such version."""
    row = or_not_found(snapshots.get(connection, tenant_id, conversation_id, version))
    claims = snapshots.claims_of(row) or ()
    return ClaimsOut([ClaimOut(claim.text, list(claim.seqs), claim.support) for claim in claims])


def snapshot_changes(connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int) -> DiffOut:
    """Return what a snapshot changed against its parent; raise the problem that there is no such version."""
    row = or_not_found(snapshots.get(connection, tenant_id, conversation_id, version))
    parent = snapshots.get(connection, tenant_id, conversation_id, row.parent_version)
    before = snapshots.weigh_tail(
        connection,
        conversation_id,
        after=parent.covers_through if parent else -1,
        through=row.covers_through,
    )
    spans = changes(
        msgspec.convert(parent.coverage, Coverage) if parent else (), msgspec.convert(row.coverage, Coverage)
    )
    return DiffOut(
        version=version,
        parent_version=row.parent_version,
        changes=[
            ChangeOut(first, last, old, new.fate, ids.external_text("run", new.run_id))
            for first, last, old, new in spans
        ],
        messages_before=(parent.message_count if parent else 0) + before.messages,
        messages_after=row.message_count,
        tokens_before=(parent.tokens if parent else 0) + before.tokens,
        tokens_after=row.tokens,
        summary_before=parent.summary if parent else None,
        summary_after=row.summary,
    )
