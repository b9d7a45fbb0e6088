"""What requests may say and what answers look like."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from compaction.cache_marks import MAX_MARKS
from compaction.cost.breakpoints import CacheControl
from compaction.shapes.inner import Shape
from compaction.shapes.usage import TokenCount

if TYPE_CHECKING:
    from decimal import Decimal

    from store.conversations.assemblies import AssemblyRecord
    from store.tables import AnyRow

Reference = Annotated[str, Meta(min_length=1, max_length=512)]
T = TypeVar("T")


class Strict(Struct, forbid_unknown_fields=True, kw_only=True):
    """A body in which every field is known."""


SystemPrompt = str | Annotated[list[dict[str, Any]], Meta(max_length=1_000)]
Tools = Annotated[list[dict[str, Any]], Meta(max_length=10_000)]
"""Tools of one request; the Messages API's tool search takes catalogs of that many."""


class MessageIn(Strict):
    """One Messages API message; `content` is a string or a list of blocks, not empty, kept exactly as it is sent."""

    role: Literal["user", "assistant"]
    content: msgspec.Raw


Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class UsageIn(Struct, kw_only=True):
    """The Messages API's `usage` object; what else it holds is ignored."""

    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    cache_read_input_tokens: TokenCount | None = None
    cache_creation_input_tokens: TokenCount | None = None


class ContextBlockIn(Strict):
    """A piece of context that is not history: where it is from, what it is called, and its text."""

    source: Reference
    text: str
    title: Annotated[str, Meta(max_length=512)] = ""


ContextBlocks = Annotated[list[ContextBlockIn], Meta(max_length=100)]


MOST_OUTPUT_TOKENS: Final = 1_000_000
CALLS: Final = Meta(min_length=1, max_length=1_000)
"""The `usage` of several calls in their order: the last one measures the context, all of them count for cost."""


Time = Annotated[datetime, Meta(tz=True)]


OutputTokens = Annotated[int, Meta(ge=1, le=MOST_OUTPUT_TOKENS)]


class TurnBase(Strict, kw_only=True):
    """What a turn says beside its messages, in every shape."""

    snapshot_version: Number | None = None
    expected_next_seq: Number | None = None
    replace_from: Number | None = None
    context: ContextBlocks = []
    created_at: Time | Annotated[list[Time | None], Meta(min_length=1, max_length=1_000)] | None = None
    """When the messages were said: all of them, or each in their order; null in a list where nobody knows."""
    max_output_tokens: OutputTokens | None = None
    """Output that the model call was allowed: so much is kept free of the budget from now on."""


class TurnIn(TurnBase, kw_only=True):
    """The messages of one turn, what the model call that made them counted, and the context of its request."""

    messages: Annotated[list[MessageIn], Meta(min_length=1, max_length=1_000)]
    usage: UsageIn | Annotated[list[UsageIn], CALLS] | None = None
    shape: Literal["messages"] = "messages"


SentMessages = Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=1_000)]
"""Messages or items of another shape, kept exactly as they are sent."""


class ReasoningTokens(Struct, kw_only=True):
    """What a model thought, as a part of its output; what else is told of that is ignored."""

    reasoning_tokens: TokenCount | None = None


class ChatUsageIn(Struct, kw_only=True):
    """Chat Completions' `usage` object, of which `prompt_tokens` include what was cached; the rest is ignored."""

    prompt_tokens: TokenCount | None = None
    completion_tokens: TokenCount | None = None
    completion_tokens_details: ReasoningTokens | None = None


class ItemsUsageIn(Struct, kw_only=True):
    """Responses' `usage` object, of which `input_tokens` include what was cached; the rest is ignored."""

    input_tokens: TokenCount | None = None
    output_tokens: TokenCount | None = None
    output_tokens_details: ReasoningTokens | None = None


class ChatTurnIn(TurnBase, kw_only=True):
    """A turn whose messages are those of Chat Completions; any role, a tool's result is one message."""

    messages: SentMessages
    usage: ChatUsageIn | Annotated[list[ChatUsageIn], CALLS] | None = None
    shape: Literal["chat"] = "chat"


class ItemsTurnIn(TurnBase, kw_only=True):
    """A turn whose messages are Responses items, those of the input and those of the output alike."""

    messages: SentMessages
    usage: ItemsUsageIn | Annotated[list[ItemsUsageIn], CALLS] | None = None
    shape: Literal["responses"] = "responses"


PolicyPreset = Annotated[str, Meta(min_length=1, max_length=512)] | Annotated[int, Meta(ge=1, le=1_000_000_000)]
"""`auto` (the window of the conversation's model), a model, or a number of tokens (`200000`, `200k`, `1m`)."""


class ConversationIn(Strict):
    """A new conversation; what `policy` names wins over `policy_preset`."""

    external_id: Reference | None = None
    user_ref: Reference | None = None
    model: Reference | None = None
    system: SystemPrompt | None = None
    tools: Tools | None = None
    policy: dict[str, Any] = {}
    policy_preset: PolicyPreset | None = None
    metadata: dict[str, Any] = {}


class ConversationPatch(Strict):
    """Changes to a conversation; what is not named stays.

    Policy and preset change the overrides key by key: null takes one away, null for `policy` takes all away.
    """

    model: Reference | UnsetType | None = UNSET
    system: SystemPrompt | UnsetType | None = UNSET
    tools: Tools | UnsetType | None = UNSET
    policy: dict[str, Any] | UnsetType | None = UNSET
    policy_preset: PolicyPreset | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class TenantPatch(Strict):
    """Changes to a tenant: policy and preset change its overrides key by key.

    Null takes one away, null for `policy` takes all away.
    """

    policy: dict[str, Any] | UnsetType | None = UNSET
    policy_preset: PolicyPreset | UnsetType = UNSET


class TenantOut(Struct, kw_only=True):
    """A tenant; `policy` is what its conversations begin from, `policy_overrides` what was set for it.

    `warnings` tell what of the overrides is not in force, and what will do no good.
    """

    id: str
    name: str
    policy: dict[str, Any]
    policy_overrides: dict[str, Any]
    warnings: list[str]
    created_at: datetime


class PresetOut(Struct, kw_only=True):
    """The overrides that fit a context window of so many tokens."""

    window: int
    policy: dict[str, int]


class RestoreIn(Strict):
    """The version to go back to; 0 is no compaction. With `dry_run` nothing is changed."""

    version: Number
    dry_run: bool = False


class RestorePlanOut(Struct, kw_only=True):
    """What would be served after a restore.

    `tokens` is the estimate of the version with all that came since, system prompt and tools included, `tokens_served`
    that of what of it fits `budget`. `held_tokens`: no compaction begins by itself before as many more have come.
    """

    version: int
    tokens: int
    tokens_served: int
    budget: int
    messages: int
    messages_served: int
    held_tokens: int
    warnings: list[str]


class ForkIn(Strict):
    """How far the past goes with, and what the new conversation is called outside."""

    through_seq: Number
    external_id: Reference | None = None


class PayloadIn(Strict):
    """The layers of one call; `system` and both kinds of context default to what the conversation stores."""

    system: SystemPrompt | None = None
    prior_context: ContextBlocks | None = None
    turn_context: ContextBlocks | None = None
    user_message: str | list[dict[str, Any]] | dict[str, Any] | None = None
    max_output_tokens: OutputTokens | None = None
    shape: Shape | None = None
    cache_breakpoints: Annotated[int, Meta(ge=1, le=MAX_MARKS)] | None = None


class LeftOutOut(Struct):
    """What of messages has no counterpart in the shape that is served."""

    code: Literal["left_out"]
    seqs: list[int]
    what: str


class PayloadLayers(Struct):
    """Tokens of each layer."""

    system: int
    prior_context: int
    turn_context: int
    history: int
    user_message: int


class PayloadHistory(Struct):
    """What became of the history's exchanges, and how many responses and results were cut."""

    exchanges_total: int
    exchanges_kept: int
    exchanges_dropped: int
    responses_truncated: int


class CacheBreakpointOut(Struct):
    """A block that `cache_control` belongs on: one of a message, of the system prompt, or of the list of tools.

    A `block` of null stands for a content that is a text, which has to become a list of one text block.
    """

    field: Literal["tools", "system", "messages"]
    message: int | None
    block: int | None
    cache_control: CacheControl


class RulesOut(Struct):
    """The rules in force that stand word for word in `messages`, and one hash over their texts in that order.

    The hash is of the texts joined by line feeds, in UTF-8.
    """

    ids: list[str]
    sha256: str


class PayloadOut(Struct, kw_only=True):
    """A payload and what it weighs; `total` is its input, without the reserved output.

    `items` for Responses, else `messages`. `system` stands apart for the Messages API alone; it is the first of the
    others' messages.
    """

    system: Any
    messages: list[Any] | UnsetType = UNSET
    items: list[Any] | UnsetType = UNSET
    layers: PayloadLayers
    budget: int
    reserved_output: int
    total: int
    history: PayloadHistory
    rules: RulesOut
    warnings: list[str | LeftOutOut]
    cache_breakpoints: list[CacheBreakpointOut] | UnsetType | None = UNSET


class TurnOut(Struct):
    """Where a turn's messages stand, and whether its check is on its way."""

    first_seq: int
    last_seq: int
    context_tokens: int
    check: Literal["queued", "coalesced", "deferred"]


class LastAssembly(Struct, kw_only=True):
    """What the newest assembly was made of, in tokens: a payload, or a context that had to be fitted."""

    call: Literal["payload", "context"]
    at: datetime
    layers: PayloadLayers
    total: int
    budget: int
    reserved_output: int
    exchanges_total: int
    exchanges_kept: int
    exchanges_dropped: int
    rounds_dropped: bool
    responses_truncated: int
    blocks_shortened: int
    warnings: int
    snapshot_version: int


class ConversationOut(Struct, kw_only=True):
    """A conversation; `policy` is the one in force, `policy_overrides` what was set for it alone.

    `warnings` tell what of the overrides is not in force, and what will do no good.
    """

    id: str
    external_id: str | None
    user_ref: str | None
    model: str | None
    shape: Shape
    policy: dict[str, Any]
    policy_overrides: dict[str, Any]
    warnings: list[str]
    metadata: dict[str, Any]
    created_at: datetime
    last_seq: int
    head_version: int
    pending_version: int | None
    context_tokens: int
    context_messages: int
    check_due_at: datetime | None
    system: Any | UnsetType = UNSET
    tools: Any | UnsetType = UNSET
    last_assembly: LastAssembly | UnsetType | None = UNSET


class ConversationBrief(Struct, kw_only=True):
    """What is told of a conversation to a key that may change it and not read it: nothing that anybody wrote."""

    id: str
    created_at: datetime
    last_seq: int
    head_version: int
    pending_version: int | None
    context_tokens: int
    context_messages: int
    check_due_at: datetime | None


class SnapshotRef(Struct):
    """The head that a context begins with."""

    version: int
    covers_through: int


class ContextTokens(Struct):
    """Tokens of a context: as counted for the next call, as the API last measured, and the budget of the payload."""

    context: int
    measured: int | None
    budget: int


class ContextOut(Struct, kw_only=True):
    """What a chat backend sends to its model, and what it should know of it: `items` for Responses, else `messages`."""

    messages: list[dict[str, Any]] | UnsetType = UNSET
    items: list[dict[str, Any]] | UnsetType = UNSET
    snapshot: SnapshotRef | None
    last_seq: int
    tokens: ContextTokens
    rules: RulesOut
    warnings: list[str | LeftOutOut]
    cache_breakpoints: list[CacheBreakpointOut] | UnsetType | None = UNSET


class Lineage(Struct):
    """What became of a message: in snapshot `version`, by run `run_id`."""

    fate: Literal["kept", "truncated", "summarized", "dropped"]
    version: int | None
    run_id: str | None


class MessageOut(Struct, kw_only=True):
    """An original, its content byte for byte as it came. `lineage` has every change of fate, oldest first.

    One of another shape than the Messages API's stands whole in `original`, as it came, and `content` has it as every
    step works on it.
    """

    seq: int
    role: str
    content: msgspec.Raw
    tokens: int
    created_at: datetime | None
    """When it was said; null where nobody knows."""
    superseded_at: datetime | None
    shape: Shape = "messages"
    original: msgspec.Raw | UnsetType = UNSET
    fate: Literal["kept", "truncated", "summarized", "dropped", "superseded"] | UnsetType = UNSET
    lineage: list[Lineage] | UnsetType = UNSET


class Page(Struct, Generic[T]):
    """One page of a list."""

    data: list[T]
    has_more: bool
    first_id: str | int | None
    last_id: str | int | None


class HealthOut(Struct):
    """The state of the process, or of each service behind it."""

    status: Literal["ok", "degraded", "unavailable"]
    services: dict[str, str] | UnsetType = UNSET


def money(amount: Decimal | int) -> str:
    """Return an amount in USD as answers have it."""
    return f"{amount:.6f}"


def message_out(row: AnyRow, **more: Any) -> MessageOut:
    """Return an original as clients see it."""
    return MessageOut(
        seq=row.seq,
        role=row.role,
        content=msgspec.Raw(row.content),
        tokens=row.tokens,
        created_at=row.created_at,
        superseded_at=row.superseded_at,
        shape=row.shape or "messages",
        original=UNSET if row.sent is None else msgspec.Raw(row.sent),
        **more,
    )


def last_assembly(record: AssemblyRecord) -> LastAssembly:
    """Return an assembly as clients see it with its conversation."""
    return LastAssembly(
        call=record.call,
        at=record.assembled_at,
        layers=PayloadLayers(**record.layers),
        total=record.total,
        budget=record.total_token_budget,
        reserved_output=record.reserved_output_tokens,
        exchanges_total=record.exchanges_total,
        exchanges_kept=record.exchanges_kept,
        exchanges_dropped=record.exchanges_dropped,
        rounds_dropped=record.rounds_dropped,
        responses_truncated=record.responses_truncated,
        blocks_shortened=record.blocks_shortened,
        warnings=record.warnings,
        snapshot_version=record.snapshot_version,
    )
