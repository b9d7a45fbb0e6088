"""Snapshots: read for a compaction or the audit, and committed by compare-and-swap."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from sqlalchemy import (
    ARRAY,
    Connection,
    Integer,
    Text,
    and_,
    any_,
    case,
    cast,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    update,
)

from compaction.claims.packing import pack_claims, unpack_claims
from compaction.coverage import Coverage, gone_spans, shown_seqs
from compaction.frames.codes import frame_code
from compaction.pins.pinned import Pin
from compaction.steps.ladder import must_wait
from compaction.steps.runs import RunReason, RunState
from compaction.steps.snapshot import UNREAD, Original, Snapshot, build, load_view
from compaction.steps.stage import Stage
from compaction.steps.stored_view import StoredView
from store.bytes_held import MOST_READ_BYTES, announce
from store.conversations import pins, waiting
from store.conversations.names import names_of
from store.tables import conversations, messages, runs, snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date
    from uuid import UUID

    from sqlalchemy import ColumnElement

    from compaction.claims.claim import Claim
    from compaction.policy import Policy
    from compaction.steps.snapshot import NewSnapshot
    from store.runs.runs import Lease
    from store.tables import AnyRow

_c, _s, _m = conversations.c, snapshots.c, messages.c
_IN_SIGNED_LOOP = (_c.in_loop & _c.loop_has_thinking).label("in_signed_loop")
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
    """All that a compaction reads of a conversation, from one moment.

    `snapshot` and `tail` are what it starts from; `head_version` and the numbers are those of the head. `fixed_tokens`
    have what the client sends and does not store as well, in the measure of the estimate; `stored_tokens` have not.
    """

    snapshot: Snapshot
    tail: tuple[Original, ...]
    head_version: int
    last_version: int
    strip_thinking_through: int
    other_model_through: int
    token_ratio: float
    fixed_tokens: int
    stored_tokens: int
    context_tokens: int
    context_messages: int
    context_bytes: int
    edits: int
    measured: int | None
    is_counted: bool
    pending_version: int | None
    in_signed_loop: bool
    overflows: int
    tool_results_hold: int
    pinned: tuple[Pin, ...] = ()
    withdrawn: frozenset[tuple[int, str]] = frozenset()
    broken_through: int | None = None
    in_pieces: bool = False
    """Whether turns came in another shape than the Messages API's."""
    days: Mapping[int, date] = {}
    """Of what snapshot and tail show, and of the first message that they do not, by seq; empty unless asked for."""
    names: Mapping[int, str] = {}
    """Who wrote the users' messages that snapshot and tail show, by seq, where they say so."""
    frame_code: str = ""
    """Of the conversation's frames."""

    def stage(self, policy: Policy) -> Stage:
        """Return the conversation as a step finds it."""
        working = build(
            self.snapshot,
            self.tail,
            policy,
            strip_thinking_through=self.strip_thinking_through,
            other_model_through=self.other_model_through,
            pinned=self.pinned,
            withdrawn=self.withdrawn,
            broken_through=self.broken_through,
            in_pieces=self.in_pieces,
            names=self.names,
            frame_code=self.frame_code,
        )
        return Stage(
            working,
            self.token_ratio,
            self.fixed_tokens,
            self.measured,
            self.context_bytes,
            is_counted=self.is_counted,
            days=self.days,
        )

    @property
    def factor(self) -> float:
        """What estimated tokens are multiplied by where a context is served."""
        if self.measured is None:
            return self.token_ratio
        return max(self.token_ratio, self.measured / max(1, self.context_tokens + self.fixed_tokens))


class Outcome(NamedTuple):
    """What a commit did: `version` is the new snapshot's, `pending` that it waits for the end of a tool loop.

    Without a version the commit came too late: `lost` says to what.
    """

    version: int | None
    pending: bool = False
    lost: str | None = None
    until_it_pays: bool = False
    """Whether it waits for that instead."""


def load(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    *,
    base_version: int | None = None,
    lock: Literal["write", "read"] | None = None,
    dated: bool = False,
) -> Material:
    """Read the head, or an older version, and the messages after it; those before the newest MOST_READ_BYTES as UNREAD.

    With `dated` also when they came, for the notes of `recall_handles`. Without a `lock` on the conversation's row, the
    transaction has to see one moment. Raises NoResultFound.
    """
    query = select(
        _c.head_version,
        _c.last_version,
        _c.covers_through,
        _c.strip_thinking_through,
        _c.other_model_through,
        _c.token_ratio,
        _c.fixed_tokens,
        _c.unstored_tokens,
        _c.context_tokens,
        _c.context_messages,
        _c.context_bytes,
        _c.edits,
        _c.pending_version,
        _c.measured_tokens,
        _c.measured_version,
        (_c.last_request < _c.measured_seq).label("is_counted"),
        _IN_SIGNED_LOOP,
        _c.overflows,
        _c.tool_results_hold,
        _c.broken_through,
        or_(_c.shape.is_not(None), _c.mixed_shapes).label("in_pieces"),
    ).where(_c.tenant_id == tenant_id, _c.id == conversation_id)
    if lock is not None:
        query = query.with_for_update(read=lock == "read")
    row = connection.execute(query).one()
    unread_through = -1
    if row.context_bytes > MOST_READ_BYTES or base_version is not None:
        base = row.head_version if base_version is None else base_version
        unread_through = _unread_through(connection, conversation_id, base)
    else:
        announce(row.context_bytes)
    snapshot = _read(connection, conversation_id, row.head_version if base_version is None else base_version)
    content: ColumnElement[str] = cast(_m.content, Text)
    if unread_through >= 0:
        content = case((_m.seq > unread_through, content), else_=UNREAD)
    rows = connection.execute(
        select(_m.seq, _m.role, content, _m.tokens)
        .where(_m.conversation_id == conversation_id, _m.seq > snapshot.covers_through, _m.superseded_at.is_(None))
        .order_by(_m.seq)
    )
    tail = tuple(Original(*row) for row in rows)
    return Material(
        snapshot=snapshot,
        tail=tail,
        head_version=row.head_version,
        last_version=row.last_version,
        strip_thinking_through=row.strip_thinking_through,
        other_model_through=row.other_model_through,
        token_ratio=row.token_ratio,
        fixed_tokens=row.fixed_tokens + round(row.unstored_tokens / row.token_ratio),
        stored_tokens=row.fixed_tokens + row.context_tokens,
        context_tokens=row.context_tokens,
        context_messages=row.context_messages,
        context_bytes=row.context_bytes,
        edits=row.edits,
        measured=row.measured_tokens if row.measured_version == row.head_version else None,
        is_counted=row.is_counted,
        pending_version=row.pending_version,
        in_signed_loop=row.in_signed_loop,
        overflows=row.overflows,
        tool_results_hold=row.tool_results_hold,
        pinned=pins.in_force(connection, tenant_id, conversation_id),
        withdrawn=pins.withdrawn(connection, tenant_id, conversation_id),
        broken_through=row.broken_through,
        in_pieces=row.in_pieces,
        days=_days(connection, conversation_id, snapshot, tail) if dated else {},
        names=names_of(connection, conversation_id, snapshot.messages, tail) if row.in_pieces else {},
        frame_code=frame_code(tenant_id, conversation_id),
    )


def _days(
    connection: Connection, conversation_id: UUID, snapshot: Snapshot, tail: Sequence[Original]
) -> dict[int, date]:
    """Return the days of all messages that may begin or end what a view leaves out, in UTC."""
    gone = [span.first for span in gone_spans(snapshot.coverage, ())[:1]]
    seqs = [*gone, *shown_seqs(snapshot.coverage), *(row.seq for row in tail)]
    rows = connection.execute(
        select(_m.seq, _m.created_at).where(
            _m.conversation_id == conversation_id, _m.seq == any_(literal(seqs, ARRAY(Integer)))
        )
    )
    return {row.seq: row.created_at.astimezone(UTC).date() for row in rows}


def _unread_through(connection: Connection, conversation_id: UUID, version: int) -> int:
    """Return the seq up to which messages after a version are not read, -1 for none; announce the bytes of the rest."""
    head = select(_s.covers_through, _s.bytes).where(_s.conversation_id == conversation_id, _s.version == version)
    covered, total = connection.execute(head).one_or_none() or (-1, 0)
    sizes = connection.execute(
        select(_m.seq, _m.bytes)
        .where(_m.conversation_id == conversation_id, _m.seq > covered, _m.superseded_at.is_(None))
        .order_by(_m.seq.desc())
    )
    read = 0
    for seq, size in sizes:
        if read and read + size > MOST_READ_BYTES:
            announce(total + read)
            return int(seq)
        read += size
    announce(total + read)
    return -1


def _is_edited(connection: Connection, conversation_id: UUID, material: Material, new: NewSnapshot) -> bool:
    """Tell whether a message that a snapshot covers, or has a rule of, was superseded after it was read."""
    through = max([new.covers_through, *(pin.seq for pin in new.pins)])
    now = weigh_tail(connection, conversation_id, after=material.snapshot.covers_through, through=through)
    return now.messages != sum(row.seq <= through for row in material.tail)


def _pins_hold(new: NewSnapshot, before: Sequence[Pin], now: Sequence[Pin]) -> bool:
    """Tell whether a snapshot made with the pins `before` shows those that there are now, and no other."""
    added = set(now).difference(before)
    taken = set(before).difference(now)
    # Of a frame the texts may be masked, and its pins are known by their ids.
    framed = {pin.id for pin in new.pins}
    return all(pin.seq > new.covers_through for pin in added) and framed.isdisjoint(pin.id for pin in taken)


def _read(connection: Connection, conversation_id: UUID, version: int) -> Snapshot:
    if version == 0:
        return Snapshot()
    row = connection.execute(
        select(snapshots).where(_s.conversation_id == conversation_id, _s.version == version)
    ).one()
    view = load_view(row.messages, row.seqs)
    return Snapshot(
        version=row.version,
        covers_through=row.covers_through,
        messages=view,
        summary=row.summary,
        coverage=msgspec.convert(row.coverage, Coverage),
        prefix_hash=row.prefix_hash,
        pins=tuple(msgspec.convert(pin, Pin) for pin in row.pins),
        claims=claims_of(row),
        stored=StoredView(view, row.messages, row.tokens, row.exchanges),
    )


def commit(
    connection: Connection,
    lease: Lease,
    material: Material,
    new: NewSnapshot,
    *,
    step: str,
    summarizer: str | None,
    policy: Policy,
    waits_for_cache: int | None = None,
) -> Outcome:
    """Make a new snapshot the head, if nothing it was made from has changed.

    The lease has to be held still, the head to be where it was, no message that it covers superseded, and no pin put on
    or taken off one; otherwise nothing is written. Messages that came meanwhile, by an edit too, are the tail. While
    a tool loop with signed thinking is running the snapshot waits as pending, unless the context is too large for that;
    see must_wait. With `waits_for_cache` it waits until a prompt cache that lives so many seconds is cold.
    """
    row = connection.execute(
        select(_c.head_version, _c.last_version, _c.edits, _c.pending_version, _c.context_tokens, _IN_SIGNED_LOOP)
        .where(_c.tenant_id == lease.tenant_id, _c.id == lease.conversation_id)
        .with_for_update()
    ).one_or_none()
    held = connection.scalar(
        select(runs.c.id)
        .where(runs.c.id == lease.run_id, runs.c.lease_token == lease.token, runs.c.state == RunState.RUNNING)
        .with_for_update()
    )
    if held is None or row is None:
        return Outcome(None, lost=RunReason.LEASE_LOST)
    if row.head_version != material.head_version or row.pending_version:
        return Outcome(None, lost=RunReason.HEAD_MOVED)
    if row.edits != material.edits and _is_edited(connection, lease.conversation_id, material, new):
        return Outcome(None, lost=RunReason.HEAD_MOVED)
    now = pins.in_force(connection, lease.tenant_id, lease.conversation_id)
    if not _pins_hold(new, material.pinned, now):
        return Outcome(None, lost=RunReason.HEAD_MOVED)
    entered = {pin.id for pin in now}
    standing = [pin for pin in new.pins if pin.source == "standing_instruction" and pin.id not in entered]
    pins.enter(connection, lease.tenant_id, lease.conversation_id, standing)
    version = row.last_version + 1
    insert_new(
        connection,
        lease.tenant_id,
        lease.conversation_id,
        new,
        version=version,
        parent_version=row.head_version,
        run_id=lease.run_id,
        step=step,
        summarizer=summarizer,
    )
    waits = must_wait(
        (row.context_tokens + material.fixed_tokens) * material.token_ratio,
        policy,
        in_signed_loop=row.in_signed_loop,
    )
    if waits:
        let_wait(connection, lease.conversation_id, version)
    elif waits_for_cache is not None:
        waiting.wait(
            connection,
            lease.tenant_id,
            lease.conversation_id,
            version,
            head_version=row.head_version,
            lifetime=waits_for_cache,
        )
        return Outcome(version, pending=True, until_it_pays=True)
    else:
        move_head(connection, lease.conversation_id, version)
    return Outcome(version, pending=waits)


def insert_new(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    new: NewSnapshot,
    *,
    version: int,
    parent_version: int,
    run_id: UUID,
    step: str,
    summarizer: str | None = None,
) -> None:
    """Write a snapshot; the head stays where it is. Raises UncoveredSourceError."""
    new.check_sources()
    connection.execute(
        insert(snapshots).values(
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            version=version,
            parent_version=parent_version,
            run_id=run_id,
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
            pins=msgspec.to_builtins(new.pins),
            claims=None if new.claims is None or new.summary is None else pack_claims(new.claims, new.summary),
            media=list(new.media),
        )
    )


def claims_of(row: AnyRow) -> tuple[Claim, ...] | None:
    """Return what the lines of a snapshot's summary rest on, None where that is not known."""
    return None if row.claims is None or row.summary is None else unpack_claims(row.claims, row.summary)


def move_head(connection: Connection, conversation_id: UUID, version: int) -> None:
    """Make a snapshot the head; see the database function move_head."""
    values = {"conversation": conversation_id, "version": version}
    connection.execute(text("select move_head(:conversation, :version)"), values)


def let_wait(connection: Connection, conversation_id: UUID, version: int) -> None:
    """Have a new snapshot wait as pending for the end of a tool loop."""
    connection.execute(
        update(conversations).where(_c.id == conversation_id).values(pending_version=version, last_version=version)
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
    own = (_s.tenant_id == tenant_id, _s.conversation_id == conversation_id, _s.version == version)
    announce(connection.scalar(select(_s.bytes).where(*own)) or 0)
    return connection.execute(select(snapshots).where(*own)).one_or_none()


class TailWeight(NamedTuple):
    """Messages and their estimated tokens."""

    messages: int
    tokens: int


def weigh_tail(connection: Connection, conversation_id: UUID, *, after: int, through: int) -> TailWeight:
    """Return what the stored messages in `after < seq <= through` weigh in the context."""
    within = (_m.conversation_id == conversation_id, _m.seq > after, _m.seq <= through, _m.superseded_at.is_(None))
    row = connection.execute(select(func.count(), func.coalesce(func.sum(_m.view_tokens), 0)).where(*within)).one()
    return TailWeight(*row)


def chain(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Sequence[AnyRow]:
    """Return version, run, step and coverage of every snapshot that the head came from, oldest first, the head last."""
    shown = (_s.version, _s.parent_version, _s.run_id, _s.step, _s.coverage)
    link = (
        select(*shown)
        .join(conversations, and_(_c.id == _s.conversation_id, _c.head_version == _s.version))
        .where(_c.tenant_id == tenant_id, _c.id == conversation_id)
        .cte("link", recursive=True)
    )
    link = link.union_all(
        select(*shown).where(_s.conversation_id == conversation_id, _s.version == link.c.parent_version)
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
