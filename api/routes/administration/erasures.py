"""Erasure, its tombstones, and the export of a user's data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from litestar import Request, delete, get
from litestar.params import PathParameter, QueryParameter
from litestar.response import Stream

from api.actions.exports import lines
from api.auth.guards import requires
from api.auth.principals import Principal
from api.http.bytes_under_way import HOLD
from api.http.paging import AfterId, BeforeId, Limit, Window, page_of, window
from api.http.problems import invalid, not_found
from api.schema.documentation import ConversationId, Filter, answers, problems
from api.schema.erasures import ErasedOut, ErasureOut, UserErasureOut
from api.schema.types import Page
from runtime import ids
from store.archive import erasures
from store.archive.erasures import Asking

if TYPE_CHECKING:
    from api.services import Services
    from store.tables import AnyRow

_REFERENCE: Final[dict[str, Any]] = {
    "max_length": 512,
    "pattern": r"^[^\x00]*$",
    "description": "The `user_ref` of conversations.",
}
UserRef = Annotated[str, PathParameter(**_REFERENCE)]
AnyUserRef = Annotated[str | None, QueryParameter(name="user_ref", **_REFERENCE)]
"""For one that no path can have: with a slash, or made of dots."""


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
    services: Services = request.app.state.services
    identifier = ids.parse("conv", conversation_id)
    tenant = request.user.tenant_id
    found = await services.run(tenant, erasures.erase, asking(request), identifier) if identifier else None
    if found is None:
        raise not_found()
    return erasure_out(found)


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
    return await _erase_all(request, user_ref)


@delete(
    "/users",
    status_code=200,
    guards=[requires("admin")],
    summary="Erase a user's conversations, whatever the name",
    responses={200: answers(UserErasureOut, "They are gone."), **problems()},
)
async def erase_any_user(request: Request[Principal, Any, Any], wanted: AnyUserRef = None) -> UserErasureOut:
    """As `DELETE /users/{user_ref}`, for names that a path cannot hold: those with a slash, `.` and `..`."""
    return await _erase_all(request, _named(wanted))


async def _erase_all(request: Request[Principal, Any, Any], user_ref: str) -> UserErasureOut:
    services: Services = request.app.state.services
    total = 0
    while done := await services.run(request.user.tenant_id, erasures.erase_of_user, asking(request), user_ref):
        total += done
    return UserErasureOut(conversations=total)


@get(
    "/users/{user_ref:str}/export",
    guards=[requires("audit:read")],
    summary="Export a user's data",
    responses={200: answers(str, "JSON lines.", "application/jsonl"), **problems("not_found")},
)
async def export_user(request: Request[Principal, Any, Any], user_ref: UserRef) -> Stream:
    """Answer with all that is stored of a user as JSON lines, each with its `type`.

    A `conversation` is followed by each `message` (superseded ones too), `snapshot`, `context_block`, `pin`, `run` and
    `run_step` of it. Contents are as they came, but for line breaks between JSON tokens; one that has such breaks comes
    as a string too, exactly, in `content_text` (a snapshot's in `messages_text`). The last line has the type `end`; an
    export without it is not whole.
    """
    return _stream(request, user_ref)


@get(
    "/exports",
    guards=[requires("audit:read")],
    summary="Export a user's data, whatever the name",
    responses={200: answers(str, "JSON lines.", "application/jsonl"), **problems()},
)
async def export_any_user(request: Request[Principal, Any, Any], wanted: AnyUserRef = None) -> Stream:
    """As `GET /users/{user_ref}/export`, for names that a path cannot hold."""
    return _stream(request, _named(wanted))


def _named(user_ref: str | None) -> str:
    """Return what was given; nobody erases everybody by leaving it out."""
    if user_ref is None:
        raise invalid("Say whose: user_ref.", "user_ref")
    return user_ref


def _stream(request: Request[Principal, Any, Any], user_ref: str) -> Stream:
    services: Services = request.app.state.services
    return Stream(
        lines(services, request.scope["state"][HOLD], request.user.tenant_id, user_ref), media_type="application/jsonl"
    )


@get("/erasures", guards=[requires("audit:read")], summary="List erasures", responses=problems("bad_cursor"))
async def list_erasures(
    request: Request[Principal, Any, Any],
    conversation_id: Filter = None,
    limit: Limit = 20,
    after_id: AfterId = None,
    before_id: BeforeId = None,
) -> Page[ErasureOut]:
    """List the tombstones of erased conversations, newest first; one of them with `conversation_id`."""
    services: Services = request.app.state.services
    span: Window[Any] = window(limit, after_id, before_id, lambda text: ids.parse("era", text))
    wanted = ids.parse("conv", conversation_id) if conversation_id is not None else None
    if conversation_id is not None and wanted is None:
        raise invalid("This is not the id of a conversation.", "conversation_id")
    rows = await services.run(
        request.user.tenant_id,
        erasures.page,
        request.user.tenant_id,
        limit=limit + 1,
        after=span.after,
        before=span.before,
        conversation_id=wanted,
    )
    return page_of([erasure_out(row) for row in rows], span, lambda item: item.id)


def asking(request: Request[Principal, Any, Any]) -> Asking:
    """Return who asks."""
    return Asking(request.user.tenant_id, request.user.key_id, request.scope["state"]["request_uuid"])


def erasure_out(row: AnyRow) -> ErasureOut:
    """Return a tombstone as clients see it."""
    return ErasureOut(
        id=ids.external("era", row.id),
        number=row.number,
        conversation_id=ids.external("conv", row.conversation_id),
        asked_for=row.asked_for,
        key_id=ids.external("key", row.key_id) if row.key_id else None,
        request_id=ids.external("req", row.request_id) if row.request_id else None,
        erased_at=row.erased_at,
        erased=ErasedOut(
            messages=row.message_count,
            snapshots=row.snapshot_count,
            context_blocks=row.context_block_count,
            pins=row.pin_count,
            runs=row.run_count,
            steps=row.step_count,
            batches=row.batch_count,
            deliveries=row.delivery_count,
            idempotency_keys=row.idempotency_key_count,
        ),
        proof=row.proof.hex(),
    )
