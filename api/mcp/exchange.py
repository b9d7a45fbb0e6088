"""One exchange of MCP over HTTP: a request's message in, its answer out, and nothing kept for the next."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from actions.errors import id_or_not_found, or_not_found
from actions.input.checks import read
from actions.recall import recall
from actions.recall_of_user import recall_of_user
from actions.types.recall import RecallIn, UserRecallIn
from api.callers import caller_of
from api.http.problems import answer_to
from api.mcp.server import RefusedError, mcp_server, refusal
from store.conversations import conversations

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, MutableMapping

    from litestar import Request

    from actions.auth.principals import Principal
    from api.mcp.server import Held

T = TypeVar("T")

_JSON: Final = "application/json"


class StoredOriginals:
    """Originals of a conversation, or of all of a user's, read on behalf of who sent the request."""

    def __init__(self, request: Request[Principal, Any, Any], held: Held) -> None:
        self._request = request
        self.held = held

    async def recall(self, asked: Mapping[str, Any]) -> str:
        """Return what is asked for, in its frame."""
        return await self._answered(self._recall(asked))

    async def next_seq(self) -> int:
        """Return how many messages the conversation has."""
        return await self._answered(self._next_seq())

    async def _recall(self, asked: Mapping[str, Any]) -> str:
        # By way of JSON, so that it is held to what the body of a recall request is held to.
        body, strict = json.dumps({**asked, "framed": True}).encode(), self._request.app.state.services.strict
        caller, (conversation, user_ref) = caller_of(self._request), self.held
        if user_ref is not None:
            of_user = await recall_of_user(caller, user_ref, read(body, UserRecallIn, strict))
            return str(of_user.framed)
        recalled = await recall(caller, id_or_not_found("conv", conversation or ""), read(body, RecallIn, strict))
        return str(or_not_found(recalled).framed)

    async def _next_seq(self) -> int:
        identifier = id_or_not_found("conv", self.held.conversation or "")
        return int(or_not_found(await caller_of(self._request).run(conversations.get, identifier)).next_seq)

    async def _answered(self, asking: Awaitable[T]) -> T:
        try:
            return await asking
        except Exception as error:  # noqa: BLE001 - whatever it is has its problem, and the library would log its text
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> RefusedError:
        """Return the refusal that tells what the problem document would."""
        problem = msgspec.json.decode(answer_to(self._request, error).content)
        return RefusedError(refusal(problem["detail"], problem.get("pointer")))


async def exchange(request: Request[Principal, Any, Any], held: Held) -> Response[bytes]:
    """Answer one message of a client; raise the problem of a request that holds none."""
    body = await request.body()
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    head: dict[str, Any] = {}
    content = bytearray()

    async def receive() -> Any:
        return unread.pop() if unread else await request.receive()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            head.update(
                status=message["status"], **{name.decode(): value.decode() for name, value in message["headers"]}
            )
        else:
            content.extend(message["body"])

    server = mcp_server(StoredOriginals(request, held))
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
    async with manager.run():
        await manager.handle_request(dict(request.scope), receive, send)
    status = HTTPStatus(head["status"])
    if status >= HTTPStatus.BAD_REQUEST and not head.get("content-type", "").startswith(_JSON):
        detail = "Content type and accepted type have to be application/json."
        raise HTTPException(status_code=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail=detail)
    return Response(bytes(content), status_code=status, media_type=_JSON)
