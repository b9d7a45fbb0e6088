"""Credentials on their way to a summarizer and back: masked in all that it is given, and in what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from compaction.credentials.masking import Masker
from compaction.messages import blocks, result_text_chars
from compaction.view import strip_thinking
from worker.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.claims.claim import Claim
    from compaction.policy import Policy
    from compaction.steps.stage import Stage
    from compaction.view import View, ViewMessage
    from worker.summarizers.base import Summary, SummaryRequest


def masked_request(request: SummaryRequest, stage: Stage) -> SummaryRequest:
    """Return a request about a zone of `stage` without credentials, unless its policy keeps them."""
    if request.policy.secrets == "keep":
        return request
    masker = Masker()
    uncut = _uncut(request.zone, stage, request.policy)
    zone = tuple(
        message.with_content(masker.mask_cut(message.content, uncut[message.seq], message.seq))
        if message.seq in uncut
        else masker.mask_message(message)
        for message in request.zone
    )
    request = request._replace(
        zone=zone,
        previous=request.previous and masker.mask_known(request.previous),
        instructions=request.instructions and masker.mask_known(request.instructions),
        pins=tuple(map(masker.mask_known, request.pins)),
        other_texts=tuple(map(masker.mask_known, request.other_texts)),
        claims=None if request.claims is None else masked_claims(request.claims, masker),
        unsourced=request.unsourced and masker.mask_known(request.unsourced),
        withdrawn=tuple(rule._replace(text=masker.mask_text(rule.text, rule.seq)) for rule in request.withdrawn),
        masker=masker,
    )
    # What stays as it is goes to no model; an extract only looks what it has.
    return request._replace(tail=Masker().mask_view(request.tail))


def without_secrets(view: View, masker: Masker) -> View:
    """Return messages without credentials, and without the thinking that was signed for these."""
    masked = masker.mask_view(view)
    changed = next((at for at, (now, was) in enumerate(zip(masked, view, strict=True)) if now is not was), None)
    return view if changed is None else strip_thinking(masked, max(message.seq for message in view), from_index=changed)


def masked_summary(summary: Summary, request: SummaryRequest) -> Summary:
    """Return a summary without credentials, and a note of how many were masked on its way."""
    masker = request.masker
    if masker is None:
        return summary
    claims = summary.claims and masked_claims(summary.claims, masker)
    METRICS.masked(masker.counts)
    summary = summary._replace(text=request.without_secrets(summary.text), claims=claims)
    return summary._replace(notes=(*summary.notes, *masked_note(masker.counts)))


def masked_claims(claims: Sequence[Claim], masker: Masker) -> tuple[Claim, ...]:
    """Return claims without credentials."""
    return tuple(msgspec.structs.replace(claim, text=masker.mask_known(claim.text)) for claim in claims)


def masked_note(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return what a step says of credentials that were masked, by their kinds; nothing where none were."""
    if not counts:
        return ()
    total = sum(counts.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return (f"{total} credential{'s' if total > 1 else ''} masked ({kinds})",)


def _uncut(zone: Sequence[ViewMessage], stage: Stage, policy: Policy) -> dict[int, Any]:
    """Return the contents as they came of messages that the view shows cut, by seq: a cut may halve a credential."""
    rows = {row.seq: row for row in stage.working.tail}
    return {
        message.seq: msgspec.json.decode(rows[message.seq].content)
        for message in zone
        if message.seq in rows and _may_be_cut(message, policy)
    }


def _may_be_cut(message: ViewMessage, policy: Policy) -> bool:
    if policy.inline_tool_tags:
        return True
    results = (block for block in blocks(message.content) if block.get("type") == "tool_result")
    return any(result_text_chars(block) >= policy.max_tool_result_chars for block in results)
