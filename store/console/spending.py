"""What the console's page of spending reads: model calls by day and model, what they saved, the runs that cost most.

The days themselves are `statistics.daily`, and so is what counts as saved and as a step of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, text

from store.operations.statistics import STEPS, TOKENS_CUT, UNPRICED_CALLS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date
    from decimal import Decimal
    from uuid import UUID

    from store.tables import AnyRow

SHOWN_AT_MOST: Final = 10
"""Runs, and conversations, that the page names."""


class ModelDay(NamedTuple):
    """What a model was asked on a day (UTC); `unpriced` are its calls whose price was not known."""

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
    """Return what each kind of step took off contexts and cost, failed ones too, the most saved first."""
    return connection.execute(_BY_STEP, {"tenant": tenant_id, "days": days}).all()


def costliest_runs(connection: Connection, tenant_id: UUID, days: int) -> Sequence[AnyRow]:
    """Return the runs whose model calls cost most, with their conversation's name."""
    return connection.execute(_COSTLIEST, {"tenant": tenant_id, "days": days, "limit": SHOWN_AT_MOST}).all()


def most_saved(connection: Connection, tenant_id: UUID, days: int) -> Sequence[AnyRow]:
    """Return the conversations of which most tokens were taken off, and what all their steps cost, failed ones too."""
    return connection.execute(_MOST_SAVED, {"tenant": tenant_id, "days": days, "limit": SHOWN_AT_MOST}).all()


_ASKED: Final = "(s.model_calls > 0 or s.model_input_tokens > 0 or s.model_output_tokens > 0 or s.cost_usd > 0)"
_BY_MODEL: Final = text(f"""
    select (s.created_at at time zone 'utc')::date as day, coalesce(s.model, 'other') as model,
           sum(s.model_calls)::bigint, coalesce(sum(s.model_input_tokens), 0)::bigint,
           coalesce(sum(s.model_output_tokens), 0)::bigint, coalesce(sum(s.cost_usd), 0),
           {UNPRICED_CALLS}
    {STEPS} and {_ASKED} group by 1, 2
""")
_BY_STEP: Final = text(f"""
    select s.name, count(*) filter (where s.state = 'committed') as times,
           count(*) filter (where s.state = 'failed') as failed, sum({TOKENS_CUT})::bigint as tokens_cut,
           sum(s.cost_usd) as cost_usd, sum(s.model_calls)::bigint as model_calls, {UNPRICED_CALLS} as unpriced_calls
    {STEPS} and (s.state <> 'skipped' or {_ASKED}) group by s.name order by tokens_cut desc, s.name
""")
_COSTLIEST: Final = text(f"""
    select r.id, r.conversation_id, c.external_id, r.state, r.reason, r.trigger, r.snapshot_version, r.tokens_before,
           r.tokens_after, r.created_at, spent.models, spent.model_input_tokens, spent.model_output_tokens,
           spent.cost_usd
    from (select s.run_id, array_agg(distinct s.model) filter (where s.model is not null) as models,
                 coalesce(sum(s.model_input_tokens), 0)::bigint as model_input_tokens,
                 coalesce(sum(s.model_output_tokens), 0)::bigint as model_output_tokens, sum(s.cost_usd) as cost_usd
          {STEPS} and {_ASKED} group by s.run_id
          order by sum(s.cost_usd) desc nulls last,
                   coalesce(sum(s.model_input_tokens), 0) + coalesce(sum(s.model_output_tokens), 0) desc, s.run_id desc
          limit :limit) as spent
        join runs as r on r.id = spent.run_id
        join conversations as c on c.id = r.conversation_id
    order by spent.cost_usd desc nulls last, spent.model_input_tokens + spent.model_output_tokens desc, r.id desc
""")  # noqa: S608 - constants
_MOST_SAVED: Final = text(f"""
    select c.id, c.external_id, c.model, saved.runs, saved.tokens_cut, saved.cost_usd, saved.model_calls,
           saved.unpriced_calls
    from (select r.conversation_id, count(distinct r.id) filter (where {TOKENS_CUT} > 0) as runs,
                 sum({TOKENS_CUT})::bigint as tokens_cut, sum(s.cost_usd) as cost_usd,
                 sum(s.model_calls)::bigint as model_calls, {UNPRICED_CALLS} as unpriced_calls
          {STEPS} group by r.conversation_id having sum({TOKENS_CUT}) > 0
          order by tokens_cut desc, r.conversation_id limit :limit) as saved
        join conversations as c on c.id = saved.conversation_id
    order by saved.tokens_cut desc, c.id
""")  # noqa: S608 - constants
