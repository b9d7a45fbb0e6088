"""The policy: every number that decides when and how a conversation is compacted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from compaction.choices import unknown, with_choices

if TYPE_CHECKING:
    from collections.abc import Mapping

Tokens = Annotated[int, Meta(ge=0, le=100_000_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Characters = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Share = Annotated[float, Meta(gt=0, le=1)]
TagName = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.:-]{0,99}\Z")]
FieldName = Annotated[str, Meta(min_length=1, max_length=200)]
StrategyName = Annotated[str, Meta(min_length=1, max_length=200)]
ToolPattern = Annotated[str, Meta(min_length=1, max_length=200)]
ModelName = Annotated[str, Meta(min_length=1, max_length=200)]
Price = Annotated[float, Meta(ge=0, le=1_000_000)]

MOST_RESERVED: Final = 0.5
"""Share of a limit that the output which a request asks for may take from its input."""
MINIMUM_CONTEXT_WINDOW: Final = 16_000
"""Tokens. A smaller window leaves no room to compact into (requirement O5)."""


class ModelPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """USD for a million tokens of each kind; a cache's are worked out from `input` where they are left out."""

    input: Price
    output: Price
    cache_read: Price | None = None
    cache_write: Price | None = None


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The policy in force for one conversation: defaults, then the tenant's, then its own overrides.

    Codes such as T2 name the rows of docs/requirements.md that a default comes from.
    """

    input_token_budget: Tokens = 40_000
    """Tokens; older tool results are cut once the input is strictly over it. 0 = off (T2)."""
    tool_results_growth_ratio: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Share of what a cut of tool results leaves by which the input has to grow before the next cut, if that is more
    than a fifth of the budget. Each cut has what it changes, and all after it, written to the prompt cache anew: at 0.6
    an agent's conversation is cut half as often, and stands over the budget for longer."""
    tool_result_retention_chars: Characters = 500
    """Characters kept of an older tool result, and of one that stands in an element of `inline_tool_tags` (T6)."""
    html_results: Literal["text", "raw"] = "text"
    """What is kept of an older tool result that is an HTML document: `text` keeps the first characters of its readable
    text, title first, and shows readable text to the summarizer; `raw` keeps its first characters as they came."""
    max_tool_result_chars: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 40_000
    """Characters of one tool result that the view shows; the original stays stored (S15)."""
    compaction_enabled: bool = True
    """False replaces summaries by dropping down to `max_conversation_messages` (S12)."""
    compaction_threshold_tokens: Annotated[int, Meta(ge=1, le=100_000_000)] = 80_000
    """Tokens; a summary is due once the context is strictly over it (S3)."""
    pause_threshold_ratio: Share = 0.75
    """Share of each threshold of tokens over which a pause is used to compact ahead of it (`swap`). 1 = never."""
    protected_tail_messages: Annotated[int, Meta(ge=1, le=10_000)] = 6
    """Newest messages that a summary never touches; at least one, the newest (S4)."""
    tool_preview_head_chars: Characters = 500
    """Characters from the start of a tool result that the summarizer sees (S6)."""
    tool_preview_tail_chars: Characters = 200
    """Characters from the end of a tool result that the summarizer sees (S6)."""
    summary_input_max_chars: Annotated[int, Meta(ge=200, le=100_000_000)] = 100_000
    """Characters of transcript in one summary request, cut in the middle (S7)."""
    summary_max_tokens: Annotated[int, Meta(ge=64, le=128_000)] = 4_096
    """Tokens the summarizer may answer with (S8)."""
    max_conversation_messages: Annotated[int, Meta(ge=2, le=1_000_000)] = 50
    """Messages left by the fallback, and by the backstop after a summary (S11)."""
    model_context_tokens: Annotated[int, Meta(ge=MINIMUM_CONTEXT_WINDOW, le=100_000_000)] = 200_000
    """Tokens in the window of the model that the chat product calls; where nobody sets it, that of the conversation's
    `model`, if it is known (K5)."""
    trim_threshold_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.60
    """Share of the window below which a measured count lets the trim be skipped (K3, K5)."""
    max_context_bytes: Annotated[int, Meta(ge=1_000, le=1_000_000_000)] = 737_280
    """Bytes of serialized messages that the trim cuts down to; base64 counts as the tokens that it stands for, or one
    byte in 43 if that is more (K6)."""
    max_context_images: Count = 100
    """Images of a context, 0 = no limit; the oldest more become a text that names them. Where nobody sets it, the limit
    of the conversation's `model`, as the next four."""
    max_context_image_side: Count = 2_000
    """Pixels of an image's longer side in a context of more than 20 images; 0 = no limit."""
    max_context_documents: Count = 0
    """Documents of a context that are files; 0 = no limit."""
    max_context_document_pages: Count = 100
    """Pages of all documents of a context, 0 = no limit. Images and pages together may be the larger of both limits."""
    max_context_media_bytes: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 30_000_000
    """Bytes of base64 in a context; 0 = no limit."""
    total_token_budget: Annotated[int, Meta(ge=1_000, le=100_000_000)] = 128_000
    """Tokens for the whole payload, all layers and the reserved output (P1)."""
    reserved_output_tokens: Tokens = 4_096
    """Tokens of the total that are kept free for the answer (P1)."""
    context_block_compact_chars: Annotated[int, Meta(ge=100, le=1_000_000_000)] = 50_000
    """Characters; larger context blocks are summarized map-reduce, out of band (P15)."""
    carry_forward_section_chars: Annotated[int, Meta(ge=1, le=1_000_000)] = 500
    """Characters of each section that a carried-over context block keeps (P16)."""
    min_savings_tokens: Tokens = 1_000
    """Tokens; a run that would free less is skipped."""
    carried_context_max_tokens: Tokens = 20_000
    """Tokens of context blocks, as outlines, that are carried over to the next turn."""
    inline_tool_tags: Annotated[tuple[TagName, ...], Meta(max_length=100)] = ()
    """Names of XML-like elements that tools' output stands in inside assistant text, case-sensitive; in the view each
    shows `tool_result_retention_chars` characters of what is in it (P17)."""
    pinned_max_tokens: Tokens = 2_000
    """Tokens of pinned texts that are repeated in the context once their own messages are gone."""
    summary_instructions: Annotated[str, Meta(max_length=2_000)] = ""
    """Wishes about what summaries should stress: data to the summarizer, which cannot change its rules."""
    summarizer_model: Annotated[str, Meta(max_length=200)] = ""
    """Model that summaries are asked of, by its name at the installation's summarizer; one of
    `PALIMPSEST_SUMMARIZER_MODELS`. Not set: the installation's."""
    model_prices: Annotated[dict[ModelName, ModelPrices], Meta(max_length=100)] = {}
    """What models cost that neither the installation nor the list prices know, by the beginning of their names:
    `{"my-model": {"input": 0.2, "output": 0.8}}`, USD for a million tokens; also `cache_read` and `cache_write`."""
    private_result_fields: Annotated[tuple[FieldName, ...], Meta(max_length=100)] = ()
    """Names of fields in tool results that are for the application alone: no summarizer sees them."""
    prune_soft_share: Share = 0.3
    """Share of the window over which tool results keep their head and tail only (O7; OpenClaw's default)."""
    prune_hard_share: Share = 0.5
    """Share of the window over which tool results then give way to a line each (O7; OpenClaw's default)."""
    prune_head_chars: Characters = 1_500
    """Characters from the start of a pruned tool result (O7; OpenClaw's default)."""
    prune_tail_chars: Characters = 1_500
    """Characters from the end of a pruned tool result (O7; OpenClaw's default)."""
    prune_min_freed_tokens: Tokens = 4_000
    """Tokens; pruning that would free less is not worth breaking the prompt cache for."""
    prune_allow: Annotated[tuple[ToolPattern, ...], Meta(max_length=100)] = ()
    """Patterns of tool names (`*`, `?`) whose results may be pruned; none = every tool."""
    prune_deny: Annotated[tuple[ToolPattern, ...], Meta(max_length=100)] = ()
    """Patterns of tool names whose results are never pruned; stronger than `prune_allow`."""
    extra_strategies: Annotated[tuple[StrategyName, ...], Meta(max_length=20)] = ()
    """Names of strategies that other packages bring, in the order they are taken: after tool results were cut and
    pruned, before a summary."""
    recall_handles: bool = False
    """Whether what is cut says what it was and how to have it back by recall, and a summary which messages it stands
    for. For models that have the tool."""
    unsupported_claims: Literal["mark", "drop", "refuse"] = "mark"
    """What becomes of a summary's lines that no message bears out: they stay and are marked in its `claims`, they are
    left out, or the summary is refused and an extract takes its place."""
    secrets: Literal["mask", "keep"] = "mask"
    """What becomes of credentials in what a summarizer reads and in what compaction writes: `mask` puts
    `[secret: aws key, m12]` in the place of one of message 12. Messages that stay as they came are not touched."""
    frame_language: Literal["auto", "en"] = "auto"
    """Language of the headings and frames that compaction writes. `auto`: that of the conversation, where it is one of
    those that it writes, and English elsewhere. A conversation keeps the language that its frames began with."""
    gateway_recall: bool = False
    """Whether a gateway declares the recall tool in what it passes on, and answers the model's calls of it itself."""

    swap: Literal["at_once", "when_it_pays"] = "when_it_pays"
    """Whether price decides below the thresholds. `when_it_pays`: a conversation that nears one is compacted in its
    next pause, when the prompt cache is gone, and a cut of tool results that answers no threshold is made when it pays.
    `at_once`: thresholds alone decide, as they do where nobody knows the price of the conversation's `model`."""
    prompt_cache_seconds: Annotated[int, Meta(ge=0, le=604_800)] = 300
    """Seconds that the prompt cache of the model that the chat product calls lives: 3600 for the hour's, 0 for none."""
    message_retention_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    """Days after its newest message until a conversation is erased, as `DELETE` would erase it; 0 = never. Setting it
    for a conversation takes the scope `admin`."""

    def reserving(self, output_tokens: int | None) -> Policy:
        """Return the policy of a conversation whose newest request asks for so much output; None = it does not say.

        That is kept free, and a summary is due before the context takes their place.
        """
        reserved = reserved_output(output_tokens, self.total_token_budget, self.reserved_output_tokens)
        if reserved == self.reserved_output_tokens:
            return self
        threshold = min(self.compaction_threshold_tokens, self.total_token_budget - reserved)
        return msgspec.structs.replace(self, reserved_output_tokens=reserved, compaction_threshold_tokens=threshold)

    @property
    def pause_threshold_tokens(self) -> int:
        """Tokens over which a summary is made in a pause, ahead of the threshold."""
        return int(self.compaction_threshold_tokens * self.pause_threshold_ratio)

    @property
    def trim_threshold_tokens(self) -> int:
        """Tokens at which the trim runs although the context was measured (requirement K4)."""
        return int(self.model_context_tokens * self.trim_threshold_ratio)

    @property
    def context_limit_tokens(self) -> int:
        """Tokens that system prompt, tools and messages may have together: the budget but for the answer's share."""
        return self.total_token_budget - self.reserved_output_tokens

    @property
    def pending_limit_tokens(self) -> int:
        """Tokens from which no snapshot waits for the end of a tool loop, as thinking is left out there anyway."""
        return min(self.trim_threshold_tokens, self.context_limit_tokens)


def reserved_output(asked: int | None, limit: int, default: int) -> int:
    """Return how many tokens of a limit are kept free for an answer, for which a request asks for so many at most.

    Clients often ask for all that a model can write. What is over MOST_RESERVED of the limit says nothing of the
    answer, and would leave next to nothing of the history: then it is the default, as if nothing were asked for.
    """
    return default if asked is None or asked > limit * MOST_RESERVED else asked


class PolicyError(ValueError):
    """A policy that cannot hold.

    `field` names the key at fault, `""` when it is the whole; `path` leads from the policy to the value, `fields` are
    the keys that contradict each other.
    """

    def __init__(
        self, field: str, detail: str, *, path: tuple[str | int, ...] = (), fields: tuple[str, ...] = ()
    ) -> None:
        super().__init__(detail)
        self.field = field
        self.detail = detail
        self.path = path or tuple(filter(None, [field]))
        self.fields = fields or (field,)


FIELDS: Final = tuple(Policy.__struct_fields__)
_INDEX: Final = re.compile(r" - at `\$\.\w+\[(\d+)\]`\Z")


def merge(*overrides: Mapping[str, Any]) -> Policy:
    """Return the policy that results from laying `overrides` over the defaults, later ones on top.

    Raises PolicyError for an unknown key, a value of the wrong type or out of range, and for values that
    contradict each other.
    """
    values: dict[str, Any] = {}
    for layer in overrides:
        values |= layer
    try:
        policy = msgspec.convert(values, Policy)
    except msgspec.ValidationError:
        # Key by key only now: the whole at once is what nearly always holds, and many times faster.
        for layer in overrides:
            for key, value in layer.items():
                _check(key, value)
        raise
    if policy.reserved_output_tokens >= policy.total_token_budget:
        raise PolicyError(
            "reserved_output_tokens",
            "must be smaller than total_token_budget",
            fields=("reserved_output_tokens", "total_token_budget"),
        )
    if policy.prune_soft_share > policy.prune_hard_share:
        raise PolicyError(
            "prune_soft_share",
            "must not be larger than prune_hard_share",
            fields=("prune_soft_share", "prune_hard_share"),
        )
    return policy


def _check(key: str, value: Any) -> None:
    """Raise the problem of one value by itself."""
    if key not in FIELDS:
        raise PolicyError(key, unknown("policy key", key, FIELDS))
    try:
        msgspec.convert({key: value}, Policy)
    except msgspec.ValidationError as error:
        item = _INDEX.search(str(error))
        path = (key, int(item[1])) if item else (key,)
        detail = with_choices(str(error).split(" - at ")[0], Policy, map(str, path))
        raise PolicyError(key, detail, path=path) from None
