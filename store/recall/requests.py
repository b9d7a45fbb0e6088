"""What was asked back: written down, listed, and added up to what compaction should have kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, insert, select, text

from compaction.coverage import Coverage
from compaction.recall.departures import Departure, Link, find_departures
from runtime import ids
from store.conversations import snapshots
from store.operations.housekeeping import expire_rows
from store.operations.statistics import FIRST_DAY
from store.tables import recall_requests

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from store.operations.operator_actions import Operator
    from store.tables import AnyRow

Kind = Literal["query", "ref", "pattern"]
Origin = Literal["api", "console"]

LOOKED_THROUGH: Final = 10_000
"""Newest rows that figures are made of: of one conversation, or of one tenant."""
WANTED_AT_MOST: Final = 20
_REGRETS_AT_MOST: Final = 50

_q = recall_requests.c


class Question(NamedTuple):
    """What was asked, and by which door."""

    kind: Kind
    words: str
    origin: Origin
    of_user: bool = False
    """Whether all conversations of a user were asked."""


class Given(NamedTuple):
    """What one conversation gave back."""

    conversation_id: UUID
    refs: Sequence[str]
    seqs: Sequence[int]
    """The messages of these passages."""
    left: dict[int, Departure]
    """How those of them that the context does not show had left it."""
    searched: int
    tokens: int


class Regret(NamedTuple):
    """Messages that were asked back of the API after a step had taken them out of the context."""

    step: str
    strategy: str | None
    """What was asked for by hand; None for the ladder."""
    policy: dict[str, Any]
    """What was in force for the run."""
    messages: int
    recalls: int


class Figures(NamedTuple):
    """What a tenant has asked back in some days."""

    totals: AnyRow
    regrets: list[Regret]
    conversations: Sequence[AnyRow]
    """Those of which most was asked back that had left the context."""


def left(connection: Connection, tenant_id: UUID, conversation_id: UUID, seqs: Collection[int]) -> dict[int, Departure]:
    """Return how messages had left the context."""
    if not seqs:
        return {}
    chain = snapshots.chain(connection, tenant_id, conversation_id)
    links = [Link(row.version, row.step, msgspec.convert(row.coverage, Coverage)) for row in chain]
    return find_departures(seqs, links)


def add(connection: Connection, who: Operator, asked: Question, given: Sequence[Given]) -> None:
    """Write down a recall, a row for each conversation.

    Raises the database's error where one of them was erased meanwhile: nothing is written then.
    """
    rows = []
    # In the order in which an erasure of all of them locks conversations.
    for each in sorted(given):
        ways = [each.left.get(seq) for seq in each.seqs]
        rows.append(
            {
                "id": ids.new_id(),
                **who._asdict(),
                "conversation_id": each.conversation_id,
                "origin": asked.origin,
                "of_user": asked.of_user,
                "kind": asked.kind,
                "asked": asked.words,
                "refs": list(each.refs),
                "seqs": list(each.seqs),
                "left_by": [way and way.step for way in ways],
                "left_in": [way and way.run_id for way in ways],
                "searched": each.searched,
                "tokens": each.tokens,
            }
        )
    if rows:
        connection.execute(insert(recall_requests), rows)


def page(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    *,
    limit: int,
    after: UUID | None = None,
    before: UUID | None = None,
) -> Sequence[AnyRow]:
    """Return up to `limit` recalls, newest first; `after` continues to older ones, `before` to newer."""
    query = select(recall_requests).where(_q.tenant_id == tenant_id, _q.conversation_id == conversation_id)
    if before is not None:
        newer = query.where(_q.id > before).order_by(_q.id).limit(limit)
        return list(reversed(connection.execute(newer).all()))
    if after is not None:
        query = query.where(_q.id < after)
    return connection.execute(query.order_by(_q.id.desc()).limit(limit)).all()


def wanted(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Sequence[AnyRow]:
    """Return the messages that were asked back most, with how often the context did not show them."""
    return connection.execute(_WANTED, _of_conversation(tenant_id, conversation_id)).all()


def regrets(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> list[Regret]:
    """Return what was asked back of what had left a conversation's context, by what had taken it out."""
    return _regrets(connection, _OF_CONVERSATION, _of_conversation(tenant_id, conversation_id))


def figures(connection: Connection, tenant_id: UUID, days: int) -> Figures:
    """Return what a tenant has asked back in the last `days` days (UTC), today among them."""
    values = {"tenant": tenant_id, "days": days, "rows": LOOKED_THROUGH}
    return Figures(
        connection.execute(_TOTALS, values).one(),
        _regrets(connection, _OF_DAYS, values),
        connection.execute(_CONVERSATIONS, values).all(),
    )


def expire(connection: Connection, seconds: float, limit: int) -> int:
    """Remove what was asked more than `seconds` ago; return how many rows went."""
    return expire_rows(connection, "recall_requests", seconds, limit)


def _of_conversation(tenant_id: UUID, conversation_id: UUID) -> dict[str, Any]:
    return {"tenant": tenant_id, "conversation": conversation_id, "rows": LOOKED_THROUGH}


def _regrets(connection: Connection, rows: str, values: dict[str, Any]) -> list[Regret]:
    statement = text(_REGRETS.format(rows=rows))
    rows_read = connection.execute(statement, values | {"most": _REGRETS_AT_MOST})
    return [Regret(row.step, row.strategy, row.policy or {}, row.messages, row.recalls) for row in rows_read]


# What people look up in the console tells nothing of what a model missed.
_OF_CONVERSATION: Final = """
    select q.* from recall_requests as q
    where q.tenant_id = :tenant and q.conversation_id = :conversation and q.origin = 'api'
    order by q.id desc limit :rows
"""
_OF_DAYS: Final = f"""
    select q.* from recall_requests as q
    where q.tenant_id = :tenant and q.id >= first_id_at({FIRST_DAY}) and q.origin = 'api'
    order by q.id desc limit :rows
"""  # noqa: S608 - constants
_REGRETS: Final = """
    with asked as ({rows})
    select m.step, r.strategy, r.policy, count(*) as messages, count(distinct a.request_id) as recalls
    from asked as a
        cross join lateral unnest(a.seqs, a.left_by, a.left_in) as m (seq, step, run_id)
        left join runs as r on r.id = m.run_id and r.tenant_id = :tenant
    where m.step is not null
    group by m.step, r.strategy, r.policy order by messages desc, m.step limit :most
"""
_WANTED: Final = text(f"""
    with asked as ({_OF_CONVERSATION})
    select m.seq, count(*) as times, count(m.step) as times_out_of_context, max(a.created_at) as last_at,
           (array_agg(m.step order by a.id desc) filter (where m.step is not null))[1] as left_by
    from asked as a cross join lateral unnest(a.seqs, a.left_by) as m (seq, step)
    group by m.seq order by times desc, times_out_of_context desc, m.seq desc limit {WANTED_AT_MOST}
""")  # noqa: S608 - constants
_TOTALS: Final = text(f"""
    with asked as ({_OF_DAYS}), recalls as (
        select a.request_id, bool_or(cardinality(a.refs) > 0) as is_found,
               bool_or(exists (select from unnest(a.left_by) as m (step) where m.step is not null)) as is_missed
        from asked as a group by a.request_id
    )
    select count(*) as recalls, count(*) filter (where is_found) as found, count(*) filter (where is_missed) as missed
    from recalls
""")  # noqa: S608 - constants
_CONVERSATIONS: Final = text(f"""
    with asked as ({_OF_DAYS})
    select c.id, c.external_id, count(distinct a.id) as recalls, count(m.step) as messages
    from asked as a
        join conversations as c on c.id = a.conversation_id and c.tenant_id = :tenant
        cross join lateral unnest(a.left_by) as m (step)
    group by c.id, c.external_id having count(m.step) > 0 order by messages desc, c.id desc limit 5
""")  # noqa: S608 - constants
