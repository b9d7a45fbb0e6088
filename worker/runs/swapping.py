"""Whether what a run made becomes the head at once, or waits until that pays: a part of the worker that could go."""

from __future__ import annotations

from datetime import UTC, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from compaction.cost.calls import NO_CACHE, ONE_HOUR, CallPrices
from compaction.cost.survival import SurvivalCurve, share_of_pauses
from compaction.cost.swap import Ground, Ready, decide
from compaction.steps.ladder import Step
from compaction.steps.runs import RunKind
from store.conversations import waiting
from worker.summarizers.prices import PriceTable, prices_of

if TYPE_CHECKING:
    from compaction.cost.swap import Decision
    from compaction.policy import Policy
    from compaction.steps.stage import Stage
    from compaction.steps.steps import StepOutcome
    from runtime.settings import Settings
    from store.conversations.waiting import Course
    from store.runs.runs import Lease
    from worker.database import Database

_MAY_WAIT: Final = frozenset({Step.TOOL_RESULTS, Step.PRUNE, Step.STRATEGIES, Step.SUMMARY, Step.EXTRACT})
"""Steps that answer a threshold of tokens. What drops messages answers a limit, and never waits."""
_MILLION: Final = 1_000_000


class SwapVerdict(NamedTuple):
    """Whether a snapshot waits, for a cache that lives so many seconds, and what its step says of that."""

    waits: bool
    lifetime: int
    note: str


class Swapping:
    """Decides by what calls cost. One object a process; safe to use from many threads."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database

    def verdict(self, lease: Lease, stage: Stage, made: StepOutcome) -> SwapVerdict | None:
        """Return whether what a step made waits; None where that is no question of price."""
        policy = lease.policy
        if policy.swap != "when_it_pays" or lease.kind is not RunKind.LADDER or made.step not in _MAY_WAIT:
            return None
        with self._database.transaction(lease.tenant_id) as connection:
            course = waiting.course(connection, lease.tenant_id, lease.conversation_id)
        prices = self.prices(course.model, policy)
        if prices is None:
            return None
        ready = ready_of(stage, made, policy, course)
        pauses = share_of_pauses(course.gaps, prices.lifetime)
        decision = decide(ready, prices, SurvivalCurve(course.others).expected_turns(course.turns, pauses))
        return SwapVerdict(not decision.swaps, prices.lifetime, note_of(decision, prices, course))

    def prices(self, model: str | None, policy: Policy) -> CallPrices | None:
        """Return what a token costs in calls of a conversation's model, None where nobody knows."""
        listed = prices_of(model, PriceTable.of(self._settings, policy)) if model else None
        if listed is None:
            return None
        lifetime = policy.prompt_cache_seconds
        written = listed.cache_write_1h if lifetime >= ONE_HOUR else listed.cache_write_5m
        each = (listed.input, listed.output, listed.cache_read, written)
        per_input, per_output, read, write = (float(usd) / _MILLION for usd in each)
        return CallPrices(per_input, per_output, read, write, lifetime)


def ready_of(stage: Stage, made: StepOutcome, policy: Policy, course: Course) -> Ready:
    """Return what is decided from, in the tokens that the next call would have."""
    before = stage.load.input_tokens
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(stage.view, made.view, strict=False))
    return Ready(
        before=before,
        after=max(0, before - stage.tokens + stage.estimate(made.view)),
        shared=stage.fixed_input + stage.estimate(tuple(message for message, _ in alike)),
        limit=policy.pending_limit_tokens,
        gap=course.quiet_seconds,
        is_broken=course.is_broken,
        since=course.since_head,
    )


def note_of(decision: Decision, prices: CallPrices, course: Course) -> str:
    """Return what a decision rests on, in words."""
    saves = f"saves ${decision.saves_usd:.4f} over {decision.turns:.0f} expected turns"
    costs = f"${decision.costs_usd:.4f} to write the prefix anew"
    match decision.ground:
        case Ground.WARM:
            until = course.now.astimezone(UTC) + timedelta(seconds=prices.lifetime - course.quiet_seconds)
            return f"waits: cache warm until {until:%H:%M}, {saves}, {costs}"
        case Ground.PAYS:
            return f"at once: {saves}, {costs}"
        case Ground.COLD:
            return "at once: nothing is cached" if prices.lifetime == NO_CACHE else "at once: the cache is cold"
        case Ground.BROKEN:
            return "at once: the prefix has changed since the last call"
        case Ground.LIMIT:
            return "at once: the context is at its limit"
        case Ground.UNPRICED:
            return "at once: the price of a call is not known"
