"""Erasure, its tombstones, and the export of a user's data."""

from __future__ import annotations

from typing import Any

from litestar import Request, delete, get
from litestar.response import Stream

from actions.auth.principals import Principal
from actions.erase import erase_all_of, lines
from actions.errors import InvalidError, id_or_not_found, or_not_found
from actions.paging import page_of
from actions.types.core import Page
from actions.types.erasures import ErasureOut, UserErasureOut, erasure_out
from api.auth.guards import requires
from api.callers import caller_of
from api.http.paging import AfterId, BeforeId, Limit, window
from api.http.problems import named
from api.schema.documentation import AnyUserRef, ConversationId, Filter, UserRef, answers, problems
from runtime import ids
from store.archive import erasures


@delete(
    "/conversations/{conversation_id:str}",
    status_code=200,
    guards=[requires("admin")],
    summary="Erase a conversation",
    responses={200: answers(ErasureOut, "It is gone; this is its tombstone."), **problems("not_found")},
)
async def erase_conversation(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> ErasureOut:
    """Remove every text of a conversation for good, and what is under way for it; once more answers the same.

    From the answer on the conversation is none to any call. What stays is the tombstone, and its runs with their
    numbers. Needs the scope `admin`.
    """
    caller, conversation = caller_of(request), id_or_not_found("conv", conversation_id)
    tombstone = await caller.services.erase(caller.tenant_id, erasures.erase, caller.operator, conversation)
    return erasure_out(or_not_found(tombstone))


@delete(
    "/users/{user_ref:str}",
    status_code=200,
    guards=[requires("admin")],
    summary="Erase a user's conversations",
    responses={200: answers(UserErasureOut, "They are gone."), **problems("not_found")},
)
async def erase_user(request: Request[Principal, Any, Any], user_ref: UserRef) -> UserErasureOut:
    """Erase every conversation with this `user_ref`, as each would be by itself; the answer comes when all are gone.

    If none comes, because the connection broke or the service stopped, ask again: it goes on from there. Needs the
    scope `admin`.
    """
    return UserErasureOut(conversations=await erase_all_of(caller_of(request), user_ref))


@delete(
    "/users",
    status_code=200,
    guards=[requires("admin")],
    summary="Erase a user's conversations, whatever the name",
    responses={200: answers(UserErasureOut, "They are gone."), **problems()},
)
async def erase_any_user(request: Request[Principal, Any, Any], user_ref: AnyUserRef = None) -> UserErasureOut:
    """As `DELETE /users/{user_ref}`, for names that a path cannot hold: those with a slash, `.` and `..`."""
    return UserErasureOut(conversations=await erase_all_of(caller_of(request), named(user_ref)))


@get(
    "/users/{user_ref:str}/export",
    guards=[requires("audit:read")],
    summary="Export a user's data",
    responses={200: answers(str, "JSON lines.", "application/jsonl"), **problems("not_found")},
)
async def export_user(request: Request[Principal, Any, Any], user_ref: UserRef) -> Stream:
    """Answer with all that is stored of a user as JSON lines, each with its `type`.

    A `conversation` is followed by each `message` (superseded ones too), `snapshot`, `context_block`, `pin`, `run`,
    `run_step` and `recall` of it. Contents are as they came, but for line breaks between JSON tokens; one that has such
    breaks comes as a string too, exactly, in `content_text` (a snapshot's in `messages_text`). The last line has the
    type `end`; an export without it is not whole.
    """
    return Stream(lines(caller_of(request), user_ref), media_type="application/jsonl")


@get(
    "/exports",
    guards=[requires("audit:read")],
    summary="Export a user's data, whatever the name",
    responses={200: answers(str, "JSON lines.", "application/jsonl"), **problems()},
)
async def export_any_user(request: Request[Principal, Any, Any], user_ref: AnyUserRef = None) -> Stream:
    """As `GET /users/{user_ref}/export`, for names that a path cannot hold."""
    return Stream(lines(caller_of(request), named(user_ref)), media_type="application/jsonl")


@get("/erasures", guards=[requires("audit:read")], summary="List erasures", responses=problems("bad_cursor"))
async def list_erasures(
    request: Request[Principal, Any, Any],
    conversation_id: Filter = None,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[ErasureOut]:
    """List the tombstones of erased conversations, newest first; one of them with `conversation_id`."""
    span = window(limit, after_id, before_id, lambda text: ids.parse("era", text))
    wanted = ids.parse("conv", conversation_id) if conversation_id is not None else None
    if conversation_id is not None and wanted is None:
        raise InvalidError("This is not the id of a conversation.", "conversation_id")
    rows = await caller_of(request).run(erasures.page, conversation_id=wanted, **span.query)
    return page_of([erasure_out(row) for row in rows], span, lambda item: item.id)
