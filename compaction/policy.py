"""The policy: every number that decides when and how a conversation is compacted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

Tokens = Annotated[int, Meta(ge=0, le=100_000_000)]
Characters = Annotated[int, Meta(ge=0, le=1_000_000_000)]

MINIMUM_CONTEXT_WINDOW: Final = 16_000
"""Tokens. A smaller window leaves no room to compact into (seed 003, the reference's hard minimum)."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The policy in force for one conversation: defaults, then the tenant's, then its own overrides."""

    input_token_budget: Tokens = 40_000
    """Tokens; older tool results are cut once the input is strictly over it. 0 = off. Seeds 000, 002."""
    tool_result_retention_chars: Characters = 500
    """Characters kept of an older tool result. Seeds 000, 002."""
    max_tool_result_chars: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 40_000
    """Characters of one tool result that the view shows; the original stays stored. Seed 003."""
    compaction_enabled: bool = True
    """False replaces summaries by dropping down to `max_conversation_messages`. Seed 003."""
    compaction_threshold_tokens: Annotated[int, Meta(ge=1, le=100_000_000)] = 80_000
    """Tokens; a summary is due once the context is strictly over it. Seed 003."""
    protected_tail_messages: Annotated[int, Meta(ge=1, le=10_000)] = 6
    """Newest messages that a summary never touches; at least one, the newest. Seed 003."""
    tool_preview_head_chars: Characters = 500
    """Characters from the start of a tool result that the summarizer sees. Seed 003."""
    tool_preview_tail_chars: Characters = 200
    """Characters from the end of a tool result that the summarizer sees. Seed 003."""
    summary_input_max_chars: Annotated[int, Meta(ge=200, le=100_000_000)] = 100_000
    """Characters of transcript in one summary request, cut in the middle. Seed 003."""
    summary_max_tokens: Annotated[int, Meta(ge=64, le=128_000)] = 4_096
    """Tokens the summarizer may answer with. Seed 003."""
    max_conversation_messages: Annotated[int, Meta(ge=2, le=1_000_000)] = 50
    """Messages left by the fallback, and by the backstop after a summary. Seed 003."""
    model_context_tokens: Annotated[int, Meta(ge=MINIMUM_CONTEXT_WINDOW, le=100_000_000)] = 200_000
    """Tokens in the window of the model that the chat product calls. Seed 004."""
    trim_threshold_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.60
    """Share of the window below which a measured count lets the trim be skipped. Seed 004."""
    max_context_bytes: Annotated[int, Meta(ge=1_000, le=1_000_000_000)] = 737_280
    """Bytes of serialized messages that the trim cuts down to. Seed 004 (720 KB)."""
    total_token_budget: Annotated[int, Meta(ge=1_000, le=100_000_000)] = 128_000
    """Tokens for the whole payload, all layers and the reserved output. Seed 001."""
    reserved_output_tokens: Tokens = 4_096
    """Tokens of the total that are kept free for the answer. Seed 001."""
    context_block_compact_chars: Annotated[int, Meta(ge=100, le=1_000_000_000)] = 50_000
    """Characters; larger context blocks are summarized map-reduce, out of band. Seed 001."""
    carry_forward_section_chars: Annotated[int, Meta(ge=1, le=1_000_000)] = 500
    """Characters of each section that a carried-over context block keeps. Seed 001."""
    min_savings_tokens: Tokens = 1_000
    """Tokens; a run that would free less is skipped."""

    @property
    def trim_threshold_tokens(self) -> int:
        """Tokens at which the trim runs although the context was measured (seed 004, R3)."""
        return int(self.model_context_tokens * self.trim_threshold_ratio)


class PolicyError(ValueError):
    """A policy that cannot hold; `field` names the key at fault, `""` when it is the whole."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field
        self.detail = detail


FIELDS: Final = tuple(Policy.__struct_fields__)


def merge(*overrides: Mapping[str, Any]) -> Policy:
    """Return the policy that results from laying `overrides` over the defaults, later ones on top.

    Raises PolicyError for an unknown key, a value of the wrong type or out of range, and for values that
    contradict each other.
    """
    values: dict[str, Any] = {}
    for layer in overrides:
        for key, value in layer.items():
            if key not in FIELDS:
                raise PolicyError(key, f"unknown policy key {key!r}")
            try:
                msgspec.convert({key: value}, Policy)
            except msgspec.ValidationError as error:
                raise PolicyError(key, str(error).split(" - at ")[0]) from None
            values[key] = value
    policy = msgspec.convert(values, Policy)
    if policy.reserved_output_tokens >= policy.total_token_budget:
        raise PolicyError("reserved_output_tokens", "must be smaller than total_token_budget")
    return policy
