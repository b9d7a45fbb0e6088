"""Finding a thing by an id that is shown anywhere, whole or shortened, with its prefix or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from litestar import Request, Response, get
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from api.console.pages import page, redirect
from api.console.sessions import ACT, HOME, READ, may
from runtime import ids
from store.console.find import find_matches, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from actions.services import Services
    from runtime.ids import Prefix
    from store.console.find import Kind, Match

Words = Annotated[str, QueryParameter(name="q", max_length=512, pattern=r"^[^\x00]*$")]


class Hit(NamedTuple):
    """What was found, and the page that shows it; None where this key may not see it, or nothing is left to see."""

    match: Match
    path: str | None


@get("/find", include_in_schema=False, guards=[may(READ)])
async def find(request: Request[Principal, Any, Any], words: Words = "") -> Response[bytes]:
    """Lead to what an id identifies, or show all of it where that is several; other words are a conversation's name."""
    words = words.strip()
    response = await lead_to(request, words)
    return response or redirect(f"{HOME}/conversations?{urlencode({'q': words})}")


async def lead_to(request: Request[Principal, Any, Any], words: str) -> Response[bytes] | None:
    """Return the path of what an id identifies, None for words that identify nothing here."""
    services: Services = request.app.state.services
    matches = await services.run(request.user.tenant_id, _look_up, request.user.tenant_id, words)
    may_act = ACT in request.user.scopes
    hits = [
        # Where a webhook is called is for those who may see webhooks.
        Hit(match if may_act or match.kind != "webhook" else match._replace(name=None), path_of(match, may_act=may_act))
        for match in matches
    ]
    paths = {hit.path for hit in hits}
    if len(paths) == 1 and (path := hits[0].path) is not None:
        return redirect(path)
    return page(request, "find.html", words=words, hits=hits) if hits else None


def path_of(match: Match, *, may_act: bool) -> str | None:
    """Return the page of what was found."""
    if match.kind in {"conversation", "pin", "context_block"} and match.conversation_id is not None:
        return f"{HOME}/conversations/{ids.external('conv', match.conversation_id)}"
    if match.kind in {"key", "webhook", "delivery"} and not may_act:
        return None
    pages: dict[Kind, str] = {
        "run": f"{HOME}/runs/{ids.external('run', match.id)}",
        "action": _in_list("operators", "act", match.id),
        "key": _in_list("keys", "key", match.id),
        "webhook": f"{HOME}/webhooks#{ids.external('hook', match.id)}",
        "delivery": _in_list("webhooks", "evt", match.id),
        "process": f"{HOME}#workers",
        "tenant": HOME,
    }
    return pages.get(match.kind)


def _in_list(name: str, prefix: Prefix, identifier: UUID) -> str:
    """Return a list's page that begins with a row: lists go on after an id."""
    before = ids.external(prefix, UUID(int=identifier.int + 1))
    return f"{HOME}/{name}?after={before}#{ids.external(prefix, identifier)}"


def _look_up(connection: Connection, tenant_id: UUID, words: str) -> Sequence[Match]:
    sought = wanted(words)
    return [] if sought is None else find_matches(connection, tenant_id, sought)
