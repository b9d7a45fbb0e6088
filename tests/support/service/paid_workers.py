"""Workers in the test's own process whose tenants have budgets, and a sweeper's look for what waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import text

from store.engine import act_for, owner_engine
from store.runs import runs
from store.tenants import limits as tenant_limits
from tests.support.service.in_process import Workers
from worker.runs.budgets import Budgets
from worker.runs.dispatch import Dispatcher
from worker.runs.resources import RunResources
from worker.sweeping.resuming import Resuming

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.service.in_process import Chat
    from worker.summarizers import Summarizer
    from worker.summarizers.base import Model


class Counted(NamedTuple):
    """What a tenant has spent on a day."""

    calls: int
    tokens: int


class PaidWorkers(Workers):
    """What the workers of one process do, with its budgets, and what a sweeper does about what waits."""

    def __init__(self, chat: Chat, summarizer: Summarizer, model: Model | None = None) -> None:
        super().__init__(chat, summarizer)
        self.resources = RunResources(
            chat.database,
            lambda: summarizer,
            make_model=None if model is None else (lambda: model),
            lease_seconds=self.lease_seconds,
            wake=lambda lease: self.woken.append(lease.run_id),
            budgets=Budgets(chat.database, chat.settings),
        )
        self.dispatcher = Dispatcher(self.resources)
        self._resuming = Resuming(chat.settings, chat.database)

    def resume(self) -> list[UUID]:
        """Queue what waited and is due; return the runs."""
        queued = [run_id for tenant_id, run_id in self._resuming.due() if tenant_id == self.chat.tenant_id]
        self.woken.extend(queued)
        return queued

    def next_day(self) -> list[UUID]:
        """Let a day go by, and do what is due then; return the runs that make up for what waited."""
        pass_a_day(self.chat)
        queued = self.resume()
        self.summarize()
        return queued


def pass_a_day(chat: Chat) -> None:
    """Move what happened a day into the past."""
    with owner_engine(chat.url).begin() as connection:
        for statement in (
            # In two steps: days that follow each other would meet on the way.
            "update model_usage set day = day - 10000",
            "update model_usage set day = day + 9999",
            "update waiting_summaries set not_before = not_before - interval '1 day'",
        ):
            connection.execute(text(statement))


def allow(chat: Chat, **limits: Any) -> None:
    """Set a tenant's limits, as the operator does."""
    with owner_engine(chat.url).begin() as connection:
        act_for(connection, chat.tenant_id)
        tenant_limits.set_limits(connection, chat.tenant_id, limits)


def counted(chat: Chat) -> Counted:
    """Return what was counted today."""
    rows = chat.query(
        "select model_calls, input_tokens + output_tokens as tokens from model_usage"
        " where day = (now() at time zone 'utc')::date"
    )
    return Counted(rows[0].model_calls, int(rows[0].tokens)) if rows else Counted(0, 0)


def recorded(chat: Chat) -> Counted:
    """Return what the steps of all runs say."""
    (row,) = chat.query(
        "select coalesce(sum(model_calls), 0) as calls,"
        " coalesce(sum(coalesce(model_input_tokens, 0) + coalesce(model_output_tokens, 0)), 0) as tokens from run_steps"
    )
    return Counted(int(row.calls), int(row.tokens))


def last_run(chat: Chat, conversation: UUID) -> Any:
    """Return the newest run of a conversation."""
    with chat.database.transaction(chat.tenant_id) as connection:
        return runs.page(connection, chat.tenant_id, conversation_id=conversation, limit=1)[0]
