"""What answers about snapshots look like."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from compaction.claims.claim import Support
from compaction.coverage import Coverage
from compaction.pins.pinned import Pin
from compaction.view import WRITTEN
from runtime import ids

if TYPE_CHECKING:
    from store.tables import AnyRow


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
    speaker: str
    """Who said it, as in `user (anna)`; "" if that is not known."""
    answered: bool | None
    """Of the latest request: whether it is answered."""


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


class ClaimOut(Struct):
    """A line of a summary and the seqs of the originals that it rests on; unsupported lines rest on none."""

    text: str
    seqs: list[int]
    support: Support


class ClaimsOut(Struct):
    """The lines of a snapshot's summary, in order; none where it has no summary, or nobody knows what that rests on."""

    data: list[ClaimOut]


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


def snapshot_brief(row: AnyRow, **more: Any) -> SnapshotOut:
    """Return a snapshot without what it holds."""
    return SnapshotOut(
        version=row.version,
        parent_version=row.parent_version,
        run_id=ids.external("run", row.run_id) if row.run_id else None,
        step=row.step,
        covers_through=row.covers_through,
        summarizer=row.summarizer,
        tokens=row.tokens,
        message_count=row.message_count,
        created_at=row.created_at,
        **more,
    )


def _pinned_out(pin: Pin) -> PinnedOut:
    answered = pin.is_answered if pin.source == "latest_request" else None
    return PinnedOut(pin.seq, pin.source, pin.text, pin.speaker, answered)


def snapshot_full(row: AnyRow) -> SnapshotOut:
    """Return a snapshot with what it holds; a message that compaction wrote has no seq."""
    spans = msgspec.convert(row.coverage, Coverage)
    return snapshot_brief(
        row,
        messages=msgspec.Raw(row.messages),
        seqs=[None if seq == WRITTEN else seq for seq in row.seqs],
        coverage=[SpanOut(span.first, span.last, span.fate, ids.external_text("run", span.run_id)) for span in spans],
        summary=row.summary,
        prefix_hash=row.prefix_hash.hex(),
        pins=[_pinned_out(msgspec.convert(pin, Pin)) for pin in row.pins],
    )
