"""Versions of a context beside each other: as it was at a message, and along the chain of its snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from sqlalchemy import Connection, Text, and_, cast, func, literal, or_, select

from compaction.comparison.versions import spellings
from compaction.coverage import Coverage, find_span
from compaction.pins.pinned import Pin
from compaction.steps.snapshot import Original, Snapshot, load_view
from store.bytes_held import announce
from store.conversations import snapshots
from store.runs import runs
from store.tables import conversations as conversations_table
from store.tables import messages
from store.tables import snapshots as snapshots_view

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from compaction.claims.claim import Claim
    from store.tables import AnyRow

_m, _s, _c = messages.c, snapshots_view.c, conversations_table.c


class AtVersion(NamedTuple):
    """What a context is made of under a version, when a message was the newest."""

    snapshot: Snapshot
    tail: Sequence[Original]
    claims: Sequence[Claim] | None = None
    """Of its summary; None where none are known."""
    came_before: int = -1
    """The seq of the newest message that had come when the snapshot was made."""


def at_version(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int, seq: int
) -> AtVersion | None:
    """Return what the context is made of under a version when message `seq` was the newest; None for no such version.

    Version 0 is no compaction. One that covers more than that message has no tail.
    """
    row = snapshots.get(connection, tenant_id, conversation_id, version) if version else None
    if version and row is None:
        return None
    covers = row.covers_through if row else -1
    own = (_m.conversation_id == conversation_id, _m.seq > covers, _m.seq <= seq, _m.superseded_at.is_(None))
    announce(connection.scalar(select(func.coalesce(func.sum(_m.bytes), 0)).where(*own)) or 0)
    tail = connection.execute(select(_m.seq, _m.role, cast(_m.content, Text)).where(*own).order_by(_m.seq)).all()
    snapshot = Snapshot()
    if row is not None:
        framed = tuple(msgspec.convert(each, Pin) for each in row.pins)
        snapshot = Snapshot(version, covers, load_view(row.messages, row.seqs), row.summary, pins=framed)
    claims = () if row is None else snapshots.claims_of(row)
    came_before = -1
    if row is not None:
        earlier = select(func.coalesce(func.max(_m.seq), -1)).where(
            _m.conversation_id == conversation_id, _m.created_at <= row.created_at
        )
        came_before = connection.execute(earlier).scalar_one()
    return AtVersion(snapshot, [Original(*each) for each in tail], claims, came_before)


class SentBefore(NamedTuple):
    """What is known of the messages that a conversation has been sent."""

    token_ratio: float
    """By what estimates are multiplied to agree with what the API counted."""
    in_pieces: bool
    """Whether turns came in another shape than the Messages API's."""
    head_version: int
    strip_thinking_through: int
    """The seq up to which thinking is not valid any more under the head."""
    other_model_through: int


def sent_before(connection: Connection, conversation_id: UUID) -> SentBefore:
    """Return what is known of the messages that a conversation has been sent."""
    in_pieces = or_(_c.shape.is_not(None), _c.mixed_shapes)
    known = (_c.token_ratio, in_pieces, _c.head_version, _c.strip_thinking_through, _c.other_model_through)
    ratio, *others = connection.execute(select(*known).where(_c.id == conversation_id)).one()
    return SentBefore(float(ratio), *others)


class Loss(NamedTuple):
    """The snapshot from which on a text did not stand any more, the last of several, and what made it."""

    version: int
    parent_version: int
    run_id: UUID
    run: AnyRow | None
    step: AnyRow | None
    fates: Sequence[tuple[int, str]]
    """Seqs of the messages that had it, and what became of each."""
    back_in: int | None
    """The version in which it stands again, None for none."""


class Traced(NamedTuple):
    """Where a text was said, in which versions it was looked for, and which of them lost it."""

    seqs: Sequence[int]
    looked_in: Sequence[int]
    loss: Loss | None
    is_in_context: bool


def trace(connection: Connection, tenant_id: UUID, conversation_id: UUID, text: str) -> Traced:
    """Follow a text through the snapshots that the head came from, the oldest first, to where it was lost last.

    A text stands in a version if it stands in the snapshot, or in a message after it that had come when it was made.
    """
    forms = spellings(text)
    said = _said(connection, tenant_id, conversation_id, forms)
    looked_in: list[int] = []
    lost: AnyRow | None = None
    back_in: int | None = None
    chain = _chain(connection, tenant_id, conversation_id) if said else ()
    for row in chain:
        if lost is None and row.covers_through < said[0].seq:
            continue
        looked_in.append(row.version)
        stands = any(each.seq > row.covers_through and each.created_at <= row.created_at for each in said)
        stands = stands or _is_in(connection, tenant_id, conversation_id, row.version, forms)
        if not stands and (lost is None or back_in is not None):
            lost, back_in = row, None
        elif lost is not None and stands and back_in is None:
            back_in = row.version
    covers = chain[-1].covers_through if chain else -1
    in_tail = any(each.seq > covers for each in said)
    seqs = [each.seq for each in said]
    if lost is None:
        return Traced(seqs, looked_in, None, bool(said))
    run = runs.get(connection, tenant_id, lost.run_id)
    steps = [step for step in runs.steps_of(connection, [lost.run_id]) if step.snapshot_version == lost.version]
    coverage = msgspec.convert(lost.coverage, Coverage)
    fates = [(seq, span.fate) for seq in seqs if (span := find_span(coverage, seq)) is not None]
    loss = Loss(lost.version, lost.parent_version, lost.run_id, run, steps[0] if steps else None, fates, back_in)
    is_in_head = _is_in(connection, tenant_id, conversation_id, chain[-1].version, forms)
    return Traced(seqs, looked_in, loss, in_tail or is_in_head)


def _said(connection: Connection, tenant_id: UUID, conversation_id: UUID, forms: Sequence[str]) -> Sequence[AnyRow]:
    """Return seq and time of the live messages that have a text in one of the forms in which JSON has it, in order."""
    content = cast(_m.content, Text)
    has = or_(*(func.strpos(content, literal(form)) > 0 for form in forms))
    own = (_m.tenant_id == tenant_id, _m.conversation_id == conversation_id, _m.superseded_at.is_(None))
    return connection.execute(select(_m.seq, _m.created_at).where(*own, has).order_by(_m.seq)).all()


def _chain(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Sequence[AnyRow]:
    """Return what the head came from, without what the snapshots show, the oldest first."""
    shown = (_s.version, _s.parent_version, _s.run_id, _s.covers_through, _s.created_at, _s.coverage)
    link = (
        select(*shown)
        .join(conversations_table, and_(_c.id == _s.conversation_id, _c.head_version == _s.version))
        .where(_c.tenant_id == tenant_id, _c.id == conversation_id)
        .cte("link", recursive=True)
    )
    earlier = select(*shown).where(_s.conversation_id == conversation_id, _s.version == link.c.parent_version)
    link = link.union_all(earlier)
    return connection.execute(select(link).order_by(link.c.version)).all()


def _is_in(connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int, forms: Sequence[str]) -> bool:
    row = snapshots.get(connection, tenant_id, conversation_id, version)
    return row is not None and any(form in row.messages for form in forms)
