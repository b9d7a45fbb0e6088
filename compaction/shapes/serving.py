"""What is served of a view in a shape: as it was sent where it can be, and what of it could not be carried over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from compaction.messages import INSTRUCTION, blocks
from compaction.shapes import codecs
from compaction.shapes.chat import INSTRUCTS
from compaction.shapes.inner import SentMessage, ShapeError
from compaction.shapes.spoken import spoken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from compaction.shapes.codecs import EncodedPayload
    from compaction.shapes.inner import Shape
    from compaction.view import View, ViewMessage

_sent: Final = msgspec.json.Decoder(list[tuple[int, msgspec.Raw]]).decode
KEYS: Final[Mapping[Shape, str]] = {"messages": "messages", "chat": "messages", "responses": "items"}
"""What the list is called in an answer."""
REPAIRED: Final = "fields that the API of the shape refuses: names of tools, lists of no calls, content that is null"
ASKED: Final = -2
"""Stands for the seq of a message that is not stored: the one that a request brings."""


def in_shape(view: View, shape: Shape, sent: str | None, asked: SentMessage | None = None) -> EncodedPayload:
    """Return a view in a shape; `sent` is what came in that shape, as an array of [seq, message].

    `asked` is what the request brings: the message of the view with the seq ASKED.
    """
    every: dict[int, SentMessage] = {} if asked is None else {ASKED: asked}
    if shape != "messages":
        every |= {seq: codecs.read_sent(bytes(message).decode(), shape) for seq, message in _sent(sent or "[]")}
    encoded = codecs.encode(shape, view, every)
    shown = {message.seq for message in view}
    repaired = sorted(seq for seq, each in every.items() if each.is_repaired and seq in shown)
    return encoded._replace(repaired=repaired) if repaired else encoded


def as_messages(view: View, *, in_pieces: bool) -> list[Any]:
    """Return a view as the Messages API has it; one of which nothing came `in_pieces`, in another shape, is so."""
    return in_shape(view, "messages", None).messages if in_pieces else [message.as_message() for message in view]


def warnings_of(encoded: EncodedPayload) -> list[dict[str, Any]]:
    """Return what an answer says of what could not be carried over, and of messages that are served repaired."""
    warnings: list[dict[str, Any]] = [
        {"code": "left_out", "seqs": list(left.seqs), "what": left.what} for left in encoded.left_out
    ]
    if encoded.repaired:
        seqs = [seq for seq in encoded.repaired if seq >= 0]
        warnings.append({"code": "repaired", "seqs": seqs, "what": REPAIRED})
    return warnings


def given_message(given: Any, shape: Shape) -> SentMessage:
    """Return the user's message that a request brings: a text, content parts, or a whole message of the shape.

    Raises ShapeError.
    """
    message = given if isinstance(given, dict) else {"role": "user", "content": given}
    decoded = codecs.decode(shape, message)
    if decoded.role != "user" or message.get("role", "user") in INSTRUCTS:
        raise ShapeError("Expected a message of the user's.", "role")
    return codecs.served_message(message, shape, msgspec.json.encode(message).decode())


def with_system(messages: Sequence[Any], system: Any) -> list[Any]:
    """Return messages behind a system prompt, for a shape in which it is one of them."""
    text = _join_texts(spoken(block) for block in blocks(system or ""))
    return [*([{"role": "system", "content": text}] if text else []), *messages]


def system_apart(view: View, system: Any) -> tuple[View, Any]:
    """Return a view without the instructions it begins with, and a system prompt that ends with them."""
    count = next((at for at, message in enumerate(view) if not _instructs(message)), len(view))
    text = _join_texts(str(block.get("text") or "") for message in view[:count] for block in blocks(message.content))
    if not text:
        return view, system
    if isinstance(system, list):
        return view[count:], [*system, {"type": "text", "text": text}]
    return view[count:], _join_texts([system or "", text])


def _instructs(message: ViewMessage) -> bool:
    return all(block.get("type") == INSTRUCTION for block in blocks(message.content))


def _join_texts(texts: Iterable[str | None]) -> str:
    return "\n\n".join(text for text in texts if text and text.strip())
