"""The context as it is now, message by message, and one message next to what the model sees of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
from litestar import Request, Response, get
from litestar.params import PathParameter, QueryParameter

from actions.audit import lineage_of
from actions.auth.principals import Principal
from actions.errors import NotFoundError
from api.console.pages import is_fragment, page
from api.console.sessions import READ, may
from api.console.views.content import parts
from api.console.views.context import Entry, Head, Line, entries, label_of, lines, read_head
from api.schema.documentation import ConversationId, Seq
from compaction.coverage import find_span
from compaction.shorten.inline_tags import cut_inline
from compaction.view import ViewMessage, cap_results, strip_thinking
from runtime import ids
from store.console import contents
from store.console.contents import Range
from store.conversations import conversations, messages, snapshots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services
    from actions.types.core import Lineage
    from compaction.policy import Policy
    from store.tables import AnyRow

ON_A_PAGE = 100

_Show = Annotated[Literal["context", "all"], QueryParameter()]
_From = Annotated[int, QueryParameter(name="from", ge=0, le=2**31 - 1, description="Lines before the first one.")]
_Place = Annotated[int, PathParameter(ge=0, le=2**31 - 1)]


class _Listed(NamedTuple):
    row: AnyRow
    head: Head
    lines: list[Line]
    total: int


@get("/conversations/{conversation_id:str}/context", include_in_schema=False, guards=[may(READ)])
async def show_context(
    request: Request[Principal, Any, Any],
    conversation_id: ConversationId,
    show: _Show = "context",
    first: _From = 0,
) -> Response[bytes]:
    """Show a page of the context's messages, or of all messages, each with what became of it."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    listing = await services.run(tenant, _list, request.user, identifier, show, first) if identifier else None
    if listing is None:
        raise NotFoundError
    return page(
        request,
        "context_lines.html" if is_fragment(request) else "context.html",
        conversation=listing.row,
        tab="context",
        head=listing.head,
        lines=listing.lines,
        total=listing.total,
        show=show,
        first=first,
        on_a_page=ON_A_PAGE,
        next_first=first + ON_A_PAGE if first + ON_A_PAGE < listing.total else None,
    )


class _Message(NamedTuple):
    conversation: AnyRow
    row: AnyRow
    label: str
    lineage: list[Lineage]
    view: ViewMessage | None
    summary: str | None
    beside: messages.Beside


@get("/conversations/{conversation_id:str}/messages/{seq:int}", include_in_schema=False, guards=[may(READ)])
async def show_message(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, seq: Seq
) -> Response[bytes]:
    """Show a message's original next to what the model sees of it."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    message = await services.run(tenant, _read, request.user, identifier, seq) if identifier else None
    if message is None:
        raise NotFoundError
    original = msgspec.json.decode(message.row.content)
    return page(
        request,
        "message_peek.html" if is_fragment(request) else "message.html",
        conversation=message.conversation,
        tab="context",
        message=message.row,
        label_of_message=message.label,
        lineage=message.lineage,
        original=parts(original),
        view=None if message.view is None else parts(message.view.content),
        view_tokens=None if message.view is None else message.view.tokens,
        is_same=message.view is not None and message.view.content == original,
        summary=message.summary,
        beside=message.beside,
    )


@get("/conversations/{conversation_id:str}/written/{place:int}", include_in_schema=False, guards=[may(READ)])
async def show_written(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, place: _Place
) -> Response[bytes]:
    """Show a message that compaction wrote, at a place of the head."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    row = await services.run(tenant, conversations.get, tenant, identifier) if identifier else None
    if row is None or identifier is None:
        raise NotFoundError
    head = await services.run(tenant, _head, tenant, identifier, row.head_version)
    if place >= len(head.view):
        raise NotFoundError
    return page(
        request,
        "written_peek.html" if is_fragment(request) else "written.html",
        conversation=row,
        tab="context",
        head=head,
        role=head.view[place].role,
        tokens=head.view[place].tokens,
        parts=parts(head.view[place].content),
    )


def _head(connection: Connection, tenant_id: UUID, conversation_id: UUID, version: int) -> Head:
    row = snapshots.get(connection, tenant_id, conversation_id, version) if version else None
    return read_head(row, snapshots.chain(connection, tenant_id, conversation_id))


def _list(
    connection: Connection, principal: Principal, conversation_id: UUID, show: Literal["context", "all"], first: int
) -> _Listed | None:
    tenant = principal.tenant_id
    row = conversations.get(connection, tenant, conversation_id)
    if row is None:
        return None
    head = _head(connection, tenant, conversation_id, row.head_version)
    gone = contents.superseded(connection, tenant, conversation_id)
    every: list[Entry] = entries(head, row.next_seq, gone, show)
    on_page: Sequence[Entry] = every[first : first + ON_A_PAGE]
    seqs = [entry.first for entry in on_page if entry.kind == "message"]
    ranges = [Range(entry.first, entry.last) for entry in on_page if entry.kind == "gone"]
    return _Listed(
        row,
        head,
        lines(
            on_page,
            head,
            contents.listed(connection, tenant, conversation_id, seqs),
            contents.weigh(connection, conversation_id, ranges),
            principal.policy_for(row.policy, row.model).max_tool_result_chars,
        ),
        len(every),
    )


def _read(connection: Connection, principal: Principal, conversation_id: UUID, seq: int) -> _Message | None:
    tenant = principal.tenant_id
    conversation = conversations.get(connection, tenant, conversation_id)
    row = messages.get(connection, tenant, conversation_id, seq)
    figures = contents.figures(connection, tenant, conversation_id)
    if conversation is None or row is None or figures is None:
        return None
    head = _head(connection, tenant, conversation_id, conversation.head_version)
    chain = snapshots.chain(connection, tenant, conversation_id)
    span = find_span(head.coverage, seq)
    label = "superseded" if row.superseded_at else label_of(head, seq, span.fate if span else "kept")
    view = None
    if not row.superseded_at:
        policy = principal.policy_for(conversation.policy, conversation.model)
        view = _view(head, row, policy, figures.strip_thinking_through)
    # In the head, what is kept may differ by the summary before it.
    if label == "kept" and view is not None and row.seq > head.covers_through:
        label = "kept" if view.content == msgspec.json.decode(row.content) else "truncated"
    lineage = lineage_of(seq, chain)
    summary = head.summary if label == "summarized" else None
    return _Message(conversation, row, label, lineage, view, summary, messages.beside(connection, conversation_id, seq))


def _view(head: Head, row: AnyRow, policy: Policy, strip_through: int) -> ViewMessage | None:
    """Return what the model sees of a message: the head's, or the original as the view shapes it by itself."""
    if row.seq <= head.covers_through:
        return next((message for message in head.view if message.seq == row.seq), None)
    stored = (ViewMessage(row.role, msgspec.json.decode(row.content), row.seq),)
    shaped = cap_results(strip_thinking(stored, strip_through), policy.max_tool_result_chars)
    return next(iter(cut_inline(shaped, policy.inline_tool_tags, policy.tool_result_retention_chars)), None)
