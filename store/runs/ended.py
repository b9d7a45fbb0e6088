"""Runs that have ended.

Those that a request ends itself are noted while its transaction is open and counted once it has been committed.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Connection, select

from compaction.steps.runs import ACTIVE, RunState
from store.tables import runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from store.runs.runs import StepRecord


class EndedRun(NamedTuple):
    """How a run ended, and why."""

    state: RunState
    reason: str | None
    step: StepRecord | None = None
    """The one step that the request took, where it took one."""


_NOTED: Final[ContextVar[list[EndedRun] | None]] = ContextVar("ended_runs", default=None)


@contextmanager
def noting_ended_runs() -> Iterator[list[EndedRun]]:
    """Yield the list of the runs that are ended in the block."""
    ended: list[EndedRun] = []
    token = _NOTED.set(ended)
    try:
        yield ended
    finally:
        _NOTED.reset(token)


def note(state: RunState, reason: str | None, step: StepRecord | None = None) -> None:
    """Note a run that the transaction under way ends; without effect where nothing counts them."""
    if (noted := _NOTED.get()) is not None:
        noted.append(EndedRun(state, reason, step))


def active_among(connection: Connection, tenant_id: UUID, run_ids: Sequence[UUID]) -> set[UUID]:
    """Return those of a tenant's runs that have not ended."""
    active = runs.c.state.in_(ACTIVE)
    return set(
        connection.scalars(select(runs.c.id).where(runs.c.tenant_id == tenant_id, runs.c.id.in_(run_ids), active))
    )
