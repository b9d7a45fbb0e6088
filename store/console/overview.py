"""What the console's lists and its overview read, for one tenant at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, Select, func, lateral, or_, select, text, true

from store.console.filters import CLIENT, Narrowed
from store.conversations.conversations import INPUT_TOKENS
from store.operations.statistics import FIRST_DAY, daily
from store.tables import conversations, messages, run_steps, runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import ColumnElement

    from store.operations.statistics import Day
    from store.tables import AnyRow

Sort = Literal["activity", "tokens", "created", "run"]

SORTED_AT_MOST: Final = 10_000
"""Newest conversations that a list is sorted among: there is no index by activity or size, and none is wanted, because
each would cost every append."""

ALL: Final = Narrowed()
"""Everything."""

_c, _m, _r = conversations.c, messages.c, runs.c


class RowPage(NamedTuple):
    """A page of conversations; `more` tells that others follow."""

    rows: Sequence[AnyRow]
    more: bool


def conversation_page(
    connection: Connection,
    tenant_id: UUID,
    *,
    sort: Sort,
    words: str,
    identifier: UUID | None,
    limit: int,
    skip: int,
    narrowed: Narrowed = ALL,
) -> RowPage:
    """Return conversations that match, the largest or latest first.

    `words` are searched for in external_id and user_ref, whatever their case; `identifier` is the only id wanted.
    """
    matching = select(_c.id).where(_c.tenant_id == tenant_id)
    if identifier is not None:
        matching = matching.where(_c.id == identifier)
    elif words:
        pattern = f"%{_escaped(words)}%"
        matching = matching.where(or_(_c.external_id.ilike(pattern), _c.user_ref.ilike(pattern)))
    matching = narrowed.conversations(matching)
    sized = matching.add_columns(_c.created_at, INPUT_TOKENS.label("context_tokens"))
    newest = sized.order_by(_c.id.desc()).limit(SORTED_AT_MOST).subquery("newest").c
    last_message, last_run = _last_message(newest.id), _last_run(newest.id)
    by, beside = {
        "activity": (func.coalesce(last_message.c.last_message_at, newest.created_at).desc(), last_message),
        "tokens": (newest.context_tokens.desc(), None),
        "created": (newest.id.desc(), None),
        "run": (last_run.c.run_id.desc().nulls_last(), last_run),
    }[sort]
    order = (by, newest.id.desc())
    sorted_ = select(newest.id, func.row_number().over(order_by=order).label("place"))
    if beside is not None:
        sorted_ = sorted_.outerjoin(beside, true())
    # What a row shows is looked up for the rows of the page alone.
    page = sorted_.order_by(*order).offset(skip).limit(limit + 1).subquery("page")
    activity, run = _last_message(_c.id), _last_run(_c.id)
    query: Select[Any] = (
        select(
            _c.id,
            _c.external_id,
            _c.user_ref,
            _c.model,
            _c.policy,
            _c.created_at,
            _c.next_seq,
            _c.head_version,
            _c.check_due_at,
            CLIENT.label("client"),
            INPUT_TOKENS.label("context_tokens"),
            activity.c.last_message_at,
            run.c.run_id,
            run.c.run_state,
            run.c.run_reason,
            run.c.run_trigger,
            run.c.run_at,
        )
        .join(page, page.c.id == _c.id)
        .outerjoin(activity, true())
        .outerjoin(run, true())
        .order_by(page.c.place)
    )
    rows = connection.execute(query).all()
    return RowPage(rows[:limit], len(rows) > limit)


def run_page(
    connection: Connection,
    tenant_id: UUID,
    *,
    limit: int,
    conversation_id: UUID | None = None,
    state: str | None = None,
    reason: str | None = None,
    after: UUID | None = None,
    narrowed: Narrowed = ALL,
) -> RowPage:
    """Return runs, newest first, with their conversation's names and what their steps came to.

    `reason` is the run's own, or that of one of its steps.
    """
    spent = lateral(
        select(
            func.sum(run_steps.c.cost_usd).label("cost_usd"),
            func.coalesce(func.sum(run_steps.c.model_input_tokens), 0).label("model_input_tokens"),
            func.coalesce(func.sum(run_steps.c.model_output_tokens), 0).label("model_output_tokens"),
            func.array_agg(run_steps.c.name).label("steps"),
        ).where(run_steps.c.run_id == _r.id)
    ).alias("spent")
    query = (
        select(runs, _c.external_id, spent)
        .join(conversations, _c.id == _r.conversation_id)
        .outerjoin(spent, true())
        .where(_r.tenant_id == tenant_id)
    )
    for column, value in ((_r.conversation_id, conversation_id), (_r.state, state)):
        if value is not None:
            query = query.where(column == value)
    if reason is not None:
        steps = select(run_steps.c.run_id).where(run_steps.c.run_id == _r.id, run_steps.c.reason == reason)
        query = query.where(or_(_r.reason == reason, steps.exists()))
    query = narrowed.runs(query, spent.c.cost_usd)
    if after is not None:
        query = query.where(_r.id < after)
    rows = connection.execute(query.order_by(_r.id.desc()).limit(limit + 1)).all()
    return RowPage(rows[:limit], len(rows) > limit)


class Overview(NamedTuple):
    """A tenant's figures: of now, and of the runs since a moment."""

    totals: AnyRow
    by_state: Sequence[AnyRow]
    """Runs by state."""
    reasons: Sequence[AnyRow]
    """Of degraded, failed and dead runs, and of failed steps, with how often each."""
    days: Sequence[Day]
    """Tokens saved and money spent, day by day, the newest first."""


def overview(connection: Connection, tenant_id: UUID, days: int) -> Overview:
    """Return the figures of the last `days` days (UTC), today among them."""
    values = {"tenant": tenant_id, "days": days}
    return Overview(
        connection.execute(_TOTALS, values).one(),
        connection.execute(_BY_STATE, values).all(),
        connection.execute(_REASONS, values).all(),
        daily(connection, tenant_id, days),
    )


def _last_message(conversation: ColumnElement[Any]) -> Any:
    newest = select(_m.created_at.label("last_message_at")).where(_m.conversation_id == conversation)
    return lateral(newest.order_by(_m.seq.desc()).limit(1)).alias("activity")


def _last_run(conversation: ColumnElement[Any]) -> Any:
    newest = select(
        _r.id.label("run_id"),
        _r.state.label("run_state"),
        _r.reason.label("run_reason"),
        _r.trigger.label("run_trigger"),
        func.coalesce(_r.finished_at, _r.started_at, _r.created_at).label("run_at"),
    ).where(_r.conversation_id == conversation)
    return lateral(newest.order_by(_r.id.desc()).limit(1)).alias("last_run")


def _escaped(words: str) -> str:
    return words.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


_SINCE: Final = f"r.id >= first_id_at({FIRST_DAY})"
_TOTALS: Final = text(f"""
    select (select count(*) from conversations as c where c.tenant_id = :tenant) as conversations,
           (select count(*) from conversations as c where c.tenant_id = :tenant and c.check_due_at is not null)
               as due_checks,
           (select extract(epoch from now() - min(c.check_due_at)) from conversations as c
            where c.tenant_id = :tenant and c.check_due_at is not null)::float8 as oldest_check_seconds,
           (select extract(epoch from now() - min(r.queued_at)) from runs as r
            where r.tenant_id = :tenant and r.state = 'queued')::float8 as oldest_run_seconds,
           (select count(*) from runs as r where r.tenant_id = :tenant and r.state in ('queued', 'running'))
               as active_runs,
           (select count(*) from runs as r where r.tenant_id = :tenant and r.state = 'dead') as dead_runs,
           percentile_cont(0.5) within group (order by extract(epoch from r.finished_at - r.created_at))
               filter (where r.finished_at is not null) as median_seconds
    from runs as r where r.tenant_id = :tenant and {_SINCE}
""")  # noqa: S608 - constants
_BY_STATE: Final = text(f"""
    select r.state, count(*) as runs from runs as r where r.tenant_id = :tenant and {_SINCE} group by 1
""")  # noqa: S608 - constants
_REASONS: Final = text(f"""
    select told.kind, told.reason, count(*) as times, max(told.at) as last_at
    from (select 'run' as kind, coalesce(r.reason, 'unknown') as reason, coalesce(r.finished_at, r.created_at) as at
          from runs as r where r.tenant_id = :tenant and r.state in ('degraded', 'failed', 'dead') and {_SINCE}
          union all
          select 'step', coalesce(s.reason, 'unknown'), s.created_at
          from runs as r join run_steps as s on s.run_id = r.id
          where r.tenant_id = :tenant and s.state = 'failed' and {_SINCE}) as told
    group by told.kind, told.reason order by times desc, told.kind, told.reason limit 20
""")  # noqa: S608 - constants
