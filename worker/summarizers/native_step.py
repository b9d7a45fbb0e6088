"""The summary step of `anthropic-native`: the API's own summary takes the place of what it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compaction.steps import steps
from compaction.steps.runs import RunReason
from compaction.summary.zone import is_signed_alone
from compaction.view import signed_summary
from worker.claims.proving import attributed
from worker.masking import without_secrets
from worker.runs.summarizing import spend
from worker.runs.transactions import MadeStep
from worker.summarizers.base import Summary
from worker.summarizers.paying import pay

if TYPE_CHECKING:
    from collections.abc import Callable

    from compaction.steps.catalogue import Step
    from worker.runs.summarizing import SummaryWriter
    from worker.runs.transactions import Reading
    from worker.summarizers.native import AnthropicNative, SignedSummary


def write_signed(
    native: Callable[[], AnthropicNative], writer: SummaryWriter, step: Step, now: Reading
) -> MadeStep | None:
    """Make the API's own summary in the place of what it was made from. Raises SummaryError, StoppingError.

    Returns None if it has a credential: a signed text cannot be masked, so that another has to be written.
    """
    transactions, policy = writer.transactions, writer.policy
    chosen = native().chosen_by(policy)
    now = now._replace(stage=steps.pin_first_request(now.stage))
    stage = now.stage
    sent = transactions.read_sent_fields()
    model = sent.model or chosen.model
    record = writer.record(step, stage)._replace(summarizer=chosen.name, model=model)
    zone = steps.find_prefix(stage, policy)
    if isinstance(zone, str):
        return MadeStep(now, steps.StepOutcome(stage.view, zone), record)
    beginning, most = stage.view[: zone.stop], policy.summary_max_tokens
    tokens = (stage.estimate(beginning) + stage.fixed_tokens, most)

    request = writer.request(stage, zone, policy)
    block = signed_summary(stage.view)
    if block is not None and request.claims is not None and not is_signed_alone(stage.view):
        # The snapshot's claims are those of the summary by text after it.
        own = transactions.claims_of_summary(str(block["content"]))
        request = request._replace(claims=(*(own or ()), *request.claims))

    system, tools, masker = sent.system, sent.tools, request.masker
    if masker is not None:
        system, tools = masker.mask_value(system), masker.mask_value(tools)
        beginning = without_secrets(beginning, masker)

    def sign() -> SignedSummary:
        return chosen.sign(beginning, model, system, tools, max_tokens=most, wishes=request.instructions)

    def make() -> tuple[SignedSummary, Summary]:
        signed = pay(writer.purse, model, tokens, sign)
        text = Summary(str(signed.block["content"]), model, signed.prompt_version, signed.spent)
        return signed, attributed(text, request, stage.working.snapshot.summary)

    signed, summary = writer.answer(make, record)
    record = record._replace(prompt_version=signed.prompt_version)
    written = str(signed.block["content"])
    if request.without_secrets(written) != written:
        transactions.skip(spend(record, signed.spent), RunReason.SUMMARY_REJECTED)
        return None
    outcome = steps.replace_prefix(stage, zone, signed.block, policy, summary.claims, read_through=summary.read_through)
    outcome = outcome._replace(detail="; ".join([outcome.detail or "", *summary.notes]))
    return writer.made(step, now, outcome, record, signed.spent)
