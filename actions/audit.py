"""What was stored and what became of it: originals with their lineage, what a snapshot changed, how versions differ."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import msgspec

from actions.errors import InvalidError, or_not_found
from actions.types.comparisons import (
    BisectOut,
    ComparedContext,
    ComparisonOut,
    DifferencesOut,
    FateOut,
    LossOut,
    OnlyClaims,
    OnlySeqs,
    OnlyTexts,
)
from actions.types.core import Lineage, MessageOut, RulesOut, message_out
from actions.types.snapshots import ChangeOut, ClaimOut, ClaimsOut, DiffOut
from compaction.comparison.versions import difference, only_in
from compaction.coverage import Coverage, changes, find_span
from compaction.frames.codes import frame_code
from compaction.pins.pinned import masked_pins
from compaction.pins.serving import check, fit_with_rules, reading_bytes
from compaction.shapes import serving
from compaction.shorten.fitting import fit_history
from compaction.steps.snapshot import build
from runtime import ids
from runtime.threads import run_aside
from store.conversations import comparisons, conversations, messages, pins, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from actions.caller import Caller
    from actions.types.comparisons import ComparisonIn
    from compaction.claims.claim import Claim
    from compaction.pins.pinned import Pin
    from compaction.policy import Policy
    from compaction.view import View
    from store.conversations.comparisons import AtVersion, SentBefore
    from store.tables import AnyRow


def message_with_lineage(connection: Connection, tenant_id: UUID, conversation_id: UUID, seq: int) -> MessageOut:
    """Return an original and everything that compaction did to it; raise the problem that there is no such message."""
    row = or_not_found(messages.get(connection, tenant_id, conversation_id, seq))
    lineage = lineage_of(seq, snapshots.chain(connection, tenant_id, conversation_id))
    fate = lineage[-1].fate if lineage else "kept"
    return message_out(row, fate="superseded" if row.superseded_at else fate, lineage=lineage)


def lineage_of(seq: int, chain: Sequence[AnyRow]) -> list[Lineage]:
    """Return each change of a message's fate along a chain of snapshots, oldest first.

    One that covers less than those before it, as a restore makes it, shows the message as it came again.
    """
    lineage: list[Lineage] = []
    for snapshot in chain:
        span = find_span(msgspec.convert(snapshot.coverage, Coverage), seq)
        fate = "kept" if span is None else span.fate
        if fate != (lineage[-1].fate if lineage else "kept"):
            run = ids.external("run", snapshot.run_id) if span is None else ids.external_text("run", span.run_id)
            lineage.append(Lineage(fate, snapshot.version, run))
    return lineage


def snapshot_claims(connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int) -> ClaimsOut:
    """Return what the lines of a snapshot's summary rest on; raise the problem that there is no such version."""
    row = or_not_found(snapshots.get(connection, tenant_id, conversation_id, version))
    claims = snapshots.claims_of(row) or ()
    return ClaimsOut([_claim_out(claim) for claim in claims])


def snapshot_changes(connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int) -> DiffOut:
    """Return what a snapshot changed against its parent; raise the problem that there is no such version."""
    row = or_not_found(snapshots.get(connection, tenant_id, conversation_id, version))
    parent = snapshots.get(connection, tenant_id, conversation_id, row.parent_version)
    before = snapshots.weigh_tail(
        connection,
        conversation_id,
        after=parent.covers_through if parent else -1,
        through=row.covers_through,
    )
    spans = changes(
        msgspec.convert(parent.coverage, Coverage) if parent else (), msgspec.convert(row.coverage, Coverage)
    )
    return DiffOut(
        version=version,
        parent_version=row.parent_version,
        changes=[
            ChangeOut(first, last, old, new.fate, ids.external_text("run", new.run_id))
            for first, last, old, new in spans
        ],
        messages_before=(parent.message_count if parent else 0) + before.messages,
        messages_after=row.message_count,
        tokens_before=(parent.tokens if parent else 0) + before.tokens,
        tokens_after=row.tokens,
        summary_before=parent.summary if parent else None,
        summary_after=row.summary,
    )


class CallWeight(NamedTuple):
    """What a conversation's calls weigh beside its messages, and by what estimates of these are multiplied."""

    ratio: float
    fixed: int


async def compare(caller: Caller, conversation_id: UUID, wanted: ComparisonIn) -> ComparisonOut:
    """Return one turn's context under two versions; raise the problem that one is not there, or is of later turns."""
    row, sent, rules, sides = await caller.run(_sides, conversation_id, wanted)
    ratio = sent.token_ratio
    fixed = math.ceil((row.fixed_tokens - row.carried_tokens) * ratio) + row.unstored_tokens
    policy = caller.principal.policy_for(row.policy, row.model).reserving(row.requested_output)
    size = sum(len(original.content) for side in sides for original in side.tail)
    size += reading_bytes((rule.text for rule in rules), size)
    weight, code = CallWeight(ratio, fixed), frame_code(caller.tenant_id, conversation_id)
    async with caller.services.search_slots.acquire(caller.tenant_id):
        rendered = [await run_aside(size, _render, side, rules, weight, policy, sent, code) for side in sides]
        apart = await run_aside(size, difference, *(view for _, view in rendered))
    contexts = [context for context, _ in rendered]
    of_rules = only_in(contexts[0].rules.ids, contexts[1].rules.ids)
    return ComparisonOut(
        wanted.seq,
        contexts,
        DifferencesOut(
            OnlySeqs(list(apart.seqs.first), list(apart.seqs.second)),
            OnlyTexts(list(of_rules.first), list(of_rules.second)),
            OnlyTexts(list(apart.values.first), list(apart.values.second)),
            _claims_apart(sides[0].claims, sides[1].claims),
        ),
    )


def _claims_apart(first: Sequence[Claim] | None, second: Sequence[Claim] | None) -> OnlyClaims | None:
    if first is None or second is None:
        return None
    apart = only_in(first, second)
    return OnlyClaims([_claim_out(claim) for claim in apart.first], [_claim_out(claim) for claim in apart.second])


def _claim_out(claim: Claim) -> ClaimOut:
    return ClaimOut(claim.text, list(claim.seqs), claim.support)


def _sides(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, wanted: ComparisonIn
) -> tuple[AnyRow, SentBefore, Sequence[Pin], Sequence[AtVersion]]:
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id))
    if wanted.seq >= row.next_seq:
        newest = f"The newest message has the seq {row.next_seq - 1}." if row.next_seq else "It has no message yet."
        raise InvalidError(newest, "/seq")
    sides = []
    for place, version in enumerate(wanted.versions):
        side = comparisons.at_version(connection, tenant_id, conversation_id, version, wanted.seq)
        if side is None:
            raise InvalidError("There is no such version of this conversation.", f"/versions/{place}")
        if side.snapshot.covers_through > wanted.seq:
            covers = side.snapshot.covers_through
            raise InvalidError(f"Version {version} covers messages up to {covers}: it is of later turns.", "/seq")
        sides.append(side)
    # In the order of their messages, as contexts name them.
    in_force = pins.in_force(connection, tenant_id, conversation_id, through=wanted.seq)
    rules = sorted(in_force, key=lambda rule: (rule.seq, rule.id))
    sent = comparisons.sent_before(connection, conversation_id)
    return row, sent, [rule._replace(id=ids.external("rule", UUID(rule.id))) for rule in rules], sides


def _render(
    side: AtVersion, rules: Sequence[Pin], weight: CallWeight, policy: Policy, sent: SentBefore, code: str
) -> tuple[ComparedContext, View]:
    """Return a context as it would be served, with the ratio and the system prompt of now."""
    is_head = side.snapshot.version == sent.head_version
    # What was thought before a snapshot came was signed for another prefix.
    stripped_through = sent.strip_thinking_through if is_head else side.came_before
    working = build(
        side.snapshot,
        side.tail,
        policy,
        strip_thinking_through=stripped_through,
        other_model_through=sent.other_model_through,
        frame_code=code,
    )
    fit = partial(
        fit_history,
        working.view,
        weigh=lambda message: message.tokens * weight.ratio,
        carries_summary=side.snapshot.summary is not None or bool(side.snapshot.pins),
        handles=working.handles,
    )
    room = policy.context_limit_tokens - weight.fixed
    shown = masked_pins(rules, policy)
    fitted = fit_with_rules(
        fit,
        room,
        working.view,
        shown,
        factor=weight.ratio,
        max_tokens=policy.pinned_max_tokens,
        frame_language=policy.frame_language,
        frame_code=working.frame_code,
    )
    messages = serving.as_messages(fitted.view, in_pieces=sent.in_pieces)
    stand = check(msgspec.json.encode(messages), rules, shown)
    context = ComparedContext(
        version=side.snapshot.version,
        covers_through=side.snapshot.covers_through,
        tokens=fitted.tokens + weight.fixed,
        messages=messages,
        rules=RulesOut([rule.id for rule in stand.standing], stand.sha256),
    )
    return context, fitted.view


def bisect(connection: Connection, tenant_id: UUID, conversation_id: UUID, text: str) -> BisectOut:
    """Return where a text was said, and what took it out of the context."""
    traced = comparisons.trace(connection, tenant_id, conversation_id, text)
    lost = traced.loss
    loss = lost and LossOut(
        version=lost.version,
        parent_version=lost.parent_version,
        run_id=ids.external("run", lost.run_id),
        trigger=lost.run.trigger if lost.run else None,
        step=lost.step.name if lost.step else None,
        detail=lost.step.detail if lost.step else None,
        summarizer=lost.step.summarizer if lost.step else None,
        messages=[FateOut(seq, fate) for seq, fate in lost.fates],
        back_in=lost.back_in,
    )
    return BisectOut(list(traced.seqs), traced.is_in_context, list(traced.looked_in), loss)
