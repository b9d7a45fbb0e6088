"""
title: Palimpsest
description: Keeps the context of long chats small, in the background.
version: 0.2.0
"""  # noqa: D205, D400 - Open WebUI reads these lines

from __future__ import annotations

import re
from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from palimpsest_client import AsyncClient, PalimpsestError, storable
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from palimpsest_client import Turn

REMEMBERED_TURNS: Final = 10_000
"""Turns whose place is known, so that a reply that is generated anew takes the old one's."""
LOOK_UP_SECONDS: Final = 2.0
RECALLED: Final = re.compile(r'<details type="tool_calls"[^>]* name="recall"[^>]*>.*?</details>\s*', re.DOTALL)
"""How a reply shows a call of the tool in `palimpsest_recall.py`: with its whole result, which is stored already."""

Message = dict[str, Any]


class Filter:
    """Puts the compacted context in the place of a chat's messages, and stores each turn."""

    class Valves(BaseModel):
        """What an administrator sets."""

        url: str = Field(default="http://localhost:8080", description="Where Palimpsest is")
        key: str = Field(default="", description="An API key of Palimpsest")
        priority: int = Field(default=100, description="After the filters that change what is said")

    def __init__(self) -> None:
        self.valves = self.Valves()
        self._client: AsyncClient | None = None
        self._made_with: tuple[str, str] | None = None
        self._conversations: OrderedDict[str, str] = OrderedDict()
        self._turns: OrderedDict[str, int] = OrderedDict()
        self._versions: dict[str, int] = {}

    async def inlet(
        self, body: dict[str, Any], __user__: dict[str, Any] | None = None, __metadata__: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Give the model the context instead of the whole chat; the chat as it is while Palimpsest is away."""
        chat = (__metadata__ or {}).get("chat_id")
        said = [message for message in body["messages"] if message["role"] != "system"]
        if not chat or not said:
            return body
        *earlier, newest = said
        try:
            conversation = await self._conversation(chat, __user__)
        except PalimpsestError:
            return body
        context = await self._api().context(conversation, fallback=lambda: earlier, shape="chat")
        self._versions[conversation] = context.version
        if context.last_seq == -1 and not context.kept and earlier:
            # A chat that is older than the filter.
            await self._store(conversation, earlier, idempotency_key=f"before:{chat}")
            return body
        system = [message for message in body["messages"] if message["role"] == "system"]
        # What was said before has its place there, and a reply that is to be generated anew is not part of it.
        first = self._turns.get(str(newest.get("id")))
        if first is not None and context.last_seq is not None:
            return body
        return {**body, "messages": [*system, *context.messages, newest]}

    async def outlet(self, body: dict[str, Any], __user__: dict[str, Any] | None = None) -> dict[str, Any]:
        """Store the newest question and its reply."""
        chat, said = body.get("chat_id"), [each for each in body["messages"] if each["role"] != "system"]
        asked = max((at for at, each in enumerate(said) if each["role"] == "user"), default=len(said))
        turns = said[asked:]
        if not chat or not turns or turns[-1]["role"] != "assistant":
            return body
        try:
            conversation = await self._conversation(chat, __user__)
        except PalimpsestError as error:
            _say(error)
            return body
        question = str(turns[0].get("id"))
        turn = await self._store(
            conversation,
            turns,
            snapshot_version=self._versions.pop(conversation, None) or None,
            replace_from=self._turns.get(question),
            idempotency_key=f"{chat}:{turns[-1].get('id')}",
        )
        if turn is not None:
            _note(self._turns, question, turn.first_seq)
        return body

    async def _store(self, conversation: str, messages: Iterable[Message], **about: Any) -> Turn | None:
        """Store messages as a turn; None where they wait, and where they are refused: the chat goes on all the same."""
        sent = storable(list(chain.from_iterable(map(_as_chat, messages))))
        try:
            return await self._api().deliver(conversation, sent, shape="chat", **about)
        except (PalimpsestError, ValueError) as error:
            _say(error)
            return None

    def _api(self) -> AsyncClient:
        made_with = (self.valves.url, self.valves.key)
        if self._client is None or self._made_with != made_with:
            self._client, self._made_with = AsyncClient(*made_with), made_with
        return self._client

    async def _conversation(self, chat: str, user: dict[str, Any] | None) -> str:
        if chat not in self._conversations:
            conversation = await self._api().create_conversation(
                external_id=f"open-webui:{chat}", user_ref=(user or {}).get("id"), timeout=LOOK_UP_SECONDS
            )
            _note(self._conversations, chat, conversation["id"])
        return self._conversations[chat]


def _as_chat(message: Message) -> Iterator[Message]:
    """Yield a message of Open WebUI's as Chat Completions has it: with its calls and their results, and its files."""
    content = message.get("content")
    if message["role"] == "user":
        yield {"role": "user", "content": _with_files(content, message.get("files") or ())}
    elif message["role"] == "tool":
        yield {"role": "tool", "tool_call_id": message["tool_call_id"], "content": content or ""}
    elif message.get("output"):
        yield from _of_output(message["output"])
    else:
        said = RECALLED.sub("", content) if isinstance(content, str) else content
        calls = message.get("tool_calls")
        if said or calls:
            yield {"role": "assistant", "content": said or None, **({"tool_calls": calls} if calls else {})}


def _with_files(content: Any, files: Iterable[Message]) -> Any:
    """Return what a user said with what was attached: images as they are, of other files their names."""
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    urls = {part["image_url"]["url"] for part in parts if part.get("type") == "image_url"}
    count = len(parts)
    for file in files:
        url = file.get("url")
        is_image = file.get("type") == "image" or str(file.get("content_type", "")).startswith("image/")
        if not is_image:
            parts.append({"type": "text", "text": f"[attached file: {file.get('name') or url}]"})
        elif isinstance(url, str) and url.startswith(("data:", "http")) and url not in urls:
            parts.append({"type": "image_url", "image_url": {"url": url}})
    return content if len(parts) == count else parts


def _of_output(items: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages of a reply: its items are those of Responses. What a model thought is for it alone to say."""
    texts: list[str] = []
    calls: list[Message] = []
    for item in items:
        kind = item.get("type")
        if kind == "function_call_output":
            if calls:
                yield {"role": "assistant", "content": "\n".join(texts) or None, "tool_calls": calls}
                texts, calls = [], []
            yield {"role": "tool", "tool_call_id": item["call_id"], "content": _texts(item.get("output"))}
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item.get("arguments") or "{}"}
            calls.append({"id": item["call_id"], "type": "function", "function": function})
        elif kind == "message" and (text := _texts(item.get("content"))):
            texts.append(text)
    if texts or calls:
        reply = {"role": "assistant", "content": "\n".join(texts) or None}
        yield {**reply, "tool_calls": calls} if calls else reply


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in content or ())


def _say(error: Exception) -> None:
    print(f"palimpsest: a turn was not stored: {error}")  # noqa: T201 - Open WebUI's log


def _note(remembered: OrderedDict[str, Any], name: str, value: Any) -> None:
    remembered[name] = value
    if len(remembered) > REMEMBERED_TURNS:
        remembered.popitem(last=False)
