"""What a message batch answered, put into the place of what it was made from: in time, or at the threshold after all.

A batch is used by one run at a time, which closes it in the transaction that commits its summary: nothing is written
down, or paid for, twice. The run is one of the batch's own, or the one that has reached the threshold meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from msgspec.structs import replace

from compaction.cost.swap import bounds_of
from compaction.steps import steps
from compaction.steps.ladder import Step, growth_margin
from compaction.steps.runs import RunKind, RunReason, RunState, RunTrigger, StepState
from store.conversations import conversations
from store.runs import batches, requested, runs
from worker.batches.ahead import find_again
from worker.claims.proving import proved
from worker.metrics import METRICS
from worker.runs.journal import Journal
from worker.runs.summarizing import Summarizing
from worker.summarizers.base import Spent, SummaryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from compaction.policy import Policy
    from compaction.steps.ladder import Result
    from compaction.steps.steps import StepOutcome
    from store.runs.batches import Batch, End
    from store.runs.runs import Lease
    from worker.batches.provider import AnthropicBatches
    from worker.database import Database
    from worker.runs.journal import Reading
    from worker.runs.resources import RunResources
    from worker.runs.swapping import SwapVerdict

    Wait = Callable[[Callable[[], Any]], Any]
    """Returns what a call of the provider returns."""

log = structlog.get_logger()


class Answers:
    """The answers of batches, on behalf of one attempt at a run; `api` is None where no provider is asked."""

    def __init__(self, api: AnthropicBatches | None, summarizing: Summarizing) -> None:
        self._api = api
        self._summarizing = summarizing
        self._database = summarizing.resources.database
        self._lease = summarizing.lease
        self._journal = summarizing.journal
        self.failure: SummaryError | None = None
        """Why answers were refused."""

    def open(self) -> Batch | None:
        """Return the conversation's batch that is not over."""
        with self._database.transaction(self._lease.tenant_id) as connection:
            return batches.open_of(connection, self._lease.tenant_id, self._lease.conversation_id)

    def instead(self, now: Reading) -> Result | None:
        """Commit what a batch has answered; None if a model has to be asked now, and any batch is superseded.

        Raises StoppingError.
        """
        api = self._api
        batch = None if api is None else self.open()
        if api is None or batch is None:
            return None
        by_hand = self._lease.strategy is not None
        if not by_hand:
            batch = self._newest(batch, api)
        if by_hand or batch is None or batch.state != "ended":
            batch = self._supersede(unless_ended=not by_hand)
        done = None if batch is None else self.use(now, batch, api)
        return done if done in {"committed", "pending"} else None

    def use(self, now: Reading, batch: Batch, api: AnthropicBatches) -> Result:
        """Put the answers into the place of what they were made from, or write down why not; close the batch."""
        stage, policy, outline = now.stage, self._lease.policy, batch.outline
        assert outline is not None and batch.answers is not None  # noqa: S101, PT018 - it has ended
        spent = Spent(*batch.costs)
        record = self._summarizing.record(stage)._replace(
            summarizer=api.name, model=outline.model, prompt_version=outline.prompt_version, **batch.costs._asdict()
        )
        zone = find_again(stage, outline.zone_messages, outline.fingerprint)
        if zone is None or self._restored(batch):
            return self._journal.skip(
                record, RunReason.BATCH_OUTDATED, self._closing(batch, "discarded", RunReason.BATCH_OUTDATED)
            )
        request = self._summarizing.request(stage, zone, policy)._replace(canary=outline.canary)
        asked = api.chosen_by(replace(policy, summarizer_model=outline.model or ""))
        make = partial(asked.summary, request, batch.answers, outline.part_ends, outline.answer_tokens)
        try:
            summary = self._wait(lambda: proved(make(), request))
        except SummaryError as error:
            self.failure = error
            log.warning("batch.refused", batch_id=str(batch.id), reason=error.code, detail=error.detail)
            closing = self._closing(batch, "failed", error.code, error.detail)
            return self._journal.fail(record, error.code, error.detail, closing)
        zone = steps.covered(stage, zone, summary.covers_through)
        outcome = steps.summarize(stage, zone, summary.text, policy, summary.claims, read_through=summary.read_through)
        if outcome.reason is not None:
            return self._journal.skip(record, outcome.reason, self._closing(batch, "discarded", outcome.reason))
        outcome = outcome._replace(detail="; ".join([outcome.detail or "", "by a message batch", *summary.notes]))
        committed = partial(batches.finish, batch=batch, end="committed", run_id=self._lease.run_id)
        return self._summarizing.commit(now, outcome, record, spent, committed)

    def _newest(self, batch: Batch, api: AnthropicBatches) -> Batch | None:
        """Return the batch as the provider has it now, None if it failed: one that has ended is paid for."""
        if batch.state != "submitted":
            return batch
        try:
            return collect(self._database, api, batch, self._lease.policy, self._wait)
        except SummaryError as error:
            log.warning("batch.not_asked", batch_id=str(batch.id), reason=error.code)
            return batch

    def _wait(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns; raise SummaryError, whatever is wrong with it, or StoppingError."""
        return self._summarizing.resources.summarized(call, self._lease)

    def _supersede(self, *, unless_ended: bool) -> Batch | None:
        """Drop the conversation's batch; return it instead if its answers have come meanwhile."""
        with self._database.transaction(self._lease.tenant_id) as connection:
            conversations.lock(connection, self._lease.conversation_id)
            batch = batches.open_of(connection, self._lease.tenant_id, self._lease.conversation_id, lock=True)
            if batch is None or (unless_ended and batch.state == "ended"):
                return batch
            if not batches.canceling(connection, batch):
                close(connection, batch, "superseded", RunReason.BATCH_SUPERSEDED, policy=self._lease.policy)
        log.info("batch.superseded", batch_id=str(batch.id), state=batch.state)
        return None

    def _restored(self, batch: Batch) -> bool:
        with self._database.transaction(batch.tenant_id) as connection:
            return batches.restored_since(connection, batch)

    def _closing(self, batch: Batch, end: End, reason: str, error: str | None = None) -> Callable[[Connection], bool]:
        def write(connection: Connection) -> bool:
            conversations.lock(connection, batch.conversation_id)
            hold_back(connection, batch, self._lease.policy)
            return batches.finish(connection, batch, end, reason, error, run_id=self._lease.run_id)

        return write


class AnswersRun:
    """One attempt at the run that commits what a message batch has answered, below the threshold; no model is asked."""

    def __init__(self, api: AnthropicBatches | None, resources: RunResources, lease: Lease) -> None:
        self._api = api
        self._journal = Journal(resources.database, lease)
        self._journal.verdict_of = partial(self._verdict, resources, lease)
        self._answers = Answers(api, Summarizing(resources, lease, self._journal))

    def _verdict(self, resources: RunResources, lease: Lease, outcome: StepOutcome, now: Reading) -> SwapVerdict | None:
        """Return what becomes of the summary: below the thresholds it may wait for a pause."""
        swapping = resources.swapping
        return None if swapping is None else swapping.verdict(lease, now.stage, outcome, bounds_of(lease.policy))

    def go(self) -> None:
        """Put the answers into their place, if what they were made from is still there and they are not in it yet."""
        now = self._journal.read()
        batch = self._answers.open()
        if self._api is None or batch is None or batch.state != "ended" or now.material.pending_version:
            return self._journal.end()
        self._answers.use(now, batch, self._api)
        if (failure := self._answers.failure) is not None:
            return self._journal.end(
                state=RunState.FAILED, reason=RunReason.SUMMARY_FAILED_NOTHING_DROPPED, error=str(failure)
            )
        return self._journal.end()


def collect(database: Database, api: AnthropicBatches, batch: Batch, policy: Policy, wait: Wait) -> Batch | None:
    """Return a submitted batch as the provider has it now, its answers stored; None if it failed, and is closed.

    Raises SummaryError if the provider cannot say, StoppingError.
    """
    provider_id, outline = batch.provider_batch_id, batch.outline
    assert provider_id is not None and outline is not None  # noqa: S101, PT018 - it was submitted
    if not wait(lambda: api.status(provider_id)).ended:
        return batch
    parts, tokens = len(outline.part_ends), outline.answer_tokens
    asked = api.chosen_by(replace(policy, summarizer_model=outline.model or ""))
    results = wait(lambda: asked.results(provider_id, batch.id.hex, parts, tokens))
    costs = batches.Costs(*results.spent)
    trouble = results.trouble
    if trouble is not None:
        fail(database, batch, trouble, policy, costs=costs)
        return None

    def write(connection: Connection) -> Batch | None:
        batches.answered(connection, batch, results.texts, costs)
        return batches.open_of(connection, batch.tenant_id, batch.conversation_id)

    log.info("batch.ended", batch_id=str(batch.id), parts=parts)
    return database.insist(batch.tenant_id, write)


def fail(
    database: Database, batch: Batch, error: SummaryError, policy: Policy, *, costs: batches.Costs | None = None
) -> None:
    """Close a batch that will not be a summary, with a run in the audit that says why and what it has cost."""
    log.warning("batch.failed", batch_id=str(batch.id), reason=error.code, detail=error.detail)
    database.insist(
        batch.tenant_id,
        lambda connection: close(
            connection, batch, "failed", error.code, error.detail, policy=policy, costs=costs or batch.costs
        ),
    )


def close(
    connection: Connection,
    batch: Batch,
    end: End,
    reason: str,
    error: str | None = None,
    *,
    policy: Policy,
    costs: batches.Costs | None = None,
) -> None:
    """Close a batch outside any run; if it has failed or cost anything, write a run down that has already ended."""
    conversations.lock(connection, batch.conversation_id)
    row = conversations.get(connection, batch.tenant_id, batch.conversation_id)
    costs = costs or batch.costs
    # Of an erased conversation there is no row: what the batch has cost is written down all the same.
    tokens, count = (row.context_tokens, row.context_messages) if row is not None else (0, 0)
    if not batches.finish(connection, batch, end, reason, error, costs=costs):
        return
    if end != "superseded":
        hold_back(connection, batch, policy)
    if end != "failed" and not costs.model_calls:
        return
    state = RunState.FAILED if end == "failed" else RunState.SKIPPED
    outline = batch.outline
    step = runs.StepRecord(
        name=Step.SUMMARY,
        state=StepState(state),
        tokens_before=tokens,
        tokens_after=tokens,
        messages_before=count,
        messages_after=count,
        duration_ms=0,
        reason=reason,
        error=error,
        summarizer="anthropic-batch",
        model=outline.model if outline else None,
        prompt_version=outline.prompt_version if outline else None,
        **costs._asdict(),
    )
    METRICS.run_ended(state, reason)
    METRICS.step_recorded(step)
    requested.record(
        connection,
        batch.tenant_id,
        batch.conversation_id,
        kind=RunKind.BATCH,
        trigger=RunTrigger.BATCH,
        policy=policy,
        request_id=batch.request_id,
        parent_version=outline.base_version if outline else None,
        snapshot_version=None,
        reason=RunReason.SUMMARY_FAILED_NOTHING_DROPPED if state == RunState.FAILED else reason,
        step=step,
        state=state,
        error=f"{reason}: {error}" if state == RunState.FAILED else None,
    )


def hold_back(connection: Connection, batch: Batch, policy: Policy) -> None:
    """Keep the next turn from wishing for what has just been dropped; the threshold itself holds for all that."""
    growth = growth_margin(policy.batch_threshold_tokens, policy)
    batches.hold_back(connection, batch, growth, policy.compaction_threshold_tokens)
