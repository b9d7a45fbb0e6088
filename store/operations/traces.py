"""Traces of requests: the turn that a request stored, its check, the runs after it, and the version that covers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from sqlalchemy import Connection, text

from store.console.find import Wanted, find_matches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from store.console.find import Match

RunRelation = Literal["this request", "covers the turn", "next after the turn"]

_TURNS: Final = text("""
    select m.conversation_id, m.seq as first_seq,
           coalesce((select n.seq - 1 from messages as n
                     where n.conversation_id = m.conversation_id and n.seq > m.seq and n.request_id is not null
                     order by n.seq limit 1), c.next_seq - 1) as last_seq,
           m.created_at as stored_at, m.superseded_at, c.head_version,
           case when c.check_due_at <= m.created_at then c.check_due_at end as check_due_at
    from messages as m join conversations as c on c.id = m.conversation_id
    where m.tenant_id = :tenant_id and m.request_id = :request_id
    order by m.conversation_id, m.seq
""")
_GATEWAY: Final = text("""
    select outcome, saved_tokens, head_version, retried, aborted, answered_at from gateway_prefixes
    where conversation_id = :conversation_id and seq between :first_seq and :last_seq and outcome is not null
    order by seq desc limit 1
""")
_RUNS: Final = text("""
    select r.id, r.trigger, r.state, r.reason, r.attempts, r.snapshot_version, r.tokens_before, r.tokens_after,
           r.created_at, r.finished_at,
           case when r.request_id = :request_id then 'this request'
                when r.id = covering.run_id then 'covers the turn' else 'next after the turn' end as relation
    from runs as r
        left join (select s.run_id from snapshots as s
                   where s.conversation_id = :conversation_id and s.covers_through >= :last_seq
                   order by s.version limit 1) as covering on true
    where r.conversation_id = :conversation_id
      and (r.request_id = :request_id or r.id = covering.run_id
           or r.id = (select n.id from runs as n
                      where n.conversation_id = :conversation_id and n.created_at >= :stored_at and n.block_id is null
                      order by n.id limit 1))
    order by r.id
""")
_COVERING: Final = text("""
    select s.version, s.run_id, s.created_at from snapshots as s
    where s.conversation_id = :conversation_id and s.covers_through >= :last_seq order by s.version limit 1
""")


class TracedRun(NamedTuple):
    """A run that has to do with a turn, and why."""

    id: UUID
    trigger: str
    state: str
    reason: str | None
    attempts: int
    snapshot_version: int | None
    tokens_before: int | None
    tokens_after: int | None
    created_at: datetime
    finished_at: datetime | None
    relation: RunRelation


class GatewayOutcome(NamedTuple):
    """What a gateway did with the request whose turn this is."""

    outcome: str
    saved_tokens: int | None
    head_version: int | None
    retried: bool | None
    aborted: bool | None
    answered_at: datetime | None


class CoveringSnapshot(NamedTuple):
    """The first version that covers a turn."""

    version: int
    run_id: UUID
    created_at: datetime


class StoredTurn(NamedTuple):
    """A turn that a request stored."""

    conversation_id: UUID
    first_seq: int
    last_seq: int
    stored_at: datetime
    superseded_at: datetime | None
    head_version: int
    check_due_at: datetime | None
    """Since when the turn's check is due; None if it was done."""


class TracedTurn(NamedTuple):
    """A turn with what became of it."""

    turn: StoredTurn
    gateway: GatewayOutcome | None
    runs: Sequence[TracedRun]
    covering: CoveringSnapshot | None


class Trace(NamedTuple):
    """Everything of one tenant that a request left in the database."""

    turns: Sequence[TracedTurn]
    others: Sequence[Match]
    """Rows of other kinds that name the request: runs by hand, pins, erasures, actions of operators."""


def trace_request(connection: Connection, tenant_id: UUID, request_id: UUID) -> Trace:
    """Return what a request of a tenant left; the trace is empty if it left nothing, or is another tenant's."""
    rows = connection.execute(_TURNS, {"tenant_id": tenant_id, "request_id": request_id})
    turns = [_trace_turn(connection, StoredTurn(*row), request_id) for row in rows.all()]
    shown = {run.id for traced in turns for run in traced.runs}
    matches = find_matches(connection, tenant_id, Wanted("req", request_id.hex))
    return Trace(turns, [each for each in matches if each.id not in shown])


def _trace_turn(connection: Connection, turn: StoredTurn, request_id: UUID) -> TracedTurn:
    given = {
        "conversation_id": turn.conversation_id,
        "first_seq": turn.first_seq,
        "last_seq": turn.last_seq,
        "stored_at": turn.stored_at,
        "request_id": request_id,
    }
    row = connection.execute(_GATEWAY, given).one_or_none()
    gateway = None if row is None else GatewayOutcome(*row)
    runs = [TracedRun(*row) for row in connection.execute(_RUNS, given)]
    covering = connection.execute(_COVERING, given).one_or_none()
    return TracedTurn(turn, gateway, runs, None if covering is None else CoveringSnapshot(*covering))
