"""A session for the OpenAI Agents SDK: the compacted context before a run, each batch of items stored as a turn.

Needs `openai-agents`, the extra `openai-agents` of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from agents.memory import SessionSettings

from palimpsest_client.calls import plain, storable
from palimpsest_client.errors import PalimpsestError, UnexpectedSeqError, UnreachableError
from palimpsest_client.outbox import log

if TYPE_CHECKING:
    from agents import RunContextWrapper, TResponseInputItem

    from palimpsest_client.answers import Message, StoredMessage
    from palimpsest_client.clients import AsyncClient
    from palimpsest_client.results import Context

LOOK_UP_SECONDS: Final = 2.0
"""What a run waits for the name of its conversation, once a session."""
PAGE: Final = 50
"""Messages read at a time, newest first, to find the one that goes and the one before it."""
EMPTIED: Final = "session_emptied_through"
"""In a conversation's metadata the seq through which its session was emptied: the next items take the place of all."""


class PalimpsestSession:
    """A conversation as a `Session`: `Runner.run(agent, "…", session=PalimpsestSession("chat-1", client))`.

    Items are stored as they are, in the shape `responses`. `get_items` gives the context, which is shorter than what
    was added; while the service is away the session's own copy of what it had, if it had any, and what is added then
    waits in the client's outbox.

    client: its key needs `turns:write`, `context:read` and `conversations:write`; `pop_item` also `messages:read`.
    session_settings: how many of the newest items a run has, if it is not to have the whole context.
    conversation_id: by default it is the conversation whose `external_id` is `session_id`, made when there is none.
    fields: what it is made with then: policy, model, user_ref.
    """

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        client: AsyncClient,
        *,
        session_settings: SessionSettings | None = None,
        conversation_id: str | None = None,
        **fields: Any,
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._client = client
        self._conversation_id = conversation_id
        self._fields = fields
        self._is_open = False
        self._emptied: int | None = None
        self._own: list[Message] | None = None
        self._version: int | None = None
        self._counted: Any = None

    async def conversation_id(self) -> str:
        """Return the id of the conversation, for recall, pins and everything else that the client can do."""
        if self._is_open and self._conversation_id is not None:
            return self._conversation_id
        if self._conversation_id is None:
            found = await self._client.create_conversation(
                **self._fields, external_id=self.session_id, timeout=LOOK_UP_SECONDS
            )
        else:
            found = await self._client.get_conversation(self._conversation_id)
        emptied = found.get("metadata", {}).get(EMPTIED)
        self._emptied = emptied if emptied == found["last_seq"] else None
        self._is_open, self._conversation_id = True, found["id"]
        return found["id"]

    async def get_items(
        self,
        limit: int | None = None,
        *,
        wrapper: RunContextWrapper[Any] | None = None,  # noqa: ARG002 - a run hands it to all four or to none
    ) -> list[TResponseInputItem]:
        """Return the context; of it the newest `limit` items, if that is given here or in the settings."""
        items = await self._read()
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is not None:
            items = items[-limit:] if limit > 0 else []
        return cast("list[TResponseInputItem]", items)

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Store items as a turn, once, whatever gets lost on the way; what the model counted for them goes with it."""
        if not items:
            return
        identifier = await self.conversation_id()
        turn: dict[str, Any] = {"shape": "responses"}
        if (usage := self._usage(wrapper)) is not None:
            turn |= {"usage": usage, "snapshot_version": self._version}
        messages = cast("list[Message]", items)
        if self._own is not None:
            self._own += messages
        emptied, self._emptied = self._emptied, None
        try:
            await self._deliver(identifier, storable(plain(messages)), turn, emptied)
        except (PalimpsestError, ValueError) as error:
            # The run goes on; the session's own copy has them.
            self._emptied = emptied
            log.error("items of %s are not stored: %s", identifier, error)

    async def _deliver(
        self, identifier: str, messages: list[Message], turn: dict[str, Any], emptied: int | None
    ) -> None:
        if emptied is not None:
            try:
                await self._client.deliver(identifier, messages, replace_from=0, expected_next_seq=emptied + 1, **turn)
            except UnexpectedSeqError:
                # Somebody added to it since: what they added is not to be lost.
                self._own = None
            else:
                return
        await self._client.deliver(identifier, messages, **turn)

    async def pop_item(
        self,
        *,
        wrapper: RunContextWrapper[Any] | None = None,  # noqa: ARG002 - as above
    ) -> TResponseInputItem | None:
        """Take the newest item out of the session and return it as it was added; None if there is none.

        The service never forgets: the item stays for the audit as superseded, as does the one before it, which is
        stored again in the place of both.
        """
        context = await self._context()
        if context.kept or context.is_fallback or context.last_seq is None:
            raise UnreachableError("items wait to be stored, so that nobody knows which is the newest")
        newest = await self._newest(context.last_seq) if self._emptied is None else []
        if not newest:
            return None
        identifier = await self.conversation_id()
        if len(newest) == 1:
            await self._empty(identifier, context.last_seq)
        else:
            before = newest[0]
            await self._client.append(
                identifier,
                [_as_sent(before)],
                shape=before["shape"],
                replace_from=before["seq"],
                expected_next_seq=context.last_seq + 1,
            )
        self._own = context.messages[:-1]
        popped = newest[-1]
        item = popped["original"] if popped["shape"] == "responses" else context.messages[-1]
        return cast("TResponseInputItem", item)

    async def clear_session(
        self,
        *,
        wrapper: RunContextWrapper[Any] | None = None,  # noqa: ARG002 - as above
    ) -> None:
        """Begin anew: nothing of what was added is served again. To erase it, `erase_conversation` of the client."""
        context = await self._context()
        if context.kept or context.is_fallback or context.last_seq is None:
            raise UnreachableError("items wait to be stored, which would come after the end of the session")
        await self._empty(await self.conversation_id(), context.last_seq)
        self._own = []

    async def _context(self) -> Context:
        identifier = await self.conversation_id()
        own = self._own
        context = await self._client.context(
            identifier, shape="responses", fallback=None if own is None else lambda: list(own)
        )
        if self._emptied is not None and context.last_seq is not None and context.last_seq > self._emptied:
            self._emptied = None
        return context

    async def _read(self) -> list[Message]:
        context = await self._context()
        if context.is_fallback:
            return context.messages
        self._version = context.version
        items = context.messages if self._emptied is None else []
        self._own = list(items)
        return items

    async def _newest(self, last_seq: int) -> list[StoredMessage]:
        """Return the two newest items that no edit has replaced, the newest last; fewer if there are not so many."""
        identifier = await self.conversation_id()
        newest: list[StoredMessage] = []
        end = last_seq
        while end >= 0 and len(newest) < 2:  # noqa: PLR2004 - the two
            start = after = max(-1, end - PAGE)
            found: list[StoredMessage] = []
            while after < end:
                page = await self._client.list_messages(identifier, after=after, limit=end - after)
                found += page.data
                after = page.data[-1]["seq"] if page.data else end
            newest = [each for each in found if each["superseded_at"] is None] + newest
            end = start
        return newest[-2:]

    async def _empty(self, identifier: str, last_seq: int) -> None:
        """Note, where another process finds it, that all there is has no place in the session any more."""
        if last_seq < 0:
            return
        found = await self._client.get_conversation(identifier)
        await self._client.change_conversation(identifier, metadata={**found["metadata"], EMPTIED: last_seq})
        self._emptied = last_seq

    def _usage(self, wrapper: RunContextWrapper[Any] | None) -> dict[str, Any] | None:
        """Return what the model counted for its newest answer, once: other items of a run come without an answer."""
        entries = wrapper.usage.request_usage_entries if wrapper is not None else []
        if not entries or entries[-1] is self._counted:
            return None
        self._counted = newest = entries[-1]
        return {
            "input_tokens": newest.input_tokens,
            "output_tokens": newest.output_tokens,
            "output_tokens_details": {"reasoning_tokens": newest.output_tokens_details.reasoning_tokens},
        }


def _as_sent(stored: StoredMessage) -> Message:
    if stored["shape"] != "messages":
        return cast("Message", stored["original"])
    return {"role": stored["role"], "content": stored["content"]}
