"""Snapshots: the chain, one in full, and what it changed."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, get

from actions.audit import snapshot_changes, snapshot_claims
from actions.auth.principals import Principal
from actions.errors import id_or_not_found, or_not_found
from actions.paging import page_of
from actions.types.core import Page
from actions.types.snapshots import ClaimsOut, DiffOut, SnapshotOut, snapshot_brief, snapshot_full
from api.auth.guards import requires
from api.callers import caller_of
from api.http.paging import AfterId, BeforeId, Limit, window
from api.schema.documentation import ConversationId, Version, problems
from store.conversations import snapshots

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
    span = window(limit, after_id, before_id, _version)
    conversation = id_or_not_found("conv", conversation_id)
    rows = await caller_of(request).run_in(conversation, snapshots.page, **span.query)
    return page_of([snapshot_brief(row) for row in rows], span, lambda item: item.version)


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
    conversation = id_or_not_found("conv", conversation_id)
    return snapshot_full(or_not_found(await caller_of(request).run(snapshots.get, conversation, version)))


@get(
    "/conversations/{conversation_id:str}/snapshots/{version:int}/claims",
    guards=[requires("audit:read")],
    summary="Read what a summary's lines rest on",
    responses=problems("not_found"),
)
async def list_claims(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, version: Version
) -> ClaimsOut:
    """Answer with each line of a snapshot's summary and the originals that bear it out."""
    conversation = id_or_not_found("conv", conversation_id)
    return await caller_of(request).run(snapshot_claims, conversation, version)


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
    conversation = id_or_not_found("conv", conversation_id)
    return await caller_of(request).run(snapshot_changes, conversation, version)


def _version(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= VERSION_DIGITS else None
