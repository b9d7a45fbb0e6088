"""Snapshots that wait until it pays that they become the head, and what is reckoned with to tell when that is.

All times are the database's: a worker's clock decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from compaction.cost.survival import Life
from store.conversations import pins
from store.conversations.conversations import mark_due
from store.tables import conversations, messages, snapshots, waiting_snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import ScalarSelect

_c, _m, _w, _s = conversations.c, messages.c, waiting_snapshots.c, snapshots.c
GAPS: Final = 200
"""Messages back to which the time between a conversation's turns is looked at."""
LIVES: Final = 200
"""Conversations of a tenant, the newest, from whose lengths others' are expected."""
_ENDED_DAYS: Final = 3
"""Days without a turn after which a conversation is taken to have ended."""


class Course(NamedTuple):
    """How a conversation has gone so far."""

    model: str | None
    turns: int
    since_head: int
    """Turns since the head came into force, about: as many as the messages since then are of all."""
    is_broken: bool
    """Whether the head has moved since the last turn."""
    quiet_seconds: float
    """Since the last turn."""
    now: datetime
    gaps: Sequence[float]
    """Seconds between turns, the oldest first."""
    others: Sequence[Life]
    """Conversations of the same tenant."""


def course(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Course:
    """Return how a conversation has gone so far. Raises NoResultFound."""
    row = connection.execute(
        select(
            _c.model,
            _c.turn_count,
            _c.next_seq,
            _c.head_moved_at,
            func.extract("epoch", func.now() - func.coalesce(_newest(), func.now())).label("quiet"),
            func.now().label("now"),
        ).where(_c.tenant_id == tenant_id, _c.id == conversation_id)
    ).one()
    newer = row.next_seq - max(0, row.head_moved_at)
    return Course(
        row.model,
        row.turn_count,
        round(row.turn_count * newer / max(1, row.next_seq)),
        is_broken=row.head_moved_at == row.next_seq,
        quiet_seconds=float(row.quiet),
        now=row.now,
        gaps=[float(seconds) for seconds in connection.execute(_GAPS, {"conversation": conversation_id}).scalars()],
        others=[
            Life(turns, has_ended=has_ended)
            for turns, has_ended in connection.execute(
                _LIVES, {"tenant": tenant_id, "conversation": conversation_id, "days": _ENDED_DAYS}
            )
        ],
    )


def wait(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int, *, head_version: int, lifetime: int
) -> None:
    """Have a snapshot wait until its cache, which lives so many seconds, is cold; another does no longer."""
    edits = select(_c.edits).where(_c.id == conversation_id).scalar_subquery()
    lasts = func.make_interval(0, 0, 0, 0, 0, 0, lifetime)
    values: dict[str, Any] = {
        "version": version,
        "head_version": head_version,
        "edits": edits,
        "pins": _pins(connection, tenant_id, conversation_id, version),
        "lifetime": lifetime,
        "cold_at": func.coalesce(_newest_of(conversation_id), func.now()) + lasts,
    }
    statement = upsert(waiting_snapshots).values(conversation_id=conversation_id, tenant_id=tenant_id, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=[_w.conversation_id], set_=values))
    connection.execute(
        update(conversations)
        .where(_c.id == conversation_id)
        .values(last_version=func.greatest(_c.last_version, version))
    )


def cold(connection: Connection, limit: int) -> list[tuple[UUID, UUID]]:
    """Return (conversation, tenant) of snapshots whose cache may be gone, of any tenant."""
    rows = connection.execute(text("select conversation_id, tenant_id from cold_snapshots(:limit)"), {"limit": limit})
    return [(row.conversation_id, row.tenant_id) for row in rows]


def watch(connection: Connection, lifetimes: Mapping[UUID, int]) -> set[UUID]:
    """Return those of the conversations, of any tenant, whose cache is gone; the others' next pause is waited for.

    `lifetimes` are the seconds that their caches live. What a restore holds, and what has a snapshot that waits, is
    neither.
    """
    rows = connection.execute(
        text("select * from watch_pauses(:ids, :lifetimes)"),
        {"ids": list(lifetimes), "lifetimes": list(lifetimes.values())},
    )
    return set(rows.scalars())


Outcome = Literal["promoted", "waits", "outdated", "checked"]


def promote(connection: Connection, tenant_id: UUID, conversation_id: UUID, *, is_at_limit: bool = False) -> Outcome:
    """Make a snapshot that waits the head if its cache is cold, and ask for a check of what it leaves.

    It waits on if something was said meanwhile, but not at a limit. One whose head has moved, or whose pins have
    changed, is given up. While a tool loop with signed thinking is running it waits for the loop's end instead. Where
    nothing waits but a pause was waited for, the check is all.
    """
    head = connection.execute(
        select(_c.head_version, _c.edits, _c.pending_version, (_c.in_loop & _c.loop_has_thinking).label("in_loop"))
        .where(_c.tenant_id == tenant_id, _c.id == conversation_id)
        .with_for_update()
    ).one_or_none()
    lasts = func.make_interval(0, 0, 0, 0, 0, 0, _w.lifetime)
    row = connection.execute(
        select(_w.version, _w.head_version, _w.edits, _w.pins, (_newest_of(conversation_id) + lasts).label("cold_at"))
        .add_columns((_newest_of(conversation_id) + lasts > func.now()).label("is_warm"))
        .where(_w.conversation_id == conversation_id)
    ).one_or_none()
    if head is None or row is None or (row.version is None and is_at_limit):
        return "outdated"
    is_current = row.version is None or (
        (row.head_version, row.edits, None) == (head.head_version, head.edits, head.pending_version)
        and sorted(row.pins) == _pins(connection, tenant_id, conversation_id, row.version)
        and connection.scalar(
            select(_s.version).where(_s.conversation_id == conversation_id, _s.version == row.version)
        )
    )
    if is_current and row.is_warm and not is_at_limit:
        connection.execute(
            update(waiting_snapshots).where(_w.conversation_id == conversation_id).values(cold_at=row.cold_at)
        )
        return "waits"
    connection.execute(
        update(waiting_snapshots)
        .where(_w.conversation_id == conversation_id)
        .values(version=None, cold_at=text("'infinity'"))
    )
    if row.version is None:
        mark_due(connection, conversation_id)
        return "checked"
    if is_current and head.in_loop:
        connection.execute(update(conversations).where(_c.id == conversation_id).values(pending_version=row.version))
    elif is_current:
        connection.execute(
            text("select move_head(:conversation, :version)"),
            {"conversation": conversation_id, "version": row.version},
        )
    mark_due(connection, conversation_id)
    return "promoted" if is_current else "outdated"


def _pins(connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int) -> list[UUID]:
    """Return what has to stay word for word of the messages that a version covers; others are shown anyway."""
    own = (_s.conversation_id == conversation_id, _s.version == version)
    covers: int | None = connection.scalar(select(_s.covers_through).where(*own))
    return sorted(UUID(pin.id) for pin in pins.in_force(connection, tenant_id, conversation_id, through=covers))


def _newest() -> ScalarSelect[Any]:
    return select(_m.created_at).where(_m.conversation_id == _c.id).order_by(_m.seq.desc()).limit(1).scalar_subquery()


def _newest_of(conversation_id: UUID) -> ScalarSelect[Any]:
    return (
        select(_m.created_at)
        .where(_m.conversation_id == conversation_id)
        .order_by(_m.seq.desc())
        .limit(1)
        .scalar_subquery()
    )


_GAPS: Final = text(f"""
    select seconds from (
        select seq, extract(epoch from created_at - lag(created_at) over (order by seq)) as seconds
        from (select m.seq, m.created_at from messages as m where m.conversation_id = :conversation
              order by m.seq desc limit {GAPS}) as newest) as gap
    where seconds > 0 order by seq
""")  # noqa: S608 - a constant
_LIVES: Final = text(f"""
    select c.turn_count,
           coalesce((select m.created_at from messages as m where m.conversation_id = c.id order by m.seq desc limit 1),
                    c.created_at) < now() - make_interval(days => :days)
    from (select id, turn_count, created_at from conversations
          where tenant_id = :tenant and id <> :conversation and erased_at is null
          order by id desc limit {LIVES}) as c
""")  # noqa: S608 - a constant
