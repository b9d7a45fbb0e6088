"""What answers tell of context blocks."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Struct, UnsetType

if TYPE_CHECKING:
    from store.tables import AnyRow


class ContextBlockRef(Struct):
    """The context block that a run is about."""

    seq: int
    position: int
    source: str


class ContextBlockOut(Struct, kw_only=True):
    """A piece of context that came with the request `seq`, `position` counted from 0; tokens are estimates.

    `state`: `carried` blocks are prior context of the next turn, as outlines of `outline_tokens`; `ended` ones gave way
    at message `carried_until` to a newer block of their source, or to newer ones in all; `superseded` ones went with
    the messages that an edit replaced. In full with its text, its outline and its summary.
    """

    id: str
    seq: int
    position: int
    source: str
    title: str
    tokens: int
    outline_tokens: int
    state: Literal["carried", "ended", "superseded"]
    has_summary: bool
    carried_until: int | None
    superseded_at: datetime | None
    created_at: datetime
    text: str | UnsetType = UNSET
    outline: str | UnsetType = UNSET
    summary: str | UnsetType | None = UNSET


def context_block_out(row: AnyRow, **more: Any) -> ContextBlockOut:
    """Return a block as clients see it."""
    return ContextBlockOut(
        id=f"{row.seq}.{row.position}",
        seq=row.seq,
        position=row.position,
        source=row.source,
        title=row.title,
        tokens=row.tokens,
        outline_tokens=row.outline_tokens,
        state="superseded" if row.superseded_at else "carried" if row.carried_until is None else "ended",
        has_summary=row.has_summary,
        carried_until=row.carried_until,
        superseded_at=row.superseded_at,
        created_at=row.created_at,
        **more,
    )
