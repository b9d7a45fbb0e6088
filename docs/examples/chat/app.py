"""A chat backend: streaming, a tool, the Anthropic SDK; Palimpsest keeps the context small.

python app.py [--port N], with PALIMPSEST_URL and PALIMPSEST_KEY set. README.md says how.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic
import uvicorn
from litestar import Litestar, MediaType, get, post
from litestar.response import Stream
from offline_model import start as start_offline_model
from palimpsest_client import AsyncClient
from tool import TOOLS, run_tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MODEL = os.environ.get("MODEL", "claude-haiku-4-5")
# Small, so that compaction is seen after a few turns; leave it out to have the defaults.
POLICY = {"input_token_budget": 1_500, "compaction_threshold_tokens": 4_000, "min_savings_tokens": 100}

palimpsest = AsyncClient(os.environ["PALIMPSEST_URL"], os.environ["PALIMPSEST_KEY"])
if "ANTHROPIC_API_KEY" not in os.environ:
    os.environ |= {"ANTHROPIC_API_KEY": "none is needed", "ANTHROPIC_BASE_URL": start_offline_model()}
claude = anthropic.AsyncAnthropic()
# What a chat backend has anyway: its own record of each chat. It stands in while Palimpsest is away.
history: defaultdict[str, list[Any]] = defaultdict(list)


async def reply_to(conversation: str, text: str) -> AsyncIterator[dict[str, Any]]:
    """Answer one message of a user; yield what the page shows."""
    new: list[Any] = [{"role": "user", "content": text}]
    while new:
        context = await palimpsest.context(conversation, fallback=lambda: history[conversation])
        yield {"snapshot": context.version, "fallback": context.is_fallback, "messages": len(context.messages)}
        messages = [*context.messages, *new]
        async with claude.messages.stream(model=MODEL, max_tokens=1_024, tools=TOOLS, messages=messages) as stream:
            async for piece in stream.text_stream:
                yield {"text": piece}
            reply = await stream.get_final_message()
        new.append({"role": "assistant", "content": [block.to_dict() for block in reply.content]})
        history[conversation] += new
        turn = await palimpsest.deliver(conversation, new, usage=reply.usage, snapshot_version=context.version)
        yield {"tokens": turn and turn.context_tokens, "kept": len(palimpsest.outbox)}
        results = [run_tool(block) for block in reply.content if block.type == "tool_use"]
        yield {"tools": len(results)}
        new = [{"role": "user", "content": results}] if results else []


@get("/", media_type=MediaType.HTML, sync_to_thread=False)
def page() -> str:
    """Return the page."""
    return Path(__file__).with_name("page.html").read_text()


@post("/chats")
async def begin() -> dict[str, str]:
    """Begin a chat."""
    conversation = await palimpsest.create_conversation(model=MODEL, tools=TOOLS, policy=POLICY)
    return {"id": conversation["id"]}


@post("/chats/{chat:str}", status_code=200)
async def say(chat: str, data: dict[str, str]) -> Stream:
    """Answer a message with a stream of events."""

    async def events() -> AsyncIterator[str]:
        async for event in reply_to(chat, data["text"]):
            yield f"data: {json.dumps(event)}\n\n"

    return Stream(events(), media_type="text/event-stream")


@asynccontextmanager
async def lifespan(_: Litestar) -> AsyncIterator[None]:
    """Send what still waits before the backend ends."""
    yield
    await palimpsest.flush(timeout=5)
    await palimpsest.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8_100)
    uvicorn.run(Litestar([page, begin, say], lifespan=[lifespan]), port=parser.parse_args().port)
