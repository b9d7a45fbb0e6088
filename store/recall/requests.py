"""Recorded recalls: insert and list them, and sum up which messages compaction should have kept."""

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
"""Newest rows that figures are computed from, of one conversation or tenant."""
WANTED_AT_MOST: Final = 20
_REGRETS_AT_MOST: Final = 50

_q = recall_requests.c


class Question(NamedTuple):
    """A recall request and the API that received it."""

    kind: Kind
    words: str
    origin: Origin
    of_user: bool = False
    """Whether all conversations of a user were searched."""


class RecalledPassages(NamedTuple):
    """Passages returned from one conversation."""

    conversation_id: UUID
    refs: Sequence[str]
    seqs: Sequence[int]
    """Messages of these passages."""
    left: dict[int, Departure]
    """Departures of those messages that the context does not show."""
    searched: int
    tokens: int


class Regret(NamedTuple):
    """Messages that were recalled through the API after a step had removed them from the context."""

    step: str
    strategy: str | None
    """The operation of a manual run, or None for the ladder."""
    policy: dict[str, Any]
    """The policy of the run."""
    messages: int
    recalls: int


class Figures(NamedTuple):
    """Recall figures of a tenant over some days."""

    totals: AnyRow
    regrets: list[Regret]
    conversations: Sequence[AnyRow]
    """Conversations with the most recalls of messages that had left the context."""


def departures_of(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, seqs: Collection[int]
) -> dict[int, Departure]:
    """Return how messages left the context."""
    if not seqs:
        return {}
    chain = snapshots.chain(connection, tenant_id, conversation_id)
    links = [Link(row.version, row.step, msgspec.convert(row.coverage, Coverage)) for row in chain]
    return find_departures(seqs, links)


def insert_recalls(connection: Connection, who: Operator, asked: Question, given: Sequence[RecalledPassages]) -> None:
    """Insert a recall, one row for each conversation.

    Raises the database's error if one of them was erased meanwhile. Then nothing is inserted.
    """
    rows = []
    # In the order in which an erasure locks conversations.
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


def list_page(
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


def most_recalled(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> Sequence[AnyRow]:
    """Return the most recalled messages, with the number of recalls that the context could not serve."""
    return connection.execute(_WANTED, _of_conversation(tenant_id, conversation_id)).all()


def list_regrets(connection: Connection, tenant_id: UUID, conversation_id: UUID) -> list[Regret]:
    """Return the recalled messages that had left a conversation's context, by the step that removed them."""
    return _regrets(connection, _OF_CONVERSATION, _of_conversation(tenant_id, conversation_id))


def read_figures(connection: Connection, tenant_id: UUID, days: int) -> Figures:
    """Return a tenant's recall figures of the last `days` days (UTC), including today."""
    values = {"tenant": tenant_id, "days": days, "rows": LOOKED_THROUGH}
    return Figures(
        connection.execute(_TOTALS, values).one(),
        _regrets(connection, _OF_DAYS, values),
        connection.execute(_CONVERSATIONS, values).all(),
    )


def delete_expired(connection: Connection, seconds: float, limit: int) -> int:
    """Delete recalls older than `seconds`. Return the number of deleted rows."""
    return expire_rows(connection, "recall_requests", seconds, limit)


def _of_conversation(tenant_id: UUID, conversation_id: UUID) -> dict[str, Any]:
    return {"tenant": tenant_id, "conversation": conversation_id, "rows": LOOKED_THROUGH}


def _regrets(connection: Connection, rows: str, values: dict[str, Any]) -> list[Regret]:
    statement = text(_REGRETS.format(rows=rows))
    rows_read = connection.execute(statement, values | {"most": _REGRETS_AT_MOST})
    return [Regret(row.step, row.strategy, row.policy or {}, row.messages, row.recalls) for row in rows_read]


# Searches in the console do not show that a model missed anything.
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
