"""The reasons of runs and steps that the service itself gives; docs/runs.md explains them."""

from __future__ import annotations

from typing import Final

REASONS: Final = frozenset(
    {
        "already_summarized",
        "attempts_exhausted",
        "batch_canceled",
        "batch_errored",
        "batch_expired",
        "batch_lost",
        "batch_outdated",
        "batch_superseded",
        "batches_off",
        "budget_spent",
        "circuit_open",
        "empty_summary",
        "erased",
        "fixed_tokens_over_threshold",
        "head_moved",
        "lease_lost",
        "model_auth",
        "model_billing",
        "model_error",
        "model_garbage",
        "model_overloaded",
        "model_rate_limited",
        "model_refused",
        "model_rejected",
        "model_timeout",
        "model_unreachable",
        "not_smaller",
        "nothing_to_cut",
        "nothing_to_drop",
        "nothing_to_prune",
        "nothing_to_shorten",
        "outline_stands",
        "prompt_too_long",
        "strategy_failed",
        "summaries_disabled",
        "summarizer_error",
        "summary_cut",
        "summary_failed_extract_committed",
        "summary_failed_fallback_committed",
        "summary_failed_nothing_dropped",
        "summary_rejected",
        "summary_too_long",
        "superseded",
        "under_budget",
        "waits_for_tool_loop",
        "worker_stopped",
        "zone_too_small",
    }
)
"""Others are those of summarizers and strategies of other packages."""
