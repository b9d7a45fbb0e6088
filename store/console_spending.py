"""What the console's page of spending reads: model calls by day and model, what they saved, the runs that cost most.

The days themselves are `statistics.daily`. Runs are found by (tenant_id, id), their steps by (run_id, step_no).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date
    from decimal import Decimal
    from uuid import UUID

    from store.tables import AnyRow

SHOWN_AT_MOST: Final = 10
"""Runs, and conversations, that the page names."""


class ModelDay(NamedTuple):
    """What a model was asked on a day (UTC); `unpriced` are steps of it whose price was not known."""

    day: date
    model: str
    model_calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    unpriced: int


def by_model(connection: Connection, tenant_id: UUID, days: int) -> list[ModelDay]:
    """Return what each model was asked on each of the last `days` days, as far as steps tell."""
    return [ModelDay(*row) for row in connection.execute(_BY_MODEL, {"tenant": tenant_id, "days": days})]


def by_step(connection: Connection, tenant_id: UUID, days: int) -> Sequence[AnyRow]:
    """Return what each kind of step took off contexts and cost, the most saved first."""
    return connection.execute(_BY_STEP, {"tenant": tenant_id, "days": days}).all()


def costliest_runs(connection: Connection, tenant_id: UUID, days: int) -> Sequence[AnyRow]:
    """Return the runs whose model calls cost most, with their conversation's name."""
    return connection.execute(_COSTLIEST, {"tenant": tenant_id, "days": days, "limit": SHOWN_AT_MOST}).all()


def most_saved(connection: Connection, tenant_id: UUID, days: int) -> Sequence[AnyRow]:
    """Return the conversations of which committed runs took most tokens off, and what those runs cost."""
    return connection.execute(_MOST_SAVED, {"tenant": tenant_id, "days": days, "limit": SHOWN_AT_MOST}).all()


_FIRST_DAY: Final = (
    "(date_trunc('day', now() at time zone 'utc') - make_interval(days => :days - 1)) at time zone 'utc'"
)
_FIRST_RUN: Final = f"first_id_at({_FIRST_DAY} - interval '2 days')"
# A step may be recorded long after its run was asked for: a message batch takes up to a day. Imported runs have
# ids of their time, older than their conversation's: they were paid for elsewhere.
_STEPS: Final = f"""
    from runs as r join run_steps as s on s.run_id = r.id
    where r.tenant_id = :tenant and r.id >= {_FIRST_RUN} and s.run_id >= {_FIRST_RUN}
        and s.created_at >= {_FIRST_DAY} and r.conversation_id < r.id
"""
_ASKED: Final = "(s.model_calls > 0 or s.model_input_tokens > 0 or s.model_output_tokens > 0 or s.cost_usd > 0)"
_BY_MODEL: Final = text(f"""
    select (s.created_at at time zone 'utc')::date as day, coalesce(s.model, 'other') as model,
           sum(s.model_calls)::bigint, coalesce(sum(s.model_input_tokens), 0)::bigint,
           coalesce(sum(s.model_output_tokens), 0)::bigint, coalesce(sum(s.cost_usd), 0),
           count(*) filter (where s.cost_usd is null)
    {_STEPS} and {_ASKED} group by 1, 2
""")
_BY_STEP: Final = text(f"""
    select s.name, count(*) as times,
           coalesce(sum(s.tokens_before - s.tokens_after) filter (where s.tokens_after < s.tokens_before), 0)::bigint
               as tokens_saved,
           coalesce(sum(s.cost_usd), 0) as cost_usd
    {_STEPS} and s.state = 'committed' group by s.name order by tokens_saved desc, s.name
""")
_COSTLIEST: Final = text(f"""
    select r.id, r.conversation_id, c.external_id, r.state, r.reason, r.trigger, r.tokens_before, r.tokens_after,
           r.created_at, spent.models, spent.model_input_tokens, spent.model_output_tokens, spent.cost_usd
    from (select s.run_id, array_agg(distinct s.model) filter (where s.model is not null) as models,
                 coalesce(sum(s.model_input_tokens), 0)::bigint as model_input_tokens,
                 coalesce(sum(s.model_output_tokens), 0)::bigint as model_output_tokens, sum(s.cost_usd) as cost_usd
          {_STEPS} and {_ASKED} group by s.run_id
          order by sum(s.cost_usd) desc nulls last,
                   coalesce(sum(s.model_input_tokens), 0) + coalesce(sum(s.model_output_tokens), 0) desc, s.run_id desc
          limit :limit) as spent
        join runs as r on r.id = spent.run_id
        join conversations as c on c.id = r.conversation_id
    order by spent.cost_usd desc nulls last, spent.model_input_tokens + spent.model_output_tokens desc, r.id desc
""")  # noqa: S608 - constants
_MOST_SAVED: Final = text(f"""
    select c.id, c.external_id, c.model, saved.runs, saved.tokens_saved, saved.cost_usd
    from (select r.conversation_id, count(distinct r.id) as runs,
                 sum(s.tokens_before - s.tokens_after)::bigint as tokens_saved, sum(s.cost_usd) as cost_usd
          {_STEPS} and s.state = 'committed' and s.tokens_after < s.tokens_before
          group by r.conversation_id order by tokens_saved desc, r.conversation_id limit :limit) as saved
        join conversations as c on c.id = saved.conversation_id
    order by saved.tokens_saved desc, c.id
""")  # noqa: S608 - constants
