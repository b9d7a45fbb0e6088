"""What answers about snapshots look like."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import UNSET, Struct, UnsetType


class SpanOut(Struct):
    """Originals `first_seq..last_seq` with one fate."""

    first_seq: int
    last_seq: int
    fate: str
    run_id: str | None


class PinnedOut(Struct):
    """A text in the frame of a snapshot, because its message `seq` is not shown any more."""

    seq: int
    source: str
    text: str


class SnapshotOut(Struct, kw_only=True):
    """A snapshot; in full with its messages, coverage and summary."""

    version: int
    parent_version: int
    run_id: str | None
    step: str
    covers_through: int
    summarizer: str | None
    tokens: int
    message_count: int
    created_at: datetime
    messages: msgspec.Raw | UnsetType = UNSET
    seqs: list[int | None] | UnsetType = UNSET
    coverage: list[SpanOut] | UnsetType = UNSET
    summary: str | UnsetType | None = UNSET
    prefix_hash: str | UnsetType = UNSET
    pins: list[PinnedOut] | UnsetType = UNSET


class ChangeOut(Struct):
    """Originals whose fate a snapshot changed; before it, what no snapshot covered was kept."""

    first_seq: int
    last_seq: int
    before: str
    after: str
    run_id: str | None


class DiffOut(Struct, kw_only=True):
    """What a snapshot changed against its parent, over the originals that it covers; tokens are estimates."""

    version: int
    parent_version: int
    changes: list[ChangeOut]
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    summary_before: str | None
    summary_after: str | None
