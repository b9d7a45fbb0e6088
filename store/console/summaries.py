"""What a summary was made from, read again: the originals that it covers and the summary before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, func, select

from compaction.claims.citations import strip_citations
from compaction.coverage import Coverage, find_span, shown_seqs
from compaction.pins.pinned import Pin
from store.conversations import conversations, messages, snapshots
from store.conversations.messages import Origins
from store.runs import runs
from store.tables import messages as stored
from store.tables import snapshots as versions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from compaction.claims.claim import Claim
    from store.tables import AnyRow

_s = versions.c

MOST_BYTES: Final = 4_000_000
"""Bytes of originals that are read; a larger zone is mentioned, not shown."""
WRITERS: Final = ("summary", "extract")
"""Steps that put a summary into the place of messages."""


class Source(NamedTuple):
    """A run's summary and what it was made from; `zone` is None where that is too large to be read here."""

    run: AnyRow
    steps: Sequence[AnyRow]
    """Those that wrote a summary or tried to."""
    snapshot: AnyRow | None
    """Where the summary is; None where there is none, or it is not kept any more."""
    previous: str | None
    """Without references."""
    earlier: Sequence[Claim]
    """What its lines rest on, as far as that is known."""
    zone: Sequence[tuple[int, str, Any]] | None
    """Seq, role and content."""
    opening: Sequence[Any]
    """Contents of the messages that stay before it: instructions, and the first of the user."""
    origins: Origins
    pins: Sequence[str]
    """Pinned texts, which are next to the summary."""


def source(connection: Connection, tenant_id: UUID, run_id: UUID) -> Source | None:
    """Return what the summary of a run was made from; None for a run that none was to be made in."""
    run = runs.get(connection, tenant_id, run_id)
    steps = [] if run is None else [step for step in runs.steps_of(connection, [run_id]) if step.name in WRITERS]
    if run is None or not steps or run.block_id is not None:
        return None
    if conversations.get(connection, tenant_id, run.conversation_id) is None:
        return None  # It was erased.
    version = next((step.snapshot_version for step in reversed(steps) if step.snapshot_version is not None), None)
    snapshot = None if version is None else snapshots.get(connection, tenant_id, run.conversation_id, version)
    if snapshot is None:
        return Source(run, steps, None, None, (), (), (), Origins(), ())
    coverage = msgspec.convert(snapshot.coverage, Coverage)
    seqs = _summarized_by(coverage, str(run_id))
    base = _made_from(connection, run.conversation_id, snapshot.parent_version, seqs)
    before = snapshots.get(connection, tenant_id, run.conversation_id, base)
    own = (stored.c.tenant_id == tenant_id, stored.c.conversation_id == run.conversation_id, stored.c.seq.in_(seqs))
    size = connection.scalar(select(func.coalesce(func.sum(stored.c.bytes), 0)).where(*own)) or 0
    zone = None
    if size <= MOST_BYTES:
        roles = {row.seq: row.role for row in connection.execute(select(stored.c.seq, stored.c.role).where(*own))}
        contents = messages.contents(connection, run.conversation_id, seqs)
        zone = [(seq, roles[seq], contents[seq]) for seq in seqs if seq in contents]
    before_it = [seq for seq in shown_seqs(coverage) if seqs and seq < seqs[0]]
    opening = list(messages.contents(connection, run.conversation_id, before_it).values())
    origins = messages.origins(connection, run.conversation_id, seqs[0], seqs[-1]) if seqs else Origins()
    pins = [pin.text for pin in msgspec.convert(snapshot.pins or [], list[Pin]) if pin.source == "pinned"]
    previous: str | None = None
    earlier: Sequence[Claim] = ()
    if before is not None and before.summary is not None:
        claims = snapshots.claims_of(before)
        previous, earlier = before.summary if claims is None else strip_citations(before.summary), claims or ()
    return Source(run, steps, snapshot, previous, earlier, zone, opening, origins, pins)


def _made_from(connection: Connection, conversation_id: UUID, version: int, seqs: Sequence[int]) -> int:
    """Return the newest of a version and those before it that shows messages: extracts or an overflow may have not."""
    while version:
        columns = (_s.parent_version, _s.coverage)
        own = (_s.conversation_id == conversation_id, _s.version == version)
        row = connection.execute(select(*columns).where(*own)).one_or_none()
        coverage = () if row is None else msgspec.convert(row.coverage, Coverage)
        spans = (find_span(coverage, seq) for seq in seqs)
        if row is None or not any(span is not None and span.fate in {"summarized", "dropped"} for span in spans):
            break
        version = row.parent_version
    return version


def _summarized_by(coverage: Coverage, run_id: str) -> list[int]:
    return [
        seq
        for span in coverage
        if span.fate == "summarized" and span.run_id == run_id
        for seq in range(span.first, span.last + 1)
    ]
