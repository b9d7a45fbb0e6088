"""The claims of a summary: its lines, and beside the chosen one the originals that it rests on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from litestar import Request, Response, get
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from actions.errors import NotFoundError
from api.console.claims.marking import SummaryLine, cited_message, summary_lines
from api.console.pages import page
from api.console.sessions import READ, may
from api.schema.documentation import ConversationId, Version
from runtime import ids
from store.console import contents
from store.conversations import conversations, messages, snapshots

if TYPE_CHECKING:
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services
    from store.tables import AnyRow

_Line = Annotated[int | None, QueryParameter(ge=0, le=2**31 - 1)]


class Claimed(NamedTuple):
    """A snapshot's summary, and what is stored of the originals that one of its lines rests on, by seq."""

    conversation: AnyRow
    snapshot: AnyRow
    lines: list[SummaryLine]
    chosen: SummaryLine | None
    roles: dict[int, str]
    originals: dict[int, Any]


@get(
    "/conversations/{conversation_id:str}/snapshots/{version:int}/claims",
    include_in_schema=False,
    guards=[may(READ)],
)
async def show_claims(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, version: Version, line: _Line = None
) -> Response[bytes]:
    """Show the lines of a summary, and the originals of the one that was clicked."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    content = await services.run(tenant, read_claims, tenant, identifier, version, line) if identifier else None
    if content is None:
        raise NotFoundError
    chosen = content.chosen
    cited = (
        [
            await asyncio.to_thread(cited_message, chosen, seq, content.roles[seq], original)
            for seq, original in sorted(content.originals.items())
        ]
        if chosen
        else []
    )
    return page(
        request,
        "claims.html",
        conversation=content.conversation,
        tab="snapshots",
        snapshot=content.snapshot,
        lines=content.lines,
        chosen=chosen,
        cited=cited,
        counts={
            support: sum(each.support == support for each in content.lines)
            for support in ("verbatim", "values", "unsupported")
        },
    )


def read_claims(
    connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int, line: int | None
) -> Claimed | None:
    """Read a snapshot's claims, and the originals of the one at `line`; None for no such snapshot or line."""
    conversation = conversations.get(connection, tenant_id, conversation_id)
    row = snapshots.get(connection, tenant_id, conversation_id, version)
    if conversation is None or row is None:
        return None
    lines = summary_lines(row)
    chosen = next((each for each in lines if each.number == line and each.support is not None), None)
    if line is not None and chosen is None:
        return None
    seqs = list(chosen.seqs) if chosen else []
    roles = {seq: each.role for seq, each in contents.listed(connection, tenant_id, conversation_id, seqs).items()}
    originals = messages.contents(connection, conversation_id, list(roles)) if roles else {}
    return Claimed(conversation, row, lines, chosen, roles, originals)
