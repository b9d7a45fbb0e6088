"""Snapshots: the list of all, any two of them compared, and which of them lost a text."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from litestar import Request, Response, get
from litestar.params import QueryParameter

from actions.audit import bisect
from actions.auth.principals import Principal
from actions.errors import NotFoundError, id_or_not_found, or_not_found
from actions.rules import list_rules
from api.callers import caller_of
from api.console.pages import page
from api.console.routes.find import Words
from api.console.sessions import READ, may
from api.console.views.context import beginning
from api.console.views.versions.comparison import Shown, compared, original, viewed
from api.schema.documentation import ConversationId
from compaction.steps.snapshot import load_view
from runtime import ids
from store.console import contents
from store.conversations import conversations, messages, pins, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services
    from actions.types.comparisons import BisectOut
    from compaction.view import View
    from store.tables import AnyRow

ON_A_PAGE = 50
LISTED_AT_MOST = 10_000
"""Originals that a comparison looks at; further ones of a longer conversation are left out, and it says so."""

_Version = Annotated[int | None, QueryParameter(ge=0, le=2**31 - 1)]
_From = Annotated[int | None, QueryParameter(name="from", ge=0, le=2**31 - 1)]


@get("/conversations/{conversation_id:str}/snapshots", include_in_schema=False, guards=[may(READ)])
async def list_snapshots(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, before: _Version = None
) -> Response[bytes]:
    """Show a conversation's snapshots, newest first, `before` a version."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    row = await services.run(tenant, conversations.get, tenant, identifier) if identifier else None
    if row is None or identifier is None:
        raise NotFoundError
    listed = await services.run(tenant, snapshots.page, tenant, identifier, limit=ON_A_PAGE + 1, after=before)
    return page(
        request,
        "snapshots.html",
        conversation=row,
        tab="snapshots",
        snapshots=listed[:ON_A_PAGE],
        next_before=listed[ON_A_PAGE - 1].version if len(listed) > ON_A_PAGE else None,
        before=before,
    )


class Sides(NamedTuple):
    """Two versions of a context, ready to be compared."""

    conversation: AnyRow
    before: list[Shown]
    after: list[Shown]
    is_cut: bool
    """Whether originals were left out because there are too many."""
    after_row: AnyRow | None


@get("/conversations/{conversation_id:str}/diff", include_in_schema=False, guards=[may(READ)])
async def show_diff(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, start: _From = None, to: _Version = None
) -> Response[bytes]:
    """Show what is different between two versions: by default what the head changed against its parent."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    conversation = await services.run(tenant, conversations.get, tenant, identifier) if identifier else None
    if conversation is None or identifier is None:
        raise NotFoundError
    to = conversation.head_version if to is None else to
    if start is None:
        row = await services.run(tenant, snapshots.get, tenant, identifier, to)
        start = row.parent_version if row else 0
    sides = await services.run(tenant, read_sides, tenant, identifier, start, to)
    if sides is None:
        raise NotFoundError
    return page(
        request,
        "diff.html",
        conversation=conversation,
        tab="snapshots",
        start=start,
        to=to,
        sides=sides,
        comparison=await asyncio.to_thread(compared, sides.before, sides.after),
        versions=await services.run(tenant, snapshots.page, tenant, identifier, limit=ON_A_PAGE),
    )


def read_sides(connection: Connection, tenant_id: UUID, conversation_id: UUID, start: int, to: int) -> Sides | None:
    """Read two versions; None where one of them, or the conversation, is not there.

    What one covers and the other does not is the other's tail; what comes after both is in both.
    """
    conversation = conversations.get(connection, tenant_id, conversation_id)
    rows = [snapshots.get(connection, tenant_id, conversation_id, version) for version in (start, to)]
    if conversation is None or any(row is None and version for row, version in zip(rows, (start, to), strict=True)):
        return None
    covers = [row.covers_through if row else -1 for row in rows]
    through = max(covers)
    first = min(covers) + 1
    last = min(through, first + LISTED_AT_MOST - 1)
    listed = contents.listed(connection, tenant_id, conversation_id, range(first, last + 1))
    views: list[View] = [load_view(row.messages, row.seqs) if row else () for row in rows]
    # Read in full only what is in one version as it was stored, and in the other perhaps not.
    shared = [
        each.seq
        for number, view in enumerate(views)
        for each in view
        if each.seq > covers[1 - number] and each.seq >= 0
    ]
    texts = messages.contents(connection, conversation_id, shared)
    before, after = (
        [
            *(viewed(each.seq, each.role, each.content) for each in view),
            *(
                _stored(row, texts)
                for seq, row in sorted(listed.items())
                if seq > covered and row.superseded_at is None
            ),
        ]
        for view, covered in zip(views, covers, strict=True)
    )
    return Sides(conversation, before, after, last < through, rows[1])


def _stored(row: AnyRow, texts: dict[int, Any]) -> Shown:
    if row.seq in texts:
        return Shown(row.seq, row.role, row.view_tokens, texts[row.seq])
    return original(row.seq, row.role, row.view_tokens, beginning(row))


@get("/conversations/{conversation_id:str}/bisect", include_in_schema=False, guards=[may(READ)])
async def show_bisect(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, words: Words = ""
) -> Response[bytes]:
    """Show which snapshot lost a text, what made it, and the ledger of rules."""
    identifier = id_or_not_found("conv", conversation_id)
    row, bisected, ledger = await caller_of(request).run(_losses, identifier, words)
    rules = await list_rules(ledger, request.user.policy_for(row.policy, row.model))
    return page(request, "bisect.html", conversation=row, tab="bisect", words=words, bisected=bisected, rules=rules)


def _losses(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, words: str
) -> tuple[AnyRow, BisectOut | None, Sequence[AnyRow]]:
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id))
    bisected = bisect(connection, tenant_id, conversation_id, words) if words.strip() else None
    return row, bisected, pins.ledger(connection, tenant_id, conversation_id)
