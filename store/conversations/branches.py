"""Going back and branching off: restored snapshots and forked conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, Connection, case, exists, func, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from compaction.steps.runs import RunTrigger
from runtime import ids
from store.conversations import context_blocks, pins
from store.conversations.conversations import ESTIMATED_TOKENS, STORED_TOKENS, restored_hold
from store.conversations.snapshots import move_head
from store.runs import waiting_summaries
from store.runs.requested import overtake, record
from store.tables import conversations, gateway_recalls, message_media, messages, snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from compaction.policy import Policy
    from store.tables import AnyRow

HOLD_FACTOR: Final = 10
"""A restored conversation is left alone until it has grown by this many times `min_savings_tokens`."""

_MOST_BYTES: Final = 2**31 - 1

_c, _g, _m, _s = conversations.c, gateway_recalls.c, messages.c, snapshots.c
_KEPT: Final = (
    "user_ref",
    "model",
    "system",
    "tools",
    "policy",
    "metadata",
    "fixed_tokens",
    "token_ratio",
    "ratio_samples",
    "unstored_tokens",
    "shape",
    "mixed_shapes",
    "other_model_through",
    # A part of fixed_tokens, until it is counted anew.
    "carried_tokens",
    "counted_cap",
    "last_version",
    "newest_media",
    "requested_output",
)
"""What a fork has of its conversation's row."""
_BEGINS_WITH_AN_ANSWER: Final = text("""
    exists (select from snapshots as s where s.conversation_id = conversations.id
                and s.version = conversations.head_version and s.message_count = 0)
    and (select m.role from messages as m where m.conversation_id = conversations.id
             and m.seq > conversations.covers_through and m.superseded_at is null order by m.seq limit 1) = 'assistant'
""")
"""Whether nothing stands before an answer: an edit has put it where the version once had a request behind it."""
_EMPTY: Final[Mapping[str, Any]] = {
    "covers_through": -1,
    "messages": "[]",
    "seqs": [],
    "coverage": [],
    "tokens": 0,
    "message_count": 0,
    "bytes": 2,
    "exchanges": 0,
    "prefix_hash": b"",
}
_SUPERSEDED: Final = """
    with superseded as materialized (
        select range_agg(int4range(m.seq, m.seq, '[]')) as seqs from messages as m
        where m.conversation_id = :conversation and m.superseded_at is not null)
"""
"""The messages that were replaced, once for all versions."""
_COVERS_SUPERSEDED: Final = """
    coalesce(
        (select range_agg(seqs) from (
             select int4range((span ->> 0)::integer, (span ->> 1)::integer, '[]')
             from jsonb_array_elements(s.coverage) as span
             union all
             select int4range((pin ->> 1)::integer, (pin ->> 1)::integer, '[]')
             from jsonb_array_elements(s.pins) as pin
         ) as accounted (seqs))
        && superseded.seqs,
        false)
"""
"""Whether a message that snapshot s accounts for, or pins, was replaced since; what was before is not in it.

Both sides as ranges, which are compared in one pass: one by one, each of many edits would be looked for in each of as
many spans.
"""
_SHOWS_SUPERSEDED: Final = text(
    f"{_SUPERSEDED} select {_COVERS_SUPERSEDED} from snapshots as s, superseded"  # noqa: S608 - constants
    " where s.conversation_id = :conversation and s.version = :version"
)
_FOR_FORK: Final = text(f"""
    {_SUPERSEDED}
    select s.version,
           s.covers_through < newest.seq or s.version = c.head_version and newest.is_last
               or exists (select from jsonb_array_elements(s.coverage) as span
                          where newest.seq between (span ->> 0)::integer and (span ->> 1)::integer
                            and span ->> 2 = 'kept') as may_be_head
    from conversations as c
        cross join lateral snapshot_chain(c.id, c.head_version) as chain
        join snapshots as s on s.conversation_id = c.id and s.version = chain.version
        cross join lateral (select max(m.seq) filter (where m.seq <= :through) as seq, max(m.seq) <= :through as is_last
                            from messages as m
                            where m.conversation_id = c.id and m.superseded_at is null) as newest
        cross join superseded
    where c.id = :conversation and s.covers_through <= :through and not {_COVERS_SUPERSEDED}
        and not exists (select from jsonb_array_elements(s.pins) as pin where (pin ->> 1)::integer > :through)
    order by s.version
""")  # noqa: S608 - constants
"""The head and what it came from, as far as that accounts for nothing after the fork and nothing that was replaced; the
head of the fork has to show its newest message as it was, unless it is the newest in both."""


class SupersededError(Exception):
    """The version shows messages that were replaced since."""


class ExternalIdTakenError(Exception):
    """A conversation of the tenant has this external_id."""


def restore(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int, policy: Policy, request_id: UUID
) -> int | None:
    """Make a new head equal to an old version (0 = no compaction) and hold automatic compaction.

    Returns the new version, None if there is no such conversation or version. Nothing is deleted; a pending snapshot
    and the active run, begun or queued, are dropped. Raises SupersededError.
    """
    row = _locked(connection, tenant_id, conversation_id)
    if row is None or not (version == 0 or _has_version(connection, conversation_id, version)):
        return None
    check_shown(connection, conversation_id, version)
    overtake(connection, tenant_id, conversation_id)
    new: int = row.last_version + 1
    run_id = record(
        connection,
        tenant_id,
        conversation_id,
        trigger=RunTrigger.RESTORE,
        policy=policy,
        request_id=request_id,
        parent_version=row.head_version,
        snapshot_version=new,
        reason=f"version_{version}",
    )
    fixed = {"version": new, "parent_version": row.head_version, "run_id": run_id, "step": "restore"}
    if version == 0:
        connection.execute(
            insert(snapshots).values(tenant_id=tenant_id, conversation_id=conversation_id, **fixed, **_EMPTY)
        )
    else:
        _copy(connection, snapshots, [_s.conversation_id == conversation_id, _s.version == version], fixed)
    move_head(connection, conversation_id, new)
    hold = policy.min_savings_tokens * HOLD_FACTOR
    connection.execute(
        update(conversations)
        .where(_c.id == conversation_id)
        .values(
            tool_results_hold=STORED_TOKENS + func.floor(hold / _c.token_ratio),
            summary_hold=STORED_TOKENS + func.floor(hold / _c.token_ratio),
            # `min_savings_tokens` may be so large that the bytes of its hold have no room in the column.
            trim_hold=func.least(_c.context_bytes + literal(hold * 4, BigInteger), _MOST_BYTES),
            results_cut_through=-1,
            media_checked_through=_c.next_seq - 1,
            broken_through=case((_BEGINS_WITH_AN_ANSWER, _c.next_seq - 1), else_=_c.broken_through),
            held_by_restore=True,
            restored_over_budget=policy.context_limit_tokens < ESTIMATED_TOKENS,
        )
    )
    return new


def check_shown(connection: Connection, conversation_id: UUID, version: int) -> None:
    """Raise SupersededError for a version that shows messages which were replaced since."""
    if version and connection.scalar(_SHOWS_SUPERSEDED, {"conversation": conversation_id, "version": version}):
        raise SupersededError


def fork(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    through_seq: int,
    external_id: str | None,
    policy: Policy,
    request_id: UUID,
) -> UUID | None:
    """Make a conversation with the same past up to `through_seq`; return its id, None for no such message.

    Rows are copied, not pointed to: erasing one conversation never touches the other. Superseded messages stay behind,
    and no past ends at one. A restored head is held in the fork as well; a check of it is due.
    Raises ExternalIdTakenError.
    """
    row = _locked(connection, tenant_id, conversation_id)
    live = [_m.conversation_id == conversation_id, _m.superseded_at.is_(None)]
    if row is None or not connection.scalar(select(exists().where(*live, _m.seq == through_seq))):
        return None
    new = ids.new_id()
    inserted = connection.execute(
        upsert(conversations)
        .values(
            **{name: row._mapping[name] for name in _KEPT},  # noqa: SLF001 - SQLAlchemy's public name for it
            id=new,
            tenant_id=tenant_id,
            external_id=external_id,
            next_seq=through_seq + 1,
            broken_through=min(row.broken_through, through_seq),
            check_due_at=func.now(),
            check_request_id=request_id,
        )
        .on_conflict_do_nothing(index_elements=[_c.tenant_id, _c.external_id], index_where=_c.external_id.is_not(None))
    )
    if not inserted.rowcount:
        raise ExternalIdTakenError
    _copy(connection, messages, [*live, _m.seq <= through_seq], {"conversation_id": new, "request_id": None})
    shown = [message_media.c.conversation_id == conversation_id, message_media.c.seq <= through_seq]
    _copy(connection, message_media, shown, {"conversation_id": new})
    context_blocks.copy(connection, conversation_id, new, through_seq)
    pins.copy(connection, conversation_id, new, through_seq)
    _copy_recalls(connection, conversation_id, new, through_seq)
    snapshot_rows = connection.execute(_FOR_FORK, {"conversation": conversation_id, "through": through_seq}).all()
    head = max((each.version for each in snapshot_rows if each.may_be_head), default=0)
    run_id = record(
        connection,
        tenant_id,
        new,
        trigger=RunTrigger.FORK,
        policy=policy,
        request_id=request_id,
        parent_version=0,
        snapshot_version=head or None,
        reason="forked",
    )
    versions = [each.version for each in snapshot_rows if each.version <= head]
    for parent, version in zip([0, *versions], versions, strict=False):
        fixed = {"conversation_id": new, "run_id": run_id, "parent_version": parent}
        _copy(connection, snapshots, [_s.conversation_id == conversation_id, _s.version == version], fixed)
    move_head(connection, new, head)
    waiting_summaries.copy(connection, conversation_id, new, run_id)
    connection.execute(text("select recount_end(:conversation)"), {"conversation": new})
    context_blocks.recount(connection, new)
    if head == row.head_version:
        # What nothing was mended before stays valid where it was signed, and what was restored stays so.
        is_sound = row.broken_through <= row.covers_through
        signed = {"strip_thinking_through": min(row.strip_thinking_through, through_seq)} if is_sound else {}
        held = restored_hold(connection, conversation_id)
        if held:
            held["media_checked_through"] = min(row.media_checked_through, through_seq)
        if kept := signed | held:
            connection.execute(update(conversations).where(_c.id == new).values(kept))
    return new


def _locked(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> AnyRow | None:
    return connection.execute(
        select(conversations).where(_c.tenant_id == tenant_id, _c.id == conversation_id).with_for_update()
    ).one_or_none()


def _has_version(connection: Connection, conversation_id: UUID, version: int) -> bool:
    return bool(connection.scalar(select(exists().where(_s.conversation_id == conversation_id, _s.version == version))))


def _copy_recalls(connection: Connection, conversation_id: UUID, new: UUID, through_seq: int) -> None:
    """Copy what a gateway's client has in the place of messages to `through_seq`: it goes on from a fork so too."""
    replaced = exists().where(
        _m.conversation_id == conversation_id, _m.superseded_at.is_not(None), _m.seq.between(_g.seq, _g.through_seq)
    )
    own = [_g.conversation_id == conversation_id, _g.through_seq <= through_seq, ~replaced]
    # An answer is gone on from by its id where it was given.
    _copy(connection, gateway_recalls, own, {"conversation_id": new, "response_id": None, "last_response_id": None})


def _copy(connection: Connection, table: Any, where: list[Any], changed: Mapping[str, Any]) -> None:
    """Copy rows of a table, some columns changed."""
    columns = [column for column in table.c if not column.computed]
    picked = [
        literal(changed[column.name], column.type).label(column.name) if column.name in changed else column
        for column in columns
    ]
    connection.execute(insert(table).from_select([column.name for column in columns], select(*picked).where(*where)))
