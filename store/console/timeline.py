"""How a conversation and its context grew, message by message, thinned out by the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, func, select, text

from store.tables import messages, snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from store.tables import AnyRow

_m, _s = messages.c, snapshots.c


class Moment(NamedTuple):
    """Estimated tokens after something happened: a message came (`version` is None), or another snapshot was in force.

    `held` are those of all originals that were not superseded (`statistics.TOKENS_STORED`), `shown` those of the
    context; `before` is the context's until then. `seq` is the newest message of that time.
    """

    seq: int
    held: int
    shown: int
    before: int
    version: int | None
    step: str | None


class _Reign(NamedTuple):
    """The time from which a snapshot was in force; version 0 = none."""

    at: datetime
    version: int
    tokens: int
    covers: int
    step: str | None


_MOMENTS: Final = text("""
    with reign as (
        select r.no, r.at, r.version, r.tokens,
               coalesce((select sum(m.view_tokens) from messages as m
                         where m.conversation_id = :conversation and m.seq <= r.covers
                           and (m.superseded_at is null or m.superseded_at > r.at)), 0) as covered
        from unnest(cast(:at as timestamptz[]), cast(:versions as integer[]), cast(:tokens as integer[]),
                    cast(:covers as integer[])) with ordinality as r (at, version, tokens, covers, no)
    ), told as (
        select r.at, 0 as kind, -1 as seq, 0 as stored, 0 as viewed, r.no from reign as r
        union all
        select m.superseded_at, 1, m.seq, -m.tokens, -m.view_tokens, null from messages as m
        where m.conversation_id = :conversation and m.superseded_at is not null
        union all
        select m.created_at, 2, m.seq, m.tokens, m.view_tokens, null from messages as m
        where m.conversation_id = :conversation
    ), running as (
        select t.kind, t.no, count(t.no) over so_far as reign, sum(t.stored) over so_far as held,
               sum(t.viewed) over so_far as viewed,
               max(case when t.kind = 2 then t.seq else -1 end) over so_far as seq,
               row_number() over so_far as place
        from told as t window so_far as (order by t.at, t.kind, t.seq, t.no rows unbounded preceding)
    ), seen as (
        select u.*, greatest(0, u.viewed - coalesce(r.covered, 0)) + coalesce(r.tokens, 0) as shown
        from running as u left join reign as r on r.no = u.reign
    ), thinned as (
        select s.*, lag(s.shown, 1, 0::bigint) over (order by s.place) as before,
               row_number() over (partition by s.reign, s.kind, s.seq * :points / greatest(1, :messages)
                                  order by s.place desc) as nth
        from seen as s
    )
    select t.seq, t.held, t.shown, t.before, t.no from thinned as t
    where t.seq >= 0 and (t.kind = 0 or (t.kind = 2 and t.nth = 1)) order by t.place
""")


def moments(connection: Connection, conversation_id: UUID, count: int, points: int) -> list[Moment]:
    """Return how the `count` messages came and were compacted, thinned to about `points` and every compaction.

    A snapshot is in force from when it was written until a later one, or until something that it covers is superseded;
    when one that was pending became the head is not known.
    """
    reigns = list(_reigns(*_history(connection, conversation_id)))
    values = {
        "conversation": conversation_id,
        "messages": count,
        "points": points,
        "at": [reign.at for reign in reigns],
        "versions": [reign.version for reign in reigns],
        "tokens": [reign.tokens for reign in reigns],
        "covers": [reign.covers for reign in reigns],
    }
    return [
        Moment(row.seq, row.held, row.shown, row.before, *(reigns[row.no - 1][1::3] if row.no else (None, None)))
        for row in connection.execute(_MOMENTS, values)
    ]


def _history(connection: Connection, conversation_id: UUID) -> tuple[Sequence[AnyRow], Sequence[AnyRow]]:
    """Return what is known of the snapshots, by version, and the edits: when, and the first message superseded."""
    created = select(_s.version, _s.tokens, _s.covers_through, _s.step, _s.created_at)
    edits = select(_m.superseded_at.label("at"), func.min(_m.seq).label("first"))
    edited = edits.where(_m.conversation_id == conversation_id, _m.superseded_at.is_not(None))
    return (
        connection.execute(created.where(_s.conversation_id == conversation_id).order_by(_s.version)).all(),
        connection.execute(edited.group_by(_m.superseded_at).order_by(_m.superseded_at)).all(),
    )


def _reigns(created: Sequence[AnyRow], edits: Sequence[AnyRow]) -> Iterator[_Reign]:
    """Yield the snapshots in force, one after the other."""
    ends = {
        each.version: min(
            (edit.at for edit in edits if edit.at >= each.created_at and edit.first <= each.covers_through),
            default=None,
        )
        for each in created
    }
    last = 0
    for at in sorted({each.created_at for each in created} | {end for end in ends.values() if end is not None}):
        there = (each for each in reversed(created) if each.created_at <= at)
        head = next((each for each in there if (end := ends[each.version]) is None or end > at), None)
        version = head.version if head else 0
        if version != last:
            last = version
            yield _Reign(at, version, *((head.tokens, head.covers_through, head.step) if head else (0, -1, None)))
