"""Whether what a run made becomes the head at once, or waits until that pays: a part of the worker that could go."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from compaction.cost.calls import NO_CACHE, ONE_HOUR, CallPrices
from compaction.cost.depth import choose_depth
from compaction.cost.survival import SurvivalCurve, share_of_pauses
from compaction.cost.swap import ExpectedCourse, Ground, SwapCandidate, decide_swap, is_worth_summary
from compaction.steps.catalogue import BEFORE_SUMMARY
from compaction.steps.runs import RunKind
from compaction.steps.steps import find_zone
from store.conversations import waiting
from worker.summarizers.prices import PriceTable, prices_of

if TYPE_CHECKING:
    from compaction.cost.swap import Bounds, Decision
    from compaction.policy import Policy
    from compaction.steps.catalogue import Step
    from compaction.steps.stage import Stage
    from compaction.steps.steps import StepOptions, StepOutcome
    from runtime.settings import Settings
    from store.conversations.waiting import Course
    from store.runs.runs import Lease
    from worker.database import Database

_MILLION: Final = 1_000_000


class SwapVerdict(NamedTuple):
    """What becomes of what a step made, and what its step says of that.

    It is put in force, or `waits` for a cache that lives `lifetime` seconds, or is `not_yet` worth having.
    """

    action: Literal["swaps", "waits", "not_yet"]
    lifetime: int
    note: str


class Swapping:
    """Decides by what calls cost. One object a process; safe to use from many threads."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database

    def verdict(
        self, lease: Lease, stage: Stage, step: Step, outcome: StepOutcome, bounds: Bounds
    ) -> SwapVerdict | None:
        """Return what becomes of what a step made; None where that is no question of price."""
        policy = lease.policy
        if policy.swap != "when_it_pays" or lease.kind is not RunKind.LADDER or not step.waits_until_it_pays:
            return None
        before, after = tokens_of(stage, outcome)
        if bounds.relieves_threshold(before, after):
            return SwapVerdict("swaps", 0, "at once: the context is over a threshold")
        course = self._course(lease)
        prices = self.prices(course.model, policy)
        ready = ready_of(stage, outcome, bounds, course)
        decision = decide_swap(ready, prices, _turns(course, prices))
        note = note_of(decision, prices, course)
        if decision.swaps or prices is None:
            return SwapVerdict("swaps", 0, note)
        if not bounds.are_exceeded(before):
            return SwapVerdict("waits", prices.lifetime, f"waits: {note}")
        if step in BEFORE_SUMMARY:
            return SwapVerdict("not_yet", prices.lifetime, f"not yet: {note}")
        return SwapVerdict("swaps", 0, f"at once: over a threshold; {note}")

    def choose_depth(
        self, lease: Lease, stage: Stage, step: Step, outcome: StepOutcome, options: StepOptions, bounds: Bounds
    ) -> StepOutcome:
        """Return a cut of tool results that leaves the first ones whole if cutting them costs more than it saves.

        `outcome` is the deepest cut. It stays if the cache is cold: then all is written anew anyway.
        """
        policy = lease.policy
        if policy.swap != "when_it_pays" or lease.kind is not RunKind.LADDER or step.depths is None or step.act is None:
            return outcome
        cuts = step.depths(stage, policy)
        course = self._course(lease)
        prices = self.prices(course.model, policy)
        if not cuts or course.is_broken or prices is None or prices.is_cold(course.quiet_seconds):
            return outcome
        turns = _turns(course, prices)
        choice = choose_depth(cuts, stage.load.input_tokens, bounds, prices, turns)
        if choice.depth is cuts[0]:
            return outcome
        shallower = step.act(stage, policy, options._replace(start=choice.depth.start))
        if shallower.reason is not None:
            return outcome
        whole = cuts.index(choice.depth)
        note = (
            f"{whole:,} older message(s) with results stay whole: spares ${choice.spares_usd:.4f} to write the prefix "
            f"anew, costs ${choice.costs_usd:.4f} over {turns:.0f} expected turns"
        )
        return shallower._replace(detail=f"{shallower.detail}; {note}")

    def is_worth_summary(self, lease: Lease, stage: Stage, model: str | None) -> tuple[bool, str]:
        """Tell whether a summary below the thresholds is worth what the `model` asks for it, and from what that is."""
        zone = find_zone(stage, lease.policy)
        if model is None or isinstance(zone, str):
            return True, ""
        written = min(lease.policy.summary_max_tokens, stage.estimate(stage.view[zone.start : zone.stop]))
        read = stage.estimate(stage.view[zone.start : zone.stop])
        usd = self._usd(model, lease.policy, read, written)
        course = self._course(lease)
        prices = self.prices(course.model, lease.policy)
        turns = SurvivalCurve(course.others).expected_turns(course.turns)
        expected = ExpectedCourse(turns, _pauses(course, prices))
        is_worth_it = usd is not None and is_worth_summary(read - written, prices, expected, usd)
        price = "at an unknown price" if usd is None else f"${usd:.4f}"
        return is_worth_it, f"a summary {price}, over {turns:.0f} expected turns"

    def _usd(self, model: str, policy: Policy, read: int, written: int) -> float | None:
        listed = prices_of(model, PriceTable.of(self._settings, policy))
        return None if listed is None else float(listed.input * read + listed.output * written) / _MILLION

    def _course(self, lease: Lease) -> Course:
        with self._database.transaction(lease.tenant_id) as connection:
            return waiting.course(connection, lease.tenant_id, lease.conversation_id)

    def prices(self, model: str | None, policy: Policy) -> CallPrices | None:
        """Return what a token costs in calls of a conversation's model, None where nobody knows."""
        return call_prices(model, policy, PriceTable.of(self._settings, policy))


def call_prices(model: str | None, policy: Policy, table: PriceTable) -> CallPrices | None:
    """Return what a token costs in calls of a conversation's model, by a table; None where nobody knows."""
    listed = prices_of(model, table) if model else None
    if listed is None:
        return None
    lifetime = policy.prompt_cache_seconds
    written = listed.cache_write_1h if lifetime >= ONE_HOUR else listed.cache_write_5m
    each = (listed.input, listed.output, listed.cache_read, written)
    per_input, per_output, read, write = (float(usd) / _MILLION for usd in each)
    return CallPrices(per_input, per_output, read, write, lifetime)


def tokens_of(stage: Stage, outcome: StepOutcome) -> tuple[int, int]:
    """Return the tokens of the next call without and with what a step made."""
    before = stage.load.input_tokens
    return before, max(0, before - stage.tokens + stage.estimate(outcome.view))


def ready_of(stage: Stage, outcome: StepOutcome, bounds: Bounds, course: Course) -> SwapCandidate:
    """Return what is decided from, in the tokens that the next call would have."""
    before, after = tokens_of(stage, outcome)
    return SwapCandidate(
        before=before,
        after=after,
        shared=stage.fixed_input + stage.shared(outcome.view),
        bounds=bounds,
        gap=course.quiet_seconds,
        is_broken=course.is_broken,
        since=course.since_head,
    )


def note_of(decision: Decision, prices: CallPrices | None, course: Course) -> str:
    """Return what a decision rests on, in words."""
    saves = f"saves ${decision.saves_usd:.4f} over {decision.turns:.0f} expected turns"
    costs = f"${decision.costs_usd:.4f} to write the prefix anew"
    match decision.ground:
        case Ground.WARM:
            lasts = 0 if prices is None else prices.lifetime - course.quiet_seconds
            until = course.now.astimezone(UTC) + timedelta(seconds=lasts)
            return f"cache warm until {until:%H:%M}, {saves}, {costs}"
        case Ground.PAYS:
            return f"at once: {saves}, {costs}"
        case Ground.COLD:
            is_cached = prices is not None and prices.lifetime > NO_CACHE
            return f"at once: the cache is cold, {saves}" if is_cached else f"at once: nothing is cached, {saves}"
        case Ground.BROKEN:
            return f"at once: the prefix has changed since the last call, {saves}"
        case Ground.LIMIT:
            return "at once: the context is over a threshold"
        case Ground.UNPRICED:
            return "at once: the price of a call is not known"


def _turns(course: Course, prices: CallPrices | None) -> float:
    """Return how many more turns are expected before a pause or the end."""
    return SurvivalCurve(course.others).expected_turns(course.turns, _pauses(course, prices))


def _pauses(course: Course, prices: CallPrices | None) -> float:
    return share_of_pauses(course.gaps, NO_CACHE if prices is None else prices.lifetime)
