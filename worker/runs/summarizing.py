"""The summary step: a model is asked outside any transaction, and what it cost is written down whatever comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import structlog

from compaction.claims.handing_on import prepare_previous
from compaction.pins.pinned import masked_pins, message_text, pin
from compaction.steps import steps
from compaction.steps.ladder import Result, Step, saves_enough
from compaction.steps.runs import RunReason
from compaction.steps.snapshot import UNREAD
from compaction.summary.zone import around
from compaction.tokens import CHARS_PER_TOKEN
from compaction.view import WRITTEN, view_tokens
from worker.claims.proving import proved
from worker.masking import masked_request
from worker.runs.resources import StoppingError
from worker.summarizers.base import SummaryError, SummaryRequest, chosen_by
from worker.summarizers.breaker import OUTAGE
from worker.summarizers.extractive import ExtractiveSummarizer
from worker.summarizers.paying import PayingSummarizer, pay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compaction.policy import Policy
    from compaction.steps.stage import Stage
    from compaction.summary.zone import Zone
    from compaction.view import View
    from store.conversations.messages import Origins
    from store.runs.runs import Lease, StepRecord
    from worker.runs.journal import Journal, Reading
    from worker.runs.resources import RunResources
    from worker.summarizers.base import Spent, Summarizer, Summary

T = TypeVar("T")

log = structlog.get_logger()

MOST_PARTS: Final = 10
"""Requests' worth of transcript (`summary_input_max_chars`) that are read again for one summary after an outage."""


class Way(Protocol):
    """Another way to a summary than to ask the summarizer for a text now; a part of the worker that could go."""

    def step(self, summarizing: Summarizing, now: Reading) -> Result | None:
        """Put a summary into the place of the zone; None if the next way is to be tried.

        Raises SummaryError, StoppingError.
        """


class Summarizing:
    """Makes summaries on behalf of one attempt at a run; `ways` are tried before the summarizer is asked."""

    def __init__(self, resources: RunResources, lease: Lease, journal: Journal, ways: Sequence[Way] = ()) -> None:
        self.resources = resources
        self.lease = lease
        self.journal = journal
        self.purse = resources.purse(lease)
        self._ways = ways
        self.is_on = lease.strategy == "extract" or (lease.policy.compaction_enabled and resources.can_summarize)
        """Whether summaries are made at all."""

    @property
    def _summarizer(self) -> Summarizer:
        if self.lease.strategy == "extract":
            return ExtractiveSummarizer()
        return chosen_by(self.resources.summarizer, self.lease.policy)

    def step(self, now: Reading) -> Result:
        """Put a summary into the place of the zone. Raises SummaryError, StoppingError."""
        if self.is_on and self.lease.strategy != "extract":
            for way in self._ways:
                done = way.step(self, now)
                if done is not None:
                    return done
        return self._write(now)

    def _write(self, now: Reading) -> Result:
        if self.is_on and self._summarizer.model is not None:
            before = _reading_before_outage(self.journal, self.lease.policy)
            done = None if before is None else self._make_good(before, now)
            if done is not None:
                return done
        stage, policy = now.stage, self.lease.policy
        record = self.record(stage)
        if not self.is_on:
            return self.journal.skip(record, RunReason.SUMMARIES_DISABLED)
        zone = steps.find_zone(stage, policy)
        if isinstance(zone, str):
            return self.journal.skip(record, zone)
        summary = self.ask(stage, zone, policy, record)
        zone = steps.covered(stage, zone, summary.covers_through)
        outcome = steps.summarize(stage, zone, summary.text, policy, summary.claims, read_through=summary.read_through)
        outcome = outcome._replace(detail="; ".join([outcome.detail or "", *summary.notes]))
        if outcome.reason is not None and self.purse.is_spent:
            # Of the first parts alone, and not worth having: the whole of it waits.
            self.journal.skip(spend(record, summary.spent), RunReason.BUDGET_SPENT)
            raise SummaryError(RunReason.BUDGET_SPENT, "what was left of today's budget was not enough", summary.spent)
        return self.commit(now, outcome, record._replace(prompt_version=summary.prompt_version), summary.spent)

    def _make_good(self, before: Reading, now: Reading) -> Result | None:
        """Put a summary of originals in the place of extracts; None where that would be no smaller than they are.

        `before` is the conversation as it was before them, `now` as it is. Raises SummaryError, StoppingError.
        """
        stage, policy = before.stage, self.lease.policy
        known = self.record(now.stage)
        zone = steps.find_zone(stage, policy)
        if isinstance(zone, str):
            return None
        summary = self.ask(stage, zone, policy, known)
        zone = steps.covered(stage, zone, summary.covers_through)
        outcome = steps.summarize(stage, zone, summary.text, policy, summary.claims, read_through=summary.read_through)
        known = spend(known, summary.spent)._replace(prompt_version=summary.prompt_version)
        after = stage.estimate(outcome.view)
        if outcome.reason is not None or not saves_enough(now.stage.tokens, after, policy):
            self.journal.skip(known, RunReason.NOT_SMALLER)
            return None
        record = self.journal.record(outcome, stage)._replace(
            tokens_before=known.tokens_before,
            messages_before=known.messages_before,
            detail="; ".join(["From the originals of what extracts stood for", *summary.notes]),
        )
        record = spend(record, summary.spent)._replace(
            summarizer=known.summarizer, model=known.model, prompt_version=known.prompt_version
        )
        done = self.journal.take(outcome, before, record)
        log.info("summary.made_good", tokens_before=record.tokens_before, tokens_after=record.tokens_after)
        return done

    def commit(self, now: Reading, outcome: steps.StepOutcome, known: StepRecord, spent: Spent) -> Result:
        """Commit what the step made, by whom `known` tells; see `Journal.commit`."""
        record = spend(self.journal.record(outcome, now.stage), spent)._replace(
            summarizer=known.summarizer, model=known.model, prompt_version=known.prompt_version
        )
        done = self.journal.take(outcome, now, record)
        if done != "skipped":
            log.info("summary.committed", tokens_before=record.tokens_before, tokens_after=record.tokens_after)
        return done

    def extract(self, now: Reading) -> Result:
        """Put an extract into the place of the zone whose summary failed."""
        stage, policy = now.stage, self.lease.policy
        extractive = ExtractiveSummarizer()
        outcome = steps.StepOutcome(Step.EXTRACT, stage.view, None, steps.threshold_note(stage, policy))
        record = self.journal.record(outcome, stage)._replace(summarizer=extractive.name)
        zone = steps.find_zone(stage, policy)
        if isinstance(zone, str):
            return self.journal.skip(record, zone)
        try:
            request = self.request(stage, zone, policy)
            summary = proved(extractive.summarize(request), request)
        except SummaryError as error:
            return self.journal.fail(record, error.code, error.detail)
        outcome = steps.summarize(stage, zone, summary.text, policy, summary.claims, read_through=summary.read_through)
        outcome = outcome._replace(step=Step.EXTRACT, detail="; ".join([outcome.detail or "", *summary.notes]))
        return self.commit(now, outcome, record._replace(prompt_version=summary.prompt_version), summary.spent)

    def record(self, stage: Stage) -> StepRecord:
        """Return what is known of the step before a summary is made."""
        outcome = steps.StepOutcome(Step.SUMMARY, stage.view, None, steps.threshold_note(stage, self.lease.policy))
        record = self.journal.record(outcome, stage)
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
        whole, origins = self.journal.originals(stage, stage.view[zone.start : zone.stop])
        unsourced = self.journal.unsourced_summary()
        request = request_of(stage, zone, policy, whole, origins, unsourced)
        return request._replace(instructions=self.wishes and request.without_secrets(self.wishes))

    @property
    def wishes(self) -> str | None:
        """What the summary is to stress, by the policy and by whoever asked for the run."""
        given = (self.lease.policy.summary_instructions, self.lease.instructions)
        return "\n".join(wish for wish in given if wish) or None

    def answer(self, call: Callable[[], T], record: StepRecord) -> T:
        """Return what a call of a model returns; a failure is written down. Raises SummaryError, StoppingError."""
        try:
            return self.resources.summarized(call, self.lease)
        except StoppingError:
            self.journal.skip(record, RunReason.WORKER_STOPPED)
            raise
        except SummaryError as error:
            if error.code == RunReason.BUDGET_SPENT:
                self.journal.skip(spend(record, error.spent), RunReason.BUDGET_SPENT)
                log.info("summary.waits", reason=RunReason.BUDGET_SPENT)
                raise
            self.journal.fail(spend(record, error.spent), error.code, error.detail)
            log.warning("summary.failed", reason=error.code, detail=error.detail)
            raise


def _reading_before_outage(journal: Journal, policy: Policy) -> Reading | None:
    """Return the conversation as it was before extracts stood in for summaries that an outage prevented.

    The oldest such version whose originals are not too much to read; None where there is none, or no such extract.
    """
    for version in journal.before_outage(OUTAGE):
        reading = journal.read(version)
        zone = steps.find_zone(reading.stage, policy)
        if isinstance(zone, str) or any(original.content == UNREAD for original in reading.material.tail):
            continue
        chars = view_tokens(reading.stage.view[zone.start : zone.stop]) * CHARS_PER_TOKEN
        if chars <= MOST_PARTS * policy.summary_input_max_chars:
            return reading
    return None


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
