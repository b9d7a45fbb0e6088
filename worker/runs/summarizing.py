"""Making summaries: a model is asked outside any transaction, and what it cost is recorded whatever comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import structlog

from compaction.claims.handing_on import prepare_previous
from compaction.pins.pinned import masked_pins, message_text, pin
from compaction.steps import steps
from compaction.steps.ladder import saves_enough
from compaction.steps.runs import RunReason
from compaction.steps.snapshot import UNREAD
from compaction.summary.zone import around
from compaction.tokens import CHARS_PER_TOKEN
from compaction.view import WRITTEN, view_tokens
from worker.claims.proving import proved
from worker.masking import masked_request
from worker.runs.resources import StoppingError
from worker.runs.transactions import MadeStep
from worker.summarizers.base import SummaryError, SummaryRequest, chosen_by
from worker.summarizers.breaker import OUTAGE
from worker.summarizers.extractive import ExtractiveSummarizer
from worker.summarizers.paying import PayingSummarizer, pay

if TYPE_CHECKING:
    from collections.abc import Callable

    from compaction.policy import Policy
    from compaction.steps.catalogue import Step
    from compaction.steps.stage import Stage
    from compaction.summary.zone import Zone
    from compaction.view import View
    from store.conversations.messages import Origins
    from store.runs.runs import Lease, StepRecord
    from worker.runs.resources import RunResources
    from worker.runs.transactions import Reading, RunTransactions
    from worker.summarizers.base import Spent, Summarizer, Summary

T = TypeVar("T")

log = structlog.get_logger()

MOST_PARTS: Final = 10
"""Requests' worth of transcript (`summary_input_max_chars`) that are read again for one summary after an outage."""


WriteSigned: TypeAlias = "Callable[[SummaryWriter, Step, Reading], MadeStep | None]"
"""Asks the API for its own summary of a reading; None if the summarizer has to write one instead."""


class SummaryWriter:
    """Makes summaries on behalf of one attempt at a run, and writes down what failed; it commits nothing."""

    def __init__(self, resources: RunResources, lease: Lease, transactions: RunTransactions) -> None:
        self._resources = resources
        self._lease = lease
        self.transactions = transactions
        self.policy = lease.policy
        self.purse = resources.purse(lease)
        self.is_on = lease.strategy == "extract" or (lease.policy.compaction_enabled and resources.can_summarize)
        """Whether summaries are made at all."""
        self.asks_models = self.is_on and lease.strategy != "extract"
        """Whether the summarizer of the installation makes them."""

    @property
    def _summarizer(self) -> Summarizer:
        if not self.asks_models:
            return ExtractiveSummarizer()
        return chosen_by(self._resources.summarizer, self.policy)

    def write(self, step: Step, now: Reading) -> MadeStep:
        """Make a summary in the place of the zone. Raises SummaryError, StoppingError."""
        if self.is_on and self._summarizer.model is not None:
            made = self._write_from_originals(step, now)
            if made is not None:
                return made
        stage = now.stage
        record = self.record(step, stage)
        zone = steps.find_zone(stage, self.policy) if self.is_on else RunReason.SUMMARIES_DISABLED
        if isinstance(zone, str):
            return MadeStep(now, steps.StepOutcome(stage.view, zone), record)
        summary = self.ask(stage, zone, self.policy, record)
        outcome = self._outcome(stage, zone, summary)
        if outcome.reason is not None and self.purse.is_spent:
            # Of the first parts alone, and not worth having: the whole of it waits.
            self.transactions.skip(spend(record, summary.spent), RunReason.BUDGET_SPENT)
            raise SummaryError(RunReason.BUDGET_SPENT, "what was left of today's budget was not enough", summary.spent)
        record = record._replace(prompt_version=summary.prompt_version)
        return self.made(step, now, outcome, record, summary.spent)

    def _write_from_originals(self, step: Step, now: Reading) -> MadeStep | None:
        """Make a summary of the originals in the place of extracts that an outage of the model made necessary.

        Returns None if there are none, or if it would be no smaller than they are. Raises SummaryError, StoppingError.
        """
        before = self._read_before_outage()
        zone = None if before is None else steps.find_zone(before.stage, self.policy)
        if before is None or zone is None or isinstance(zone, str):
            return None
        known = self.record(step, now.stage)
        summary = self.ask(before.stage, zone, self.policy, known)
        outcome = self._outcome(before.stage, zone, summary)
        known = known._replace(prompt_version=summary.prompt_version)
        after = before.stage.estimate(outcome.view)
        if outcome.reason is not None or not saves_enough(now.stage.tokens, after, self.policy):
            self.transactions.skip(spend(known, summary.spent), RunReason.NOT_SMALLER)
            return None
        made = self.made(step, before, outcome, known, summary.spent)
        record = made.record._replace(
            tokens_before=known.tokens_before,
            messages_before=known.messages_before,
            detail="; ".join(["From the originals of what extracts stood for", *summary.notes]),
        )
        return made._replace(record=record)

    def _read_before_outage(self) -> Reading | None:
        """Return the conversation as it was before extracts stood in for summaries that an outage prevented.

        The oldest such version whose originals are not too much to read; None if there is no such extract.
        """
        for version in self.transactions.versions_before_outage(OUTAGE):
            reading = self.transactions.read(version)
            zone = steps.find_zone(reading.stage, self.policy)
            if isinstance(zone, str) or any(original.content == UNREAD for original in reading.material.tail):
                continue
            chars = view_tokens(reading.stage.view[zone.start : zone.stop]) * CHARS_PER_TOKEN
            if chars <= MOST_PARTS * self.policy.summary_input_max_chars:
                return reading
        return None

    def write_extract(self, step: Step, now: Reading) -> MadeStep:
        """Make an extract in the place of the zone whose summary failed."""
        stage = now.stage
        extractive = ExtractiveSummarizer()
        outcome = steps.StepOutcome(stage.view, None, steps.threshold_note(stage, self.policy))
        record = self.transactions.record(step, outcome, stage)._replace(summarizer=extractive.name)
        zone = steps.find_zone(stage, self.policy)
        if isinstance(zone, str):
            return MadeStep(now, outcome._replace(reason=zone), record)
        try:
            request = self.request(stage, zone, self.policy)
            summary = proved(extractive.summarize(request), request)
        except SummaryError as error:
            return MadeStep(now, outcome, record, error)
        record = record._replace(prompt_version=summary.prompt_version)
        return self.made(step, now, self._outcome(stage, zone, summary), record, summary.spent)

    def _outcome(self, stage: Stage, zone: Zone, summary: Summary) -> steps.StepOutcome:
        """Return what a summary makes of a stage, as far as it read the zone."""
        zone = steps.covered(stage, zone, summary.covers_through)
        outcome = steps.summarize(
            stage, zone, summary.text, self.policy, summary.claims, read_through=summary.read_through
        )
        return outcome._replace(detail="; ".join([outcome.detail or "", *summary.notes]))

    def made(self, step: Step, now: Reading, outcome: steps.StepOutcome, known: StepRecord, spent: Spent) -> MadeStep:
        """Return what the step made, with what it cost; `known` tells by whom."""
        record = spend(self.transactions.record(step, outcome, now.stage), spent)._replace(
            summarizer=known.summarizer, model=known.model, prompt_version=known.prompt_version
        )
        return MadeStep(now, outcome, record)

    def record(self, step: Step, stage: Stage) -> StepRecord:
        """Return what is known of the step before a summary is made."""
        outcome = steps.StepOutcome(stage.view, None, steps.threshold_note(stage, self.policy))
        record = self.transactions.record(step, outcome, stage)
        if not self.is_on:
            return record
        summarizer = self._summarizer
        return record._replace(summarizer=summarizer.name, model=summarizer.model)

    def ask(self, stage: Stage, zone: Zone, policy: Policy, record: StepRecord) -> Summary:
        """Return a summary of a zone; a failure is written down. Raises SummaryError, StoppingError."""
        request, summarizer, purse = self.request(stage, zone, policy), self._summarizer, self.purse
        if isinstance(summarizer, PayingSummarizer):
            paying = summarizer
            return self.answer(lambda: proved(paying.summarize_paid(request, purse), request), record)
        if summarizer.model is None:
            return self.answer(lambda: proved(summarizer.summarize(request), request), record)
        tokens = (sum(message.tokens for message in request.zone), policy.summary_max_tokens)
        return self.answer(
            lambda: proved(pay(purse, summarizer.model, tokens, lambda: summarizer.summarize(request)), request), record
        )

    def request(self, stage: Stage, zone: Zone, policy: Policy) -> SummaryRequest:
        """Return what is asked of a summarizer about a zone."""
        whole, origins = self.transactions.read_originals(stage, stage.view[zone.start : zone.stop])
        unsourced = self.transactions.unsourced_summary()
        request = request_of(stage, zone, policy, whole, origins, unsourced)
        given = (self.policy.summary_instructions, self._lease.instructions)
        wishes = "\n".join(wish for wish in given if wish) or None
        return request._replace(instructions=wishes and request.without_secrets(wishes))

    def answer(self, call: Callable[[], T], record: StepRecord) -> T:
        """Return what a call of a model returns; a failure is written down. Raises SummaryError, StoppingError."""
        try:
            return self._resources.summarized(call, self._lease)
        except StoppingError:
            self.transactions.skip(record, RunReason.WORKER_STOPPED)
            raise
        except SummaryError as error:
            if error.code == RunReason.BUDGET_SPENT:
                self.transactions.skip(spend(record, error.spent), RunReason.BUDGET_SPENT)
                log.info("summary.waits", reason=RunReason.BUDGET_SPENT)
                raise
            self.transactions.fail(spend(record, error.spent), error.code, error.detail)
            log.warning("summary.failed", reason=error.code, detail=error.detail)
            raise


def request_of(
    stage: Stage, zone: Zone, policy: Policy, whole: View, origins: Origins, unsourced: str | None
) -> SummaryRequest:
    """Return what is asked of a summarizer about a zone, whose messages as they came are `whole`.

    `unsourced` is the newest summary that named no sources, None where all did.
    """
    previous, claims = stage.previous_summary, stage.working.snapshot.claims
    if previous is not None:
        marks = policy.unsupported_claims == "mark"
        previous = prepare_previous(previous, claims or (), marks=marks, unsourced=unsourced)
    before, tail = around(stage.view, zone, stage.working.snapshot.summary)
    pins = masked_pins(stage.working.pins, policy)
    # What finds no room in the frame is for the summary to tell.
    language, code = stage.working.language, stage.working.frame_code
    beside = pin((*before, *tail), pins, max_tokens=policy.pinned_max_tokens, language=language, code=code)
    kept = (each for each in pins if each.source == "pinned" and each not in beside.dropped)
    pinned = tuple(each.text for each in kept)
    earlier = tuple(message_text(message.content) for message in before if message.seq != WRITTEN)
    request = SummaryRequest(
        whole,
        previous,
        policy,
        instructions=policy.summary_instructions or None,
        times=origins.times,
        names=origins.names,
        pins=pinned,
        strip_fields=policy.private_result_fields,
        other_texts=(*earlier, *pinned),
        tail=tail,
        claims=claims,
        unsourced=unsourced,
        withdrawn=stage.withdrawn,
        in_pieces=stage.working.in_pieces,
        language=language,
    )
    return masked_request(request, stage)


def spend(record: StepRecord, spent: Spent) -> StepRecord:
    """Return a step with what its model calls cost."""
    return record._replace(
        model_calls=spent.calls,
        model_input_tokens=spent.input_tokens,
        model_output_tokens=spent.output_tokens,
        cost_usd=spent.cost_usd,
    )
