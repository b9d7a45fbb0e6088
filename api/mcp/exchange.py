"""One exchange of MCP over HTTP: a request's message in, its answer out, and nothing kept for the next."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from api.actions.caller import caller_of
from api.actions.recall import recall
from api.http.bodies import read
from api.http.problems import answer_to, id_or_not_found, or_not_found
from api.mcp.server import RefusedError, mcp_server, refusal
from api.schema.recall import RecallIn
from store.conversations import conversations

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from uuid import UUID

    from litestar import Request

    from api.auth.principals import Principal

_JSON: Final = "application/json"


class StoredOriginals:
    """A conversation's originals, read on behalf of who sent the request."""

    def __init__(self, request: Request[Principal, Any, Any], conversation: str) -> None:
        self._request = request
        self.conversation = conversation

    async def recall(self, asked: Mapping[str, Any]) -> str:
        """Return what is asked for, in its frame."""
        try:
            # By way of JSON, so that it is held to what the body of a recall request is held to.
            body = json.dumps({**asked, "framed": True}).encode()
            wanted = read(body, RecallIn, self._request.app.state.services.strict)
            found = or_not_found(await recall(caller_of(self._request), self._id(), wanted))
        except Exception as error:  # noqa: BLE001 - whatever it is has its problem, and the library would log its text
            raise self._refused(error) from None
        return str(found.framed)

    async def next_seq(self) -> int:
        """Return how many messages there are."""
        try:
            row = or_not_found(await caller_of(self._request).run(conversations.get, self._id()))
        except Exception as error:  # noqa: BLE001 - as above
            raise self._refused(error) from None
        return int(row.next_seq)

    def _id(self) -> UUID:
        return id_or_not_found("conv", self.conversation)

    def _refused(self, error: Exception) -> RefusedError:
        """Return the refusal that tells what the problem document would."""
        problem = msgspec.json.decode(answer_to(self._request, error).content)
        return RefusedError(refusal(problem["detail"], problem.get("pointer")))


async def exchange(request: Request[Principal, Any, Any], conversation: str) -> Response[bytes]:
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

    server = mcp_server(StoredOriginals(request, conversation))
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
    async with manager.run():
        await manager.handle_request(dict(request.scope), receive, send)
    status = HTTPStatus(head["status"])
    if status >= HTTPStatus.BAD_REQUEST and not head.get("content-type", "").startswith(_JSON):
        detail = "Content type and accepted type have to be application/json."
        raise HTTPException(status_code=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail=detail)
    return Response(bytes(content), status_code=status, media_type=_JSON)
