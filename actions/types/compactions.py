"""What requests for compaction may say and what their answers tell."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from actions.types.core import Number, Strict
from compaction.shapes.inner import Shape

Instructions = Annotated[str, Meta(min_length=1, max_length=2_000)]
ErrorText = Annotated[str, Meta(max_length=200_000)]


class CompactionIn(Strict):
    """A run by hand.

    `strategy` is the whole ladder (`auto`), whatever its thresholds, or one step of it: `tool_results`, `prune`,
    `summary`, `extract` (a summary without a model), `drop` (down to `max_conversation_messages`), `trim` (down to
    `max_context_bytes`), or the name of an installed strategy. `policy` overrides the conversation's for this run;
    `instructions` tell a model what its summary is to stress. With `dry_run` nothing is changed; the
    plan of a `policy` (with `auto`) is what that policy would have a check do now, so its thresholds decide.
    """

    instructions: Instructions | None = None
    strategy: Annotated[str, Meta(min_length=1, max_length=200)] = "auto"
    policy: dict[str, Any] | None = None
    dry_run: bool = False


class CompactionOut(Struct):
    """The run that was queued, or the active one that does the same already."""

    run_id: str


class PlannedStepOut(Struct, kw_only=True):
    """What a step of the run would do: `state` is `committed`, `pending` or `skipped`, for the reason given.

    Tokens are estimates. `zone_seqs` are the messages that a summary would replace, `summary_tokens` what it is
    expected to have.
    """

    name: str
    state: str
    reason: str | None
    detail: str | None
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    zone_seqs: list[int]
    summary_tokens: int | None


class PlanOut(Struct, kw_only=True):
    """What a run would do, and the messages that it would leave, in the Messages API's shape.

    `by_hand`: it takes its steps whatever the thresholds say; else it is what they ask for, which may be nothing.
    `summary_is_placeholder`: no summary was made for the plan; where it would stand, a text says so.
    """

    strategy: str
    by_hand: bool
    policy: dict[str, Any]
    steps: list[PlannedStepOut]
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    messages: list[dict[str, Any]]
    summary_is_placeholder: bool
    warnings: list[str]


class OverflowIn(Strict):
    """A call that the model refused as too long.

    `snapshot_version` is the version it was made with, `error` what the model's API answered: its text, or its JSON.
    `shape` is that of the answer.
    """

    snapshot_version: Number | None = None
    error: ErrorText | dict[str, Any] | None = None
    shape: Shape | None = None
