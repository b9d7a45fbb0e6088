"""The words for runs: what kinds there are, what triggers them, how far they are and why they end.

docs/runs.md explains them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class RunState(StrEnum):
    """How far a run is."""

    QUEUED = "queued"
    RUNNING = "running"
    COMMITTED = "committed"
    """Its snapshot is in place."""
    SKIPPED = "skipped"
    """There was nothing to do; the reason says why."""
    DEGRADED = "degraded"
    """Its snapshot is in place, but a step failed and another one took its place; the reason says which."""
    FAILED = "failed"
    """A step failed, and the context is as it was; the reason says why."""
    DEAD = "dead"
    """It is out of attempts, and stays so until it is retried."""


ACTIVE: Final = (RunState.QUEUED, RunState.RUNNING)
"""The states of a run that something is still to be done about; a conversation has one such run at most."""
ENDED: Final = tuple(state for state in RunState if state not in ACTIVE)
"""The states in which a run no longer changes by itself."""


class StepState(StrEnum):
    """How a step of a run ended."""

    COMMITTED = "committed"
    SKIPPED = "skipped"
    FAILED = "failed"


class RunKind(StrEnum):
    """What a run does, written down when it is queued."""

    LADDER = "ladder"
    """Climbs the ladder over the conversation's head, because a threshold was crossed, or soon would be."""
    MANUAL = "manual"
    """Takes the steps that somebody asked for."""
    RECOVERY = "recovery"
    """Summarizes what was left out at once, from the version before that."""
    CONTEXT_BLOCK = "context_block"
    """Summarizes one large context block."""
    REQUEST = "request"
    """Was carried out by a request itself, and had ended when it was written down."""


class RunTrigger(StrEnum):
    """What brought a run about."""

    CHECK = "check"
    PAUSE = "pause"
    MANUAL = "manual"
    OVERFLOW = "overflow"
    BUDGET = "budget"
    CONTEXT_BLOCK = "context_block"
    PIN = "pin"
    RESTORE = "restore"
    FORK = "fork"
    IMPORT = "import"


class RunReason(StrEnum):
    """Why a run or a step ended as it did.

    Others are those of summarizers and strategies of other packages, and of requests: `forked`, `imported`,
    `version_N`.
    """

    ALREADY_SUMMARIZED = "already_summarized"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    BUDGET_SPENT = "budget_spent"
    CIRCUIT_OPEN = "circuit_open"
    EMPTY_SUMMARY = "empty_summary"
    ERASED = "erased"
    FIXED_TOKENS_OVER_THRESHOLD = "fixed_tokens_over_threshold"
    HEAD_MOVED = "head_moved"
    LEASE_LOST = "lease_lost"
    MODEL_AUTH = "model_auth"
    MODEL_BILLING = "model_billing"
    MODEL_ERROR = "model_error"
    MODEL_GARBAGE = "model_garbage"
    MODEL_OVERLOADED = "model_overloaded"
    MODEL_RATE_LIMITED = "model_rate_limited"
    MODEL_REFUSED = "model_refused"
    MODEL_REJECTED = "model_rejected"
    MODEL_TIMEOUT = "model_timeout"
    MODEL_UNREACHABLE = "model_unreachable"
    NOT_COVERED = "not_covered"
    NOT_SMALLER = "not_smaller"
    NOT_WORTH_IT_YET = "not_worth_it_yet"
    NOTHING_TO_CUT = "nothing_to_cut"
    NOTHING_TO_DROP = "nothing_to_drop"
    NOTHING_TO_PRUNE = "nothing_to_prune"
    NOTHING_TO_SHORTEN = "nothing_to_shorten"
    OUTLINE_STANDS = "outline_stands"
    PROMPT_TOO_LONG = "prompt_too_long"
    STRATEGY_FAILED = "strategy_failed"
    SUMMARIES_DISABLED = "summaries_disabled"
    SUMMARIZER_ERROR = "summarizer_error"
    SUMMARY_CUT = "summary_cut"
    SUMMARY_FAILED_EXTRACT_COMMITTED = "summary_failed_extract_committed"
    SUMMARY_FAILED_FALLBACK_COMMITTED = "summary_failed_fallback_committed"
    SUMMARY_FAILED_NOTHING_DROPPED = "summary_failed_nothing_dropped"
    SUMMARY_REJECTED = "summary_rejected"
    SUMMARY_TOO_LONG = "summary_too_long"
    SUPERSEDED = "superseded"
    UNDER_BUDGET = "under_budget"
    WAITS_FOR_TOOL_LOOP = "waits_for_tool_loop"
    WAITS_UNTIL_IT_PAYS = "waits_until_it_pays"
    WORKER_STOPPED = "worker_stopped"
    ZONE_TOO_SMALL = "zone_too_small"
