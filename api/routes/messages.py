"""The originals, and what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, get

from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.paging import MessageLimit, Window, page_of
from api.http.problems import not_found
from api.schema.documentation import AfterSeq, ConversationId, Seq, problems
from api.schema.types import Lineage, MessageOut, Page
from compaction.coverage import Coverage, find_span
from runtime import ids
from store.conversations import conversations, messages, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from api.services import Services
    from store.tables import AnyRow


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
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    found = await services.run(tenant, _page, tenant, ids.parse("conv", conversation_id), after, limit)
    if found is None:
        raise not_found()
    rows, has_more = found
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
    services: Services = request.app.state.services
    tenant = request.user.tenant_id
    found = await services.run(tenant, _with_chain, tenant, ids.parse("conv", conversation_id), seq)
    if found is None:
        raise not_found()
    row, chain = found
    lineage = lineage_of(seq, chain)
    fate = lineage[-1].fate if lineage else "kept"
    return message_out(row, fate="superseded" if row.superseded_at else fate, lineage=lineage)


def message_out(row: AnyRow, **more: Any) -> MessageOut:
    """Return an original as clients see it."""
    return MessageOut(
        seq=row.seq,
        role=row.role,
        content=msgspec.Raw(row.content),
        tokens=row.tokens,
        created_at=row.created_at,
        superseded_at=row.superseded_at,
        **more,
    )


def lineage_of(seq: int, chain: Sequence[AnyRow]) -> list[Lineage]:
    """Return each change of a message's fate along a chain of snapshots, oldest first."""
    found: list[Lineage] = []
    for snapshot in chain:
        span = find_span(msgspec.convert(snapshot.coverage, Coverage), seq)
        if span is not None and span.fate != (found[-1].fate if found else "kept"):
            run = ids.external_text("run", span.run_id)
            found.append(Lineage(span.fate, snapshot.version, run))
    return found


def _page(
    connection: Connection, tenant_id: UUID, conversation_id: UUID | None, after: int, limit: int
) -> tuple[Sequence[AnyRow], bool] | None:
    if conversation_id is None or conversations.get(connection, tenant_id, conversation_id) is None:
        return None
    return messages.page(connection, tenant_id, conversation_id, after=after, limit=limit)


def _with_chain(
    connection: Connection, tenant_id: UUID, conversation_id: UUID | None, seq: int
) -> tuple[AnyRow, Sequence[AnyRow]] | None:
    row = conversation_id and messages.get(connection, tenant_id, conversation_id, seq)
    if not row or conversation_id is None:
        return None
    return row, snapshots.chain(connection, tenant_id, conversation_id)
