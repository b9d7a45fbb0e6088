"""What the service answers with. Answers may hold more than is named here: fields are added without notice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypedDict, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Message = dict[str, Any]
"""One message of the Messages API: `role` and `content`."""


class ContextTokens(TypedDict):
    """Tokens of a context: as counted for the next call, as the model's API last measured, and the budget."""

    context: int
    measured: int | None
    budget: int


@dataclass(frozen=True)
class Context:
    """What to send to the model as `messages`.

    `messages` is the caller's own list to change. With `is_fallback` it is the caller's own history, because the
    service could not be asked: `error` says why. The last `kept` messages are turns that wait to be sent.
    """

    messages: list[Message]
    version: int = 0
    """The snapshot that the context begins with; 0 = none. It belongs to the turn that the call makes."""
    covers_through: int | None = None
    last_seq: int | None = None
    tokens: ContextTokens | None = None
    warnings: list[str] = field(default_factory=list)
    kept: int = 0
    is_fallback: bool = False
    error: Exception | None = None


@dataclass(frozen=True)
class ModelCall(Generic[R]):
    """What a call of a model returned, and the context that it was made with in the end."""

    result: R
    context: Context


@dataclass(frozen=True)
class Turn:
    """Where a turn's messages stand. `replayed`: it had been stored before, under the same key."""

    first_seq: int
    last_seq: int
    context_tokens: int
    check: Literal["queued", "coalesced", "deferred"]
    replayed: bool = False


@dataclass(frozen=True)
class KeptTurn:
    """A turn that waits to be sent. It is plain data, so that a caller can store it and hand it back.

    begun: it may have arrived, so that from now on it goes out exactly as it is. pinned: its sender named the seq it
    has to have.
    """

    conversation_id: str
    idempotency_key: str
    body: dict[str, Any]
    begun: bool = False
    pinned: bool = False


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list; `last_id` is the next one's `after_id` (of messages, its `after`)."""

    data: list[T]
    has_more: bool
    first_id: str | int | None
    last_id: str | int | None


class ListedConversation(TypedDict):
    """A conversation as lists have it; `policy` is the one in force."""

    id: str
    external_id: str | None
    user_ref: str | None
    model: str | None
    policy: dict[str, Any]
    policy_overrides: dict[str, Any]
    warnings: list[str]
    metadata: dict[str, Any]
    created_at: str
    last_seq: int
    head_version: int
    pending_version: int | None
    context_tokens: int
    context_messages: int
    check_due_at: str | None


class Conversation(ListedConversation):
    """A conversation; to a key without `context:read`, what makes or changes one answers with ids, numbers, times."""

    system: Any
    tools: Any


class Layers(TypedDict):
    """Tokens of each layer of a payload."""

    system: int
    prior_context: int
    turn_context: int
    history: int
    user_message: int


class PayloadHistory(TypedDict):
    """What became of the history in a payload."""

    exchanges_total: int
    exchanges_kept: int
    exchanges_dropped: int
    responses_truncated: int


class Payload(TypedDict):
    """A whole payload for the Messages API under one budget, and what it weighs in tokens."""

    system: Any
    messages: list[Message]
    layers: Layers
    budget: int
    reserved_output: int
    total: int
    history: PayloadHistory
    warnings: list[str]


class Step(TypedDict):
    """One step of a run."""

    name: str
    state: str
    reason: str | None
    detail: str | None
    error: str | None
    attempt: int
    snapshot_version: int | None
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    summarizer: str | None
    model: str | None
    model_calls: int
    model_input_tokens: int | None
    model_output_tokens: int | None
    cost_usd: str | None
    duration_ms: int
    created_at: str


class Run(TypedDict):
    """One execution of compaction; `state` is queued, running, committed, skipped, failed or dead."""

    id: str
    conversation_id: str
    kind: str | None
    trigger: str
    state: str
    strategy: str | None
    instructions: str | None
    reason: str | None
    error: str | None
    policy: dict[str, Any]
    attempts: int
    snapshot_version: int | None
    tokens_before: int | None
    tokens_after: int | None
    messages_before: int | None
    messages_after: int | None
    model_input_tokens: int
    model_output_tokens: int
    cost_usd: str | None
    duration_ms: int | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    steps: list[Step]


class QueuedRun(TypedDict):
    """The run that was queued."""

    run_id: str


class PlannedStep(TypedDict):
    """A step that a run would take."""

    name: str
    state: str
    reason: str | None
    detail: str | None
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int


class Plan(TypedDict):
    """What a run would do, and the messages that it would leave."""

    strategy: str
    by_hand: bool
    policy: dict[str, Any]
    steps: list[PlannedStep]
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    messages: list[Message]
    summary_is_placeholder: bool
    warnings: list[str]


class RestorePlan(TypedDict):
    """What would be served after going back to a version: all that there is, and what of it fits the budget."""

    version: int
    tokens: int
    tokens_served: int
    budget: int
    messages: int
    messages_served: int
    held_tokens: int
    warnings: list[str]


class ListedSnapshot(TypedDict):
    """A snapshot without what it holds."""

    version: int
    parent_version: int
    run_id: str | None
    step: str
    covers_through: int
    summarizer: str | None
    tokens: int
    message_count: int
    created_at: str


class Span(TypedDict):
    """Originals `first_seq..last_seq` with one fate."""

    first_seq: int
    last_seq: int
    fate: str
    run_id: str | None


class Snapshot(ListedSnapshot):
    """A snapshot in full."""

    messages: list[Message]
    seqs: list[int | None]
    coverage: list[Span]
    summary: str | None
    prefix_hash: str


class StoredMessage(TypedDict):
    """An original, as it came."""

    seq: int
    role: str
    content: Any
    tokens: int
    created_at: str
    superseded_at: str | None


class Pin(TypedDict):
    """A text that stays in the context word for word."""

    id: str
    seq: int
    text: str
    created_at: str


class PinList(TypedDict):
    """All pins of a conversation."""

    data: list[Pin]


class RecalledPart(TypedDict):
    """One block of an original: `text` stands at `offset` of its `characters`."""

    ref: str
    seq: int
    role: str
    kind: str
    tool: str | None
    created_at: str
    text: str
    offset: int
    characters: int


class RecalledPassage(TypedDict):
    """Messages in a row; `in_context`: the context shows all of them as they are."""

    ref: str
    first_seq: int
    last_seq: int
    score: float
    in_context: bool
    parts: list[RecalledPart]


class RecalledCounts(TypedDict):
    """What was found, the best first, with a reference in the conversation's order."""

    passages: list[RecalledPassage]
    tokens: int
    searched: int
    more: bool


class Recalled(RecalledCounts, total=False):
    """`framed`, where it was asked for, is the text that a model is given as the tool's result."""

    framed: str


class UserPassage(RecalledPassage):
    """Messages of one of a user's conversations in a row; every `ref` has its conversation before it."""

    conversation_id: str


class UserRecalledCounts(TypedDict):
    """What was found in the conversations that were searched, the best first."""

    passages: list[UserPassage]
    tokens: int
    searched: int
    conversations: int
    more: bool


class UserRecalled(UserRecalledCounts, total=False):
    """`framed`, where it was asked for, is the text that a model is given as the tool's result."""

    framed: str


class RecallTool(TypedDict, total=False):
    """The tool's definition as one of the model APIs takes it: each has some of the fields."""

    type: str
    name: str
    description: str
    input_schema: dict[str, Any]
    parameters: dict[str, Any]
    function: dict[str, Any]


class Erasure(TypedDict):
    """The tombstone of an erased conversation."""

    id: str
    number: int
    conversation_id: str
    erased_at: str
    erased: dict[str, int]
    proof: str


class UserErasure(TypedDict):
    """How many conversations of a user were erased."""

    conversations: int
