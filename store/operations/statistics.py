"""Figures of tenants and of an installation, for its operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, text

from compaction.steps.runs import StepState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date
    from decimal import Decimal
    from uuid import UUID

    from store.runs.runs import StepRecord
    from store.tables import AnyRow

TOKENS_CUT: Final = "case when s.state = 'committed' then greatest(0, s.tokens_before - s.tokens_after) else 0 end"
"""What a step `s` took off a context, whatever became of its run; see `tokens_cut`."""
UNPRICED_CALLS: Final = "coalesce(sum(s.model_calls) filter (where s.cost_usd is null), 0)::bigint"
"""Calls of steps `s` whose price is not known."""
TOKENS_STORED: Final = "coalesce(sum(m.tokens) filter (where m.superseded_at is null), 0)"
"""What messages `m` hold: originals in force, as they were measured when they came."""
FIRST_DAY: Final = "(date_trunc('day', now() at time zone 'utc') - make_interval(days => :days - 1)) at time zone 'utc'"
"""When the first of `:days` days (UTC) began, today among them."""
_FIRST_RUN: Final = f"first_id_at({FIRST_DAY} - interval '2 days')"
# A step may be recorded long after its run was asked for: one may wait for another day's budget. Imported runs have
# ids of their time, older than their conversation's: they were paid for elsewhere.
STEPS: Final = f"""
    from runs as r join run_steps as s on s.run_id = r.id
    where r.tenant_id = :tenant and r.id >= {_FIRST_RUN} and s.run_id >= {_FIRST_RUN}
        and s.created_at >= {FIRST_DAY} and r.conversation_id < r.id
"""
"""Steps `s` of a tenant's runs `r` that were recorded in these days: runs are found by (tenant_id, id), their steps by
(run_id, step_no)."""

_UNPRICED: Final = text(f"""
    select (s.created_at at time zone 'utc')::date as day, {UNPRICED_CALLS} as unpriced
    {STEPS} and s.model_calls > 0 and s.cost_usd is null group by 1
""")
_SIZES: Final = text(f"""
    select count(*) as conversations, coalesce(sum(stored.messages), 0)::bigint as messages,
           coalesce(sum(stored.tokens), 0)::bigint as tokens_stored,
           coalesce(sum(c.context_tokens), 0)::bigint as tokens_served
    from conversations as c
        cross join lateral (select count(*) as messages, {TOKENS_STORED} as tokens
                            from messages as m where m.conversation_id = c.id) as stored
    where c.tenant_id = :tenant and c.erased_at is null
""")  # noqa: S608 - constants
_RUNS: Final = text("""
    select r.state, r.reason, count(*) as runs from runs as r
    where r.tenant_id = :tenant and r.id >= first_id_at(now() - make_interval(days => :days))
    group by r.state, r.reason
""")
_DAYS: Final = text(f"""
    with day as (
        select at::date as day from generate_series(
            date_trunc('day', now() at time zone 'utc') - make_interval(days => :days - 1),
            date_trunc('day', now() at time zone 'utc'), interval '1 day') as at
    ), done as (
        select (r.finished_at at time zone 'utc')::date as day, count(*) as runs
        from runs as r
        where r.tenant_id = :tenant and r.id >= first_id_at(now() - make_interval(days => :days))
            and r.finished_at is not null
        group by 1
    ), saved as (
        select (s.created_at at time zone 'utc')::date as day, sum({TOKENS_CUT}) as tokens, {UNPRICED_CALLS} as unpriced
        {STEPS} group by 1
    )
    select d.day, coalesce(o.runs, 0)::bigint as runs, coalesce(v.tokens, 0)::bigint as tokens_cut,
           coalesce(u.model_calls, 0)::bigint as model_calls, coalesce(u.input_tokens, 0)::bigint as model_input_tokens,
           coalesce(u.output_tokens, 0)::bigint as model_output_tokens, coalesce(u.cost_usd, 0) as cost_usd,
           coalesce(v.unpriced, 0)::bigint as unpriced_calls
    from day as d
        left join done as o on o.day = d.day
        left join saved as v on v.day = d.day
        left join model_usage as u on u.tenant_id = :tenant and u.day = d.day
    order by d.day desc
""")  # noqa: S608 - constants


class Sizes(NamedTuple):
    """What is there: tokens of all messages in force, and of what would be sent of them now."""

    conversations: int = 0
    messages: int = 0
    """Superseded ones included."""
    tokens_stored: int = 0
    tokens_served: int = 0


class Day(NamedTuple):
    """A day (UTC): runs that ended, what steps took off contexts, and what models read, wrote and cost."""

    day: date
    runs: int
    tokens_cut: int
    model_calls: int
    model_input_tokens: int
    model_output_tokens: int
    cost_usd: Decimal
    """Of the calls whose price is known."""
    unpriced_calls: int = 0

    @property
    def known_cost_usd(self) -> Decimal | None:
        """USD; None if there are calls and none of them has a known price."""
        return None if 0 < self.model_calls <= self.unpriced_calls else self.cost_usd


def unpriced_calls(connection: Connection, tenant_id: UUID, days: int) -> dict[date, int]:
    """Return how many model calls of the last `days` days have no known price, for each day with any."""
    rows = connection.execute(_UNPRICED, {"tenant": tenant_id, "days": days})
    return {row.day: row.unpriced for row in rows if row.unpriced}


def tokens_cut(step: StepRecord | AnyRow) -> int:
    """Return what a step took off the context: TOKENS_CUT, of a step that is at hand."""
    return max(0, step.tokens_before - step.tokens_after) if step.state == StepState.COMMITTED else 0


def sizes(connection: Connection, tenant_id: UUID) -> Sizes:
    """Return what a tenant has stored. Reads the row of each message, though none of what they say."""
    return Sizes(*connection.execute(_SIZES, {"tenant": tenant_id}).one())


def outcomes(connection: Connection, tenant_id: UUID, days: int) -> Sequence[AnyRow]:
    """Return (state, reason, runs) of a tenant's runs of the last `days` days."""
    return connection.execute(_RUNS, {"tenant": tenant_id, "days": days}).all()


def daily(connection: Connection, tenant_id: UUID, days: int) -> list[Day]:
    """Return a tenant's last `days` days, newest first, quiet ones included."""
    return [Day(*row) for row in connection.execute(_DAYS, {"tenant": tenant_id, "days": days})]
