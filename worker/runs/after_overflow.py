"""One attempt at the run after an overflow: what was left out at once comes back as a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from compaction.steps import recovery, steps
from compaction.steps.catalogue import SUMMARY
from compaction.steps.runs import RunReason, RunState, RunTrigger
from worker.runs.summarizing import SummaryWriter, spend
from worker.runs.transactions import HeadMovedError, RunTransactions
from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from store.runs.runs import Lease, StepRecord
    from worker.runs.resources import RunResources
    from worker.runs.transactions import Reading

log = structlog.get_logger()


class Recovery:
    """Summarizes from the version before the overflow, and commits on top of the overflow's if nothing came between."""

    def __init__(self, resources: RunResources, lease: Lease) -> None:
        self._lease = lease
        self._transactions = RunTransactions(resources.database, lease)
        self._writer = SummaryWriter(resources, lease, self._transactions)
        self._target = lease.target_tokens or 0

    def run(self) -> None:
        """Make the summary, if the head is still the overflow's and the result is no larger than it."""
        now = self._transactions.read(self._lease.base_version)
        try:
            self._recover(now)
        except HeadMovedError:
            self._transactions.end()
            raise
        except SummaryError as error:
            if error.code == RunReason.BUDGET_SPENT:
                return self._transactions.end(reason=RunReason.BUDGET_SPENT, waits_from=self._lease.base_version)
            return self._transactions.end(
                state=RunState.FAILED, reason=RunReason.SUMMARY_FAILED_NOTHING_DROPPED, error=str(error)
            )
        return self._transactions.end()

    def _recover(self, now: Reading) -> None:
        material, stage, policy = now.material, now.stage, recovery.room_policy(self._lease.policy, self._target)
        # What it replaces is the overflow's context, not the one that it is made from.
        record = self._writer.record(SUMMARY, stage)._replace(
            tokens_before=round(material.context_tokens * material.token_ratio),
            messages_before=material.context_messages,
            detail=f"{self._occasion}: from version {self._lease.base_version}, {self._target:,} tokens at most",
        )
        if material.head_version != self._lease.parent_version or material.pending_version:
            self._transactions.skip(record, RunReason.HEAD_MOVED)
        elif not self._writer.is_on:
            self._transactions.skip(record, RunReason.SUMMARIES_DISABLED)
        elif isinstance(zone := recovery.find_zone(stage, policy, self._target), str):
            self._transactions.skip(record, zone)
        else:
            summary = self._writer.ask(stage, zone, policy, record)
            zone = steps.covered(stage, zone, summary.covers_through)
            detail = "; ".join([record.detail or "", *summary.notes])
            record = spend(record, summary.spent)._replace(prompt_version=summary.prompt_version, detail=detail)
            run_id = str(self._lease.run_id)
            recovered = recovery.recover(
                stage,
                zone,
                summary.text,
                policy,
                claims=summary.claims,
                read_through=summary.read_through,
                target_tokens=self._target,
                run_id=run_id,
            )
            self._commit(now, recovered, record)

    @property
    def _occasion(self) -> str:
        return "With another day's budget" if self._lease.trigger == RunTrigger.BUDGET else "After an overflow"

    def _commit(self, now: Reading, recovered: recovery.Recovered | None, record: StepRecord) -> None:
        if recovered is None:
            self._transactions.skip(record, RunReason.NOT_SMALLER)
            return
        record = record._replace(tokens_after=recovered.tokens, messages_after=len(recovered.view))
        self._transactions.commit(now.material, recovered.new, self._transactions.timed(record))
        before, after = record.tokens_before, recovered.tokens
        log.info("overflow.summarized", trigger=self._lease.trigger, tokens_before=before, tokens_after=after)
