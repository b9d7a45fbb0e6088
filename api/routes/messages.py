"""The originals, and what became of each."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, get

from actions.audit import message_with_lineage
from actions.auth.principals import Principal
from actions.errors import id_or_not_found
from actions.paging import Window, page_of
from actions.types.core import MessageOut, Page, message_out
from api.auth.guards import requires
from api.callers import caller_of
from api.http.paging import MessageLimit
from api.schema.documentation import AfterSeq, ConversationId, Seq, problems
from store.conversations import messages


@get(
    "/conversations/{conversation_id:str}/messages",
    guards=[requires("audit:read")],
    summary="List originals",
    responses=problems("not_found"),
)
async def list_messages(
    request: Request[Principal, Any, Any],
    conversation_id: ConversationId,
    after: AfterSeq = -1,
    limit: MessageLimit = 100,
) -> Page[MessageOut]:
    """List the messages as they came, oldest first, from the one after seq `after` on.

    A page ends with about 4 MB, whatever `limit` says: go on while there `has_more`.
    """
    conversation = id_or_not_found("conv", conversation_id)
    rows, has_more = await caller_of(request).run_in(conversation, messages.page, after=after, limit=limit)
    listed = page_of([message_out(row) for row in rows], Window(limit, None, None), lambda item: item.seq)
    return msgspec.structs.replace(listed, has_more=has_more)


@get(
    "/conversations/{conversation_id:str}/messages/{seq:int}",
    guards=[requires("audit:read")],
    summary="Read an original and its lineage",
    responses=problems("not_found"),
)
async def get_message(request: Request[Principal, Any, Any], conversation_id: ConversationId, seq: Seq) -> MessageOut:
    """Answer with one message as it came, and everything that compaction did to it."""
    conversation = id_or_not_found("conv", conversation_id)
    return await caller_of(request).run(message_with_lineage, conversation, seq)
