"""Context blocks: what came with each turn, what of it is carried over, and one in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from litestar import Request, get

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.paging import AfterId, BeforeId, Limit, Window, page_of, window
from api.http.problems import not_found
from api.schema.context_blocks import ContextBlockOut
from api.schema.documentation import ConversationId, Position, Seq, problems
from api.schema.types import Page
from runtime import ids
from store.conversations import context_blocks, conversations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.tables import AnyRow

_DIGITS: Final = 9
"""Digits that the database's integers hold in full."""


@get(
    "/conversations/{conversation_id:str}/context-blocks",
    guards=[requires("audit:read")],
    summary="List a conversation's context blocks",
    responses=problems("bad_cursor", "not_found"),
)
async def list_context_blocks(
    request: Request[Principal, Any, Any],
    conversation_id: ConversationId,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[ContextBlockOut]:
    """List context blocks without their texts, newest first; an id is a block's seq and position."""
    services: Services = request.app.state.services
    span: Window[Any] = window(limit, after_id, before_id, _place)
    tenant = request.user.tenant_id
    rows = await services.run(tenant, _page, tenant, ids.parse("conv", conversation_id), span)
    if rows is None:
        raise not_found()
    return page_of([context_block_out(row) for row in rows], span, lambda item: item.id)


@get(
    "/conversations/{conversation_id:str}/context-blocks/{seq:int}/{position:int}",
    guards=[requires("audit:read")],
    summary="Read a context block in full",
    responses=problems("not_found"),
)
async def get_context_block(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, seq: Seq, position: Position
) -> ContextBlockOut:
    """Answer with a block's text, its outline, and its summary where there is one."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    row = await services.run(tenant, context_blocks.get, tenant, identifier, seq, position) if identifier else None
    if row is None:
        raise not_found()
    return context_block_out(row, text=row.text, outline=row.outline, summary=row.summary)


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


def _place(text: str) -> tuple[int, int] | None:
    numbers = text.split(".")
    if len(numbers) != 2 or not all(  # noqa: PLR2004 - seq and position
        number.isascii() and number.isdecimal() and len(number) <= _DIGITS for number in numbers
    ):
        return None
    return int(numbers[0]), int(numbers[1])


def _page(
    connection: Connection, tenant_id: UUID, conversation_id: UUID | None, span: Window[tuple[int, int]]
) -> Sequence[AnyRow] | None:
    if conversation_id is None or conversations.get(connection, tenant_id, conversation_id) is None:
        return None
    return context_blocks.page(
        connection, tenant_id, conversation_id, limit=span.limit + 1, after=span.after, before=span.before
    )
