"""Context blocks: what came with each turn, what of it is carried over, and one in full."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, get

from actions.auth.principals import Principal
from actions.errors import id_or_not_found, or_not_found
from actions.paging import page_of
from actions.types.context_blocks import ContextBlockOut, context_block_out
from actions.types.core import Page
from api.auth.guards import requires
from api.callers import caller_of
from api.http.paging import AfterId, BeforeId, Limit, window
from api.schema.documentation import ConversationId, Position, Seq, problems
from store.conversations import context_blocks

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
    span = window(limit, after_id, before_id, _place)
    conversation = id_or_not_found("conv", conversation_id)
    rows = await caller_of(request).run_in(conversation, context_blocks.page, **span.query)
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
    conversation = id_or_not_found("conv", conversation_id)
    row = or_not_found(await caller_of(request).run(context_blocks.get, conversation, seq, position))
    return context_block_out(row, text=row.text, outline=row.outline, summary=row.summary)


def _place(text: str) -> tuple[int, int] | None:
    numbers = text.split(".")
    if len(numbers) != 2 or not all(  # noqa: PLR2004 - seq and position
        number.isascii() and number.isdecimal() and len(number) <= _DIGITS for number in numbers
    ):
        return None
    return int(numbers[0]), int(numbers[1])
