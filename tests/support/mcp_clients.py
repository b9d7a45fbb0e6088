"""The official client of MCP, connected to a running service in each way that there is."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from api.routes.mcp import CONVERSATION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.service.running_api import Service

Way = Literal["http", "http, with a handshake", "stdio"]
WAYS: Final[tuple[Way, ...]] = ("http", "http, with a handshake", "stdio")
TIMEOUT: Final = 30.0


@asynccontextmanager
async def mcp_client(
    service: Service, way: Way, path: str | None, key: str | None = None, user: str | None = None
) -> AsyncIterator[Client]:
    """Connect to the conversation at `path`, or to a user's, with the service's own key unless another is given."""
    conversation = None if path is None else path.rpartition("/")[2]
    key = key or service.client.headers["authorization"].removeprefix("Bearer ")
    if way == "stdio":
        environment = {"PALIMPSEST_URL": service.api.url, "PALIMPSEST_KEY": key}
        arguments = ["-m", "cli.main", "mcp", *([f"--user={user}"] if conversation is None else [conversation])]
        command = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
        async with Client(command, read_timeout_seconds=TIMEOUT) as client:
            yield client
        return
    headers = {"authorization": f"Bearer {key}", **({} if conversation is None else {CONVERSATION: conversation})}
    named = "" if user is None else f"?user_ref={quote(user, safe='')}"
    mode = "auto" if way == "http" else "legacy"
    async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT) as http:
        transport = streamable_http_client(f"{service.api.url}/mcp{named}", http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=TIMEOUT) as client:
            yield client


async def called(client: Client, tool: str, **given: Any) -> tuple[str, bool]:
    """Call a tool; return the text of its result, and whether it is an error."""
    result = await client.call_tool(tool, given)
    (block,) = result.content
    assert block.type == "text"
    return block.text, bool(result.is_error)
