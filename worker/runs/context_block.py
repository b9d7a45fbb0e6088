"""Summarizing a large context block, map-reduce and out of band; before that, and if it fails, its outline is used.

A run of its own for each text, under a lease like any other: no transaction is open while a model is asked, and what
is written at the end counts only while the lease is held. Without a model (the summarizers `extractive` and `none`) the
run is skipped: the outline already is what can be had without one.
"""

from __future__ import annotations

import time
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final, Literal

import structlog
from sqlalchemy.exc import NoResultFound

from compaction.credentials.masking import Masker
from compaction.payload import block_summary
from compaction.payload.assembly import blocks_tokens
from compaction.steps.runs import RunReason, RunState, StepState
from compaction.text.outline import ContextBlock
from compaction.tokens import content_tokens
from store.conversations import context_blocks, conversations
from store.runs import runs, waiting_summaries
from worker.masking import masked_note
from worker.metrics import METRICS
from worker.runs.resources import StoppingError
from worker.runs.summarizing import spend
from worker.runs.transactions import RunLostError
from worker.summarizers.base import SummaryError, chosen_by
from worker.summarizers.parallel import all_answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from store.conversations.context_blocks import BlockText
    from store.runs.runs import Lease, StepRecord
    from worker.runs.resources import RunResources
    from worker.summarizers.base import Answer, Model

log = structlog.get_logger()

PARALLEL: Final = 4
"""Parts of one block that the model is asked about at the same time."""


class BlockSummary:
    """One attempt at one run."""

    def __init__(self, resources: RunResources, lease: Lease) -> None:
        self._resources = resources
        self._lease = lease
        self._purse = resources.purse(lease)
        self._given_up = Event()
        self._paid = False
        """Whether anything was asked."""
        self._masker = Masker()

    def run(self) -> None:
        """Summarize the block, unless that is done, not wanted any more, or not possible here."""
        assert self._lease.block_id is not None  # noqa: S101 - that is what makes it a run for a block
        try:
            with self._resources.database.transaction(self._lease.tenant_id) as connection:
                block = context_blocks.material(connection, self._lease.block_id)
        except NoResultFound:
            raise RunLostError(RunReason.ERASED) from None  # Nothing else removes a block.
        if block.summary is not None or not block.wanted:
            return self._end(
                block, RunState.SKIPPED, RunReason.SUPERSEDED if block.summary is None else RunReason.ALREADY_SUMMARIZED
            )
        model = self._resources.model
        if model is None:
            return self._end(block, RunState.SKIPPED, RunReason.OUTLINE_STANDS)
        try:
            summary = self._wait(block, chosen_by(model, self._lease.policy))
        except SummaryError as error:
            if error.code == RunReason.BUDGET_SPENT:
                return self._end(block, RunState.SKIPPED, RunReason.BUDGET_SPENT)
            log.warning("context_block.failed", reason=error.code, detail=error.detail)
            return self._end(block, RunState.FAILED, RunReason.OUTLINE_STANDS, error=str(error))
        METRICS.masked(self._masker.counts)
        return self._end(block, RunState.COMMITTED, None, summary=block_summary.add_note(summary, block.text))

    def _wait(self, block: BlockText, model: Model) -> str:
        """Return the summary; the lease is kept alive meanwhile, and nothing more is asked once it is given up."""
        try:
            return self._resources.wait(lambda: self._summarize(block, model), self._lease)
        finally:
            self._given_up.set()

    def _summarize(self, block: BlockText, model: Model) -> str:
        policy = self._lease.policy
        masks = policy.secrets == "mask"
        source, title, text = (
            self._masker.mask_text(each, block.seq) if masks else each
            for each in (block.source, block.title, block.text)
        )
        parts = block_summary.split(text, policy, model.context_tokens)
        prompts = [
            block_summary.part_prompt(source, title, part, number, len(parts), policy)
            for number, part in enumerate(parts, start=1)
        ]
        texts = self._ask_all(model, "part", parts, prompts)
        # What a summary does not make shorter stays as it is.
        texts = [min(text, part, key=len) for text, part in zip(texts, parts, strict=True)]
        while len(texts) > 1:
            most = block_summary.part_chars("".join(texts), policy, model.context_tokens)
            grouped = block_summary.groups(texts, most)
            prompts = [block_summary.merge_prompt(source, title, group, policy) for group in grouped]
            texts = self._ask_all(model, "merge", ["\n".join(group) for group in grouped], prompts)
        if not block_summary.is_shorter(texts[0], block.text):
            raise SummaryError(RunReason.NOT_SMALLER, "the summary is not shorter than the block")
        return texts[0]

    def _ask_all(
        self, model: Model, name: Literal["part", "merge"], texts: Sequence[str], prompts: Sequence[str]
    ) -> list[str]:
        total = len(texts)
        masked = masked_note(self._masker.counts)
        calls = [
            partial(
                self._ask, model, prompt, name, text, "; ".join((f"{name.capitalize()} {number} of {total}", *masked))
            )
            for number, (text, prompt) in enumerate(zip(texts, prompts, strict=True), start=1)
        ]
        answers = all_answers(calls, lambda call: call(), threads=PARALLEL, stop=self._given_up)
        if answers is None:
            raise StoppingError
        return answers

    def _ask(self, model: Model, prompt: str, name: str, text: str, detail: str) -> str:
        """Return the model's answer, with a step written down of what it came to."""
        started = time.monotonic()
        step = runs.StepRecord(
            name=name,
            state=StepState.COMMITTED,
            tokens_before=content_tokens(text),
            tokens_after=content_tokens(text),
            messages_before=0,
            messages_after=0,
            duration_ms=0,
            detail=detail,
            summarizer=model.name,
            model=model.model,
            prompt_version=block_summary.PROMPT_VERSION,
        )
        most = self._lease.policy.summary_max_tokens
        payment = self._purse.reserve(model.model, content_tokens(prompt), most)
        self._paid = True
        try:
            answer = ask(model, prompt, most)
        except SummaryError as error:
            failed = step._replace(state=StepState.FAILED, reason=error.code, error=error.detail)
            self._write(spend(failed, error.spent), started)
            raise
        else:
            self._write(spend(step._replace(tokens_after=content_tokens(answer.text)), answer.spent), started)
        finally:
            payment.recorded()
        text = answer.text.strip()
        return self._masker.mask_known(text) if self._lease.policy.secrets == "mask" else text

    def _write(self, step: StepRecord, started: float) -> None:
        step = step._replace(duration_ms=round((time.monotonic() - started) * 1000))
        with self._resources.database.transaction(self._lease.tenant_id) as connection:
            runs.add_step(connection, self._lease, step)
        METRICS.step_recorded(step)

    def _end(
        self,
        block: BlockText,
        state: RunState,
        reason: str | None,
        *,
        summary: str | None = None,
        error: str | None = None,
    ) -> None:
        """Close the run; with a summary, in the transaction that stores it."""
        lease, block_id = self._lease, self._lease.block_id
        assert block_id is not None  # noqa: S101 - see above
        tokens = block.tokens
        if summary is not None:
            tokens = blocks_tokens([ContextBlock(block.source, block.title, summary)])

        def write(connection: Connection) -> None:
            # Conversation before block and run, as everywhere: an erasure takes them in this order.
            conversations.lock(connection, lease.conversation_id)
            if summary is not None:
                context_blocks.set_summary(connection, block_id, summary)
            # One that takes more than a day's budget would take all of it every day.
            if reason == RunReason.BUDGET_SPENT and not (
                self._paid and waiting_summaries.has_waited(connection, block_id)
            ):
                waiting_summaries.remember(connection, lease, None)
            if not runs.end(connection, lease, state, reason, error, tokens=(block.tokens, tokens)):
                raise RunLostError(RunReason.LEASE_LOST)

        self._resources.database.insist(lease.tenant_id, write)
        METRICS.run_ended(state, reason)
        log.info("run.ended", state=state, reason=reason, trigger=lease.trigger)


def ask(model: Model, prompt: str, max_tokens: int) -> Answer:
    """Return a whole answer with text; raise SummaryError where there is none."""
    try:
        answer = model.ask(block_summary.SYSTEM_PROMPT, prompt, max_tokens=max_tokens)
    except SummaryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a model, the outline is used
        raise SummaryError(RunReason.MODEL_ERROR, type(error).__name__) from None
    if answer.stop_reason == "max_tokens":
        raise SummaryError(RunReason.SUMMARY_CUT, "the summary reached its token limit", answer.spent)
    if not answer.text.strip():
        raise SummaryError(RunReason.EMPTY_SUMMARY, "the model answered without text", answer.spent)
    return answer
