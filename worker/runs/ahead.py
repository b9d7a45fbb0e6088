"""Where summaries that are asked for ahead of time hook into checks and runs; `worker.batches` is what does so.

Whatever is not here knows nothing of them: with None in their place everything else works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from worker.runs.summarizing import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from store.runs.runs import Lease


class Attempt(Protocol):
    """One attempt at a run."""

    def go(self) -> None:
        """Carry it out. Raises RunLostError, StoppingError."""


class SummariesAhead(Way, Protocol):
    """Summaries that are asked for before a threshold is reached, and committed by runs of their own when they come."""

    @property
    def are_wished_for(self) -> bool:
        """Whether new ones are asked for, or only those brought to their end that are on their way."""

    def wish(self, connection: Connection, conversation_ids: Sequence[UUID]) -> Sequence[tuple[UUID, UUID]]:
        """Wish for summaries of conversations that near their thresholds; return (tenant, wish) of the new ones."""

    def wake(self, tenant_id: UUID, wish_id: UUID) -> None:
        """Tell a worker of a wish that has been committed."""

    def advance(self, tenant_id: UUID, wish_id: UUID, execute: Callable[[Lease], None]) -> UUID | None:
        """Do what is due about a wish; return its conversation if a run of it has ended, which is to be checked."""

    def attempt(self, lease: Lease) -> Attempt:
        """Return an attempt at a run that commits a summary."""
