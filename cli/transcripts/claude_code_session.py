"""Claude Code session events as the messages that were sent; one message may take many lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from cli.client.types import Message
from cli.transcripts.raw_json import ABSENT, FieldError, field_error, join_path, present

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class _Event(msgspec.Struct, rename="camel"):
    type: str
    message: msgspec.Raw = ABSENT
    uuid: str | None = None
    parent_uuid: str | None = None
    session_id: str | None = None
    is_sidechain: bool = False
    is_meta: bool = False
    is_compact_summary: bool = False
    is_api_error_message: bool = False

    @property
    def is_conversation(self) -> bool:
        """False for bookkeeping, side chains, injected notes, the tool's own summaries and error notices."""
        return self.type in {"user", "assistant"} and not (
            self.is_sidechain or self.is_meta or self.is_compact_summary or self.is_api_error_message
        )


class _Block(msgspec.Struct):
    type: str


_CONTENT: Any = str | list[_Block]


class _Inner(msgspec.Struct):
    role: str
    content: msgspec.Raw
    id: str | None = None
    usage: msgspec.Raw = ABSENT


class _Joined(msgspec.Struct):
    role: str
    contents: list[msgspec.Raw]
    id: str | None
    usage: msgspec.Raw | None
    is_results: bool
    parent: str | None


def joined_messages(
    events: Sequence[msgspec.Raw],
) -> tuple[str | None, list[tuple[Message, msgspec.Raw | None]]]:
    """Return the session's id and its messages, each with the usage recorded for it.

    Assistant lines of one `message.id` are one message, also with results of its first tools in between;
    the results that answer one message are one message too. A prompt that was edited and sent again replaces
    what followed its first version. Raises FieldError with the event's index.
    """
    session_id: str | None = None
    joined: list[_Joined] = []
    seen: set[str] = set()
    for index, raw in enumerate(events):
        event = _decoded(raw, index, _Event, "")
        session_id = session_id or event.session_id
        if not event.is_conversation or (event.uuid and event.uuid in seen):
            continue
        if event.uuid:
            seen.add(event.uuid)
        message = present(event.message)
        if message is None:
            raise FieldError(index, "message", "the event has no message")
        _add(joined, event, _decoded(message, index, _Inner, "message"), index)
    return session_id, [(Message(role=each.role, content=_content(each.contents)), each.usage) for each in joined]


def _decoded(raw: msgspec.Raw, index: int, kind: type[T], at: str) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        invalid = field_error(index, error)
        raise FieldError(index, join_path(at, invalid.field), invalid.detail) from None


def _add(joined: list[_Joined], event: _Event, inner: _Inner, index: int) -> None:
    if inner.role not in {"user", "assistant"}:
        raise FieldError(index, "message.role", f"unknown role {inner.role!r}")
    blocks = _decoded(inner.content, index, _CONTENT, "message.content")
    usage = present(inner.usage)
    is_results = isinstance(blocks, list) and bool(blocks) and all(b.type == "tool_result" for b in blocks)
    if (earlier := _same_message(joined, inner, is_results=is_results)) is not None:
        earlier.contents.append(inner.content)
        # Streaming repeats the usage on every line, and only the last one has the final output count.
        earlier.usage = usage or earlier.usage
        return
    if inner.role == "user" and not is_results:
        _drop_replaced(joined, event.parent_uuid)
    parent = event.parent_uuid if inner.role == "user" and not is_results else None
    joined.append(_Joined(inner.role, [inner.content], inner.id, usage, is_results, parent))


def _same_message(joined: list[_Joined], inner: _Inner, *, is_results: bool) -> _Joined | None:
    """Return the message that this line belongs to, if it began on an earlier one."""
    if not joined:
        return None
    if inner.role == "user":
        return joined[-1] if is_results and joined[-1].is_results else None
    last = joined[-2] if joined[-1].is_results and len(joined) > 1 else joined[-1]
    return last if last.role == "assistant" and inner.id is not None and last.id == inner.id else None


def _drop_replaced(joined: list[_Joined], parent: str | None) -> None:
    if parent is None:
        return
    for place, earlier in enumerate(joined):
        if earlier.parent == parent:
            del joined[place:]
            return


def _content(contents: list[msgspec.Raw]) -> msgspec.Raw:
    if len(contents) == 1:
        return contents[0]
    blocks: list[msgspec.Raw] = []
    for content in contents:
        if bytes(content).startswith(b'"'):
            blocks.append(msgspec.Raw(b'{"type":"text","text":' + bytes(content) + b"}"))
        else:
            blocks += msgspec.json.decode(content, type=list[msgspec.Raw])
    return msgspec.Raw(msgspec.json.encode(blocks))
