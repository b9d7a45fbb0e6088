"""What a client reads of a view in a shape, and what the API of that shape would refuse of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from compaction.shapes import codecs
from tests.support import messages_api
from tests.support.shapes import chat_api, responses_api
from tests.support.shapes.generated import ids_after_reasoning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compaction.shapes.inner import SentMessage, Shape
    from compaction.view import View
    from tests.support.shapes.generated import Message


def served(shape: Shape, view: View, sent: Mapping[int, SentMessage]) -> tuple[list[Message], list[int]]:
    """Return what a client reads, and the seqs that the warnings name."""
    encoded = codecs.encode(shape, view, sent)
    seqs = [seq for each in encoded.left_out for seq in each.seqs]
    return json.loads(msgspec.json.encode(encoded.messages)), seqs


def problems(shape: Shape, messages: list[Message], sent: Sequence[Message] = ()) -> list[Any]:
    """Return what the API of a shape would refuse of these messages."""
    if shape == "chat":
        return chat_api.problems(messages)
    if shape == "responses":
        return responses_api.problems(messages, after_reasoning=ids_after_reasoning(list(sent)))
    return messages_api.problems(messages)
