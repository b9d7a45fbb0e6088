"""The shapes that the HTTP API takes and answers with, as its client reads them."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from compaction.shapes.inner import Shape
from compaction.steps.runs import ENDED

UNCOMPACTED: Final = 0
"""The version that means no snapshot: the whole history."""

CheckState = Literal["queued", "coalesced", "deferred"]


class Message(msgspec.Struct, frozen=True):
    """One message; `content` is its JSON text as the Messages API takes it, posted exactly as it is.

    One of another shape is whole in `original`, which is posted in its place.
    """

    role: str
    content: msgspec.Raw
    original: msgspec.Raw | None = None

    @property
    def as_sent(self) -> Any:
        """The message as it is posted."""
        return {"role": self.role, "content": self.content} if self.original is None else self.original


class Assembly(msgspec.Struct, frozen=True):
    """What the newest assembly of a conversation was made of; `layers` are tokens by name."""

    call: str
    at: str
    layers: dict[str, int]
    total: int
    budget: int
    reserved_output: int
    exchanges_total: int = 0
    exchanges_kept: int = 0
    exchanges_dropped: int = 0
    rounds_dropped: bool = False
    responses_truncated: int = 0
    blocks_shortened: int = 0
    warnings: int = 0
    snapshot_version: int = UNCOMPACTED


class Conversation(msgspec.Struct, frozen=True):
    """One conversation as `GET /conversations/{id}` describes it."""

    id: str
    external_id: str | None = None
    user_ref: str | None = None
    model: str | None = None
    context_tokens: int = 0
    head_version: int | None = None
    last_seq: int | None = None
    check_due_at: str | msgspec.UnsetType | None = msgspec.UNSET
    """When the next check is due; None = nothing is waiting."""
    policy: dict[str, Any] = {}
    created_at: str | None = None
    last_assembly: Assembly | None = None
    """None = none is known, or the call does not tell."""


class RestorePlan(msgspec.Struct, frozen=True):
    """What would be served after a restore: what there is in all, and what of it fits the budget."""

    version: int
    tokens: int
    tokens_served: int
    budget: int
    messages: int
    messages_served: int
    held_tokens: int
    """Tokens that have to come before compaction begins by itself."""
    warnings: list[str]


class Appended(msgspec.Struct, frozen=True):
    """The answer to one appended turn."""

    first_seq: int
    last_seq: int
    context_tokens: int
    check: CheckState


class SnapshotRef(msgspec.Struct, frozen=True):
    """The snapshot that a context starts with."""

    version: int
    covers_through: int


class ContextTokens(msgspec.Struct, frozen=True):
    """Tokens of a context: estimated, last measured by the model's API, and the budget in force."""

    context: int
    measured: int | None = None
    budget: int | None = None


class Context(msgspec.Struct, frozen=True):
    """Head snapshot and tail, as they would be sent to the model; `messages`, or Responses' `items`, are JSON text."""

    snapshot: SnapshotRef | None
    last_seq: int | None
    tokens: ContextTokens
    messages: msgspec.Raw = msgspec.Raw()
    items: msgspec.Raw = msgspec.Raw()
    warnings: list[Any] = []
    etag: str | None = None


class StoredMessage(msgspec.Struct, frozen=True):
    """One original, with the JSON text of its content as it came in; one of another shape is whole in `original`."""

    seq: int
    role: str
    content: msgspec.Raw
    tokens: int
    created_at: str | None = None
    superseded_at: str | None = None
    shape: Shape = "messages"
    original: msgspec.Raw = msgspec.Raw()


class RunStep(msgspec.Struct, frozen=True):
    """One step of the ladder inside a run; tokens and messages of the context before and after it."""

    name: str
    state: str
    reason: str | None = None
    detail: str | None = None
    error: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    messages_before: int | None = None
    messages_after: int | None = None
    results_cut: int | None = None
    snapshot_version: int | None = None
    summarizer: str | None = None
    model: str | None = None
    cost_usd: str | None = None
    duration_ms: int | None = None


class Run(msgspec.Struct, frozen=True):
    """One execution of compaction."""

    id: str
    state: str
    reason: str | None = None
    error: str | None = None
    trigger: str | None = None
    steps: list[RunStep] = []
    snapshot_version: int | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    messages_before: int | None = None
    messages_after: int | None = None
    attempts: int | None = None
    unsupported_lines: int | None = None
    dropped_lines: int | None = None
    duration_ms: int | None = None
    created_at: str | None = None
    finished_at: str | None = None

    @property
    def settled(self) -> bool:
        """Whether the run has reached a state it stays in."""
        return self.state in ENDED


class Snapshot(msgspec.Struct, frozen=True):
    """One version of a conversation's compacted view, without its messages."""

    version: int
    covers_through: int
    run_id: str | None = None
    parent_version: int | None = None
    step: str | None = None
    summarizer: str | None = None
    tokens: int | None = None
    message_count: int | None = None
    created_at: str | None = None


class Span(msgspec.Struct, frozen=True):
    """Originals `first_seq..last_seq` with one fate."""

    first_seq: int
    last_seq: int
    fate: str


class SnapshotInFull(Snapshot, frozen=True, kw_only=True):
    """One version with what it holds; `seqs` has None for messages that compaction wrote."""

    messages: list[dict[str, Any]]
    seqs: list[int | None]
    coverage: list[Span] = []
    summary: str | None = None


class RecalledPart(msgspec.Struct, frozen=True):
    """One block of an original: `text` starts at `offset` of its `characters`."""

    ref: str
    role: str
    text: str
    created_at: str | None
    offset: int = 0
    characters: int = 0
    kind: str = "text"
    tool: str | None = None
    name: str | None = None


class RecalledPassage(msgspec.Struct, frozen=True):
    """Messages in a row."""

    ref: str
    parts: list[RecalledPart]
    score: float = 0.0
    in_context: bool = False


class Recalled(msgspec.Struct, frozen=True):
    """What was found, the best first."""

    passages: list[RecalledPassage]
    tokens: int = 0
    searched: int = 0
    more: bool = False
    framed: str | msgspec.UnsetType = msgspec.UNSET
    """What a model is given, where it was asked for."""
    conversations: int | msgspec.UnsetType = msgspec.UNSET
    """How many were searched, where it was all of a user's."""


class TextFate(msgspec.Struct, frozen=True):
    """What became of an original that had a text."""

    seq: int
    fate: str


class TextLoss(msgspec.Struct, frozen=True):
    """The snapshot from which on a text did not stand any more, the last of several, and what made it."""

    version: int
    parent_version: int
    run_id: str
    trigger: str | None
    step: str | None
    detail: str | None
    summarizer: str | None
    messages: list[TextFate]
    back_in: int | None


class Bisected(msgspec.Struct, frozen=True):
    """Where a text was said, whether the context has it now, and what took it out."""

    seqs: list[int]
    in_context: bool
    searched_versions: list[int]
    loss: TextLoss | None
