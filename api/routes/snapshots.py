"""Snapshots: the chain, one in full, and what it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Request, get

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.paging import AfterId, BeforeId, Limit, Window, page_of, window
from api.http.problems import not_found
from api.schema.documentation import ConversationId, Version, problems
from api.schema.snapshots import ChangeOut, DiffOut, PinnedOut, SnapshotOut, SpanOut
from api.schema.types import Page
from compaction.coverage import Coverage, changes
from compaction.pins.pinned import Pin
from compaction.view import WRITTEN
from runtime import ids
from store.conversations import conversations, snapshots

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.tables import AnyRow

VERSION_DIGITS: Final = 9
"""Digits that the database's integers hold in full."""


@get(
    "/conversations/{conversation_id:str}/snapshots",
    guards=[requires("audit:read")],
    summary="List a conversation's snapshots",
    responses=problems("bad_cursor", "not_found"),
)
async def list_snapshots(
    request: Request[Principal, Any, Any],
    conversation_id: ConversationId,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[SnapshotOut]:
    """List snapshots, newest first; their ids are their versions."""
    services: Services = request.app.state.services
    span: Window[Any] = window(limit, after_id, before_id, _version)
    identifier = ids.parse("conv", conversation_id)
    found = await services.run(request.user.tenant_id, _page, request.user.tenant_id, identifier, span)
    if found is None:
        raise not_found()
    return page_of(found, span, lambda item: item.version)


@get(
    "/conversations/{conversation_id:str}/snapshots/{version:int}",
    guards=[requires("audit:read")],
    summary="Read a snapshot in full",
    responses=problems("not_found"),
)
async def get_snapshot(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, version: Version
) -> SnapshotOut:
    """Answer with a snapshot's messages, its coverage and its summary."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    row = await services.run(tenant, snapshots.get, tenant, identifier, version) if identifier else None
    if row is None:
        raise not_found()
    return full(row)


@get(
    "/conversations/{conversation_id:str}/snapshots/{version:int}/diff",
    guards=[requires("audit:read")],
    summary="Read what a snapshot changed",
    responses=problems("not_found"),
)
async def diff_snapshot(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, version: Version
) -> DiffOut:
    """Answer with what a snapshot changed against its parent."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    found = await services.run(tenant, _diff, tenant, identifier, version) if identifier else None
    if found is None:
        raise not_found()
    return found


def _version(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= VERSION_DIGITS else None


def brief(row: AnyRow, **more: Any) -> SnapshotOut:
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


def full(row: AnyRow) -> SnapshotOut:
    """Return a snapshot with what it holds; a message that compaction wrote has no seq."""
    spans = msgspec.convert(row.coverage, Coverage)
    return brief(
        row,
        messages=msgspec.Raw(row.messages),
        seqs=[None if seq == WRITTEN else seq for seq in row.seqs],
        coverage=[SpanOut(span.first, span.last, span.fate, ids.external_text("run", span.run_id)) for span in spans],
        summary=row.summary,
        prefix_hash=row.prefix_hash.hex(),
        pins=[PinnedOut(pin.seq, pin.source, pin.text) for pin in (msgspec.convert(pin, Pin) for pin in row.pins)],
    )


def _page(
    connection: Connection, tenant_id: UUID, conversation_id: UUID | None, span: Window[int]
) -> list[SnapshotOut] | None:
    if conversation_id is None or conversations.get(connection, tenant_id, conversation_id) is None:
        return None
    rows = snapshots.page(
        connection, tenant_id, conversation_id, limit=span.limit + 1, after=span.after, before=span.before
    )
    return [brief(row) for row in rows]


def _diff(connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int) -> DiffOut | None:
    row = snapshots.get(connection, tenant_id, conversation_id, version)
    if row is None:
        return None
    parent = snapshots.get(connection, tenant_id, conversation_id, row.parent_version)
    before = snapshots.weigh_tail(
        connection,
        conversation_id,
        after=parent.covers_through if parent else -1,
        through=row.covers_through,
    )
    found = changes(
        msgspec.convert(parent.coverage, Coverage) if parent else (), msgspec.convert(row.coverage, Coverage)
    )
    return DiffOut(
        version=version,
        parent_version=row.parent_version,
        changes=[
            ChangeOut(first, last, old, new.fate, ids.external_text("run", new.run_id))
            for first, last, old, new in found
        ],
        messages_before=(parent.message_count if parent else 0) + before.messages,
        messages_after=row.message_count,
        tokens_before=(parent.tokens if parent else 0) + before.tokens,
        tokens_after=row.tokens,
        summary_before=parent.summary if parent else None,
        summary_after=row.summary,
    )
