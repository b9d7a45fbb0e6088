"""Message batches as a part of the worker: all that checks, runs and tasks know of them; see `worker.runs.ahead`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from store.runs import batches
from worker.batches.answers import Answers, AnswersRun
from worker.batches.lifecycle import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from compaction.steps.ladder import Result
    from store.runs.runs import Lease, LeaseHolder
    from worker.batches.provider import AnthropicBatches
    from worker.runs.journal import Reading
    from worker.runs.resources import RunResources
    from worker.runs.summarizing import Summarizing


class MessageBatches:
    """Summaries at half price, made ahead of time. One object a process; safe to use from many threads.

    `make_api` is called when a provider is asked for the first time, None where there is none; `wake` tells a worker
    of (tenant, batch), and is None where no new batch is wished for. `holder` is whoever claims runs at that moment.
    """

    def __init__(
        self,
        resources: RunResources,
        make_api: Callable[[], AnthropicBatches] | None,
        defaults: Mapping[str, Any],
        *,
        holder: Callable[[], LeaseHolder],
        wake: Callable[[UUID, UUID], None] | None = None,
    ) -> None:
        self._resources = resources
        self._make_api = make_api
        self._wake = wake
        self._lifecycle = Lifecycle(resources, defaults, holder=holder)

    @cached_property
    def _api(self) -> AnthropicBatches | None:
        return None if self._make_api is None else self._make_api()

    @property
    def are_wished_for(self) -> bool:
        """Whether new ones are asked for, or only those brought to their end that are on their way."""
        return self._wake is not None

    def wish(self, connection: Connection, conversation_ids: Sequence[UUID]) -> Sequence[tuple[UUID, UUID]]:
        """Wish for a batch for each conversation that has none under way; return (tenant, batch) of the new ones."""
        return [(tenant_id, batch_id) for batch_id, tenant_id in batches.want(connection, conversation_ids)]

    def wake(self, tenant_id: UUID, wish_id: UUID) -> None:
        """Tell a worker of a batch that is to be sent."""
        if self._wake is not None:
            self._wake(tenant_id, wish_id)

    def advance(self, tenant_id: UUID, wish_id: UUID, execute: Callable[[Lease], None]) -> UUID | None:
        """Do what is due about a batch; return its conversation if a run of it has ended, which is to be checked."""
        return self._lifecycle.advance(tenant_id, wish_id, self._api, execute)

    def attempt(self, lease: Lease) -> AnswersRun:
        """Return an attempt at the run that commits the answers."""
        return AnswersRun(self._api, self._resources, lease)

    def step(self, summarizing: Summarizing, now: Reading) -> Result | None:
        """Commit what a batch has answered; None if a model has to be asked now, and any batch is superseded."""
        return Answers(self._api, summarizing).instead(now)
