"""`palimpsest mcp`: recall for a client of MCP that starts this process and talks to it over stdin and stdout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
from mcp.server.stdio import stdio_server

from api.mcp.server import Held, RefusedError, mcp_server, refusal
from cli.client.client import ServiceClient, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cli.options import Service

T = TypeVar("T")


class ServedOriginals:
    """Originals of a conversation, or of all of a user's, asked of the API."""

    def __init__(self, client: ServiceClient, held: Held) -> None:
        self._client = client
        self.held = held

    async def recall(self, asked: Mapping[str, Any]) -> str:
        """Return what is asked for, in its frame."""
        conversation, user_ref = self.held
        whole = {**asked, "framed": True}
        if user_ref is not None:
            recalled = await _answered(lambda: self._client.recall_user(user_ref, whole))
        else:
            recalled = await _answered(lambda: self._client.recall(conversation or "", whole))
        return str(recalled.framed)

    async def next_seq(self) -> int:
        """Return how many messages the conversation has."""
        last = await _answered(lambda: self._client.conversation(self.held.conversation or "").last_seq)
        return 0 if last is None else last + 1


async def _answered(ask: Callable[[], T]) -> T:
    """Return what the API answers, asked on a thread; raise RefusedError for what it refuses, or if it is away."""
    try:
        return await asyncio.to_thread(ask)
    except ServiceError as error:
        raise RefusedError(refusal(error.detail, error.pointer)) from None
    except httpx2.TransportError:
        raise RefusedError("The service can't be reached just now.") from None


def run_mcp(service: Service, conversation: str | None, user_ref: str | None) -> int:
    """Serve one client until it closes stdin."""
    with ServiceClient(*service) as client:
        asyncio.run(_serve(ServedOriginals(client, Held(conversation, user_ref))))
    return 0


async def _serve(originals: ServedOriginals) -> None:
    server = mcp_server(originals)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
