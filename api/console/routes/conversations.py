"""The list of conversations, and one of them: its growth, its layers, its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import urlencode

from litestar import Request, Response, get
from litestar.params import QueryParameter

from actions.auth.principals import Principal
from actions.errors import NotFoundError
from actions.types.recall import regret_out
from api.console.demo.player import is_cut_off
from api.console.forms import Client, Cost, Day, User, narrowed
from api.console.pages import is_fragment, page
from api.console.routes.find import lead_to
from api.console.sessions import READ, may
from api.console.views.budgets import fill, lines
from api.console.views.conversation_list import listed
from api.console.views.layers import Layers, layers
from api.console.views.timeline import Plot, plot
from api.schema.documentation import ConversationId
from runtime import ids
from store.console import contents, overview, timeline
from store.conversations import assemblies, conversations, snapshots
from store.recall import requests

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from sqlalchemy import Connection

    from actions.services import Services
    from store.recall.requests import Regret
    from store.tables import AnyRow

ON_A_PAGE = 50
LAST_PAGE = overview.SORTED_AT_MOST // ON_A_PAGE
PLOTTED_POINTS = 400
"""Points of a plot: about one for every second pixel of its width."""
_RUNS_SHOWN = 8
_SNAPSHOTS_SHOWN = 8
_WANTED_SHOWN = 8

_Words = Annotated[str, QueryParameter(name="q", max_length=512, pattern=r"^[^\x00]*$")]
_Sort = Annotated[Literal["activity", "tokens", "created", "run"], QueryParameter()]
_Number = Annotated[int, QueryParameter(name="page", ge=1, le=LAST_PAGE)]


@get("/conversations", include_in_schema=False, guards=[may(READ)])
async def list_conversations(
    request: Request[Principal, Any, Any],
    words: _Words = "",
    sort: _Sort = "activity",
    number: _Number = 1,
    since: Day = None,
    until: Day = None,
    user: User = None,
    cost: Cost = None,
    client: Client = None,
) -> Response[bytes]:
    """Show conversations; `q` is an id, or a part of external_id or user_ref. Another thing's id leads to that."""
    services: Services = request.app.state.services
    words = words.strip()
    identifier = ids.parse("conv", words)
    if identifier is None and (other := await lead_to(request, words)) is not None:
        return other
    only = narrowed(since, until, user, cost, client)
    matches = await services.run(
        request.user.tenant_id,
        overview.conversation_page,
        request.user.tenant_id,
        sort=sort,
        words=words,
        identifier=identifier,
        limit=ON_A_PAGE,
        skip=(number - 1) * ON_A_PAGE,
        narrowed=only,
    )
    filters = {"since": since, "until": until, "user": user, "cost": cost, "client": client}
    asked = {"q": words, "sort": sort, **{name: value for name, value in filters.items() if value is not None}}
    return page(
        request,
        "conversations_table.html" if is_fragment(request) else "conversations.html",
        rows=listed(matches.rows, request.user),
        words=words,
        sort=sort,
        number=number,
        more=matches.more and number < LAST_PAGE,
        asked=filters,
        is_narrowed=only != overview.ALL,
        here=f"/console/conversations?{urlencode({**asked, 'page': number})}",
        before=urlencode({**asked, "page": number - 1}),
        after=urlencode({**asked, "page": number + 1}),
        sorted_at_most=overview.SORTED_AT_MOST,
    )


class _ConversationPage(NamedTuple):
    row: AnyRow
    figures: AnyRow
    plot: Plot
    layers: Layers | None
    runs: overview.RowPage
    snapshots: list[AnyRow]
    wanted: Sequence[AnyRow]
    regrets: list[Regret]
    is_cut_off: bool


@get("/conversations/{conversation_id:str}", include_in_schema=False, guards=[may(READ)])
async def show_conversation(request: Request[Principal, Any, Any], conversation_id: ConversationId) -> Response[bytes]:
    """Show how a conversation grew, what was done about it, and what of it the model sees."""
    services: Services = request.app.state.services
    tenant, identifier = request.user.tenant_id, ids.parse("conv", conversation_id)
    content = await services.run(tenant, _load, request.user, identifier) if identifier else None
    if content is None:
        raise NotFoundError
    policy = request.user.policy_for(content.row.policy, content.row.model)
    return page(
        request,
        "conversation_live.html" if is_fragment(request) else "conversation.html",
        conversation=content.row,
        tab="overview",
        done=request.query_params.get("done"),
        figures=content.figures,
        fill=fill(content.row.context_tokens, policy),
        plot=content.plot,
        layers=content.layers,
        runs=content.runs.rows,
        snapshots=content.snapshots,
        wanted=content.wanted,
        regrets=[regret_out(each) for each in content.regrets],
        is_playing=request.app.state.demo.is_playing(content.row.id),
        is_cut_off=content.is_cut_off,
    )


def _load(connection: Connection, principal: Principal, conversation_id: UUID) -> _ConversationPage | None:
    tenant = principal.tenant_id
    row = conversations.get(connection, tenant, conversation_id)
    figures = contents.figures(connection, tenant, conversation_id)
    if row is None or figures is None:
        return None
    last = assemblies.last(connection, tenant, conversation_id)
    return _ConversationPage(
        row,
        figures,
        growth(connection, principal, row, figures),
        layers(last) if last else None,
        overview.run_page(connection, tenant, conversation_id=conversation_id, limit=_RUNS_SHOWN),
        list(snapshots.page(connection, tenant, conversation_id, limit=_SNAPSHOTS_SHOWN)),
        requests.most_recalled(connection, tenant, conversation_id)[:_WANTED_SHOWN],
        requests.list_regrets(connection, tenant, conversation_id),
        is_cut_off(connection, tenant, row),
    )


def growth(
    connection: Connection,
    principal: Principal,
    row: AnyRow,
    figures: AnyRow,
    passages: Sequence[tuple[int, int]] = (),
) -> Plot:
    """Return the plot of a conversation, with ranges of messages that were found marked in it."""
    moments = timeline.moments(connection, row.id, row.next_seq, PLOTTED_POINTS)
    policy = principal.policy_for(row.policy, row.model)
    return plot(moments, lines(policy), ratio=figures.token_ratio, fixed=figures.fixed_tokens, passages=passages)
