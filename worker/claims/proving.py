"""Proving: the lines of a summary held against the originals that they cite, whoever wrote it, before it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from compaction.claims.citations import (
    add_citations,
    copy_citations,
    makes_claim,
    normalize_citations,
    remove_empty_headings,
)
from compaction.claims.claim import count_claims
from compaction.claims.proof import prove
from compaction.pins.agreement import without_stated
from compaction.steps.runs import RunReason
from compaction.view import WRITTEN
from worker.masking import masked_summary
from worker.summarizers.base import SummaryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compaction.claims.claim import Claim, ProvedSummary
    from worker.summarizers.base import Summary, SummaryRequest

_NAMED_LINES: Final = 10
"""Lines that a corrective prompt names."""


class BorneOut(NamedTuple):
    """A text that still cites, and how many lines were left out of it."""

    text: str
    dropped: int = 0


def proved(summary: Summary, request: SummaryRequest) -> Summary:
    """Return a summary with its claims, and with references only where recall handles are on.

    Raises SummaryError where the policy refuses lines that nothing bears out, or none is left.
    """
    summary = masked_summary(summary, request)
    claims, text = summary.claims, summary.text
    through = summary.covers_through
    zone = [message for message in request.zone if through is None or message.seq <= through]
    if claims is None:
        proof = _proof(text, request._replace(zone=zone))
        if request.policy.unsupported_claims == "refuse" and proof.refusable:
            detail = f"unsupported_claims: {proof.refusable} of {len(proof.claims)} lines"
            raise SummaryError(RunReason.SUMMARY_REJECTED, detail, summary.spent)
        if not proof.claims and proof.counts.dropped:
            raise SummaryError(RunReason.SUMMARY_REJECTED, "unsupported_claims: no line is left", summary.spent)
        text, claims, counts = proof.text, proof.claims, proof.counts
    else:
        counts = count_claims(claims)
    text, claims, left_out = _in_force(text, claims, request)
    if request.policy.recall_handles:
        text = add_citations(text, claims)
    counts = counts._replace(dropped=counts.dropped + summary.dropped, gone=_gone(claims, request))
    return summary._replace(
        text=text,
        claims=claims,
        dropped=counts.dropped,
        notes=(*summary.notes, str(counts), *left_out),
        read_through=max((message.seq for message in zone), default=WRITTEN),
    )


def attributed(summary: Summary, request: SummaryRequest, previous: str | None) -> Summary:
    """Return a summary whose text has to stay as it is, with its claims.

    `previous` is the summary before it. Raises SummaryError where the policy refuses lines that nothing bears out;
    where it drops them they are marked.
    """
    handling = request.policy.unsupported_claims
    policy = msgspec.structs.replace(
        request.policy, recall_handles=False, unsupported_claims="mark" if handling == "drop" else handling
    )
    return proved(summary, request._replace(policy=policy, previous=previous, withdrawn=()))._replace(text=summary.text)


def _in_force(
    text: str, claims: tuple[Claim, ...], request: SummaryRequest
) -> tuple[str, tuple[Claim, ...], tuple[str, ...]]:
    """Return a summary that does not state rules which were withdrawn, and what a step says of that."""
    if not request.withdrawn:
        return text, claims, ()
    lines = text.split("\n")
    changed = {
        line: rest for line in lines if makes_claim(line) and (rest := without_stated(line, request.withdrawn)) != line
    }
    kept = remove_empty_headings([changed.get(line, line) or (None if line in changed else line) for line in lines])
    if not changed or not any(map(makes_claim, kept)):
        return text, claims, ()
    rests = {line.strip(): rest.strip() for line, rest in changed.items()}
    told = [msgspec.structs.replace(claim, text=rests.get(claim.text, claim.text)) for claim in claims]
    count = "1 line" if len(changed) == 1 else f"{len(changed)} lines"
    return "\n".join(kept), tuple(claim for claim in told if claim.text), (f"withdrawn rules: left out of {count}",)


def _gone(claims: Sequence[Claim], request: SummaryRequest) -> int:
    """Return how many lines that were marked before are not there any more, as the policy has none of them now."""
    if request.policy.unsupported_claims == "mark" or request.previous is None:
        return 0
    kept = {claim.text for claim in claims}
    return sum(claim.support == "unsupported" and claim.text not in kept for claim in request.claims or ())


def borne_out(text: str, request: SummaryRequest) -> BorneOut:
    """Return a text without the lines that nothing bears out, where the policy drops them."""
    if request.policy.unsupported_claims != "drop":
        return BorneOut(text)
    # The lines that stay are found again by their words: what the proof reads as a citation may not count as such.
    seqs = {message.seq for message in request.zone}.union(*(claim.seqs for claim in request.claims or ()))
    draft = normalize_citations(text, seqs)
    proof = _proof(draft, request)
    return BorneOut(copy_citations(proof.text, draft), proof.counts.dropped)


def objections_to(text: str, request: SummaryRequest) -> list[str]:
    """Return what a corrective prompt says of lines that nothing bears out, where the policy refuses them."""
    if request.policy.unsupported_claims != "refuse":
        return []
    proof = _proof(text, request)
    lines = [claim.text for claim in proof.claims if claim.support == "unsupported"][:_NAMED_LINES]
    if not proof.refusable:
        return []
    return [f"No message bears these lines out, cite those that do or leave them out: {' / '.join(lines)}"]


def _proof(text: str, request: SummaryRequest) -> ProvedSummary:
    named_none = request.claims is None and request.previous is not None
    return prove(
        text,
        request.zone,
        earlier=(request.claims if request.previous is not None else None) or (),
        unsourced=request.previous if named_none else request.unsourced,
        times=request.times,
        names=request.names,
        beside=request.other_texts,
        handling=request.policy.unsupported_claims,
    )
