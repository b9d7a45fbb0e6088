"""The summary step of `anthropic-native`: the API's own summary takes the place of what it was made from."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from compaction.steps import steps
from compaction.steps.runs import RunReason
from compaction.summary.zone import is_signed_alone
from compaction.view import signed_summary
from worker.claims.proving import attributed
from worker.masking import without_secrets
from worker.runs.summarizing import spend
from worker.summarizers.base import Summary
from worker.summarizers.paying import pay

if TYPE_CHECKING:
    from collections.abc import Callable

    from compaction.steps.ladder import Result
    from worker.runs.journal import Reading
    from worker.runs.summarizing import Summarizing
    from worker.summarizers.native import AnthropicNative, SignedSummary


class NativeStep:
    """A way to summaries; `make_native` is called when the first is made."""

    def __init__(self, make_native: Callable[[], AnthropicNative]) -> None:
        self._make_native = make_native

    @cached_property
    def native(self) -> AnthropicNative:
        """The API, by the settings of this installation."""
        return self._make_native()

    def step(self, summarizing: Summarizing, now: Reading) -> Result | None:
        """Put the API's own summary into the place of what it was made from. Raises SummaryError, StoppingError.

        None where it has a credential: a signed text cannot be masked, so that another has to be written.
        """
        journal, policy = summarizing.journal, summarizing.lease.policy
        native = self.native.chosen_by(policy)
        now = now._replace(stage=steps.pin_first_request(now.stage))
        stage = now.stage
        sent = journal.sent_fields()
        model = sent.model or native.model
        record = summarizing.record(stage)._replace(summarizer=native.name, model=model)
        zone = steps.find_prefix(stage, policy)
        if isinstance(zone, str):
            return journal.skip(record, zone)
        beginning, most = stage.view[: zone.stop], policy.summary_max_tokens
        tokens = (stage.estimate(beginning) + stage.fixed_tokens, most)

        request = summarizing.request(stage, zone, policy)
        block = signed_summary(stage.view)
        if block is not None and request.claims is not None and not is_signed_alone(stage.view):
            # The snapshot's claims are those of the summary by text after it.
            own = journal.claims_of_summary(str(block["content"]))
            request = request._replace(claims=(*(own or ()), *request.claims))

        system, tools, masker = sent.system, sent.tools, request.masker
        if masker is not None:
            system, tools = masker.mask_value(system), masker.mask_value(tools)
            beginning = without_secrets(beginning, masker)

        def sign() -> SignedSummary:
            return native.sign(beginning, model, system, tools, max_tokens=most, wishes=request.instructions)

        def make() -> tuple[SignedSummary, Summary]:
            signed = pay(summarizing.purse, model, tokens, sign)
            text = Summary(str(signed.block["content"]), model, signed.prompt_version, signed.spent)
            return signed, attributed(text, request, stage.working.snapshot.summary)

        signed, summary = summarizing.answer(make, record)
        record = record._replace(prompt_version=signed.prompt_version)
        written = str(signed.block["content"])
        if request.without_secrets(written) != written:
            journal.skip(spend(record, signed.spent), RunReason.SUMMARY_REJECTED)
            return None
        outcome = steps.replace_prefix(
            stage, zone, signed.block, policy, summary.claims, read_through=summary.read_through
        )
        outcome = outcome._replace(detail="; ".join([outcome.detail or "", *summary.notes]))
        return summarizing.commit(now, outcome, record, signed.spent)
