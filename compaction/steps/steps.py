"""The steps of the ladder as functions: each returns what it makes of a stage, or the reason why it makes nothing.

`catalogue.py` declares which step uses which of them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from compaction.credentials.masking import Masker
from compaction.frames.wordings import in_english, translated
from compaction.media.limits import limits_of
from compaction.media.shedding import media_notes, shed_media, without_media
from compaction.pins.pinned import latest_request_pin
from compaction.shorten.fitting import fit_history, newest_media, without_oldest_media
from compaction.shorten.pruning import PrunedView, prune
from compaction.shorten.strategies import StrategyError, shorten
from compaction.shorten.tool_results import cut_tool_results, diagnostic
from compaction.shorten.trimming import drop_oldest
from compaction.steps.ladder import saves_enough
from compaction.steps.runs import RunReason
from compaction.steps.snapshot import counted_bytes, settle
from compaction.summary import zone as summaries
from compaction.view import WRITTEN, ViewMessage, cut_seqs, with_own_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from compaction.claims.claim import Claim
    from compaction.pins.pinned import Pin
    from compaction.policy import Policy
    from compaction.shorten.strategies import ExtraStrategy
    from compaction.steps.snapshot import NewSnapshot
    from compaction.steps.stage import Stage
    from compaction.summary.zone import Zone
    from compaction.view import View


class StepOutcome(NamedTuple):
    """What a step makes of a view.

    `reason` says why it is not worth a snapshot, None that it is. `truncated` are seqs of messages that were cut,
    `removed` is the fate of those that are gone, `pins` are those in the frame of the view.
    """

    view: View
    reason: str | None = None
    detail: str | None = None
    truncated: tuple[int, ...] = ()
    removed: Literal["summarized", "dropped"] = "dropped"
    summary: str | None = None
    results_cut: int | None = None
    pins: tuple[Pin, ...] = ()
    claims: tuple[Claim, ...] | None = None
    """What the lines of `summary` rest on."""
    read_through: int = WRITTEN
    """Seq of the newest message that `summary` was made from."""

    def settle(self, stage: Stage, run_id: str) -> NewSnapshot:
        """Return the snapshot to write for it."""
        return settle(
            stage.working,
            self.view,
            run_id=run_id,
            truncated=self.truncated,
            removed=self.removed,
            summary=self.summary,
            claims=self.claims,
            pins=self.pins,
            read_through=self.read_through,
        )


class StepOptions(NamedTuple):
    """What a step is told besides the stage and the policy; each step uses what concerns it."""

    by_hand: bool = False
    """Whether somebody asked for this step: then shares of the window do not matter."""
    through: int | None = None
    """Seq of the newest message when a summary was asked for. Later ones are left to the next summary."""
    start: int = 0
    """Index of the first message whose tool results may be cut."""
    strategies: tuple[str, ...] = ()
    """Names of the installed strategies to apply."""
    load: Callable[[str], ExtraStrategy | None] = lambda _name: None
    """Returns an installed strategy by its name."""


NO_OPTIONS: Final = StepOptions()


def apply_strategies(stage: Stage, policy: Policy, options: StepOptions) -> StepOutcome:
    """Return what installed strategies make of a stage, one after another; one that fails changes nothing."""
    view = stage.view
    changed: set[int] = set()
    details: list[str] = []
    failed = 0
    for name in options.strategies:
        try:
            shortened = shorten(view, options.load(name), policy, carries_summary=stage.carries_summary)
        except StrategyError as error:
            details.append(f"{name} failed: {error}")
            failed += 1
            continue
        view = shortened.view
        changed.update(shortened.changed)
        details.append(f"{name} shortened {len(shortened.changed)} and left out {len(shortened.dropped)} message(s)")
    changed &= {message.seq for message in view}
    reason = None if view != stage.view else RunReason.STRATEGY_FAILED if failed else RunReason.NOTHING_TO_SHORTEN
    return _if_worth_it(StepOutcome(view, reason, "; ".join(details), tuple(sorted(changed))), stage, policy)


def find_zone(stage: Stage, policy: Policy, protected_tail: int | None = None) -> Zone | str:
    """Return the zone that a summary would replace, or the reason why none is made.

    `protected_tail` are stored messages, those of the policy where it is left out.
    """
    tail = stage.protected_tail(policy) if protected_tail is None else protected_tail
    zone = summaries.find_zone(stage.view, tail, in_pieces=stage.working.in_pieces)
    if zone is None:
        return RunReason.ZONE_TOO_SMALL
    opening = stage.view[: zone.start]
    media = stage.estimate(opening) - stage.estimate(tuple(map(without_media, opening)))
    if media + stage.estimate(stage.view[zone.start : zone.stop]) < policy.min_savings_tokens:
        return RunReason.NOT_SMALLER
    return zone


def find_prefix(stage: Stage, policy: Policy) -> Zone | str:
    """Return the messages that the API's own summary would replace, or the reason why none is made."""
    zone = summaries.find_prefix(stage.view, stage.protected_tail(policy), in_pieces=stage.working.in_pieces)
    if zone is None:
        return RunReason.ZONE_TOO_SMALL
    if stage.estimate(stage.view[zone.start : zone.stop]) < policy.min_savings_tokens:
        return RunReason.NOT_SMALLER
    return zone


def covered(stage: Stage, zone: Zone, through: int | None) -> Zone:
    """Return the part of a zone that a summary of its messages up to the one with seq `through` covers; None is all."""
    last = stage.view[zone.stop - 1].seq
    if through is None or through >= last:
        return zone
    view = stage.view
    # Results without a place may come before everything that the view shows.
    tail = next((n for n, message in enumerate(reversed(view)) if message.seq <= through), len(view))
    part = summaries.find_zone(stage.view, tail, in_pieces=stage.working.in_pieces)
    return part or zone._replace(stop=zone.start)


def summarize(
    stage: Stage,
    zone: Zone,
    text: str,
    policy: Policy,
    claims: tuple[Claim, ...] | None = None,
    *,
    read_through: int = WRITTEN,
) -> StepOutcome:
    """Return the view with `text` in the place of the zone.

    `claims` are what its lines rest on, `read_through` is the seq of the newest message that it was made from.
    """
    previous = stage.working.snapshot.summary
    notes = _media_notes(stage, stage.view[zone.start : zone.stop])
    listed = summaries.earlier_media(stage.view) or (previous and in_english(previous))
    text = summaries.with_media_list(in_english(text), notes, listed)
    language, code = stage.working.language, stage.working.frame_code
    text = translated(text, language)
    rebuilt = summaries.rebuild(stage.view, zone, text, previous=previous, code=code, language=language)
    detail = f"Summarized {zone.stop - zone.start} messages; {threshold_note(stage, policy)}"
    lost_media = tuple(message.seq for message in stage.view[: zone.start] if without_media(message) is not message)
    outcome = StepOutcome(rebuilt, None, detail, lost_media, removed="summarized", summary=text)
    return _if_worth_it(outcome._replace(claims=claims, read_through=read_through), stage, policy)


def _media_notes(stage: Stage, view: View) -> list[str]:
    """Return the notes of a view's media, credentials in their names and URLs masked as the policy has it."""
    masker = Masker() if stage.working.masks_secrets else None
    return [
        note if masker is None else masker.mask_text(note, message.seq)
        for message in view
        for note in media_notes((message,))
    ]


def pin_first_request(stage: Stage) -> Stage:
    """Return the stage with what the first message asks among its pins, where nothing was asked after it.

    A summary by text leaves that message where it is; the API's own takes its place as well.
    """
    working = stage.working
    if not stage.view or stage.view[0].seq == WRITTEN or any(pin.source == "latest_request" for pin in working.pins):
        return stage
    first = stage.view[0]
    if working.snapshot.summary is not None:
        first = summaries.without_summary(first, working.snapshot.summary)
    asked = latest_request_pin((ViewMessage("assistant", ""), first))
    return stage if asked is None else replace(stage, working=working._replace(pins=(*working.pins, asked)))


def replace_prefix(
    stage: Stage,
    zone: Zone,
    block: dict[str, Any],
    policy: Policy,
    claims: tuple[Claim, ...] | None = None,
    *,
    read_through: int = WRITTEN,
) -> StepOutcome:
    """Return the view with the API's own summary in the place of what it was made from; see `summarize`."""
    detail = f"Replaced {zone.stop} messages; {threshold_note(stage, policy)}"
    notes = _media_notes(stage, stage.view[: zone.stop])
    rebuilt = summaries.replace_prefix(stage.view, zone, block, notes, stage.working.language)
    outcome = StepOutcome(rebuilt, None, detail, removed="summarized", summary=block["content"])
    return _if_worth_it(outcome._replace(claims=claims, read_through=read_through), stage, policy)


def detail_of(outcome: StepOutcome, stage: Stage) -> str | None:
    """Return what is written down of a step's cause.

    Thresholds are held against the next call's input, the step's own tokens are those of the messages: where the two
    differ, both are named.
    """
    if outcome.detail is None or stage.load.input_tokens == stage.tokens:
        return outcome.detail
    return f"{outcome.detail}; its messages alone were estimated at {stage.tokens:,}"


def threshold_note(stage: Stage, policy: Policy) -> str:
    """Return what a summary's step says of its cause."""
    return f"Estimated {stage.load.input_tokens:,} tokens, threshold {policy.compaction_threshold_tokens:,}"


def cut_results(stage: Stage, policy: Policy, options: StepOptions) -> StepOutcome:
    """Return the view with older tool results cut; those in messages before the one at `options.start` stay."""
    view, handles = stage.view, stage.working.handles
    cut = cut_tool_results(
        view,
        policy.tool_result_retention_chars,
        handles,
        start=options.start,
        reads_html=policy.html_results == "text",
        whole=stage.working.whole,
    )
    outcome = StepOutcome(
        cut.view,
        None if cut.results else RunReason.NOTHING_TO_CUT,
        diagnostic(cut.results, stage.load.input_tokens, policy.input_token_budget),
        tuple([view[index].seq for index in cut.indices]),
        results_cut=cut.results,
    )
    return _if_worth_it(outcome, stage, policy)


def prune_results(stage: Stage, policy: Policy, options: StepOptions) -> StepOutcome:
    """Return the view with old tool results shortened, if they take too large a share of the window."""

    def attempt(min_freed_tokens: int) -> PrunedView:
        return prune(
            stage.view,
            window_tokens=policy.model_context_tokens,
            soft_share=0 if options.by_hand else policy.prune_soft_share,
            hard_share=policy.prune_hard_share,
            head_chars=policy.prune_head_chars,
            tail_chars=policy.prune_tail_chars,
            min_freed_tokens=min_freed_tokens,
            allow=policy.prune_allow,
            deny=policy.prune_deny,
            handles=stage.working.handles,
        )

    least = policy.min_savings_tokens if options.by_hand else policy.prune_min_freed_tokens
    pruned = attempt(least)
    if not pruned.seqs:
        possible = attempt(0).freed_tokens
        detail = f"Pruning would free {possible:,} tokens; at least {least:,} are worth it" if possible else None
        return StepOutcome(stage.view, RunReason.NOT_SMALLER if possible else RunReason.NOTHING_TO_PRUNE, detail)
    detail = (
        f"Pruned {pruned.softened + pruned.cleared:,} old tool result(s): {pruned.softened:,} softened to head and "
        f"tail, {pruned.cleared:,} cleared, {pruned.freed_tokens:,} tokens freed"
    )
    outcome = StepOutcome(pruned.view, None, detail, pruned.seqs, results_cut=pruned.softened + pruned.cleared)
    return _if_worth_it(outcome, stage, policy)


def replace_oldest_media(stage: Stage, policy: Policy, _options: StepOptions) -> StepOutcome:
    """Replace the oldest media, as many as the model's limits ask for.

    Where a summary is due and cannot be made, as many as its threshold asks for before the protected tail, and as many
    as the budget asks for in it.
    """
    shed = shed_media(stage.view, limits_of(policy))
    view, tokens = shed.view, stage.load.input_tokens
    if not shed.replaced and tokens > policy.compaction_threshold_tokens:
        beside = tokens - stage.tokens
        newest = newest_media(view)
        tail = range(len(view) - stage.protected_tail(policy), len(view))

        def size(message: ViewMessage) -> int:
            return math.ceil(message.tokens * stage.token_ratio)

        view = without_oldest_media(view, policy.compaction_threshold_tokens - beside, size, newest.union(tail))
        view = without_oldest_media(view, policy.context_limit_tokens - beside, size, newest)
    own = with_own_tail(stage.view, view)
    seqs = tuple(cut_seqs(stage.view, own))
    had = f"the context had {stage.media.images:,} images, {stage.media.document_pages:,} pages of documents"
    detail = f"Media of {len(seqs)} message(s) gave way to texts that name them; {had}, {stage.media.bytes:,} bytes"
    outcome = StepOutcome(own, None if seqs else RunReason.NOTHING_TO_DROP, detail, seqs)
    # Over a limit the next request is refused whatever it weighs.
    return with_frame(outcome, stage, policy) if shed.replaced else _if_worth_it(outcome, stage, policy)


def trim_bytes(stage: Stage, policy: Policy, _options: StepOptions) -> StepOutcome:
    """Return the view without its oldest exchanges, as few as it takes to come under the most bytes."""
    limit = policy.max_context_bytes
    # One less: each message counts a comma, and the brackets of the list take one more than that.
    fitted = fit_history(
        stage.view, limit - 1, counted_bytes, carries_summary=stage.carries_summary, handles=stage.working.handles
    )
    view = with_own_tail(stage.view, fitted.view)
    detail = f"Dropped {len(fitted.left_out)} of the oldest messages"
    if fitted.media_replaced:
        detail += f" and {fitted.media_replaced} image(s) or file(s)"
    if fitted.cut:
        detail += f" and the middle of {fitted.cut} long text(s)"
    reason = None
    if not (fitted.left_out or fitted.cut or fitted.opening_dropped or fitted.media_replaced):
        reason, detail = RunReason.NOTHING_TO_DROP, "Nothing to drop"
    outcome = StepOutcome(view, reason, f"{detail}; the limit is {limit:,} bytes", tuple(cut_seqs(stage.view, view)))
    return _if_worth_it(outcome, stage, policy)


def drop_oldest_exchanges(stage: Stage, policy: Policy, options: StepOptions) -> StepOutcome:
    """Return the view with the most messages that the policy allows; those after `options.through` stay besides."""
    limit = policy.max_conversation_messages
    cut = len(stage.view) - newer_messages(stage.view, options.through)
    trim = drop_oldest(
        stage.view[:cut],
        lambda count, _: count <= limit,
        carries_summary=stage.carries_summary,
        in_pieces=stage.working.in_pieces,
    )
    dropped = f"Dropped {len(trim.dropped)} of the oldest messages" if trim.dropped else "Nothing to drop"
    outcome = StepOutcome(
        (*trim.view, *stage.view[cut:]),
        None if trim.dropped else RunReason.NOTHING_TO_DROP,
        f"{dropped}; the limit is {limit:,} messages",
        tuple(stage.view[index].seq for index in trim.cut),
    )
    return _if_worth_it(outcome, stage, policy)


def newer_messages(view: Sequence[ViewMessage], through: int | None) -> int:
    """Return how many messages at the end of a view came after seq `through`; None for the newest."""
    return 0 if through is None else sum(1 for _ in takewhile(lambda message: message.seq > through, reversed(view)))


def with_frame(outcome: StepOutcome, stage: Stage, policy: Policy) -> StepOutcome:
    """Return what a step made with the pins that it does not show any more."""
    pinned = stage.pinned(outcome.view, policy, read_through=outcome.read_through)
    detail = outcome.detail
    if pinned.dropped:
        detail = f"{detail}; {len(pinned.dropped)} pinned text(s) found no room"
    return outcome._replace(view=pinned.view, pins=pinned.framed, detail=detail)


def _if_worth_it(outcome: StepOutcome, stage: Stage, policy: Policy) -> StepOutcome:
    if outcome.reason is not None:
        return outcome
    framed = with_frame(outcome, stage, policy)
    after = stage.estimate(framed.view)
    if not saves_enough(stage.tokens, after, policy):
        saved = max(0, stage.tokens - after)
        detail = f"It would save {saved:,} tokens; at least {max(1, policy.min_savings_tokens):,} are worth it"
        return outcome._replace(reason=RunReason.NOT_SMALLER, detail=detail)
    return framed
