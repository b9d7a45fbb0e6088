"""Messages of every shape: as a file has them and they are posted, beside what every step works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cli.client.types import Message
from compaction.shapes import codecs
from compaction.shapes.inner import ShapeError
from compaction.tokens import json_text
from compaction.view import ViewMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compaction.shapes.inner import Path, Shape


def sent_message(sent: msgspec.Raw, shape: Shape) -> Message:
    """Return a message of another shape than the Messages API's. Raises ShapeError."""
    value = msgspec.json.decode(sent)
    if not isinstance(value, dict):
        raise ShapeError("an object is expected")
    decoded = codecs.served_message(value, shape, "").decoded
    return Message(decoded.role, msgspec.Raw(json_text(decoded.content).encode()), sent)


def in_shape(messages: Iterable[Message], shape: Shape) -> list[Message]:
    """Return messages of the Messages API's shape in another one."""
    if shape == "messages":
        return list(messages)
    view = [ViewMessage(each.role, msgspec.json.decode(each.content)) for each in messages]
    encoded = codecs.encode(shape, view, {}).messages
    return [sent_message(msgspec.Raw(msgspec.json.encode(each)), shape) for each in encoded]


def json_path(path: Path) -> str:
    """Return the way to a field as JSONPath has it, without the root."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
