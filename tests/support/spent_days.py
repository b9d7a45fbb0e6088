"""Days of the past on which models were asked, written as they would have been recorded then."""

from __future__ import annotations

import random
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterable
    from decimal import Decimal

_TIME_SHIFT: Final = 80
_INSERT_RUN: Final = """
    insert into runs (id, tenant_id, conversation_id, trigger, state, queue, policy, tokens_before, tokens_after,
                      messages_before, messages_after, created_at, queued_at, started_at, finished_at)
    values (%(run)s, %(tenant)s, %(conversation)s, 'check', 'committed', 'summaries', '{}', 90000, %(after)s, 80, 7,
            %(begun)s, %(begun)s, %(begun)s, %(at)s)
"""
_INSERT_STEP: Final = """
    insert into run_steps (tenant_id, run_id, step_no, name, state, attempt, tokens_before, tokens_after,
                           messages_before, messages_after, summarizer, model, model_calls, model_input_tokens,
                           model_output_tokens, cost_usd, duration_ms, created_at)
    values (%(tenant)s, %(run)s, 0, 'summary', 'committed', 1, 90000, %(after)s, 80, 7, 'anthropic', %(model)s, 1,
            %(read)s, %(written)s, %(cost)s, 4200, %(at)s)
"""
_ADD_USAGE: Final = """
    insert into model_usage as u (tenant_id, day, model_calls, input_tokens, output_tokens, cost_usd)
    values (%(tenant)s, %(day)s, 1, %(read)s, %(written)s, coalesce(%(cost)s, 0))
    on conflict (tenant_id, day) do update
        set model_calls = u.model_calls + 1, input_tokens = u.input_tokens + excluded.input_tokens,
            output_tokens = u.output_tokens + excluded.output_tokens, cost_usd = u.cost_usd + excluded.cost_usd
"""


class Call(NamedTuple):
    """A summary that a model was asked for so many days ago."""

    days_ago: int
    model: str
    read: int
    written: int
    cost: Decimal | None
    conversation: str


def spend(database_url: str, tenant_id: UUID, calls: Iterable[Call]) -> list[UUID]:
    """Write a run with a step for each call, and the days' usage with them; return the runs."""
    now = datetime.now(UTC)
    conversations: dict[str, UUID] = {}
    runs = []
    with psycopg.connect(database_url) as connection:
        connection.execute("select set_config('app.tenant_id', %s, true)", (str(tenant_id),))
        # The trigger counts every step as of today.
        connection.execute("alter table run_steps disable trigger run_steps_count_usage")
        for number, call in enumerate(calls):
            day = (now - timedelta(days=call.days_ago)).date()
            at = now if call.days_ago == 0 else datetime.combine(day, time(9, number % 60), UTC)
            if call.conversation not in conversations:
                conversations[call.conversation] = id_at(now - timedelta(days=400))
                connection.execute(
                    "insert into conversations (id, tenant_id, external_id) values (%s, %s, %s)",
                    (conversations[call.conversation], tenant_id, call.conversation),
                )
            values = {
                **call._asdict(),
                "tenant": tenant_id,
                "run": id_at(at - timedelta(milliseconds=4_200)),
                "conversation": conversations[call.conversation],
                "after": 12_000 + call.written,
                "at": at,
                "begun": at - timedelta(milliseconds=4_200),
                "day": day,
            }
            for statement in (_INSERT_RUN, _INSERT_STEP, _ADD_USAGE):
                connection.execute(statement, values)
            runs.append(values["run"])
        connection.execute("alter table run_steps enable trigger run_steps_count_usage")
    return runs


def tenant_of(database_url: str) -> UUID:
    """Return the only tenant of an installation."""
    with psycopg.connect(database_url) as connection:
        ((tenant_id,),) = connection.execute("select id from tenants")
    return UUID(str(tenant_id))


def id_at(at: datetime) -> UUID:
    """Return a UUIDv7 of a moment."""
    chance = random.SystemRandom()
    milliseconds = int(at.timestamp() * 1000)
    return UUID(
        int=milliseconds << _TIME_SHIFT | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | chance.getrandbits(62)
    )
