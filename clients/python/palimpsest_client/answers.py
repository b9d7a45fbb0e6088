"""What the service answers with. Answers may hold more than is named here: fields are added without notice.

Written by generate_answers.py from the OpenAPI document; `make docs` writes it anew.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Message = dict[str, Any]
"""One message of the Messages API or of Chat Completions, or one Responses item."""
Shape = Literal["messages", "chat", "responses"]
"""The API whose messages they are: Messages API, Chat Completions, Responses items."""

Queue = Literal["checks", "summaries"]
RunKind = Literal["ladder", "manual", "recovery", "context_block", "request"]
RunState = Literal["queued", "running", "committed", "skipped", "degraded", "failed", "dead"]
RunTrigger = Literal[
    "check",
    "pause",
    "manual",
    "overflow",
    "budget",
    "context_block",
    "pin",
    "restore",
    "fork",
    "import",
]
StepState = Literal["committed", "skipped", "failed"]


class ContextTokens(TypedDict):
    """Tokens of a context: as counted for the next call, as the API last measured, and the budget of the payload."""

    context: int
    measured: int | None
    budget: int


class ListedConversation(TypedDict):
    """A conversation as lists have it; `policy` is the one in force."""

    id: str
    external_id: str | None
    user_ref: str | None
    model: str | None
    shape: Literal["messages", "chat", "responses"]
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
    """Tokens of each layer."""

    system: int
    prior_context: int
    turn_context: int
    history: int
    user_message: int


class PayloadHistory(TypedDict):
    """What became of the history's exchanges, and how many responses and results were cut."""

    exchanges_total: int
    exchanges_kept: int
    exchanges_dropped: int
    responses_truncated: int


class StandingRules(TypedDict):
    """The rules in force that stand word for word in `messages`, and one hash over their texts in that order.

    The hash is of the texts joined by line feeds, in UTF-8.
    """

    ids: list[str]
    sha256: str


class LeftOut(TypedDict):
    """What of messages has no counterpart in the shape that is served."""

    code: Literal["left_out"]
    seqs: list[int]
    what: str


class CacheControl(TypedDict, total=False):
    """A mark for the prompt cache; `ttl` where the policy names its longer life."""

    type: Literal["ephemeral"]
    ttl: Literal["1h"]


class CacheBreakpoint(TypedDict):
    """A block that `cache_control` belongs on: one of a message, of the system prompt, or of the list of tools.

    A `block` of null stands for a content that is a text, which has to become a list of one text block.
    """

    field: Literal["tools", "system", "messages"]
    message: int | None
    block: int | None
    cache_control: CacheControl


class PayloadCounts(TypedDict):
    """What a payload weighs; `system` stands apart for the Messages API alone."""

    system: Any
    layers: Layers
    budget: int
    reserved_output: int
    total: int
    history: PayloadHistory
    rules: StandingRules
    warnings: list[str | LeftOut]


class Payload(PayloadCounts, total=False):
    """A whole payload under one budget: `items` for Responses, else `messages`."""

    messages: list[Message]
    items: list[Message]
    cache_breakpoints: list[CacheBreakpoint] | None


class ContextBlockRef(TypedDict):
    """The context block that a run is about."""

    seq: int
    position: int
    source: str


class Step(TypedDict):
    """One step of a run."""

    name: str
    state: StepState
    reason: str | None
    detail: str | None
    error: str | None
    attempt: int
    snapshot_version: int | None
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    results_cut: int | None
    summarizer: str | None
    model: str | None
    prompt_version: str | None
    model_calls: int
    model_input_tokens: int | None
    model_output_tokens: int | None
    cost_usd: str | None
    duration_ms: int
    created_at: str


class Run(TypedDict):
    """One execution of compaction."""

    id: str
    conversation_id: str
    kind: RunKind | None
    trigger: RunTrigger
    state: RunState
    queue: Queue
    strategy: str | None
    instructions: str | None
    context_block: ContextBlockRef | None
    reason: str | None
    error: str | None
    request_id: str | None
    policy: dict[str, Any]
    attempts: int
    worker: str | None
    snapshot_version: int | None
    tokens_before: int | None
    tokens_after: int | None
    messages_before: int | None
    messages_after: int | None
    model_input_tokens: int
    model_output_tokens: int
    cost_usd: str | None
    unsupported_lines: int | None
    dropped_lines: int | None
    duration_ms: int | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    not_before: str | None
    steps: list[Step]


class QueuedRun(TypedDict):
    """The run that was queued, or the active one that does the same already."""

    run_id: str


class PlannedStep(TypedDict):
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


class Plan(TypedDict):
    """What a run would do, and the messages that it would leave, in the Messages API's shape.

    `by_hand`: it takes its steps whatever the thresholds say; else it is what they ask for, which may be nothing.
    `summary_is_placeholder`: no summary was made for the plan; where it would stand, a text says so.
    """

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


class Pinned(TypedDict):
    """A text in the frame of a snapshot, because its message `seq` is not shown any more."""

    seq: int
    source: str
    text: str
    speaker: str
    answered: bool | None


class Snapshot(ListedSnapshot):
    """A snapshot in full."""

    messages: list[Message]
    seqs: list[int | None]
    coverage: list[Span]
    summary: str | None
    prefix_hash: str
    pins: list[Pinned]


class Claim(TypedDict):
    """A line of a summary and the seqs of the originals that it rests on; unsupported lines rest on none."""

    text: str
    seqs: list[int]
    support: Literal["verbatim", "values", "unsupported"]


class Claims(TypedDict):
    """The lines of a snapshot's summary, in order; none where it has no summary, or nobody knows what that rests on."""

    data: list[Claim]


class ComparedContext(TypedDict):
    """The context of the turn under a version, in the Messages API's shape, fitted to the budget as it is served."""

    version: int
    covers_through: int
    tokens: int
    messages: list[Message]
    rules: StandingRules


class OnlySeqs(TypedDict):
    """Messages that one of the contexts shows and the other does not."""

    first: list[int]
    second: list[int]


class OnlyTexts(TypedDict):
    """What one of the contexts has and the other has not."""

    first: list[str]
    second: list[str]


class OnlyClaims(TypedDict):
    """Claims of one summary that the other does not make of the same messages."""

    first: list[Claim]
    second: list[Claim]


class Differences(TypedDict):
    """What the two contexts differ in: messages shown, ids of rules, exact values (200 of each at most), claims.

    `claims` is null where those of one of the summaries are not known.
    """

    messages: OnlySeqs
    rules: OnlyTexts
    values: OnlyTexts
    claims: OnlyClaims | None


class Comparison(TypedDict):
    """One turn's context under two versions, in the order that was asked for."""

    seq: int
    contexts: list[ComparedContext]
    differences: Differences


class FateOfOriginal(TypedDict):
    """What became of an original that had the text."""

    seq: int
    fate: str


class Loss(TypedDict):
    """The snapshot from which on the text did not stand any more, the last of several; what made it, and why."""

    version: int
    parent_version: int
    run_id: str
    trigger: str | None
    step: str | None
    detail: str | None
    summarizer: str | None
    messages: list[Message]
    back_in: int | None


class Bisected(TypedDict):
    """Where a text was said, whether the context has it now, and what took it out, null for nothing."""

    seqs: list[int]
    in_context: bool
    searched_versions: list[int]
    loss: Loss | None


class StoredContent(TypedDict):
    """An original; `content` has it as every step works on it."""

    seq: int
    role: str
    content: Any
    tokens: int
    created_at: str | None
    superseded_at: str | None
    shape: Literal["messages", "chat", "responses"]


class StoredMessage(StoredContent, total=False):
    """An original; one of another shape than the Messages API's stands whole in `original`, as it came."""

    original: Any


class Pin(TypedDict):
    """A text that stays in the context word for word, whatever becomes of its message."""

    id: str
    seq: int
    text: str
    created_at: str


class PinList(TypedDict):
    """All pins of a conversation."""

    data: list[Pin]


class RuleProposal(TypedDict):
    """What a user said in message `seq` that may ask to forget a rule. Nothing follows from it by itself."""

    seq: int
    text: str


class Rule(TypedDict):
    """An entry of the ledger: a text that stays in the context word for word, by whose request and since when.

    `source`: pinned by hand, or detected in what the user, or the system or developer message `seq`, said.
    """

    id: str
    text: str
    seq: int
    source: Literal["pinned", "detected"]
    speaker: str
    since: str
    withdrawn_at: str | None
    request_id: str | None
    duplicates: list[str]
    conflicts: list[str]
    proposal: RuleProposal | None


class RuleList(TypedDict):
    """All rules of a conversation there ever were, in the order of their messages."""

    data: list[Rule]


class RecalledPart(TypedDict):
    """One block of an original: `text` stands at `offset` of its `characters`.

    A context block has the kind `context_block`, and where it comes from as its `tool`. `name` is that of who wrote the
    message, where it says so.
    """

    ref: str
    seq: int
    role: str
    kind: str
    tool: str | None
    created_at: str | None
    text: str
    offset: int
    characters: int


class RecalledPassage(TypedDict):
    """Messages in a row, or a context block; `in_context` tells whether the context shows all of it as it came."""

    ref: str
    first_seq: int
    last_seq: int
    score: float
    in_context: bool
    parts: list[RecalledPart]


class RecalledCounts(TypedDict):
    """What was found, best first; with a reference, in the conversation's order."""

    passages: list[RecalledPassage]
    tokens: int
    searched: int
    more: bool


class Recalled(RecalledCounts, total=False):
    """`framed`, where it was asked for, is the text that a model is given as the tool's result."""

    framed: str


class UserPassage(RecalledPassage):
    """Messages of one conversation in a row; every `ref` has its conversation before it."""

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
    """The tool's definition in one of the shapes: each has some of the fields."""

    type: str
    name: str
    description: str
    input_schema: dict[str, Any]
    parameters: dict[str, Any]
    function: dict[str, Any]


class Erasure(TypedDict):
    """The tombstone of a conversation: who had it erased, when, and how much of it there was.

    `number` counts a tenant's erasures from 1. `proof` is a SHA-256, in hexadecimal, over this tombstone and the proof
    of the one before it.
    """

    id: str
    number: int
    conversation_id: str
    asked_for: Literal["conversation", "user", "retention"]
    key_id: str | None
    request_id: str | None
    erased_at: str
    erased: dict[str, int]
    proof: str


class UserErasure(TypedDict):
    """How many conversations of a user this request found, and saw erased; 0 when there was nothing left."""

    conversations: int
