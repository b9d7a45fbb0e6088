"""What the client itself makes of answers: a context, a stored turn, one that waits, a page of a list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from palimpsest_client.answers import CacheBreakpoint, ContextTokens, LeftOut, Message, Shape

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Context:
    """What to send to the model as `messages`, of the Responses API as `input`.

    `messages` is the caller's own list to change; in the shape `responses` it holds items. With `is_fallback` it is
    the caller's own history, because the service could not be asked: `error` says why. The last `kept` messages are
    turns that wait to be sent.
    """

    messages: list[Message]
    version: int = 0
    """The snapshot that the context begins with; 0 = none. It belongs to the turn that the call makes."""
    covers_through: int | None = None
    last_seq: int | None = None
    tokens: ContextTokens | None = None
    warnings: list[str | LeftOut] = field(default_factory=list)
    """What is to be known of it, in words; or what has no counterpart in the shape that is served."""
    kept: int = 0
    is_fallback: bool = False
    error: Exception | None = None
    shape: Shape | None = None
    """The shape that was asked for, or that can be told: None = the conversation's own, messages of one of two APIs."""
    cache_breakpoints: list[CacheBreakpoint] | None = None
    """Where marks for the prompt cache belong, where that was asked for; None where the API knows no such marks."""

    def marked(self) -> list[Message]:
        """Return `messages` with `cache_control` where it belongs, to be sent to the Messages API."""
        messages = list(self.messages)
        for each in self.cache_breakpoints or ():
            at, block = each["message"], each["block"]
            if at is None or at >= len(messages):
                continue
            content = messages[at]["content"]
            blocks = [{"type": "text", "text": content}] if block is None else list(content)
            place = block or 0
            blocks[place] = {**blocks[place], "cache_control": each["cache_control"]}
            messages[at] = {**messages[at], "content": blocks}
        return messages


@dataclass(frozen=True)
class ModelCall(Generic[R]):
    """What a call of a model returned, and the context that it was made with in the end."""

    result: R
    context: Context


@dataclass(frozen=True)
class Turn:
    """Where a turn's messages stand. `replayed`: it had been stored before, under the same key."""

    first_seq: int
    last_seq: int
    context_tokens: int
    check: Literal["queued", "coalesced", "deferred"]
    replayed: bool = False


@dataclass(frozen=True)
class KeptTurn:
    """A turn that waits to be sent. It is plain data, so that a caller can store it and hand it back.

    begun: it may have arrived, so that from now on it goes out exactly as it is. pinned: its sender named the seq it
    has to have.
    """

    conversation_id: str
    idempotency_key: str
    body: dict[str, Any]
    begun: bool = False
    pinned: bool = False


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list; `last_id` is the next one's `after_id` (of messages, its `after`)."""

    data: list[T]
    has_more: bool
    first_id: str | int | None
    last_id: str | int | None
