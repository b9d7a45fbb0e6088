"""Searching a conversation's originals, with the ranking that models are answered by."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Request, Response, get

from actions.auth.principals import Principal
from actions.errors import InvalidError, id_or_not_found, or_not_found
from actions.input.checks import read
from actions.recall import recall
from actions.types.recall import RecallIn, RecallOut
from api.callers import caller_of
from api.console.pages import page
from api.console.routes.conversations import growth
from api.console.routes.find import Words
from api.console.sessions import READ, may
from api.schema.documentation import ConversationId
from compaction.recall import references
from store.console import contents
from store.conversations import conversations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from api.console.views.timeline import Plot
    from store.tables import AnyRow

MOST_PASSAGES: Final = 20
MOST_TOKENS: Final = 4_000


@get("/conversations/{conversation_id:str}/recall", include_in_schema=False, guards=[may(READ)])
async def show_recall(
    request: Request[Principal, Any, Any], conversation_id: ConversationId, words: Words = ""
) -> Response[bytes]:
    """Show what recall gives back for words, a reference or a `/pattern/`, and where in the conversation it is."""
    identifier, words = id_or_not_found("conv", conversation_id), words.strip()
    recalled, refused = await _search(request, identifier, words) if words else (None, None)
    places = [(passage.first_seq, passage.last_seq) for passage in recalled.passages] if recalled else []
    row, drawn = await caller_of(request).run(_tell, identifier, request.user, places)
    return page(
        request,
        "recall.html",
        status=HTTPStatus.UNPROCESSABLE_ENTITY if refused else HTTPStatus.OK,
        conversation=row,
        tab="recall",
        words=words,
        recalled=recalled,
        refused=refused,
        plot=drawn,
    )


async def _search(
    request: Request[Principal, Any, Any], conversation_id: UUID, words: str
) -> tuple[RecallOut | None, str | None]:
    """Return what is found, or why the query cannot be run."""
    try:
        return or_not_found(await recall(caller_of(request), conversation_id, _asked(words), origin="console")), None
    except InvalidError as problem:
        return None, problem.detail


def _asked(words: str) -> RecallIn:
    """Return what somebody typed as recall is asked."""
    if len(words) > len("//") and words[0] == words[-1] == "/":
        kind, text = "pattern", words[1:-1]
    else:
        kind, text = "ref" if references.looks_like_reference(words) else "query", words
    asked = {kind: text, "max_tokens": MOST_TOKENS, "limit": MOST_PASSAGES}
    return read(msgspec.json.encode(asked), RecallIn)


def _tell(
    connection: Connection,
    tenant_id: UUID,
    conversation_id: UUID,
    principal: Principal,
    places: Sequence[tuple[int, int]],
) -> tuple[AnyRow, Plot]:
    row = or_not_found(conversations.get(connection, tenant_id, conversation_id))
    figures = or_not_found(contents.figures(connection, tenant_id, conversation_id))
    return row, growth(connection, principal, row, figures, places)
